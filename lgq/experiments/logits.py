"""What the softmax scores (LGQ paper, tab:logit and tab:normbias): squared distance against inner product."""

from lgq.experiments.plan import Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    return [
        Row(row="l2", label="-|z - e|² (LGQ)", task=scale.row(score="l2")),
        Row(row="dot", label="<z, e> (IBQ-style)", task=scale.row(score="dot")),
    ]


EXPERIMENT = Experiment(
    name="logits",
    title="Squared distance against inner product",
    paper="tab:logit",
    about="LGQ with nothing changed but the score. Norms of dead and of live codes, and the correlation of a "
    "code's norm with its use, show whether codes win by size (tab:normbias).",
    rows=rows,
)
