"""How much the scale and the mean of the latents matter to a quantizer, in the VQ-VAE of vq_start.py.

    python benchmarks/latent_scale.py

Prints two tables of docs/quantizers.md, the share of used codes and PSNR on held-out photographs: after a
GroupNorm whose output is multiplied by the factor of the column (seed 0), and from an encoder as it is, whose
latents have large means.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
import tyro
from torch import Tensor, nn
from vq_start import Settings, train

from lgq import IBQ, LGQ, VQ, RotVQ
from lgq.errors import LGQWarning
from lgq.quantizers import Quantized, Quantizer

Row = TypeVar("Row")
FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
ROWS: dict[str, Callable[..., Quantizer]] = {
    "`LGQ`": LGQ,
    '`LGQ(init="data")`': partial(LGQ, init="data"),
    "`VQ`": VQ,
    "`IBQ`": IBQ,
}


RAW_ROWS: dict[str, tuple[Callable[..., Quantizer], Callable[[int], nn.Module]]] = {
    '`RotVQ(init="kmeans", restart_below=1)`': (partial(RotVQ, init="kmeans", restart_below=1), nn.Identity),
    "`LGQ` behind a `BatchNorm2d`": (LGQ, nn.BatchNorm2d),
    "`LGQ`, with a warning": (LGQ, nn.Identity),
    '`LGQ(scale="data", init="kmeans")`': (partial(LGQ, scale="data", init="kmeans"), nn.Identity),
    '`LGQ(scale="data")`': (partial(LGQ, scale="data"), nn.Identity),
    '`LGQ(init="data")`': (partial(LGQ, init="data"), nn.Identity),
}


class Annealed(nn.Module):
    """A quantizer behind a normalisation and a factor, annealed over its training batches."""

    def __init__(self, norm: nn.Module, factor: float, quantizer: Quantizer, steps: int):
        super().__init__()
        self.norm, self.factor, self.quantizer = norm, factor, quantizer
        self.steps, self.step = steps, 0

    def forward(self, z: Tensor) -> Quantized:
        if self.training:
            self.quantizer.anneal(self.step / max(1, self.steps - 1))
            self.step += 1
        return self.quantizer(self.factor * self.norm(z))


def main(settings: Settings) -> None:
    print_table("factor", [f"{factor:g}" for factor in FACTORS])
    for name, make in chosen(ROWS, settings):
        print_row(name, [result(make, 0, settings, group_norm, factor=factor) for factor in FACTORS])
    print()
    print_table("quantizer", [f"seed {seed}" for seed in range(settings.seeds)])
    for name, (make, norm) in chosen(RAW_ROWS, settings):
        print_row(name, [result(make, seed, settings, norm) for seed in range(settings.seeds)])


def group_norm(dim: int) -> nn.Module:
    return nn.GroupNorm(8, dim, affine=False)


def chosen(rows: dict[str, Row], settings: Settings) -> list[tuple[str, Row]]:
    return [(name, row) for name, row in rows.items() if not settings.only or name in settings.only]


def result(
    make: Callable[..., Quantizer],
    seed: int,
    settings: Settings,
    norm: Callable[[int], nn.Module],
    *,
    factor: float = 1.0,
) -> str:
    def build(dim: int, codebook_size: int) -> Annealed:
        quantizer = make(dim, codebook_size, channel_dim=1, seed=seed)
        return Annealed(norm(dim), factor, quantizer, settings.steps)

    psnr, used = train(build, seed, settings)
    return f"{used:.0f}%, {psnr:.1f} dB"


def print_table(first: str, columns: list[str]) -> None:
    print(f"| {first} | {' | '.join(columns)} |\n{'| --- ' * (len(columns) + 1)}|")


def print_row(name: str, cells: list[str]) -> None:
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", LGQWarning)  # of latents off scale, which the table is about
    torch.set_num_threads(1)
    main(tyro.cli(Settings, default=Settings(steps=300, seeds=2)))
