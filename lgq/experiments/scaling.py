"""LGQ against IBQ over codebook sizes at matched steps (LGQ paper, tab:ibq-kscale)."""

from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    return [
        Row(row=f"{name}-k{size}", label=LABELS[name], group=f"K = {size:,}", task=scale.row(name, size))
        for size in scale.matched_sizes
        for name in ("ibq", "lgq")
    ]


EXPERIMENT = Experiment(
    name="scaling",
    title="LGQ against IBQ over codebook sizes",
    paper="tab:ibq-kscale",
    about="Runs of the sweep. Both have the same number of steps, so their validations meet at the same "
    "steps: the paper reads its values there.",
    rows=rows,
)
