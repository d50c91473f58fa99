"""How many tokens a masked generator sets at each step (Chang et al. 2022), and Halton's order of places.

The order is that of Besnier et al. (2025): tokens that are set together lie far apart.
b = images, n = tokens of an image, t = steps.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

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
