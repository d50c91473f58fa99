"""Sampling from a masked generator (MaskGIT, Chang et al. 2022): all tokens of an image in a few steps.

b = images, n = tokens per image, m = positions to predict, k = codes, t = steps.

Each step predicts the codes at masked positions, draws one for each, and keeps some of them: the most
confident ones, or those at positions that a fixed order names, such as the order of Besnier et al. (2025)
on Halton's sequence. A kept token does not change any more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from lgq.checks import require_at_least, require_indices, require_one_of, require_whole
from lgq.errors import LGQError

MaskSchedule = Literal["cosine", "linear", "square", "root", "arccos"]
Order = Literal["confidence", "halton", "random"]
Predict: TypeAlias = Callable[
    [Int64[Tensor, "b n"], Int64[Tensor, " b"], Bool[Tensor, "b n"]], Float[Tensor, "m k"]
]
"""Function of tokens, classes and the positions to predict; returns the logits there, image by image."""

OnStep: TypeAlias = Callable[[int, int, Int64[Tensor, "b n"], Float32[Tensor, "b n"]], None]
"""Function of a step, counted from 1, the number of steps, the tokens after it, and the probability of each
token that it set; 0 for all others."""

_MASKED_FRACTIONS: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: math.cos(math.pi / 2 * done),
    "linear": lambda done: 1 - done,
    "square": lambda done: 1 - done**2,
    "root": lambda done: 1 - math.sqrt(done),
    "arccos": lambda done: math.acos(done) / (math.pi / 2),
}
"""Fraction of tokens that are still masked, by the fraction of steps that are done."""
# Keeps the floor of a product that is whole except for rounding, such as 10 (1 - 0.9).
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of sampling; the defaults are the paper's."""

    prefixed: ClassVar[tuple[str, ...]] = ("steps", "schedule")
    """Settings that a run has too: there, their options are --sampling.steps and --sampling.schedule."""

    steps: int = 11
    """Number of forward passes; fewer where fewer tokens are masked."""
    schedule: MaskSchedule = "cosine"
    """Curve by which the share of masked tokens falls over the steps."""
    order: Order = "confidence"
    """Tokens to set first: the most confident ones, those early on Halton's sequence (well spread), or random
    ones."""
    temperature: float = 1.0
    """Temperature of the distribution of codes: below 1 is safer, above 1 more varied; 0 takes the likeliest
    code."""
    choice_temperature: float = 4.5
    """Scale of the Gumbel noise in the order of confidence; falls to 0 at the last step."""
    guidance: float = 1.0
    """Classifier-free guidance: logits are null + guidance (class - null). 0 ignores the class, 1 is the
    plain network, and any other value takes twice the time."""
    guidance_ramp: bool = False
    """Whether the guidance grows linearly from 1 at the first step to its value at the last."""
    top_k: int | None = None
    """Number of likeliest codes to draw from; None for all."""
    top_p: float | None = None
    """Probability of the smallest set of likeliest codes to draw from, after `temperature` and `top_k`; None
    for all codes."""

    def __post_init__(self) -> None:
        require_whole(steps=self.steps)
        require_at_least(1, steps=self.steps)
        require_one_of(get_args(MaskSchedule), schedule=self.schedule)
        require_one_of(get_args(Order), order=self.order)
        for name in ("temperature", "choice_temperature", "guidance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise LGQError(f"`{name}` must be finite and at least 0, got {getattr(self, name)}.")
        if self.top_k is not None:
            require_whole(top_k=self.top_k)
            require_at_least(1, top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise LGQError(f"`top_p` must be above 0 and at most 1, got {self.top_p}: None keeps all codes.")

    def guidance_at(self, step: int, steps: int) -> float:
        """Return the guidance at a step, counted from 0, of `steps` in all."""
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
    on_step: OnStep | None = None,
) -> Int64[Tensor, "b n"]:
    """Replace each `mask_token` by a code; all other tokens stay as they are.

    grid: (rows, columns), or (rows, columns, stages), of the n tokens.
    generator: random generator on the device of the tokens; the same seed gives the same tokens.
    on_step: is called after each step, to watch; it changes nothing.
    """
    _check_inputs(tokens, classes, mask_token, null_class, grid)
    counts = reveal_counts((tokens == mask_token).sum(1).cpu(), sampling.steps, sampling.schedule)
    priorities = _priorities(tokens, sampling.order, grid, generator)
    for step, count in enumerate(counts.to(tokens.device)):
        chosen = tokens == mask_token
        if priorities is not None:
            chosen = highest(priorities, chosen, count)
        scale = sampling.guidance_at(step, len(counts))
        logits = guided(predict, tokens, classes, chosen, scale, null_class=null_class)
        codes = draw(logits, sampling, generator)
        filled, predicted = tokens.masked_scatter(chosen, codes), chosen
        if priorities is None:
            noise = sampling.choice_temperature * (1 - (step + 1) / len(counts))
            scores = confidence(logits, codes, noise, generator)
            chosen = highest(scores.new_zeros(chosen.shape).masked_scatter(chosen, scores), chosen, count)
        tokens = torch.where(chosen, filled, tokens)
        if on_step is not None:
            likely = F.cross_entropy(logits, codes, reduction="none").neg_().exp_()
            spread = likely.new_zeros(tokens.shape).masked_scatter(predicted, likely)
            on_step(step + 1, len(counts), tokens, spread.masked_fill(~chosen, 0.0))
    return tokens


def reveal_counts(masked: Int64[Tensor, " b"], steps: int, schedule: MaskSchedule) -> Int64[Tensor, "t b"]:
    """Return how many tokens of each image to set at each step, given how many are masked at first.

    After a step, floor(masked * fraction) tokens stay masked, but every step sets at least one token of
    every image that has masked ones. So there are at most as many steps as masked tokens, and an image with
    fewer masked tokens than steps is filled token by token.
    """
    steps = min(steps, max(masked.tolist(), default=0))
    counts, left = masked.new_zeros(steps, len(masked)), masked
    for step in range(steps):
        fraction = _MASKED_FRACTIONS[schedule]((step + 1) / steps)
        scheduled = (masked.cpu().double() * fraction + _ROUNDING).floor().long()
        later_steps = steps - 1 - step
        remaining = scheduled.clamp(min=later_steps).minimum(left - 1).clamp(min=0)
        counts[step], left = left - remaining, remaining
    return counts


def halton_order(grid: tuple[int, ...]) -> Int64[Tensor, " n"]:
    """Order the positions of a grid (rows, columns, perhaps stages) by Halton's sequence.

    The points of the sequence fall on cells, by base 2 for the row and base 3 for the column; cells come in
    the order of their first hit. The stages of a cell follow each other, lower ones first.
    """
    rows, columns, stages = grid[0], grid[1], math.prod(grid[2:])
    row_period, column_period = _power_from(2, 2 * rows), _power_from(3, 2 * columns)
    # Every cell contains a box of 1/row_period by 1/column_period, and this many points hit every box.
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
    """Return floor(scale * radical inverse) in integers: the digits of a number, mirrored at the point."""
    mirrored, denominator = torch.zeros_like(numbers), 1
    while numbers.any():
        mirrored, denominator = mirrored * base + numbers % base, denominator * base
        numbers = numbers // base
    return mirrored * scale // denominator


def guided(
    predict: Predict,
    tokens: Int64[Tensor, "b n"],
    classes: Int64[Tensor, " b"],
    where: Bool[Tensor, "b n"],
    scale: float,
    *,
    null_class: int,
) -> Float32[Tensor, "m k"]:
    """Return logits null + scale (class - null), by one forward pass, of a doubled batch if it needs both."""
    nulls = torch.full_like(classes, null_class)
    if scale in (0, 1):
        return _finite(predict(tokens, classes if scale else nulls, where).float())
    both = predict(torch.cat([tokens] * 2), torch.cat([classes, nulls]), torch.cat([where] * 2)).float()
    with_class, without = both.chunk(2)
    return _finite(torch.lerp(without, with_class, scale))


def draw(
    logits: Float32[Tensor, "m k"], sampling: Sampling, generator: torch.Generator
) -> Int64[Tensor, " m"]:
    """Draw a code for each row of logits, by temperature, top_k and top_p."""
    if sampling.temperature == 0:
        return logits.argmax(1)
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        logits, codes = logits.topk(sampling.top_k)
        return codes.gather(1, draw(logits, sampling, generator)[:, None])[:, 0]
    if sampling.temperature != 1:
        # The largest becomes 0 first: a small temperature would make it infinite.
        logits = (logits - logits.amax(1, keepdim=True)).div_(sampling.temperature)
    return draw_nucleus(logits.softmax(1), sampling.top_p or 1.0, generator)


def draw_nucleus(
    probabilities: Float32[Tensor, "m k"], top_p: float, generator: torch.Generator
) -> Int64[Tensor, " m"]:
    """Draw a code for each row from its nucleus: codes whose likelier codes sum to less than `top_p`.

    A code outside the nucleus is redrawn among the codes likelier than it. These include the whole nucleus,
    so the odds within it are kept, and nothing is sorted.
    """
    sums = probabilities.cumsum(1)
    # One uniform number per row; k exponential ones, as torch.multinomial draws, take ten times as long.
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
    """Return log p + noise * Gumbel of the drawn codes.

    p is the probability before temperature, top_k and top_p: after them, every code of a greedy draw would
    be certain.
    """
    log_p = F.cross_entropy(logits, codes, reduction="none").neg_()
    exponential = torch.empty_like(log_p).exponential_(generator=generator)
    gumbel = exponential.clamp_(min=torch.finfo(log_p.dtype).tiny).log_().neg_()
    return log_p.add_(gumbel, alpha=noise)


def highest(
    scores: Float[Tensor, "b n"], among: Bool[Tensor, "b n"], counts: Int64[Tensor, " b"]
) -> Bool[Tensor, "b n"]:
    """Mark the `counts` highest scores of each row at the positions `among`; of equal scores the first."""
    scores = scores.masked_fill(~among, -math.inf)
    ranks = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return ranks < counts[:, None]


def _priorities(
    tokens: Int64[Tensor, "b n"], order: Order, grid: tuple[int, ...], generator: torch.Generator
) -> Float[Tensor, "b n"] | None:
    """Return a priority per position, higher for earlier, or None where confidence decides."""
    if order == "confidence":
        return None
    if order == "random":
        return torch.rand(tokens.shape, generator=generator, device=tokens.device)
    ranks = halton_order(grid).argsort().to(tokens.device)
    return -ranks.float().expand(tokens.shape)


def _finite(logits: Float32[Tensor, "m k"]) -> Float32[Tensor, "m k"]:
    if not torch.isfinite(logits.amax(1)).all():
        raise LGQError("the network's logits are NaN or infinite: did its training diverge?")
    return logits


def _check_inputs(
    tokens: Tensor, classes: Tensor, mask_token: int, null_class: int, grid: tuple[int, ...]
) -> None:
    require_indices(tokens, mask_token + 1)
    if len(grid) < 2 or min(grid) < 1 or math.prod(grid) != tokens.shape[1]:
        raise LGQError(
            f"a grid of {grid} does not hold {tokens.shape[1]} tokens per image: "
            f"give (rows, columns), or (rows, columns, stages), with that product."
        )
    if len(classes) != len(tokens):
        raise LGQError(f"got {len(classes)} classes for {len(tokens)} images: give one class per image.")
    low, high = (int(classes.min()), int(classes.max())) if len(classes) else (0, 0)
    if low < 0 or high > null_class:
        raise LGQError(
            f"class {low if low < 0 else high} is outside 0..{null_class}: "
            f"use one of the {null_class} classes, or {null_class} for none."
        )
