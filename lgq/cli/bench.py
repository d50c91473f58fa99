"""`lgq bench`: measure this machine."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Generic, TypeVar

import torch
import tyro
from rich.console import Console
from rich.table import Table

from lgq.bench import encode, evaluate, quantizers, sample, tables, train
from lgq.cli.console import ERRORS, tracked

Settings = TypeVar("Settings")
Json = Annotated[bool, tyro.conf.arg(name="json")]


@dataclass(frozen=True, kw_only=True)
class Benchmark(Generic[Settings]):
    """Its settings, and how its rows are shown."""

    settings: Annotated[Settings, tyro.conf.arg(name="")]
    as_json: Json = False
    """Print one JSON object; the table then goes to the error output."""

    def show(
        self, rows: Iterable[Any], total: int, doing: str, as_table: Callable[[list[Any]], Table]
    ) -> int:
        done = tracked(rows, total, doing)
        (ERRORS if self.as_json else Console()).print(as_table(done))
        if self.as_json:
            settings: Any = self.settings
            record = {"machine": _machine(), "settings": asdict(settings), "rows": list(map(asdict, done))}
            print(json.dumps(record))
        return 0


class BenchQuantizers(Benchmark[quantizers.QuantizerBenchmark]):
    """Time and memory of every quantizer's training step, beside the plain formula and a peer."""

    def run(self) -> int:
        total = len(quantizers.plan(self.settings))
        return self.show(quantizers.run(self.settings), total, "measuring", tables.quantizer_table)


class BenchEncode(Benchmark[encode.EncodeBenchmark]):
    """Nearest-code search beside faiss's exact flat index."""

    def run(self) -> int:
        total = len(encode.plan(self.settings))
        return self.show(encode.run(self.settings), total, "searching", tables.encode_table)


class BenchTrain(Benchmark[train.TrainBenchmark]):
    """Images a second of a training step, beside the plain model, and where its time goes."""

    def run(self) -> int:
        return self.show(
            train.run(self.settings), len(train.plan(self.settings)), "training", tables.train_table
        )


class BenchEvaluate(Benchmark[evaluate.EvaluateBenchmark]):
    """An evaluation beside the network passes that it needs; the Fréchet distance beside scipy's."""

    def run(self) -> int:
        total = len(evaluate.plan(self.settings))
        return self.show(evaluate.run(self.settings), total, "evaluating", tables.evaluate_table)


class BenchSample(Benchmark[sample.SampleBenchmark]):
    """Drawing images beside the network passes that it needs, and where its time goes."""

    def run(self) -> int:
        total = len(sample.plan(self.settings))
        return self.show(sample.run(self.settings), total, "drawing", tables.sample_table)


def _machine() -> dict[str, Any]:
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}
