"""Token directories from plain tensors."""

from pathlib import Path

import torch
from torch import Tensor

from lgq.data.token_format import EncodedBatch, Encoding, TokenWriter
from lgq.data.tokens import TokenDataset


def write_tokens(
    folder: Path,
    tokens: Tensor,
    *,
    labels: list[int] | None = None,
    classes: tuple[str, ...] = (),
    flipped: Tensor | None = None,
    codebook_size: int = 6,
    fingerprint: str = "nobody's",
    factor: int = 2,
    shard_size: int = 1_000,
    broken: dict[str, str] | None = None,
    names: list[str] | None = None,
) -> TokenDataset:
    """tokens: (images, h, w) or (images, h, w, stages); labels: -1 for none, as everywhere without."""
    count = len(tokens)
    encoding = Encoding(
        fingerprint=fingerprint,
        codebook_size=codebook_size,
        stages=tokens.shape[3] if tokens.ndim == 4 else 1,
        grid=(tokens.shape[1], tokens.shape[2]),
        image_size=factor * tokens.shape[1],
        flips=flipped is not None,
        classes=classes,
        source="a test",
        source_images=count,
        shard_size=shard_size,
    )
    writer = TokenWriter(folder, encoding)
    names = names or [f"{i}.png" for i in range(count)]
    numbers = torch.tensor([-1] * count if labels is None else labels)
    for shard in range(encoding.shards):
        part = slice(shard * shard_size, (shard + 1) * shard_size)
        mirrored = None if flipped is None else flipped[part]
        batch = EncodedBatch(tokens[part], mirrored, numbers[part], names[part])
        writer.write(shard, [batch], broken or {})
    writer.finish()
    return TokenDataset(folder)
