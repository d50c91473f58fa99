"""Every table of the LGQ paper (Altun et al. 2026) as a function to its rows, and tables of our own.

The docstring of a table is what the report says about it.
"""

import math
from collections.abc import Callable
from typing import Any

from lgq.checks import require_known
from lgq.experiments.option_search import search_grid
from lgq.experiments.plan import Experiment, Row
from lgq.experiments.scales import Scale
from lgq.experiments.tasks import Task
from lgq.quantizers import QUANTIZERS
from lgq.runs import best_options

EXPERIMENTS: dict[str, Experiment] = {}
"""Every experiment by name, in the paper's order."""

BEST_LABEL = ", best of the search"
"""End of the label of a row whose options the search chose."""

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

_MEANS = (0.0, 2.0, 4.0, 8.0)
"""Means of the Gaussians, as published for other quantizers."""

_SEARCH_SEED = 1_000
"""No table has a seed as high."""

Rows = Callable[[Scale], list[Row]]


def named_experiment(name: str) -> Experiment:
    """Return the experiment of that name."""
    require_known("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def _table(
    name: str, title: str, *, paper: str = "", seeds: int = 3, first_seed: int = 0
) -> Callable[[Rows], Rows]:
    """Register the function that follows as an experiment; the arguments are fields of `Experiment`."""

    def register(rows: Rows) -> Rows:
        EXPERIMENTS[name] = Experiment(
            name=name, title=title, paper=paper, rows=rows, seeds=seeds, first_seed=first_seed
        )
        return rows

    return register


def _row(quantizer: str, task: Task, codebook_size: int | None = None) -> Row:
    """Return a row that is named after its quantizer, and after its codebook size where a table varies it."""
    label = QUANTIZERS[quantizer].label
    if codebook_size is None:
        return Row(quantizer, label, task)
    return Row(f"{quantizer}-k{codebook_size}", label, task, f"K = {codebook_size:,}")


def _published_and_best(scale: Scale, codebook_size: int | None = None) -> list[Row]:
    """Return every quantizer as published, and with the best options of the search where they differ."""
    rows = []
    for name in QUANTIZERS:
        rows.append(_row(name, scale.row(name, codebook_size), codebook_size))
        options = best_options(scale.name, name, codebook_size or scale.tokenizer.run.codebook_size)
        if options:
            best = _row(name, scale.row(name, codebook_size, **options), codebook_size)
            rows.append(best._replace(row=f"{best.row}-best", label=f"{best.label}{BEST_LABEL}"))
    return rows


@_table("autoencoder", "The continuous autoencoder")
def _autoencoder(scale: Scale) -> list[Row]:
    """Encoder and decoder without a quantizer. Every tokenizer starts from the one of its seed, so that rows
    differ by their quantizers alone; its error is the least that a tokenizer can reach.
    """
    return [Row("continuous", "Continuous", scale.start)] if scale.start else []


@_table("comparison", "Reconstruction at one codebook size", paper="Table 2", seeds=5)
def _comparison(scale: Scale) -> list[Row]:
    """One backbone, data order and number of steps; the quantizer is the only change. A seed decides the
    autoencoder that all quantizers start from, the initial codes, and the order and the crops of the images.
    Each row is measured at its best validation. Quantizers have their published settings, and a second row
    where the search found better ones. The paper leaves VQ out, and trains each row once.
    """
    return _published_and_best(scale)


@_table("codebook-size", "Every quantizer over codebook sizes", paper="Table 3")
def _codebook_size(scale: Scale) -> list[Row]:
    """No setting depends on the codebook size. The paper sweeps LGQ alone and reads it once its utilization
    has settled; here every row has the same number of steps.
    """
    return [row for size in scale.sizes for row in _published_and_best(scale, size)]


