"""Every table of the LGQ paper (Altun et al. 2026) as a function to its rows, and three tables of our own.

The docstring of a table is what the report says about it.
"""

import math
from collections.abc import Callable
from itertools import product

from lgq.checks import require_known
from lgq.experiments.plan import Experiment, Row
from lgq.experiments.tasks import Scale, Task
from lgq.quantizers import QUANTIZERS

EXPERIMENTS: dict[str, Experiment] = {}
"""Every experiment by name, in the paper's order."""

_GEOMETRY = ("lgq", "ibq", "fsq", "simvq", "rotvq")
"""Quantizers whose geometry the paper compares, and on whose tokens it trains generators."""

_WEIGHTS = (
    (0.005, 0.005), (0.0, 0.005), (0.005, 0.0), (0.0, 0.0), (0.001, 0.001), (0.001, 0.005), (0.005, 0.001),
    (0.01, 0.01), (0.05, 0.05),
)  # fmt: skip
"""Weights of the peakedness and of the diversity term; the first row is the paper's default."""

_TEMPERATURES = (
    (1.0, 0.1, "linear"), (0.5, 0.1, "linear"), (2.0, 0.1, "linear"), (1.0, 0.05, "linear"),
    (1.0, 0.3, "linear"), (1.0, 0.1, "cosine"), (1.0, 1.0, "constant"), (0.1, 0.1, "constant"),
)  # fmt: skip
"""Temperature at the start, at the end, and the shape between; the first row is the paper's default."""

Rows = Callable[[Scale], list[Row]]


