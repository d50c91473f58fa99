"""What the LGQ paper leaves to others: variants of LGQ, each against LGQ as it is."""

import math

from lgq.experiments.plan import Experiment, Row
from lgq.experiments.scales import Scale


def rows(scale: Scale) -> list[Row]:
    size, largest = scale.tokenizer.codebook_size, scale.sizes[-1]
    few = math.isqrt(size)
    usual = f"K = {size:,}"
    large = f"K = {largest:,}"
    return [
        Row(row="default", label="LGQ", group=usual, task=scale.row()),
        Row(
            row="hot-start",
            label="hot start, tau 2 to 0.1",
            group=usual,
            task=scale.row(tau_start=2.0, tau_end=0.1),
        ),
        Row(row="shared-usage", label="usage over ranks", group=usual, task=scale.row(sync_usage=True)),
        Row(row="data-init", label="codes begin as latents", group=usual, task=scale.row(init="data")),
        Row(row="residual", label=f"residual, 2 stages of {size:,}", group=usual, task=scale.row(stages=2)),
        Row(
            row="residual-same-bits",
            label=f"residual, 2 stages of {few:,}",
            group=usual,
            task=scale.row("lgq", few, stages=2),
        ),
        Row(row="codes-scaled", label="LGQ", group=large, task=scale.row("lgq", largest)),
        Row(
            row="tokens-scaled",
            label="diversity scaled by tokens",
            group=large,
            task=scale.row("lgq", largest, diversity_scale="tokens"),
        ),
    ]


EXPERIMENT = Experiment(
    name="beyond",
    title="Variants of LGQ",
    about="LGQ begins with codes of unit norm on average; one row begins with latents of the first batch. "
    "Usage over ranks is the same as LGQ where one process trains. Two stages of as many codes have twice "
    "the tokens; two of the square root have the bits of one. Diversity scaled by tokens differs from LGQ "
    "only where codes outnumber the tokens of a batch.",
    rows=rows,
)
