"""One pass over a data set for an evaluation, of which each process takes a share."""

import torch

from lgq.data import ImageDataset, ImageLoader, Loading
from lgq.distributed import rank, world_size


def share_of_images(
    data: ImageDataset, device: torch.device, *, image_size: int, batch_size: int, workers: int
) -> ImageLoader:
    """Centre crops for this process, which go to a device."""
    loading = Loading(
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
        pin_memory=device.type == "cuda",
        rank=rank(),
        world_size=world_size(),
    )
    return ImageLoader(data, loading)
