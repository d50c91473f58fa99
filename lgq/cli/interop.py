"""`lgq import`: published checkpoints of other libraries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lgq.cli.console import say
from lgq.interop.checkpoints import Family, import_tokenizer


@dataclass(frozen=True, kw_only=True)
class Import:
    """Make a tokenizer, for every other command, of a published checkpoint of another library."""

    family: Annotated[tyro.conf.Positional[Family], tyro.conf.arg(metavar="FAMILY")]
    """Library of the checkpoint: taming (VQGAN), llamagen, ibq, diffusers (VQModel) or magvit2 (LFQ)."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """Weights in safetensors, or a directory of diffusers with config.json and weights."""
    out: Path
    """New directory for the tokenizer."""

    def run(self) -> int:
        tokenizer = import_tokenizer(self.file, self.family, out=self.out)
        codes, factor = tokenizer.codebook_size, tokenizer.factor
        say(f"a tokenizer of {codes:,} codes, one token per {factor} x {factor} pixels: {self.out}")
        return 0
