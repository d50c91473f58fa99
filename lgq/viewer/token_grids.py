"""Tokens as grids: one, or one per stage or scale. Those that a browser sends are checked.

h w = height and width of the finest grid in tokens.
"""

import json
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lgq.errors import LGQError
from lgq.tokenizer import Tokenizer
from lgq.viewer.code_gallery import Model

MOST_PIXELS = 2**20
"""Largest image that tokens may decode to, in pixels."""
_TOKEN_FORMAT = "lgq-tokens-1"


class Grid(NamedTuple):
    """Places of the tokens of a stage or scale in the tokenizer's sequence of all tokens of a picture."""

    rows: int
    columns: int
    first: int
    """Place of the first token; the others follow in reading order."""
    step: int
    """Distance of two that follow each other."""


@dataclass(frozen=True)
class Encoding:
    """A picture, its tokens and what they decode to."""

    original: Float[Tensor, "1 3 height width"]
    tokens: Int64[Tensor, "1 *tokens"]
    grids: list[Grid]
    reconstruction: Float[Tensor, "1 3 height width"]

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the finest grid."""
        return self.grids[-1][:2]


def grids_of(tokenizer: Tokenizer, h: int, w: int) -> list[Grid]:
    """Return the grid of each stage or scale, the coarsest first."""
    shape = tokenizer.token_shape((h * tokenizer.factor, w * tokenizer.factor))
    places = torch.arange(prod(shape)).view(1, *shape)
    step = tokenizer.stages  # whose tokens follow each other
    levels = [level[0] for level in tokenizer.by_level(places, (h, w))]
    return [Grid(level.shape[0], level.shape[1], int(level[0, 0]), step) for level in levels]


def tokens_of(model: Model, shape: Any, values: Any) -> tuple[Int64[Tensor, "1 *tokens"], tuple[int, int]]:
    """Return tokens that a browser sent, and the height and width of their finest grid, all checked."""
    tokenizer = model.tokenizer
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(side) is int for side in shape)):
        raise LGQError("the shape of tokens must be [height, width].")
    height, width = shape
    most = MOST_PIXELS // tokenizer.factor**2
    if height < 1 or width < 1 or height * width > most:
        raise LGQError(f"{height} x {width} tokens are not between 1 and {most:,} in all.")
    whole = tokenizer.token_shape((height * tokenizer.factor, width * tokenizer.factor))
    if not isinstance(values, list) or len(values) != prod(whole):
        several = f" in {tokenizer.levels} {'scales' if tokenizer.scales else 'stages'}"
        places = f"{height} x {width} places{several if tokenizer.levels > 1 else ''}"
        raise LGQError(f"tokens of {places} are {prod(whole):,} numbers.")
    if not set(map(type, values)) <= {int}:
        raise LGQError("tokens must be whole numbers.")
    if min(values) < 0 or max(values) >= tokenizer.codebook_size:
        wrong = min(values) if min(values) < 0 else max(values)
        raise LGQError(
            f"token {wrong} is outside 0..{tokenizer.codebook_size - 1}, the codes of {model.name}."
        )
    return torch.tensor(values, dtype=torch.int64).view(1, *whole), (height, width)


def read_token_file(model: Model, data: bytes) -> tuple[Int64[Tensor, "1 *tokens"], tuple[int, int]]:
    """Return what `tokens_of` does, for a file that the page saved; it must be of this model."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LGQError("this is not a file of tokens: it is not JSON.") from error
    if not isinstance(content, dict) or content.get("format") != _TOKEN_FORMAT:
        raise LGQError(f"this is not a file of tokens: its format is not {_TOKEN_FORMAT}.")
    if content.get("fingerprint") != model.tokenizer.fingerprint():
        made_by = str(content.get("tokenizer", "another tokenizer"))[:80]
        raise LGQError(f"these tokens were made by {made_by}, whose codes mean other things.")
    return tokens_of(model, content.get("shape"), content.get("tokens"))


def token_file(model: Model, tokens: Int64[Tensor, "1 *tokens"], shape: tuple[int, int]) -> bytes:
    """Return tokens as a file that `read_token_file` reads; shape: height and width of the finest grid."""
    content = {
        "format": _TOKEN_FORMAT,
        "tokenizer": model.name,
        "fingerprint": model.tokenizer.fingerprint(),
        "shape": list(shape),
        "tokens": tokens.flatten().tolist(),
    }
    return json.dumps(content).encode()


def rectangle_of(sides: Any, h: int, w: int) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right of a rectangle in a grid of h x w tokens; all of it for None."""
    if sides is None:
        return 0, 0, h, w
    if not (isinstance(sides, list) and len(sides) == 4 and all(type(side) is int for side in sides)):
        raise LGQError("a rectangle of tokens must be [top, left, bottom, right].")
    top, left, bottom, right = sides
    if not (0 <= top < bottom <= h and 0 <= left < right <= w):
        raise LGQError(f"the rectangle {sides} has no area, or leaves the {h} x {w} tokens.")
    return top, left, bottom, right
