"""How VQ's codes should start: a small VQ-VAE on the embedded photographs, from each start, beside the peer.

    python benchmarks/vq_start.py

Prints the table of docs/quantizers.md: PSNR and the share of used codes on held-out photographs. Every row
has the same networks, images and steps, and the defaults of the peer, vector-quantize-pytorch (decay 0.8,
commitment weight 1); only the start of the codes, the revival of dead ones and the gradient differ. The
latents have no normalisation, as in most networks of one's own.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from vector_quantize_pytorch import VectorQuantize

from lgq import VQ
from lgq.data.photographs import PHOTOGRAPHS, photograph_pixels
from lgq.errors import LGQWarning
from lgq.quantizers.vq import Gradient

GRADIENTS: tuple[Gradient, ...] = ("straight_through", "rotation")

SIDE, SHARED = 32, {"decay": 0.8, "commitment_weight": 1.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes of the experiment."""

    steps: int = 500
    """Number of training steps."""
    batch_size: int = 16
    """Number of crops of 32 x 32 pixels per step, each of 64 tokens."""
    codebook_size: int = 512
    """Number of codes."""
    dim: int = 32
    """Number of channels of a latent."""
    width: int = 16
    """Number of channels of the networks."""
    seeds: int = 3
    """Number of repetitions, with seeds 0, 1, ..."""
    only: tuple[str, ...] = ()
    """Rows to run; none for all."""


class Peer(nn.Module):
    """vector-quantize-pytorch with the channels at axis 1, and the arguments of `VQ`."""

    def __init__(self, dim: int, codebook_size: int, *, gradient: Gradient, **options: Any):
        super().__init__()
        rotation = gradient == "rotation"
        options = {"rotation_trick": rotation, "straight_through": not rotation, **SHARED, **options}
        self.quantizer = VectorQuantize(dim, codebook_size, accept_image_fmap=True, **options)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, indices, loss = self.quantizer(z)
        return quantized, indices, loss.sum()


Build = Callable[..., nn.Module]
ours = partial(VQ, channel_dim=1, **SHARED)


def small(dim: int, codebook_size: int, **options: Any) -> nn.Module:
    """VQ whose codes start with the norm of the peer's."""
    quantizer = ours(dim, codebook_size, **options)
    quantizer.set_codebook(quantizer.codebook * (2 / codebook_size) ** 0.5)
    return quantizer


STARTS: dict[str, Build] = {
    "normal, norm 1 (default)": ours,
    "normal, norm 0.06, as the peer's": small,
    '`init="data"`': partial(ours, init="data"),
    '`init="kmeans"`': partial(ours, init="kmeans"),
    '`init="kmeans", restart_below=1`': partial(ours, init="kmeans", restart_below=1.0),
    "peer, default": Peer,
    "peer, `kmeans_init=True`": partial(Peer, kmeans_init=True),
    "peer, `kmeans_init=True, threshold_ema_dead_code=2`": partial(
        Peer, kmeans_init=True, threshold_ema_dead_code=2
    ),
}
"""Row of the table to a function that builds the quantizer."""


def crops(photographs: list[Tensor], count: int, generator: torch.Generator) -> Tensor:
    """Cut random squares out of random photographs."""
    images = []
    for _ in range(count):
        photograph = photographs[int(torch.randint(len(photographs), (), generator=generator))]
        top, left = (
            int(torch.randint(size - SIDE, (), generator=generator)) for size in photograph.shape[1:]
        )
        images.append(photograph[:, top : top + SIDE, left : left + SIDE])
    return torch.stack(images)


def load(split: str) -> list[Tensor]:
    """Load the photographs of a split at a quarter of their size, in [-1, 1]."""
    pixels = [np.asarray(photograph_pixels(name)) for name in PHOTOGRAPHS[split]]
    tensors = [torch.from_numpy(array.copy()).permute(2, 0, 1).float() / 127.5 - 1 for array in pixels]
    return [nn.functional.avg_pool2d(tensor, 4) for tensor in tensors]


def networks(dim: int, width: int) -> tuple[nn.Module, nn.Module]:
    encoder = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU(), nn.Conv2d(2 * width, dim, 1),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Conv2d(dim, 2 * width, 3, 1, 1), nn.ReLU(), nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1),
    )  # fmt: skip
    return encoder, decoder


def train(build: Build, seed: int, settings: Settings) -> tuple[float, float]:
    """Train from one seed; return PSNR in dB and the share of used codes in percent, on held-out crops."""
    torch.manual_seed(seed)
    encoder, decoder = networks(settings.dim, settings.width)
    quantizer = build(settings.dim, settings.codebook_size)
    model = nn.ModuleList([encoder, quantizer, decoder])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    photographs, generator = load("train"), torch.Generator().manual_seed(seed)
    for _ in range(settings.steps):
        images = crops(photographs, settings.batch_size, generator)
        quantized, _, loss = quantizer(encoder(images))
        optimizer.zero_grad()
        ((decoder(quantized) - images).square().mean() + loss).backward()
        optimizer.step()
    model.eval()
    images = crops(load("held-out"), 512, torch.Generator().manual_seed(0))
    with torch.no_grad():
        quantized, indices, _ = quantizer(encoder(images))
        errors = (decoder(quantized).clamp(-1, 1) - images).square().mean((1, 2, 3)) / 4
    used = len(indices.unique()) / settings.codebook_size
    return float((-10 * errors.log10()).mean()), 100 * used


def main(settings: Settings) -> None:
    print("| start of the codes | " + " | ".join(name.replace("_", "-") for name in GRADIENTS) + " |")
    print("| --- | --- | --- |")
    for name in settings.only or STARTS:
        print(f"| {name} |", end="", flush=True)
        for gradient in GRADIENTS:
            build = partial(STARTS[name], gradient=gradient)
            results = [train(build, seed, settings) for seed in range(settings.seeds)]
            psnr, used = (spread(list(values)) for values in zip(*results, strict=True))
            print(f" {psnr} dB, {used}% |", end="", flush=True)
        print()


def spread(values: list[float]) -> str:
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    warnings.simplefilter("ignore", LGQWarning)  # of latents off scale, which some rows are about
    torch.set_num_threads(1)
    main(tyro.cli(Settings))
