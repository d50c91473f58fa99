"""`lgq bench`: measure this machine."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from lgq.bench import encode, evaluate, quantizers, tables, train
from lgq.cli.console import ERRORS, tracked

Json = Annotated[bool, tyro.conf.arg(name="json")]


@dataclass(frozen=True, kw_only=True)
class BenchQuantizers:
    """Time and memory of every quantizer's training step, beside the plain formula and a peer."""

    settings: Annotated[quantizers.QuantizerBenchmark, tyro.conf.arg(name="")] = field(
        default_factory=quantizers.QuantizerBenchmark
    )
    as_json: Json = False
    """Print one JSON object; the table then goes to the error output."""

    def run(self) -> int:
        rows = tracked(quantizers.run(self.settings), len(quantizers.plan(self.settings)), "measuring")
        return _show(rows, tables.of_quantizers, self.settings, self.as_json)


@dataclass(frozen=True, kw_only=True)
class BenchEncode:
    """Nearest-code search beside faiss's exact flat index."""

    settings: Annotated[encode.EncodeBenchmark, tyro.conf.arg(name="")] = field(
        default_factory=encode.EncodeBenchmark
    )
    as_json: Json = False
    """Print one JSON object; the table then goes to the error output."""

    def run(self) -> int:
        rows = tracked(encode.run(self.settings), len(self.settings.sizes), "searching")
        return _show(rows, tables.of_encoding, self.settings, self.as_json)


@dataclass(frozen=True, kw_only=True)
class BenchTrain:
    """Images a second of a training step, beside the plain model, and where its time goes."""

    settings: Annotated[train.TrainBenchmark, tyro.conf.arg(name="")] = field(
        default_factory=train.TrainBenchmark
    )
    as_json: Json = False
    """Print one JSON object; the table then goes to the error output."""

    def run(self) -> int:
        rows = tracked(train.run(self.settings), train.CONTESTANTS, "training")
        return _show(rows, tables.of_training, self.settings, self.as_json)


@dataclass(frozen=True, kw_only=True)
class BenchEvaluate:
    """An evaluation beside the network passes that it needs; the Fréchet distance beside scipy's."""

    settings: Annotated[evaluate.EvaluateBenchmark, tyro.conf.arg(name="")] = field(
        default_factory=evaluate.EvaluateBenchmark
    )
    as_json: Json = False
    """Print one JSON object; the table then goes to the error output."""

    def run(self) -> int:
        rows = tracked(evaluate.run(self.settings), len(evaluate.plan()), "evaluating")
        return _show(rows, tables.of_evaluation, self.settings, self.as_json)


@dataclass(frozen=True)
class Bench:
    """Measure this machine: ratios taken in one run."""

    what: Annotated[
        Annotated[BenchQuantizers, tyro.conf.subcommand("quantizers")]
        | Annotated[BenchEncode, tyro.conf.subcommand("encode")]
        | Annotated[BenchTrain, tyro.conf.subcommand("train")]
        | Annotated[BenchEvaluate, tyro.conf.subcommand("evaluate")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> int:
        return self.what.run()


def _show(rows: list[Any], as_table: Callable[[list[Any]], Table], settings: Any, as_json: bool) -> int:
    console = ERRORS if as_json else Console()
    console.print(as_table(rows))
    if as_json:
        machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        record = {"machine": machine, "settings": asdict(settings), "rows": [asdict(row) for row in rows]}
        print(json.dumps(record))
    return 0
