"""Weights of LGQ's two regularizers (LGQ paper, tab:abl_reg): nine rows."""

from lgq.experiments.plan import Experiment, Row
from lgq.experiments.scales import Scale

WEIGHTS = (
    (0.005, 0.005),
    (0.0, 0.005),
    (0.005, 0.0),
    (0.0, 0.0),
    (0.001, 0.001),
    (0.001, 0.005),
    (0.005, 0.001),
    (0.01, 0.01),
    (0.05, 0.05),
)
"""Of peakedness and of diversity; the first row is the default."""


def rows(scale: Scale) -> list[Row]:
    return [
        Row(
            row=f"peak-{peak:g}-diversity-{diversity:g}",
            label=f"peak {peak:g}, diversity {diversity:g}",
            task=scale.ablated(peak_weight=peak, diversity_weight=diversity),
        )
        for peak, diversity in WEIGHTS
    ]


EXPERIMENT = Experiment(
    name="regularizers",
    title="Weights of the regularizers",
    paper="tab:abl_reg",
    about="LGQ with other weights of its peakedness and diversity terms. The paper takes a reduced budget "
    "for this table.",
    rows=rows,
)
