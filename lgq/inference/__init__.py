"""Use of trained models on files: encode, decode, reconstruct, sample, inpaint.

Every function takes a loaded model, or what `load_tokenizer` and `load_generator` take, and `device`, the
words of `--device` (`lgq.distributed.resolve_device`). With `auto`, a loaded model stays on its device.
"""

from pathlib import Path

import torch

from lgq.distributed import join_processes
from lgq.files import WeightsChoice
from lgq.maskgit import MaskGIT, load_generator
from lgq.tokenizer import Tokenizer, load_tokenizer

TokenizerSource = Tokenizer | str | Path
GeneratorSource = MaskGIT | str | Path
Device = str | torch.device


def tokenizer_on_device(
    source: TokenizerSource, weights: WeightsChoice = "best", device: Device = "auto"
) -> Tokenizer:
    """Load a tokenizer onto the device of this process; with `auto`, a loaded one stays where it is."""
    own = join_processes(device)
    if isinstance(source, Tokenizer) and device == "auto":
        return source
    return load_tokenizer(source, weights).to(own)


def generator_on_device(
    source: GeneratorSource, weights: WeightsChoice = "best", device: Device = "auto"
) -> MaskGIT:
    """Load a generator onto the device of this process; with `auto`, a loaded one stays where it is."""
    own = join_processes(device)
    if isinstance(source, MaskGIT) and device == "auto":
        return source
    return load_generator(source, weights).to(own)
