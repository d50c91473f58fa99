"""`lgq train`, `lgq train-generator` and `lgq demo`: commands that train."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from lgq.cli.console import key_values, say, show
from lgq.cli.options import Computes
from lgq.config import to_json
from lgq.files import json_bytes
from lgq.runs import (
    NamedRun,
    generator_names,
    named_generator,
    named_generators,
    named_run,
    named_tokenizers,
    read_run,
    tokenizer_names,
    with_file,
)
from lgq.training.loop import Outcome
from lgq.training.run_directory import Resume, notice_run
from lgq.training.settings import GeneratorRun, TokenizerRun

_ENDINGS = {
    "finished": "all {step:,} steps are done",
    "interrupted": "stopped after step {step:,} and saved; the same command continues",
    "out_of_time": "the time is up after step {step:,}",
    "no_improvement": "stopped after step {step:,}, as validations no longer improve",
}
_NEXT_STEPS = """
Next (after `make demo`, lgq is .venv/bin/lgq):
  lgq view
      Look at a tokenizer of photographs in the browser, and edit its tokens.
  lgq view {out}/run
      Look at the tokenizer that you have just trained.
  lgq sample {out}/generator --out more.png --seed 1
      Draw other images.
  lgq reconstruct {out}/run YOUR.jpg --out pictures
      See an image of yours through the tokenizer.
  lgq train pocket-lgq --data YOUR_FOLDER --out runs/mine
      Train a larger tokenizer on images of yours."""


@dataclass(frozen=True, kw_only=True)
class Train(Computes):
    """Train a tokenizer into a run directory; the same command continues a run that was stopped.

    NAME is a scale (pocket, photo, imagenet256) and a quantizer: pocket-lgq, imagenet256-fsq, ...; `lgq runs`
    lists them. Its settings are the defaults of the options. More --steps extend a run.
    """

    example: ClassVar[str] = "pocket-lgq"

    data: str
    """Images to train on: a folder, a shard pattern such as train-{000..005}.tar, a stream of such shards
    such as 'pipe:curl -s URL/train-{000..127}.tar', or `sample`."""
    out: Path
    """The run directory."""
    val_data: str | None = None
    """Images to validate on, not a stream; by default the centre crops of the training images."""
    start_from: str | None = None
    """Begin a new run with the weights of a tokenizer: a run directory, a directory that save_pretrained
    wrote, photo-f8, or owner/name on the Hub. With another quantizer or fewer codes, its encoder and
    decoder; with more codes, these and copies of its codes."""
    resume: Resume = "auto"
    """Continue the run in the directory, if any (auto), refuse a directory with a run (never), or require one
    (must)."""
    config: Path | None = None
    """Settings file (JSON, or TOML) whose fields replace those of NAME, which a whole file does without: what
    --dry-run prints, or config.json of a run directory. Options replace its fields."""
    dry_run: bool = False
    """Print the resolved run as a settings file for --config, say what memory it needs, and train nothing."""
    settings: Annotated[TokenizerRun, tyro.conf.arg(name="")]

    names = staticmethod(tokenizer_names)

    @classmethod
    def named(cls, name: str | None, file: str | None, changes: Mapping[str, Any]) -> TokenizerRun:
        if name is None and file is not None:
            return read_run(TokenizerRun, file)
        return with_file(named_run(name or cls.example), file, changes)

    def run(self) -> int:
        if self.dry_run:
            from lgq.training.footprint import tokenizer_footprint

            options: Any = {"start_from": self.start_from, "out": self.out, "device": self.device}
            return _show(tokenizer_footprint(self.settings, self.data, **options), self.out)
        from lgq.training.tokenizer_trainer import train

        sources: Any = {"val_data": self.val_data, "start_from": self.start_from}
        outcome = train(self.settings, self.data, self.out, **sources, resume=self.resume, device=self.device)
        return _ended(outcome, self.out)


@dataclass(frozen=True, kw_only=True)
class TrainGenerator(Computes):
    """Train a MaskGIT on the tokens of `lgq encode`; the same command continues a run that was stopped.

    NAME is a scale: pocket or imagenet256. Its settings are the defaults of the options. More --steps extend
    a run.
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
    start_from: str | None = None
    """Begin a new run with the weights of a generator: a run directory, a directory that save_pretrained
    wrote, or owner/name on the Hugging Face Hub."""
    resume: Resume = "auto"
    """Continue the run in the directory, if any (auto), refuse a directory with a run (never), or require one
    (must)."""
    config: Path | None = None
    """Settings file (JSON, or TOML) whose fields replace those of NAME, which a whole file does without: what
    --dry-run prints, or config.json of a run directory. Options replace its fields."""
    dry_run: bool = False
    """Print the resolved run as a settings file for --config, say what memory it needs, and train nothing."""
    settings: Annotated[GeneratorRun, tyro.conf.arg(name="")]

    names = staticmethod(generator_names)

    @classmethod
    def named(cls, name: str | None, file: str | None, changes: Mapping[str, Any]) -> GeneratorRun:
        if name is None and file is not None:
            return read_run(GeneratorRun, file)
        return with_file(named_generator(name or cls.example), file, changes)

    def run(self) -> int:
        options: Any = {"val_tokens": self.val_tokens, "tokenizer": self.tokenizer}
        options |= {"start_from": self.start_from, "device": self.device}
        if self.dry_run:
            from lgq.training.footprint import generator_footprint

            return _show(generator_footprint(self.settings, self.tokens, **options), self.out)
        from lgq.training.generator_trainer import train_generator

        outcome = train_generator(self.settings, self.tokens, self.out, **options, resume=self.resume)
        return _ended(outcome, self.out)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """List the named runs: quantizer, images, tokens, codes, steps, and on what hardware each is for."""

    def run(self) -> int:
        show("tokenizers, for lgq train NAME")
        show(_table("quantizer", named_tokenizers()))
        show("\ngenerators on the tokens of those tokenizers, for lgq train-generator NAME")
        show(_table("generator", named_generators()))
        return 0


