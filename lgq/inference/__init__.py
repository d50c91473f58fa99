"""Use of trained models on files: encode, decode, reconstruct, sample, inpaint.

Every function takes a loaded model, or what `load_tokenizer` and `load_generator` take.
"""

from pathlib import Path

from lgq.distributed import join_processes
from lgq.hub import WeightsChoice
from lgq.maskgit import MaskGIT, load_generator
from lgq.tokenizer import Tokenizer, load_tokenizer

TokenizerSource = Tokenizer | str | Path
GeneratorSource = MaskGIT | str | Path


def tokenizer_on_device(source: TokenizerSource, weights: WeightsChoice = "best") -> Tokenizer:
    """Load a tokenizer onto the device of this process; a loaded one stays where it is."""
    device = join_processes()
    return source if isinstance(source, Tokenizer) else load_tokenizer(source, weights).to(device)


def generator_on_device(source: GeneratorSource, weights: WeightsChoice = "best") -> MaskGIT:
    """Load a generator onto the device of this process; a loaded one stays where it is."""
    device = join_processes()
    return source if isinstance(source, MaskGIT) else load_generator(source, weights).to(device)
