"""A search for the learning rate, one budget for every quantizer: what works for one may ruin another."""

from lgq.experiments.comparison import QUANTIZERS
from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    return [
        Row(
            row=f"{name}-{rate:g}",
            label=LABELS[name],
            group=f"learning rate {rate:g}",
            task=scale.searched(name, rate),
        )
        for rate in scale.rates
        for name in QUANTIZERS
    ]


EXPERIMENT = Experiment(
    name="learning-rate",
    title="A search for the learning rate",
    about="Every quantizer with every rate for the same small number of steps. All other tables take one "
    "rate for all quantizers.",
    rows=rows,
)
