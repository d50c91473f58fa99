"""Every quantizer over codebook sizes (LGQ paper, tab:lgq_sweep, which sweeps LGQ alone)."""

from lgq.experiments.comparison import QUANTIZERS
from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    return [
        Row(row=f"{name}-k{size}", label=LABELS[name], group=f"K = {size:,}", task=scale.row(name, size))
        for size in scale.sizes
        for name in QUANTIZERS
    ]


EXPERIMENT = Experiment(
    name="codebook-size",
    title="Every quantizer over codebook sizes",
    paper="tab:lgq_sweep",
    about="No setting depends on the codebook size. The paper reads LGQ once its utilization has settled; "
    "here every row has the same number of steps.",
    rows=rows,
)
