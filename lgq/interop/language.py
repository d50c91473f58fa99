"""Image tokens as tokens of a language model, both ways: ids of its vocabulary, or words like `<img_123>`.

h w = tokens along the height and the width.

    images = ImageVocabulary.of(tokenizer, offset=len(text_tokenizer))
    text_tokenizer.add_tokens(images.words)             # word i gets the id offset + i
    ids = images.to_ids(tokenizer.encode_image("cat.jpg")[0])
    tokens = images.to_tokens(ids)                      # the same tokens
    pictures = images.images_in(generated_ids)          # all images among generated text

An image is `<img_begin>`, its tokens row by row with `<img_row>` between the rows, and `<img_end>`. The words
of the codes come first, stage by stage: code k of stage s is `<img_{s * codebook_size + k}>`. At each place,
the tokens of all stages follow each other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from lgq.checks import require_at_least, require_indices
from lgq.data.token_format import Encoding
from lgq.errors import LGQError
from lgq.tokenizer import Tokenizer

Ids: TypeAlias = Sequence[int] | Integer[Tensor, " n"] | Integer[np.ndarray, " n"]
"""Ids of a text, which may contain images."""

_MARKS = ("begin", "row", "end")
_WORD = re.compile(r"<img_(\d{1,18}|begin|row|end)>")


class LanguageError(LGQError):
    """Words or ids that make no image."""


@dataclass(frozen=True, kw_only=True)
class ImageVocabulary:
    """Ids and words of image tokens within the vocabulary of a language model."""

    codebook_size: int
    """Number of codes per stage."""
    stages: int = 1
    """Tokens per place; above 1, tokens have a trailing axis of stages, and each stage has its own words."""
    offset: int = 0
    """Id of the first image token: the number of tokens that the text vocabulary already has."""
    grid: tuple[int, int] | None = None
    """Height and width in tokens of every image, which are then written without `<img_row>`; None marks the
    rows, so that images of any size can be read back."""

    def __post_init__(self) -> None:
        require_at_least(1, codebook_size=self.codebook_size, stages=self.stages)
        require_at_least(0, offset=self.offset)
        if self.grid is not None and min(self.grid) < 1:
            raise LanguageError(f"`grid` must be a height and a width of at least 1 token, got {self.grid}.")

    @classmethod
    def of(
        cls, tokenizer: Tokenizer | Encoding, *, offset: int = 0, grid: tuple[int, int] | None = None
    ) -> "ImageVocabulary":
        """Return the vocabulary for the tokens of a tokenizer, or of a data set by its `encoding`."""
        return cls(codebook_size=tokenizer.codebook_size, stages=tokenizer.stages, offset=offset, grid=grid)

    @property
    def words(self) -> list[str]:
        """Words in the order of their ids: one per code and stage, then those of begin, row and end."""
        return [f"<img_{name}>" for name in (*range(self._codes), *_MARKS)]

    def __len__(self) -> int:
        """Return the number of ids that image tokens take."""
        return self._codes + len(_MARKS)

    def to_ids(self, tokens: Integer[Tensor, "..."] | Integer[np.ndarray, "..."]) -> list[int]:
        """Return the ids of one image, (h, w) or (h, w, stages), from `<img_begin>` to `<img_end>`."""
        tokens = require_indices(torch.as_tensor(tokens), self.codebook_size)
        tokens = tokens[..., None] if self.stages == 1 else tokens
        if tokens.ndim != 3 or 0 in tokens.shape or tokens.shape[2] != self.stages:
            axes = "(h, w)" if self.stages == 1 else f"(h, w, {self.stages})"
            shape = tuple(tokens.shape[:-1] if self.stages == 1 else tokens.shape)
            raise LanguageError(
                f"the tokens of one image have shape {axes}, got {shape}: index the batch, or "
                "give a sequence as one row, tokens[None]."
            )
        if self.grid is not None and tuple(tokens.shape[:2]) != tuple(self.grid):
            height, width = tokens.shape[:2]
            rule = "{} x {}, the `grid` of this vocabulary".format(*self.grid)
            raise LanguageError(
                f"tokens must be {rule}, got {height} x {width}: leave `grid` out for any size."
            )
        numbers = tokens.cpu() + self.codebook_size * torch.arange(self.stages) + self.offset
        rows = numbers.flatten(1).tolist()
        ids = [self._id("begin"), *rows[0]]
        for row in rows[1:]:
            ids += row if self.grid is not None else [self._id("row"), *row]
        return [*ids, self._id("end")]

    def to_text(self, tokens: Integer[Tensor, "..."] | Integer[np.ndarray, "..."]) -> str:
        """Return the words of one image, without spaces, from `<img_begin>` to `<img_end>`."""
        symbols = self._symbols(self.to_ids(tokens))
        return "".join(f"<img_{symbol}>" for symbol in symbols)

    def to_tokens(self, ids: Ids | str) -> Int64[Tensor, "h w *stages"]:
        """Return the tokens of one image from its ids or its text; anything around the image is an error."""
        symbols = self._symbols(ids)
        if not symbols or symbols[0] != "begin" or symbols[-1] != "end" or "end" in symbols[:-1]:
            raise LanguageError(
                f"an image goes from <img_begin> to <img_end>, got {self._summary(symbols)}: "
                "`images_in` finds the images within a text."
            )
        return self._image(symbols[1:-1])

    def images_in(self, ids: Ids | str) -> list[Int64[Tensor, "h w *stages"]]:
        """Return the tokens of every image within ids or a text, in their order; other text is skipped."""
        images: list[Tensor] = []
        start: int | None = None
        symbols = self._symbols(ids)
        for place, symbol in enumerate(symbols):
            if symbol == "begin" and start is None:
                start = place + 1
            elif symbol == "end" and start is not None:
                images.append(self._image(symbols[start:place]))
                start = None
        if start is not None:
            raise LanguageError(
                f"the image at place {start - 1} has no <img_end>: generate more, or cut the text before it."
            )
        return images

    @property
    def _codes(self) -> int:
        return self.codebook_size * self.stages

    def _id(self, mark: str) -> int:
        return self.offset + self._codes + _MARKS.index(mark)

    def _symbols(self, ids: Ids | str) -> list[int | str]:
        """Return numbers of codes and names of marks; anything else as an error would show it."""
        if isinstance(ids, str):
            gaps_and_words = enumerate(_WORD.split(ids))
            words = (
                word if place % 2 else repr(word)
                for place, word in gaps_and_words
                if place % 2 or word.strip()
            )
            return [self._word_symbol(word) for word in words]
        if isinstance(ids, Tensor | np.ndarray):
            ids = ids.tolist()
        return [self._symbol(number - self.offset, f"id {number}") for number in ids]

    def _word_symbol(self, word: str) -> int | str:
        return self._symbol(int(word), f"<img_{word}>") if word.isdecimal() else word

    def _symbol(self, number: int, shown: str) -> int | str:
        if 0 <= number < self._codes:
            return number
        is_mark = shown.startswith("id") and self._codes <= number < len(self)
        return _MARKS[number - self._codes] if is_mark else shown

    def _image(self, symbols: list[int | str]) -> Int64[Tensor, "h w *stages"]:
        rows: list[list[int]] = [[]]
        for symbol in symbols:
            if symbol == "row" and self.grid is None:
                rows.append([])
            elif isinstance(symbol, str):
                known = f"<img_0> to <img_{self._codes - 1}>"
                shown = f"<img_{symbol}>" if symbol in _MARKS else symbol
                rule = f"{known}, which begin at id {self.offset}" if self.offset else known
                raise LanguageError(f"{shown:.80} inside an image is none of its tokens, {rule}.")
            else:
                rows[-1].append(symbol)
        if self.grid is not None:
            return self._tokens(rows[0], *self.grid)
        lengths = [len(row) for row in rows]
        for number, length in enumerate(lengths):
            if length != lengths[0] or length == 0:
                raise LanguageError(
                    f"row {number} of an image has {length} tokens, and row 0 has {lengths[0]}: all rows of "
                    "an image are equally long, so a token is missing or one too many."
                )
        return self._tokens([number for row in rows for number in row], len(rows), lengths[0] // self.stages)

    def _tokens(self, numbers: list[int], height: int, width: int) -> Int64[Tensor, "h w *stages"]:
        if len(numbers) != height * width * self.stages:
            shape = f"{height} x {width}" + f" x {self.stages} stages" * (self.stages > 1)
            raise LanguageError(
                f"an image of {shape} has {height * width * self.stages} tokens, got {len(numbers)}: "
                "a token is missing or one too many."
            )
        tokens = torch.tensor(numbers).view(height, width, self.stages)
        stages = tokens // self.codebook_size
        wrong = (stages != torch.arange(self.stages)).nonzero()
        if len(wrong):
            row, column, stage = wrong[0].tolist()
            raise LanguageError(
                f"<img_{int(tokens[row, column, stage])}> at row {row}, column {column} belongs to stage "
                f"{int(stages[row, column, stage])}, where a token of stage {stage} must stand."
            )
        tokens = tokens % self.codebook_size
        return tokens[..., 0] if self.stages == 1 else tokens

    @staticmethod
    def _summary(symbols: list[int | str]) -> str:
        if not symbols:
            return "nothing"
        shown = [s if isinstance(s, str) and s not in _MARKS else f"<img_{s}>" for s in symbols]
        return f"{len(symbols)} tokens from {shown[0]:.80} to {shown[-1]:.80}"