@_table("logits", "Squared distance against inner product", paper="Table 1")
def _logits(scale: Scale) -> list[Row]:
    """LGQ with nothing changed but the score. Norms of dead and of live codes, and the correlation of a
    code's norm with its use, show whether codes win by size (Table 10).
    """
    return [
        Row("l2", "-|z - e|² (LGQ)", scale.ablated(score="l2")),
        Row("dot", "<z, e> (IBQ-style)", scale.ablated(score="dot")),
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


@_table("search", "A search for the strength of each quantizer", seeds=1, first_seed=_SEARCH_SEED)
def _search(scale: Scale) -> list[Row]:
    """Four settings of every quantizer, the published ones first, at the smallest and the largest codebook,
    for half of the steps. The seed is that of no table, and the images are those that choose the best
    weights, which no table reports.
    """
    return [
        Row(
            f"{name}-k{size}-{number}",
            QUANTIZERS[name].label,
            scale.searched(name, size, **options),
            f"K = {size:,}: {_in_words(options)}",
        )
        for size in dict.fromkeys((scale.sizes[0], scale.sizes[-1]))
        for name in QUANTIZERS
        for number, options in enumerate(search_grid(name, size))
    ]


def _in_words(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "as published"


@_table("gaussian", "Quantizers alone on shifted Gaussians")
def _gaussian(scale: Scale) -> list[Row]:
    """Vectors of N(mean, I) in 8 dimensions, and nothing but a quantizer that learns to represent them: which
    codes are used when the data lie away from where the codes begin? Codes begin near 0.
    """
    return [
        Row(
            f"{name}-k{size}-mean{mean:g}",
            QUANTIZERS[name].label,
            scale.on_gaussian(name, size, mean),
            f"K = {size:,}, mean {mean:g}",
        )
        for size in scale.sizes
        for mean in _MEANS
        for name in QUANTIZERS
    ]


@_table("latents", "Quantizers alone on the latents of a frozen encoder", seeds=5)
def _latents(scale: Scale) -> list[Row]:
    """Each quantizer learns to represent the latents of the continuous autoencoder, whose encoder and decoder
    stay as they are. What is lost here is lost by the quantizer alone.
    """
    return [_row(name, scale.on_latents(name, size), size) for size in scale.sizes for name in QUANTIZERS]


@_table("modality", "Speech in place of images")
def _modality(scale: Scale) -> list[Row]:
    """Recordings of speech, by a small convolutional autoencoder of waveforms with a token for every 64
    samples: do quantizers rank as on images? A random tenth of the recordings is measured, not trained on.
    """
    return [_row(name, scale.on_speech(name)) for name in QUANTIZERS]


@_table("variants", "Variants of LGQ")
def _variants(scale: Scale) -> list[Row]:
    """LGQ begins with codes of unit norm on average; one row begins with latents of the first batch. The
    literal gradient also moves the chosen code directly. Two stages of as many codes have twice the tokens;
    two of the square root have the bits of one. Diversity scaled by tokens differs from LGQ only where codes
    outnumber the tokens of a batch.
    """
    size = scale.ablation.run.codebook_size
    root = math.isqrt(size)
    return [
        Row("default", "LGQ", scale.ablated()),
        Row("tokens-scaled", "diversity scaled by tokens", scale.ablated(diversity_scale="tokens")),
        Row("hot-start", "hot start, tau 2 to 0.1", scale.ablated(tau_start=2.0)),
        Row("literal", "literal gradient", scale.ablated(hard_gradient=True)),
        Row("data-init", "codes begin as latents", scale.ablated(init="data")),
        Row("residual", f"residual, 2 stages of {size:,}", scale.ablated(stages=2)),
        Row("residual-same-bits", f"residual, 2 stages of {root:,}", scale.ablated("lgq", root, stages=2)),
    ]


@_table("cold", "From random weights")
def _cold(scale: Scale) -> list[Row]:
    """Every quantizer without the autoencoder that other tables start from, for as many steps: encoder,
    decoder and codes have to find each other.
    """
    return [_row(name, scale.ablated(name, cold=True)) for name in QUANTIZERS]
