"""Reconstruction at one codebook size (LGQ paper, tab:k16k): six quantizers, and VQ, which it leaves out."""

from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale

QUANTIZERS = ("rotvq", "lfq", "fsq", "ibq", "simvq", "lgq", "vq")


def rows(scale: Scale) -> list[Row]:
    return [Row(row=name, label=LABELS[name], task=scale.row(name)) for name in QUANTIZERS]


EXPERIMENT = Experiment(
    name="comparison",
    title="Reconstruction at one codebook size",
    paper="tab:k16k",
    about="One backbone, seed, data order and number of steps; the quantizer is the only change. Each row is "
    "measured at its best validation.",
    rows=rows,
)
