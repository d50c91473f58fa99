"""A small autoencoder, what a network computes and keeps for its gradients, and photographs."""

import numpy as np
import torch
from torch import Tensor, nn

from lgq.data.photographs import photograph_pixels
from lgq.models.autoencoder import Backbone, Decoder, Encoder

TINY = Backbone(widths=(8, 16, 16), blocks=1, attention_heads=2, groups=4, latent_channels=8, latent_groups=2)


class Autoencoder(nn.Module):
    def __init__(self, backbone: Backbone):
        super().__init__()
        self.encoder, self.decoder = Encoder(backbone), Decoder(backbone)

    def forward(self, images: Tensor) -> Tensor:
        return self.decoder(self.encoder(images))


def gradients(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    network(images).square().mean().backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def kept_bytes(network: nn.Module, *images: Tensor) -> int:
    """Number of bytes that the forward pass stores for the backward pass, without the weights."""
    own = {tensor.data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        network(*images)
    return sum(kept.values())


def photograph(name: str, box: tuple[int, int, int, int]) -> Tensor:
    """A part of one of scikit-image's photographs, in [-1, 1]."""
    pixels = torch.from_numpy(np.array(photograph_pixels(name).crop(box)))
    return pixels.permute(2, 0, 1)[None].float() / 127.5 - 1
