"""Batches of tokens whose order and content belong to (seed, epoch, position) alone.

b = images, n = tokens per image, row by row and, where there are several, stage by stage.

The same for token shards as `lgq.data.loader` is for images, without processes of its own: shards are mapped
into memory, and a batch costs little more than its copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from lgq.data.images import UNLABELLED
from lgq.data.loader import BatchPlan, BatchSettings, endless_plans, pass_plans
from lgq.data.tokens import TokenDataset
from lgq.random import Stream, random_bits


class TokenBatch(NamedTuple):
    """Tokens of the images of one rank, with where they come from."""

    tokens: Int64[Tensor, "b n"]
    labels: Int64[Tensor, " b"]
    """Class numbers, -1 where an image has none; 0 throughout a data set without classes."""
    indices: Int64[Tensor, " b"]
    """Numbers of the images in their data set."""
    names: list[str]
    position: int
    """Number of images taken over all ranks, including this batch: where `stream` continues after it."""


@dataclass(frozen=True, kw_only=True)
class TokenLoaderSettings(BatchSettings):
    """Settings of how tokens become batches."""

    flips: bool = True
    """Mirror images of `stream` with probability 0.5, where the data has mirrored ones."""


class TokenLoader:
    """Reads token shards for training (`stream`) or evaluation (`one_pass`)."""

    def __init__(self, dataset: TokenDataset, settings: TokenLoaderSettings):
        self.dataset, self.settings = dataset, settings
        self._flips = settings.flips and dataset.encoding.flips
        self._unlabelled = UNLABELLED if dataset.classes else 0

    def stream(self, start: int = 0) -> Iterator[TokenBatch]:
        """Yield endless, shuffled batches from position `start`, which is 0 or the `position` of a batch."""
        plans = endless_plans(len(self.dataset), self.settings, start)
        return (self._read(plan, flips=self._flips) for plan in plans)

    def one_pass(self, limit: int | None = None) -> Iterator[TokenBatch]:
        """Yield each image once, in order, as it is; at most `limit` of them, evenly spread.

        The ranks' numbers of batches differ by up to one: reduce over ranks after the pass.
        """
        plans = pass_plans(len(self.dataset), self.settings, limit)
        return (self._read(plan, flips=False) for plan in plans)

    def _read(self, plan: BatchPlan, *, flips: bool) -> TokenBatch:
        items = [self.dataset[index] for index in plan.indices]
        tokens = [item.tokens for item in items]
        for place, visit in enumerate(zip(plan.epochs, plan.indices, strict=True)):
            if flips and random_bits(Stream.FLIP, self.settings.seed, *visit) & 1:
                tokens[place] = self.dataset.flipped(plan.indices[place])
        labels = [self._unlabelled if item.label is None else item.label for item in items]
        return TokenBatch(
            tokens=torch.stack(tokens).flatten(1),
            labels=torch.tensor(labels),
            indices=torch.tensor(plan.indices),
            names=[item.name for item in items],
            position=plan.position,
        )
