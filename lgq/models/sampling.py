"""How many tokens a masked generator sets at each step (Chang et al. 2022), and Halton's order of places.

The order is that of Besnier et al. (2025): tokens that are set together lie far apart.
b = images, n = tokens of an image, t = steps.

Sampling from a masked generator (MaskGIT, Chang et al. 2022): all tokens of an image in a few steps.

b = images, n = tokens of an image, m = places that are asked for, k = codes.

Each step asks a network for the codes at masked places, draws one for each, and keeps some of them: the
ones that the network is surest of, or those at places that an order has fixed. A token that is set stays.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from lgq.checks import require_at_least, require_indices, require_one_of, require_whole
from lgq.errors import LGQError

Schedule = Literal["cosine", "linear", "square", "root", "arccos"]

_FRACTIONS: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: math.cos(math.pi / 2 * done),
    "linear": lambda done: 1 - done,
    "square": lambda done: 1 - done**2,
    "root": lambda done: 1 - math.sqrt(done),
    "arccos": lambda done: math.acos(done) / (math.pi / 2),
}
# Keeps the floor of a product that is whole but for rounding, such as 10 (1 - 0.9).
_ROUNDING = 1e-9


def masked_after(step: int, steps: int, schedule: Schedule) -> float:
    """The fraction of the tokens that is still masked after a step, counted from 0: 0 after the last."""
    return _FRACTIONS[schedule]((step + 1) / steps)


def reveal_counts(masked: Int64[Tensor, " b"], steps: int, schedule: Schedule) -> Int64[Tensor, "t b"]:
    """How many tokens of each image to set at each step, from the number that are masked at the start.

    After a step, floor(masked * masked_after(...)) tokens stay masked, but every step sets at least one
    token of every image that has some left. So there are no more steps than masked tokens, and an image
    with fewer masked tokens than steps is filled one by one.
    """
    steps = min(steps, max(masked.tolist(), default=0))
    counts, left = masked.new_zeros(steps, len(masked)), masked
    for step in range(steps):
        scheduled = (masked.double() * masked_after(step, steps, schedule) + _ROUNDING).floor().long()
        one_for_each_later_step = steps - 1 - step
        kept = scheduled.clamp(min=one_for_each_later_step).minimum(left - 1).clamp(min=0)
        counts[step], left = left - kept, kept
    return counts


def halton_order(grid: tuple[int, ...]) -> Int64[Tensor, " n"]:
    """The places of a grid (rows, columns, perhaps stages), row by row, in the order of Halton's sequence.

    Its points, from the first on, fall on cells: base 2 chooses the row and base 3 the column, and a cell
    counts when it is hit first. The stages of a cell follow one another, lower ones first.
    """
    rows, columns, stages = grid[0], grid[1], math.prod(grid[2:])
    row_period, column_period = _power_from(2, 2 * rows), _power_from(3, 2 * columns)
    # Every cell holds a box of 1/row_period by 1/column_period whole, and this many points hit every box.
    points = torch.arange(1, row_period * column_period + 1)
    cells = _scaled_radical_inverse(points, 2, rows) * columns + _scaled_radical_inverse(points, 3, columns)
    order = torch.tensor(list(dict.fromkeys(cells.tolist())))
    return (order[:, None] * stages + torch.arange(stages)).flatten()


def _power_from(base: int, lowest: int) -> int:
    power = 1
    while power < lowest:
        power *= base
    return power


def _scaled_radical_inverse(numbers: Int64[Tensor, " t"], base: int, scale: int) -> Int64[Tensor, " t"]:
    """floor(scale * radical inverse), in whole numbers: the digits of a number, mirrored at the point."""
    mirrored, denominator = torch.zeros_like(numbers), 1
    while numbers.any():
        mirrored, denominator = mirrored * base + numbers % base, denominator * base
        numbers = numbers // base
    return mirrored * scale // denominator


Order = Literal["confidence", "halton", "random"]
Predict: TypeAlias = Callable[
    [Int64[Tensor, "b n"], Int64[Tensor, " b"], Bool[Tensor, "b n"]], Float[Tensor, "m k"]
]
"""Tokens, classes and the places to ask for, to the logits there, image by image and row by row."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn; the defaults are the paper's."""

    steps: int = 11
    """Forwards of the network; fewer where fewer tokens are masked."""
    schedule: Schedule = "cosine"
    """How the share of masked tokens falls over the steps."""
    order: Order = "confidence"
    """Which tokens come first: the surest, those on Halton's sequence (well spread), or any."""
    temperature: float = 1.0
    """Of the distribution of codes: below 1 is safer, above 1 is more varied; 0 takes the likeliest code."""
    choice_temperature: float = 4.5
    """Of the noise in the order of confidence; it falls to 0 at the last step."""
    guidance: float = 1.0
    """Logits are null + guidance (class - null): 0 ignores the class, 1 is the plain network, and any other
    value takes twice the time."""
    guidance_ramp: bool = False
    """Let the guidance grow evenly from 1 at the first step to its value at the last."""
    top_k: int | None = None
    """Draw from this many likeliest codes alone."""
    top_p: float | None = None
    """Draw from the likeliest codes that reach this probability together, once temperature and top_k
    have acted."""

    def __post_init__(self) -> None:
        require_whole(steps=self.steps)
        require_at_least(1, steps=self.steps)
        require_one_of(get_args(Schedule), schedule=self.schedule)
        require_one_of(get_args(Order), order=self.order)
        for name in ("temperature", "choice_temperature", "guidance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise LGQError(f"{name} must be finite and at least 0, got {getattr(self, name)}.")
        if self.top_k is not None:
            require_whole(top_k=self.top_k)
            require_at_least(1, top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise LGQError(
                f"top_p must lie above 0 and at most at 1, got {self.top_p}: None keeps all codes."
            )

    def guidance_at(self, step: int, steps: int) -> float:
        """The guidance of a step, counted from 0, of `steps` that are run."""
        if not self.guidance_ramp or step == steps - 1:
            return self.guidance
        return 1 + (self.guidance - 1) * step / (steps - 1)


@torch.no_grad()
def sample_tokens(
    predict: Predict,
    tokens: Int64[Tensor, "b n"],
    classes: Int64[Tensor, " b"],
    sampling: Sampling,
    *,
    mask_token: int,
    null_class: int,
    grid: tuple[int, ...],
    generator: torch.Generator,
) -> Int64[Tensor, "b n"]:
    """The tokens, with a code at each place that held `mask_token`; all others stay as they are.

    grid: (rows, columns), or (rows, columns, stages), of the n tokens.
    generator: on the device of the tokens; the same seed gives the same tokens.
    """
    _require_fit(tokens, classes, mask_token, null_class, grid)
    counts = reveal_counts((tokens == mask_token).sum(1).cpu(), sampling.steps, sampling.schedule)
    priorities = _priorities(tokens, sampling.order, grid, generator)
    for step, count in enumerate(counts.to(tokens.device)):
        asked = tokens == mask_token
        if priorities is not None:
            asked = highest(priorities, asked, count)
        scale = sampling.guidance_at(step, len(counts))
        logits = guided(predict, tokens, classes, asked, scale, null_class=null_class)
        codes = draw(logits, sampling, generator)
        filled = tokens.masked_scatter(asked, codes)
        if priorities is None:
            noise = sampling.choice_temperature * (1 - (step + 1) / len(counts))
            scores = confidence(logits, codes, noise, generator)
            asked = highest(scores.new_zeros(asked.shape).masked_scatter(asked, scores), asked, count)
        tokens = torch.where(asked, filled, tokens)
    return tokens


def guided(
    predict: Predict,
    tokens: Int64[Tensor, "b n"],
    classes: Int64[Tensor, " b"],
    where: Bool[Tensor, "b n"],
    scale: float,
    *,
    null_class: int,
) -> Float32[Tensor, "m k"]:
    """null + scale (class - null), by one forward: of a batch twice as large where both are needed."""
    nulls = torch.full_like(classes, null_class)
    if scale in (0, 1):
        return _finite(predict(tokens, classes if scale else nulls, where).float())
    both = predict(torch.cat([tokens] * 2), torch.cat([classes, nulls]), torch.cat([where] * 2)).float()
    with_class, without = both.chunk(2)
    return _finite(torch.lerp(without, with_class, scale))


def draw(
    logits: Float32[Tensor, "m k"], sampling: Sampling, generator: torch.Generator
) -> Int64[Tensor, " m"]:
    """A code for each row of logits, by temperature, top_k and top_p."""
    if sampling.temperature == 0:
        return logits.argmax(1)
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        logits, codes = logits.topk(sampling.top_k)
        return codes.gather(1, draw(logits, sampling, generator)[:, None])[:, 0]
    if sampling.temperature != 1:
        # The largest becomes 0 first: a small temperature would carry it to infinity.
        logits = (logits - logits.amax(1, keepdim=True)).div_(sampling.temperature)
    return draw_nucleus(logits.softmax(1), sampling.top_p or 1.0, generator)


def draw_nucleus(
    probabilities: Float32[Tensor, "m k"], top_p: float, generator: torch.Generator
) -> Int64[Tensor, " m"]:
    """A code for each row, of those to which the likelier ones leave room: together less than `top_p`.

    A code outside this nucleus is drawn again, among the codes likelier than it: they hold the nucleus
    whole, so the odds within it are kept, and nothing is sorted.
    """
    sums = probabilities.cumsum(1)
    # One uniform number a row; k exponential ones, for a race of the codes, take ten times as long.
    points = torch.rand(len(sums), 1, generator=generator, device=sums.device) * sums[:, -1:]
    codes = torch.searchsorted(sums, points, right=True)
    if top_p < 1:
        likelier = probabilities * (probabilities > probabilities.gather(1, codes))
        outside = likelier.sum(1) >= top_p
        if outside.any():
            codes[outside, 0] = draw_nucleus(likelier[outside], top_p, generator)
    return codes[:, 0]


def confidence(
    logits: Float32[Tensor, "m k"], codes: Int64[Tensor, " m"], noise: float, generator: torch.Generator
) -> Float32[Tensor, " m"]:
    """log p + noise * Gumbel, of the codes that were drawn.

    p is the guided network's own: before temperature, top_k and top_p, which would call every code of a
    greedy draw certain.
    """
    log_p = F.cross_entropy(logits, codes, reduction="none").neg_()
    exponential = torch.empty_like(log_p).exponential_(generator=generator)
    gumbel = exponential.clamp_(min=torch.finfo(log_p.dtype).tiny).log_().neg_()
    return log_p.add_(gumbel, alpha=noise)


def highest(
    scores: Float[Tensor, "b n"], among: Bool[Tensor, "b n"], counts: Int64[Tensor, " b"]
) -> Bool[Tensor, "b n"]:
    """The places of each row's highest scores among some, as many as its count says; the first of equals."""
    scores = scores.masked_fill(~among, -math.inf)
    ranks = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return ranks < counts[:, None]


def _priorities(
    tokens: Int64[Tensor, "b n"], order: Order, grid: tuple[int, ...], generator: torch.Generator
) -> Float[Tensor, "b n"] | None:
    """The higher, the earlier a place is set; none where confidence decides."""
    if order == "confidence":
        return None
    if order == "random":
        return torch.rand(tokens.shape, generator=generator, device=tokens.device)
    ranks = halton_order(grid).argsort().to(tokens.device)
    return -ranks.float().expand(tokens.shape)


def _finite(logits: Float32[Tensor, "m k"]) -> Float32[Tensor, "m k"]:
    if not torch.isfinite(logits.amax(1)).all():
        raise LGQError("the network gives logits that are no numbers: were its weights trained to the end?")
    return logits


def _require_fit(
    tokens: Tensor, classes: Tensor, mask_token: int, null_class: int, grid: tuple[int, ...]
) -> None:
    require_indices(tokens, mask_token + 1)
    if len(grid) < 2 or min(grid) < 1 or math.prod(grid) != tokens.shape[1]:
        raise LGQError(
            f"a grid of {grid} does not hold {tokens.shape[1]} tokens an image: "
            f"give (rows, columns), or (rows, columns, stages), whose product is that number."
        )
    if len(classes) != len(tokens):
        raise LGQError(f"{len(classes)} classes for {len(tokens)} images: give each image one.")
    low, high = (int(classes.min()), int(classes.max())) if len(classes) else (0, 0)
    if low < 0 or high > null_class:
        raise LGQError(
            f"class {low if low < 0 else high} is outside 0..{null_class}: "
            f"take one of the {null_class} classes, or {null_class} for none."
        )
