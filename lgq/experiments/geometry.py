"""How codebooks distribute information (LGQ paper, tab:geometry)."""

from lgq.experiments.plan import LABELS, Experiment, Row
from lgq.experiments.scales import Scale

QUANTIZERS = ("lgq", "ibq", "fsq", "simvq", "rotvq")


def rows(scale: Scale) -> list[Row]:
    return [Row(row=name, label=LABELS[name], task=scale.row(name)) for name in QUANTIZERS]


EXPERIMENT = Experiment(
    name="geometry",
    title="Geometry of the codebooks",
    paper="tab:geometry",
    about="Entropy, concentration, co-occurrence and mutual information of the comparison's tokenizers. The "
    "estimate of mutual information saturates near the log of the number of images: read it as a ranking.",
    rows=rows,
)
