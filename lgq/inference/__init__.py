"""Use of trained models on files: encode, decode, reconstruct, sample, inpaint."""
