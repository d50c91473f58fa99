"""How much the scale of the latents matters to a quantizer, in the VQ-VAE of vq_start.py.

    python benchmarks/latent_scale.py

Prints the table of docs/quantizers.md: the share of used codes and PSNR on held-out photographs, after a
GroupNorm whose output is multiplied by the factor of the column. One seed.
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch
import tyro
from torch import Tensor, nn
from vq_start import Settings, train

from lgq import IBQ, LGQ, VQ
from lgq.errors import LGQWarning
from lgq.quantizers import Quantized, Quantizer

FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
ROWS: dict[str, Callable[..., Quantizer]] = {
    "`LGQ`": LGQ,
    '`LGQ(init="data")`': partial(LGQ, init="data"),
    "`VQ`": VQ,
    "`IBQ`": IBQ,
}


class Scaled(nn.Module):
    """A quantizer behind a normalisation with a factor, annealed over its training batches."""

    def __init__(self, quantizer: Quantizer, factor: float, steps: int):
        super().__init__()
        self.norm, self.quantizer = nn.GroupNorm(8, quantizer.dim, affine=False), quantizer
        self.factor, self.steps, self.step = factor, steps, 0

    def forward(self, z: Tensor) -> Quantized:
        if self.training:
            self.quantizer.anneal(self.step / max(1, self.steps - 1))
            self.step += 1
        return self.quantizer(self.factor * self.norm(z))


def main(settings: Settings) -> None:
    print(f"| factor | {' | '.join(f'{factor:g}' for factor in FACTORS)} |\n{'| --- ' * (len(FACTORS) + 1)}|")
    for name, make in ROWS.items():
        print(f"| {name} |", end="", flush=True)
        for factor in FACTORS:
            psnr, used = train(partial(build, make, factor, settings.steps), 0, settings)
            print(f" {used:.0f}%, {psnr:.1f} dB |", end="", flush=True)
        print()


def build(make: Callable[..., Quantizer], factor: float, steps: int, dim: int, codebook_size: int) -> Scaled:
    return Scaled(make(dim, codebook_size, channel_dim=1, seed=0), factor, steps)


if __name__ == "__main__":
    warnings.simplefilter("ignore", LGQWarning)  # of latents off scale, which the table is about
    torch.set_num_threads(1)
    main(tyro.cli(Settings, default=Settings(steps=300, seeds=1)))
