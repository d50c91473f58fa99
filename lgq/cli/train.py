"""`lgq train` and `lgq train-generator`: named runs, any field of which an option may change."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from lgq.cli.named import Family, report_ending, show_plan
from lgq.data import PipeDataset, open_dataset
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError
from lgq.inference.encode import tokenizer_of
from lgq.runs import GENERATORS, named_generator, named_run, tokenizer_names
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.footprint import footprint, generator_footprint
from lgq.training.generator_trainer import require_fit, train_generator
from lgq.training.networks import require_possible
from lgq.training.run_directory import Resume
from lgq.training.settings import GeneratorRun, TokenizerRun
from lgq.training.tokenizer_trainer import train_tokenizer

Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a tokenizer into a run directory; the same command continues a run that was stopped."""

    name: Name
    """A scale (pocket, imagenet256, smoke) and a quantizer: pocket-lgq, imagenet256-fsq, ..."""
    data: str
    """Images to train on: a folder, a shard pattern such as train-{000..005}.tar, a stream of such shards,
    'pipe:curl -s URL/train-{000..127}.tar', or `sample`."""
    out: Path
    """The run directory."""
    val_data: str | None = None
    """Images to validate on, no stream; without, the middle of the training images."""
    resume: Resume = "auto"
    """Continue what is in the run directory (auto), refuse to (never), or insist on it (must)."""
    dry_run: bool = False
    """Print the resolved run, its parameters and an estimate of its memory, and train nothing."""
    settings: Annotated[TokenizerRun, tyro.conf.arg(name="")]

    def run(self) -> int:
        data = open_dataset(self.data)
        validation = None if self.val_data is None else open_dataset(self.val_data)
        require_possible(self.settings)
        if self.dry_run and isinstance(data, PipeDataset):
            raise LGQError(
                f"a dry run counts the images, which {data!r} does not tell: train without --dry-run."
            )
        if self.dry_run:
            return show_plan(self.settings, len(data), footprint)
        outcome = train_tokenizer(self.settings, data, validation, self.out, self.resume)
        return report_ending(outcome, self.out)


@dataclass(frozen=True, kw_only=True)
class TrainGenerator:
    """Train a MaskGIT on the tokens of `lgq encode`; the same command continues a run that was stopped."""

    name: Name
    """The scale: pocket, imagenet256 or smoke."""
    tokens: Path
    """Directory of tokens to train on."""
    out: Path
    """The run directory."""
    val_tokens: Path | None = None
    """Tokens to validate on; without, some of the training tokens."""
    tokenizer: str | None = None
    """The tokenizer that made the tokens, where their directory has no copy of it: a run directory, or
    what `encode` was given."""
    resume: Resume = "auto"
    """Continue what is in the run directory (auto), refuse to (never), or insist on it (must)."""
    dry_run: bool = False
    """Print the resolved run, its parameters and an estimate of its memory, and train nothing."""
    settings: Annotated[GeneratorRun, tyro.conf.arg(name="")]

    def run(self) -> int:
        tokens = TokenDataset(self.tokens)
        validation = None if self.val_tokens is None else TokenDataset(self.val_tokens)
        tokenizer = self._tokenizer(tokens)
        require_fit(tokens, validation, tokenizer)
        if self.dry_run:
            return show_plan(
                self.settings, len(tokens), partial(generator_footprint, tokens=tokens, tokenizer=tokenizer)
            )
        outcome = train_generator(self.settings, tokens, validation, tokenizer, self.out, self.resume)
        return report_ending(outcome, self.out)

    def _tokenizer(self, tokens: TokenDataset) -> Tokenizer:
        return tokenizer_of(tokens) if self.tokenizer is None else load_tokenizer(self.tokenizer)


FAMILIES = {
    "train": Family(Train, tokenizer_names(), named_run),
    "train-generator": Family(TrainGenerator, tuple(GENERATORS), named_generator),
}
"""Commands whose defaults a named run decides."""