def named_experiment(name: str) -> Experiment:
    """Return the experiment of that name."""
    require_known("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def _table(name: str, title: str, *, paper: str = "", seeds: int = 1) -> Callable[[Rows], Rows]:
    """Register the function that follows as an experiment; the arguments are fields of `Experiment`."""

    def register(rows: Rows) -> Rows:
        EXPERIMENTS[name] = Experiment(name=name, title=title, paper=paper, rows=rows, seeds=seeds)
        return rows

    return register


def _row(quantizer: str, task: Task, codebook_size: int | None = None) -> Row:
    """Return a row that is named after its quantizer, and after its codebook size where a table varies it."""
    label = QUANTIZERS[quantizer].label
    if codebook_size is None:
        return Row(quantizer, label, task)
    return Row(f"{quantizer}-k{codebook_size}", label, task, f"K = {codebook_size:,}")


@_table("comparison", "Reconstruction at one codebook size", paper="Table 2")
def _comparison(scale: Scale) -> list[Row]:
    """One backbone, seed, data order and number of steps; the quantizer is the only change. Each row is
    measured at its best validation. The paper leaves VQ out.
    """
    return [_row(name, scale.row(name)) for name in QUANTIZERS]


@_table("codebook-size", "Every quantizer over codebook sizes", paper="Table 3")
def _codebook_size(scale: Scale) -> list[Row]:
    """No setting depends on the codebook size. The paper sweeps LGQ alone and reads it once its utilization
    has settled; here every row has the same number of steps.
    """
    return [_row(name, scale.row(name, size), size) for size in scale.sizes for name in QUANTIZERS]


@_table("logits", "Squared distance against inner product", paper="Table 1")
def _logits(scale: Scale) -> list[Row]:
    """LGQ with nothing changed but the score. Norms of dead and of live codes, and the correlation of a
    code's norm with its use, show whether codes win by size (Table 10).
    """
    return [
        Row("l2", "-|z - e|² (LGQ)", scale.row(score="l2")),
        Row("dot", "<z, e> (IBQ-style)", scale.row(score="dot")),
    ]


@_table("geometry", "Geometry of the codebooks", paper="Table 4")
def _geometry(scale: Scale) -> list[Row]:
    """Entropy, concentration, co-occurrence and mutual information of the comparison's tokenizers. The
    estimate of mutual information saturates near the log of the number of images: read it as a ranking.
    """
    return [_row(name, scale.row(name)) for name in _GEOMETRY]


@_table("generation", "Generation on frozen tokenizers", paper="Table 5")
def _generation(scale: Scale) -> list[Row]:
    """One generator per tokenizer of the comparison, with the same settings, at its best validation
    likelihood. Deviations within a record are over sampling seeds, those between records over training
    seeds.
    """
    return [_row(name, scale.generated(name)) for name in _GEOMETRY]


@_table("regularizers", "Weights of the regularizers", paper="Table 6")
def _regularizers(scale: Scale) -> list[Row]:
    """LGQ with other weights of its peakedness and diversity terms. The paper takes a reduced budget for this
    table.
    """
    return [
        Row(
            f"peak-{peak:g}-diversity-{diversity:g}",
            f"peak {peak:g}, diversity {diversity:g}",
            scale.ablated(peak_weight=peak, diversity_weight=diversity),
        )
        for peak, diversity in _WEIGHTS
    ]


@_table("temperature", "Temperature schedules", paper="Table 7")
def _temperature(scale: Scale) -> list[Row]:
    """LGQ with other temperatures at the start and at the end, and other shapes between them. The paper takes
    a reduced budget for this table.
    """
    return [
        Row(
            f"tau-{start:g}-{end:g}-{shape}",
            f"{start:g} to {end:g}, {shape}",
            scale.ablated(tau_start=start, tau_end=end, tau_shape=shape),
        )
        for start, end, shape in _TEMPERATURES
    ]


@_table("cost", "Time and memory of the quantizers", paper="Table 8")
def _cost(scale: Scale) -> list[Row]:
    """Forward and backward pass of the quantizer alone, on this machine, beside the plain formula that keeps
    its matrices. Ratios can be compared with the paper's, times cannot.
    """
    sizes = scale.cost_sizes
    more_sizes = {"lgq": sizes, "ibq": sizes[1:]}
    return [
        _row(name, scale.timed(name, size), size)
        for name in QUANTIZERS
        for size in more_sizes.get(name, sizes[1:3])
    ]


@_table("scaling", "LGQ against IBQ over codebook sizes", paper="Table 11")
def _scaling(scale: Scale) -> list[Row]:
    """Runs of the sweep. Both have the same number of steps and are validated at the same steps, at which the
    paper reads its values.
    """
    return [
        _row(name, scale.row(name, size), size) for size in scale.matched_sizes for name in ("ibq", "lgq")
    ]


@_table("seeds", "Variation over training seeds", seeds=5)
def _seeds(scale: Scale) -> list[Row]:
    """The comparison with more seeds; the paper trains each row once. A seed decides the initial weights and
    codes, and the order and the crops of the images, for every quantizer alike.
    """
    return _comparison(scale)


@_table("search", "A search for the learning rate and the weight of l1")
def _search(scale: Scale) -> list[Row]:
    """Every quantizer with every setting for the same small number of steps. All other tables take one
    setting for all quantizers.
    """
    return [
        Row(
            f"{name}-l1-{l1:g}-rate-{rate:g}",
            QUANTIZERS[name].label,
            scale.searched(name, l1=l1, rate=rate),
            f"{l1:g} l1, rate {rate:g}",
        )
        for name, l1, rate in product(QUANTIZERS, scale.searched_l1, scale.searched_rates)
    ]


@_table("variants", "Variants of LGQ")
def _variants(scale: Scale) -> list[Row]:
    """LGQ begins with codes of unit norm on average; one row begins with latents of the first batch. Usage
    over ranks equals LGQ where one process trains. Two stages of as many codes have twice the tokens; two of
    the square root have the bits of one. Diversity scaled by tokens differs from LGQ only where codes
    outnumber the tokens of a batch.
    """
    size, largest = scale.tokenizer.codebook_size, scale.sizes[-1]
    root = math.isqrt(size)
    small, large = f"K = {size:,}", f"K = {largest:,}"
    return [
        Row("default", "LGQ", scale.row(), small),
        Row("hot-start", "hot start, tau 2 to 0.1", scale.row(tau_start=2.0, tau_end=0.1), small),
        Row("shared-usage", "usage over ranks", scale.row(sync_usage=True), small),
        Row("data-init", "codes begin as latents", scale.row(init="data"), small),
        Row("residual", f"residual, 2 stages of {size:,}", scale.row(stages=2), small),
        Row("residual-same-bits", f"residual, 2 stages of {root:,}", scale.row("lgq", root, stages=2), small),
        Row("codes-scaled", "LGQ", scale.row("lgq", largest), large),
        Row("tokens-scaled", "diversity scaled by tokens",
            scale.row("lgq", largest, diversity_scale="tokens"), large),
    ]  # fmt: skip