@dataclass(frozen=True, kw_only=True)
class Demo(Computes):
    """Train a small tokenizer and generator on photographs that come with lgq, and draw what they do.

    Takes three to four minutes on two CPU cores, and no network. The same command continues after Ctrl-C.
    """

    out: Path = Path("demo")
    """Directory for the runs and the pictures."""

    def run(self) -> int:
        from lgq.demo import run_demo  # imports matplotlib

        result = run_demo(self.out, device=self.device)
        if not result.values:
            return _ended(result.outcome, self.out)
        show("\n".join(["", *result.sentences(), "", f"After {result.seconds / 60:.1f} minutes, pictures:"]))
        for picture in result.pictures:
            show(f"  {picture.path}\n      {picture.caption}")
        show(_NEXT_STEPS.format(out=self.out))
        return 0


def _table(method: str, runs: list[NamedRun]) -> str:
    """Return a line per run, with columns of equal width, below what the runs of a scale are for."""
    rows = [("name", method, "pixels", "tokens", "codes", "steps")]
    rows += [
        (
            run.name,
            run.method,
            f"{run.image_size} x {run.image_size}",
            f"{run.side} x {run.side}",
            f"{run.codes:,}",
            f"{run.steps:,}",
        )
        for run in runs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *lines = (f"  {'  '.join(map(str.ljust, row, widths)).rstrip()}" for row in rows)
    shown, purpose = [head], ""
    for run, line in zip(runs, lines, strict=True):
        shown += [line] if run.purpose == purpose else [run.purpose, line]
        purpose = run.purpose
    return "\n".join(shown)


def _ended(outcome: Outcome, out: Path) -> int:
    """Say how a training ended; returns its exit code."""
    best = ""
    if outcome.best is not None:
        best = f"; best {outcome.best_by} {outcome.best:.4g} at step {outcome.best_step:,}"
    say(f"{_ENDINGS[outcome.reason].format(step=outcome.step)}{best}: {out}")
    return outcome.exit_code


def _show(footprint: Any, out: Path) -> int:
    """Print the resolved run, and say its parameters and an estimate of its memory; returns exit code 0.

    out: directory whose run, if it holds one, is said too.
    """
    # Alone on the output, so that it can go to a file.
    print(json_bytes(to_json(footprint.run), indent=2).decode(), end="")
    rows = {"images": f"{footprint.images:,}, seen {footprint.epochs:.1f} times by one process"}
    rows |= {f"parameters, {part}": f"{count:,}" for part, count in footprint.parameters.items()}
    rows |= {f"memory, {part}": f"{size / 1e6:,.0f} MB" for part, size in footprint.bytes.items()}
    rows |= {"memory, in all": f"{sum(footprint.bytes.values()) / 1e6:,.0f} MB per process"}
    show(key_values(rows), on_errors=True)
    notice_run(out, to_json(footprint.run))
    return 0
