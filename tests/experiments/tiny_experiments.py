"""Experiments of seconds: cheap judges, small pictures of two classes, and what a results directory holds."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cheap_inception import FEATURES, CheapInception
from PIL import Image

from lgq.data import FolderDataset
from lgq.experiments import SCALES, Experiment, named_experiment
from lgq.experiments.plan import Sources
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.runner import Ending, run_experiment
from lgq.experiments.tasks import CostTask
from lgq.experiments.workplace import Crew, Drawable
from lgq.metrics.metric_networks import MetricNetworks

PNG = b"a picture"
NO_BOARD = SimpleNamespace(add_scalar=lambda *_: None, flush=lambda: None, close=lambda: None)
NO_TENSORBOARD = SimpleNamespace(SummaryWriter=lambda *_, **__: NO_BOARD)
UNLIKE = ("seconds", "environment", "command")
"""Of a record: what differs between machines and calls."""


def draw(drawable: Drawable) -> dict[str, bytes]:
    assert drawable.evaluation.scores
    return {"usage": PNG + str(drawable.study.usage.tokens).encode()}


def measure_cost(task: CostTask) -> list[dict[str, Any]]:
    ours = {"quantizer": task.quantizer, "implementation": "ours", "ms": 2.0, "extra_bytes": 64}
    return [ours, ours | {"implementation": "dense", "ms": None}]


CREW = Crew(draw=draw, measure_cost=measure_cost)


def paint(folder: Path) -> Path:
    """Twelve pictures to train on and eight to validate on, of two classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 8)):
        for i in range(count):
            place = folder / split / ("cat", "dog")[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
            coarse.resize((20, 18)).save(place / f"{i}.png")
    return folder


def sources_of(images: Path) -> Sources:
    data, validation = FolderDataset(images / "train"), FolderDataset(images / "val")
    return Sources(data=data, validation=validation, named=("train", "val"), shown=validation, shown_as="val")


@contextmanager
def cheap_judges() -> Iterator[None]:
    network = CheapInception()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)
        for place in ("quality", "generation", "reference"):
            patch.setattr(f"lgq.metrics.{place}.FEATURES", FEATURES)
        judges = MetricNetworks(None, network, {"lpips": "too slow for tests", "inception_score": "likewise"})
        for name in ("judges_at_hand", "judges_of_generation"):
            patch.setattr(f"lgq.experiments.workplace.{name}", lambda device: judges)
        yield


def experiment(name: str | Experiment, images: Path, out: Path, **options: Any) -> Ending:
    asked = named_experiment(name) if isinstance(name, str) else name
    scale = SCALES["smoke"]()
    with cheap_judges():
        return run_experiment(asked, scale, sources_of(images), out, **({"crew": CREW} | options))


def finished(out: Path) -> dict[str, Any]:
    """Records and pictures, without what differs between calls."""
    results = ResultsDirectory(out)
    records = {
        id: {name: value for name, value in record.items() if name not in UNLIKE}
        for id, record in results.records().items()
    }
    plain = json.loads(json.dumps(records).replace(str(out), "RESULTS"))
    pictures = {path.relative_to(out): path.read_bytes() for path in out.glob("pictures/**/*.png")}
    return {"records": plain, "pictures": pictures, "plans": results.plans()}
