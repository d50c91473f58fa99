"""`lgq train`, `lgq train-generator` and `lgq demo`: commands that train."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from lgq.cli.console import key_values, say, show
from lgq.config import to_json
from lgq.data import PipeDataset, open_dataset
from lgq.errors import LGQError
from lgq.files import json_bytes
from lgq.runs import named_generator, named_run
from lgq.training.run_directory import Resume
from lgq.training.settings import GeneratorRun, LoopSettings, Outcome, TokenizerRun, TrainingRun

# `--steps` and `--checkpoint-every`, not `--loop.steps`: every run has them.
tyro.conf.configure(tyro.conf.OmitArgPrefixes)(LoopSettings)

_ENDINGS = {
    "finished": "all {step:,} steps are done",
    "interrupted": "stopped after step {step:,} and saved; the same command continues",
    "out_of_time": "the time is up after step {step:,}",
    "no_improvement": "stopped after step {step:,}, as validations no longer improve",
}


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a tokenizer into a run directory; the same command continues a run that was stopped.

    NAME is a scale (pocket, imagenet256) and a quantizer: pocket-lgq, imagenet256-fsq, ... Its settings are
    the defaults of the options.
    """

    example: ClassVar[str] = "pocket-lgq"

    data: str
    """Images to train on: a folder, a shard pattern such as train-{000..005}.tar, a stream of such shards
    such as 'pipe:curl -s URL/train-{000..127}.tar', or `sample`."""
    out: Path
    """The run directory."""
    val_data: str | None = None
    """Images to validate on, not a stream; by default the centre crops of the training images."""
    resume: Resume = "auto"
    """Continue the run in the directory, if any (auto), refuse a directory with a run (never), or require one
    (must)."""
    dry_run: bool = False
    """Print the resolved run, its parameters and an estimate of its memory, and train nothing."""
    settings: Annotated[TokenizerRun, tyro.conf.arg(name="")]

    @staticmethod
    def named(name: str) -> TokenizerRun:
        return named_run(name)

    def run(self) -> int:
        from lgq.training.networks import require_possible
        from lgq.training.tokenizer_trainer import train_tokenizer

        data = open_dataset(self.data)
        validation = None if self.val_data is None else open_dataset(self.val_data)
        require_possible(self.settings)
        if self.dry_run and isinstance(data, PipeDataset):
            raise LGQError(
                f"a dry run needs the number of images, unknown for {data!r}: train without --dry-run."
            )
        if self.dry_run:
            from lgq.training.footprint import footprint

            return _show_plan(self.settings.for_data(len(data)), len(data), footprint)
        return _ended(train_tokenizer(self.settings, data, validation, self.out, self.resume), self.out)


@dataclass(frozen=True, kw_only=True)
class TrainGenerator:
    """Train a MaskGIT on the tokens of `lgq encode`; the same command continues a run that was stopped.

    NAME is a scale: pocket or imagenet256. Its settings are the defaults of the options.
    """

    example: ClassVar[str] = "pocket"

    tokens: Path
    """Directory of the tokens to train on."""
    out: Path
    """The run directory."""
    val_tokens: Path | None = None
    """Directory of tokens to validate on; by default some of the training tokens."""
    tokenizer: str | None = None
    """The tokenizer that made the tokens, where their directory has no copy of it: a run directory, or
    whatever `encode` was given."""
    resume: Resume = "auto"
    """Continue the run in the directory, if any (auto), refuse a directory with a run (never), or require one
    (must)."""
    dry_run: bool = False
    """Print the resolved run, its parameters and an estimate of its memory, and train nothing."""
    settings: Annotated[GeneratorRun, tyro.conf.arg(name="")]

    @staticmethod
    def named(name: str) -> GeneratorRun:
        return named_generator(name)

    def run(self) -> int:
        from lgq.data.tokens import TokenDataset
        from lgq.inference.encode import tokenizer_of
        from lgq.tokenizer import load_tokenizer
        from lgq.training.generator_trainer import require_fit, train_generator

        tokens = TokenDataset(self.tokens)
        validation = None if self.val_tokens is None else TokenDataset(self.val_tokens)
        tokenizer = tokenizer_of(tokens) if self.tokenizer is None else load_tokenizer(self.tokenizer)
        require_fit(tokens, validation, tokenizer)
        if self.dry_run:
            from lgq.training.footprint import generator_footprint

            needs = partial(generator_footprint, tokens=tokens, tokenizer=tokenizer)
            return _show_plan(self.settings.for_data(len(tokens)), len(tokens), needs)
        outcome = train_generator(self.settings, tokens, validation, tokenizer, self.out, self.resume)
        return _ended(outcome, self.out)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Train a small tokenizer and generator on photographs that come with lgq, and draw what they do.

    Takes three to four minutes on two CPU cores, and no network. The same command continues after Ctrl-C.
    """

    out: Path = Path("demo")
    """Directory for the runs and the pictures."""

    def run(self) -> int:
        from lgq.demo import run_demo  # imports matplotlib

        result = run_demo(self.out)
        if not result.values:
            return _ended(result.outcome, self.out)
        show(key_values(dict(result.rows())))
        for picture in result.pictures:
            show(f"{picture.path}\n    {picture.caption}")
        say(f"done in {result.seconds / 60:.1f} minutes: {self.out}")
        return 0


def _ended(outcome: Outcome, out: Path) -> int:
    """Say how a training ended; returns its exit code."""
    best = "" if outcome.best is None else f"; best score {outcome.best:.4g} at step {outcome.best_step:,}"
    say(f"{_ENDINGS[outcome.reason].format(step=outcome.step)}{best}: {out}")
    return outcome.exit_code


def _show_plan(run: TrainingRun, images: int, footprint_of: Callable[[Any], Any]) -> int:
    """Print the resolved run, its parameters and an estimate of its memory; returns exit code 0."""
    print(json_bytes(to_json(run), indent=2).decode())
    needs = footprint_of(run)
    epochs = run.loop.steps * run.batch_size * run.accumulate / images
    rows = {"images": f"{images:,}, seen {epochs:.1f} times by one process"}
    rows |= {f"parameters, {part}": f"{count:,}" for part, count in needs.parameters.items()}
    rows |= {f"memory, {part}": f"{size / 1e6:,.0f} MB" for part, size in needs.bytes.items()}
    rows |= {"memory, in all": f"{sum(needs.bytes.values()) / 1e6:,.0f} MB per process"}
    show(key_values(rows))
    return 0
