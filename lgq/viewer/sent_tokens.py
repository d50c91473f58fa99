"""Tokens that a browser sends, checked before they are used, and files of them.   h w = height and width."""

import json
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from lgq.errors import LGQError
from lgq.viewer.studio import Model

MOST_PIXELS = 2**20
"""Largest image that tokens may decode to, in pixels."""
_TOKEN_FORMAT = "lgq-tokens-1"


def tokens_of(model: Model, shape: Any, values: Any) -> Int64[Tensor, "1 h w *stages"]:
    """Return tokens that a browser sent, checked; shape: height and width in tokens."""
    tokenizer = model.tokenizer
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(side) is int for side in shape)):
        raise LGQError("the shape of tokens must be [height, width].")
    height, width = shape
    most = MOST_PIXELS // tokenizer.factor**2
    if height < 1 or width < 1 or height * width > most:
        raise LGQError(f"{height} x {width} tokens are not between 1 and {most:,} in all.")
    count = height * width * tokenizer.stages
    if not isinstance(values, list) or len(values) != count:
        raise LGQError(f"{height} x {width} tokens in {tokenizer.stages} stage(s) are {count:,} numbers.")
    if not set(map(type, values)) <= {int}:
        raise LGQError("tokens must be whole numbers.")
    if min(values) < 0 or max(values) >= tokenizer.codebook_size:
        wrong = min(values) if min(values) < 0 else max(values)
        raise LGQError(
            f"token {wrong} is outside 0..{tokenizer.codebook_size - 1}, the codes of {model.name}."
        )
    tokens = torch.tensor(values, dtype=torch.int64).view(1, height, width, tokenizer.stages)
    return tokens if tokenizer.stages > 1 else tokens[..., 0]


def read_token_file(model: Model, data: bytes) -> Int64[Tensor, "1 h w *stages"]:
    """Return the tokens of a file that the page saved; the file must be of this model."""
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


def token_file(model: Model, tokens: Int64[Tensor, "1 h w *stages"]) -> bytes:
    """Return tokens as a file that `read_token_file` reads."""
    content = {
        "format": _TOKEN_FORMAT,
        "tokenizer": model.name,
        "fingerprint": model.tokenizer.fingerprint(),
        "shape": list(tokens.shape[1:3]),
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
