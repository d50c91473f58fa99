"""Time and memory of quantizers (LGQ paper, tab:quantizer_cost), with those that it leaves out."""

from dataclasses import replace

from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    sizes = scale.cost_sizes
    of_the_paper = {"fsq": sizes[1:3], "simvq": sizes[1:3], "ibq": sizes[1:], "lgq": sizes}
    others = dict.fromkeys(("vq", "rotvq", "lfq"), sizes[1:3])
    return [
        Row(
            row=f"{name}-k{size}",
            label=LABELS[name],
            group=f"K = {size:,}",
            task=replace(scale.cost, quantizer=name, codebook_size=size),
        )
        for name, each in (of_the_paper | others).items()
        for size in each
    ]


EXPERIMENT = Experiment(
    name="cost",
    title="Time and memory of the quantizers",
    paper="tab:quantizer_cost",
    about="Forward and backward pass of the quantizer alone, on this machine, beside the plain formula that "
    "keeps its matrices. Ratios can be compared with the paper's, times cannot.",
    rows=rows,
)
