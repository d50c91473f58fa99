"""What all trainings have in common, around the loop: sources, means, averages, pictures."""

from collections.abc import Sized
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lgq.files import make_directory, replace_file
from lgq.training.directory import disk_errors_named
from lgq.training.ema import WeightAverage

IMAGES = "images"


def describe_data(dataset: Sized) -> dict[str, Any]:
    """What config.json says of a data set."""
    return {"source": repr(dataset), "images": len(dataset)}


def mean_terms(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Of the batches of one step, term by term."""
    return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}


def averaged(model: nn.Module, average: WeightAverage | None) -> AbstractContextManager[None]:
    """Within, the model has its averaged weights, if there is an average."""
    return nullcontext() if average is None else average.applied_to(model)


def save_picture(run: Path, step: int, png: bytes) -> None:
    """Into the images of a run directory, by the step."""
    with disk_errors_named(run):
        make_directory(run / IMAGES)
        replace_file(run / IMAGES / f"step-{step:06d}.png", png)
