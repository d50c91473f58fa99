"""How much a row varies with its training seed; the LGQ paper trains each once."""

from lgq.experiments.comparison import rows
from lgq.experiments.plan import Experiment

EXPERIMENT = Experiment(
    name="seeds",
    title="Variation over training seeds",
    about="The comparison with more seeds. A seed decides the start of all weights and codes, and the order "
    "and the crops of the images, for every quantizer alike.",
    rows=rows,
    seeds=5,
)
