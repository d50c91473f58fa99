"""Every table of the LGQ paper (Altun et al. 2026) as a list of runs, and three tables of our own."""

import difflib

from lgq.errors import LGQError
from lgq.experiments import (
    beyond,
    codebook_size,
    comparison,
    cost,
    generation,
    geometry,
    logits,
    regularizers,
    scaling,
    search,
    seeds,
    temperature,
)
from lgq.experiments.plan import Experiment
from lgq.experiments.scales import SCALES, Scale

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Scale", "named_experiment"]

_ALL = (
    comparison, codebook_size, logits, geometry, generation, regularizers, temperature, cost, scaling, seeds,
    search, beyond,
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _ALL}
"""By name, in the paper's order."""


def named_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        close = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(EXPERIMENTS)}."
        raise LGQError(f"unknown experiment {name!r}: {hint}")
    return EXPERIMENTS[name]
