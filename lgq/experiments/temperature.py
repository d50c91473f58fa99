"""Temperature schedules of LGQ (LGQ paper, tab:abl_tau): eight rows."""

from lgq.experiments.plan import Experiment, Row
from lgq.experiments.scales import Scale

SCHEDULES = (
    (1.0, 0.1, "linear"),
    (0.5, 0.1, "linear"),
    (2.0, 0.1, "linear"),
    (1.0, 0.05, "linear"),
    (1.0, 0.3, "linear"),
    (1.0, 0.1, "cosine"),
    (1.0, 1.0, "constant"),
    (0.1, 0.1, "constant"),
)
"""Start, end and shape; the first row is the default."""


def rows(scale: Scale) -> list[Row]:
    return [
        Row(
            row=f"tau-{start:g}-{end:g}-{shape}",
            label=f"{start:g} to {end:g}, {shape}",
            task=scale.ablated(tau_start=start, tau_end=end, tau_shape=shape),
        )
        for start, end, shape in SCHEDULES
    ]


EXPERIMENT = Experiment(
    name="temperature",
    title="Temperature schedules",
    paper="tab:abl_tau",
    about="LGQ with other temperatures at the start and at the end, and other ways between them. The paper "
    "takes a reduced budget for this table.",
    rows=rows,
)
