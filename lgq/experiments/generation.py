"""MaskGIT on frozen tokenizers (LGQ paper, tab:maskgit_gen)."""

from lgq.experiments.geometry import QUANTIZERS
from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    return [Row(row=name, label=LABELS[name], task=scale.generated(name)) for name in QUANTIZERS]


EXPERIMENT = Experiment(
    name="generation",
    title="Generation on frozen tokenizers",
    paper="tab:maskgit_gen",
    about="One generator a tokenizer of the comparison, under one recipe, at its best validation likelihood. "
    "Deviations within a record are over sampling seeds, those between records over training seeds.",
    rows=rows,
)
