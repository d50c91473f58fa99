"""`lgq bench` and `lgq doctor`: measure this machine.

Every time is also a ratio to something measured in the same run.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
import tyro
from rich.table import Table

from lgq.bench import encode, evaluate, quantizers, sample, tables, train
from lgq.bench.doctor import Examination, examine, processor_model
from lgq.cli.console import progress_of, say, show
from lgq.experiments.tasks import BUSY_LOAD

Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class Benchmark(Generic[Settings]):
    """Options of every benchmark."""

    settings: Annotated[Settings, tyro.conf.arg(name="")]
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the result as one JSON object; the table then goes to the error output."""

    parts: ClassVar[tuple[ModuleType, str, Callable[[list[Any]], Table]]]
    """Module of the benchmark, what it does, and the table of its rows."""

    def run(self) -> int:
        """Measure the rows and print them; after Ctrl-C, those that are done."""
        bench, doing, as_table = self.parts
        rows: list[Any] = []
        total, machine = len(bench.plan(self.settings)), _machine()
        try:
            with progress_of(doing) as report:
                report(0, total)
                for row in bench.run(self.settings):
                    rows.append(row)
                    report(len(rows), total)
        except KeyboardInterrupt:
            say(f"stopped after {len(rows)} of {total} rows.")
        show(as_table(rows), on_errors=self.as_json)
        if (load := machine["load_per_core"]) > BUSY_LOAD:
            show(
                f"The machine was busy, with a load of {load} per core before the first row: these times are "
                "high and uncertain; measure again when it is idle.",
                on_errors=self.as_json,
            )
        if self.as_json:
            settings: Any = self.settings
            record = {"machine": machine, "settings": asdict(settings), "rows": list(map(asdict, rows))}
            print(json.dumps(record))
        return 0


def _machine() -> dict[str, Any]:
    """Describe what the times depend on: the processor, how busy it is before the first row, and torch."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": processor_model(),
        "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
    }


class BenchQuantizers(Benchmark[quantizers.QuantizerBenchmark]):
    """Measure time and memory of each quantizer's training step, beside its dense formulas and a peer."""

    parts = (quantizers, "measuring", tables.quantizer_table)


class BenchEncode(Benchmark[encode.EncodeBenchmark]):
    """Measure the search for nearest codes, beside faiss's exact flat index."""

    parts = (encode, "searching", tables.encode_table)


class BenchTrain(Benchmark[train.TrainBenchmark]):
    """Measure images per second of a training step, beside the plain model, and the share of each part."""

    parts = (train, "training", tables.train_table)


class BenchEvaluate(Benchmark[evaluate.EvaluateBenchmark]):
    """Measure an evaluation beside the networks alone, and the Fréchet distance beside scipy's."""

    parts = (evaluate, "evaluating", tables.evaluate_table)


class BenchSample(Benchmark[sample.SampleBenchmark]):
    """Measure the drawing of images beside the networks alone, and the share of each part."""

    parts = (sample, "drawing", tables.sample_table)


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Print versions, devices, weights, disk and speed, and which kernels to choose, on one page."""

    settings: Annotated[Examination, tyro.conf.arg(name="")] = field(default_factory=Examination)

    def run(self) -> int:
        for line in examine(self.settings):
            show(line)
        return 0
