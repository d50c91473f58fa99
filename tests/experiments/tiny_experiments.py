"""Experiments that take seconds: a cheap Inception, small pictures, no drawing and no timing."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cheap_inception import FEATURES, CheapInception
from leftovers import NO_TENSORBOARD
from PIL import Image

from lgq.data import FolderDataset
from lgq.data.recordings import Recordings
from lgq.experiments.plan import Experiment, Sources, plan_rows
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.runner import ExperimentOutcome, run_planned
from lgq.experiments.scales import Scale, named_scale
from lgq.experiments.speech import CLIP_SAMPLES
from lgq.experiments.tables import named_experiment
from lgq.experiments.tasks import CostTask
from lgq.metrics.metric_networks import MetricNetworks

SMOKE = named_scale("smoke")
UNLIKE = ("seconds", "environment", "command")
"""Parts of a record that differ between machines and calls."""


def fixed_cost(task: CostTask, _device: object) -> list[dict[str, Any]]:
    ours = {"quantizer": task.quantizer, "implementation": "ours", "ms": 2.0, "extra_bytes": 64}
    return [ours, ours | {"implementation": "dense", "ms": None}]


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


class Tones(Recordings):
    """Sounds of rising pitch in place of speech."""

    def __init__(self, count: int):
        pitch = torch.linspace(0.02, 0.3, count)[:, None]
        self.clips, self.fingerprint = torch.sin(pitch * torch.arange(CLIP_SAMPLES)), "tones"


def sources_of(images: Path) -> Sources:
    data, validation = FolderDataset(images / "train"), FolderDataset(images / "val")
    names = ("train", "val", "val")
    return Sources(data=data, validation=validation, shown=validation, names=names, recordings=Tones(20))


@contextmanager
def cheap_networks() -> Iterator[None]:
    """Within, metrics take a small random network, and no event files are written."""
    networks = MetricNetworks(
        None, CheapInception(), {"lpips": "too slow for tests", "inception_score": "no classifier"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)
        for module in ("quality", "generation", "reference"):
            patch.setattr(f"lgq.metrics.{module}.FEATURES", FEATURES)
        patch.setattr(MetricNetworks, "available", lambda device, **_: networks)
        yield


def run_tiny(
    table: str | Experiment,
    images: Path | Sources,
    out: Path,
    *,
    scale: Scale = SMOKE,
    draw: Any = lambda study, **_: {"usage": str(study.usage.tokens).encode()},
    **options: Any,
) -> ExperimentOutcome:
    """Run an experiment at smoke scale, without drawing and timing."""
    asked = named_experiment(table) if isinstance(table, str) else table
    sources = images if isinstance(images, Sources) else sources_of(images)
    with cheap_networks(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("lgq.experiments.records.measure_cost", fixed_cost)
        patch.setattr("lgq.experiments.records.draw_extremes", lambda *_: {})
        patch.setattr("lgq.experiments.records.draw_study", draw)
        return run_planned(plan_rows(asked, scale, sources, out, **options))


def finished(out: Path) -> dict[str, Any]:
    """Return records and pictures, without what differs between calls."""
    results = ResultsDirectory(out)
    records = {
        id: {name: value for name, value in record.items() if name not in UNLIKE}
        for id, record in results.records().items()
    }
    plain = json.loads(json.dumps(records).replace(str(out), "RESULTS"))
    pictures = {path.relative_to(out): path.read_bytes() for path in out.glob("pictures/**/*.png")}
    return {"records": plain, "pictures": pictures, "plans": results.plans()}
