"""The command line: each command parses, calls one library function and prints."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Protocol

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lgq.bench import encode, quantizers, tables

_ERRORS = Console(stderr=True)

Json = Annotated[bool, tyro.conf.arg(name="json")]


class Command(Protocol):
    def run(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class BenchQuantizers:
    """Time and memory of every quantizer's training step, beside the plain formula and a peer."""

    settings: Annotated[quantizers.QuantizerBenchmark, tyro.conf.arg(name="")] = field(
        default_factory=quantizers.QuantizerBenchmark
    )
    as_json: Json = False
    """Print one JSON object; the table then goes to the error output."""

    def run(self) -> None:
        rows = _with_progress(quantizers.run(self.settings), len(quantizers.plan(self.settings)), "measuring")
        _show(rows, tables.of_quantizers, self.settings, self.as_json)


@dataclass(frozen=True, kw_only=True)
class BenchEncode:
    """Nearest-code search beside faiss's exact flat index."""

    settings: Annotated[encode.EncodeBenchmark, tyro.conf.arg(name="")] = field(
        default_factory=encode.EncodeBenchmark
    )
    as_json: Json = False
    """Print one JSON object; the table then goes to the error output."""

    def run(self) -> None:
        rows = _with_progress(encode.run(self.settings), len(self.settings.sizes), "searching")
        _show(rows, tables.of_encoding, self.settings, self.as_json)


@dataclass(frozen=True)
class Bench:
    """Measure this machine: ratios taken in one run."""

    what: Annotated[
        Annotated[BenchQuantizers, tyro.conf.subcommand("quantizers")]
        | Annotated[BenchEncode, tyro.conf.subcommand("encode")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        self.what.run()


COMMANDS: dict[str, Callable[..., Command]] = {"bench": Bench}


def main(arguments: list[str] | None = None) -> None:
    """Exit code 0, or 2 with one line about a user's mistake."""
    command: Command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="lgq",
        description="Discrete image tokenizers: LGQ and its baselines.",
        args=arguments,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    try:
        command.run()
    except ValueError as mistake:
        _ERRORS.print(f"lgq: {mistake}", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)


def _with_progress(rows: Iterable[Any], total: int, doing: str) -> list[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done: list[Any] = []
    try:
        with Progress(*columns, console=_ERRORS, transient=True) as progress:
            done.extend(progress.track(rows, total=total, description=doing))
    except KeyboardInterrupt:
        _ERRORS.print(f"lgq: stopped after {len(done)} of {total} rows.")
    return done


def _show(rows: list[Any], as_table: Callable[[list[Any]], Table], settings: Any, as_json: bool) -> None:
    console = _ERRORS if as_json else Console()
    console.print(as_table(rows))
    if not as_json:
        return
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    record = {"machine": machine, "settings": asdict(settings), "rows": [asdict(row) for row in rows]}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
