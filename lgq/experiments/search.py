"""A search for what no quantizer decides, one budget for each: what works for one may ruin another."""

from itertools import product

from lgq.experiments.comparison import QUANTIZERS
from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    return [
        Row(
            row=f"{name}-l1-{l1:g}-rate-{rate:g}",
            label=LABELS[name],
            group=f"{l1:g} l1, rate {rate:g}",
            task=scale.searched(name, l1=l1, rate=rate),
        )
        for name, l1, rate in product(QUANTIZERS, scale.searched_l1, scale.searched_rates)
    ]


EXPERIMENT = Experiment(
    name="search",
    title="A search for the learning rate and the weight of l1",
    about="Every quantizer with every setting for the same small number of steps. All other tables take one "
    "setting for all quantizers.",
    rows=rows,
)
