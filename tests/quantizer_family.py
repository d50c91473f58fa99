"""Quantizers on which every law is tested: all of the registry, and variants; of one seed unless told."""

from collections.abc import Callable

import torch

from lgq.quantizers import (
    QUANTIZERS,
    Grouped,
    MultiScale,
    ProjectedVQ,
    Quantizer,
    Residual,
    ResidualFSQ,
    build_quantizer,
)

DIM, SIZE = 6, 32

VARIANTS: dict[str, tuple[str, dict]] = {name: (name, {}) for name in QUANTIZERS} | {
    "lgq dot": ("lgq", {"score": "dot"}),
    "lgq hard gradient": ("lgq", {"hard_gradient": True}),
    "lgq token scale": ("lgq", {"diversity_scale": "tokens"}),
    "lgq latent": ("lgq", {"latent_weight": 1.0}),
    "lgq synced": ("lgq", {"sync_usage": True}),
    "ibq plain": ("ibq", {"entropy_weight": 0.0}),
    "vq restarting": ("vq", {"restart_below": 0.5}),
    "fsq levels": ("fsq", {"levels": (2, 16)}),
    "lfq plain": ("lfq", {"entropy_weight": 0.0}),
    "simvq linear": ("simvq", {"transform": "linear", "weight": 1.0}),
    "bsq groups": ("bsq", {"groups": 5}),
    "lgq cosine": ("lgq", {"score": "cosine", "codebook_dim": 3}),
    "lgq data scale": ("lgq", {"scale": "data"}),
    "ibq cosine": ("ibq", {"score": "cosine", "codebook_dim": 3}),
    "vq cosine": ("vq", {"score": "cosine", "codebook_dim": 3}),
    "vq gradient": ("vq", {"learning": "gradient", "matching_weight": 0.1, "restart_below": 0.5}),
    "simvq cosine": ("simvq", {"score": "cosine", "codebook_dim": 3}),
}

Build = Callable[..., Quantizer]


def singles() -> dict[str, Build]:
    def single(name: str, options: dict) -> Build:
        return lambda **more: build_quantizer(name, DIM, SIZE, **{"seed": 0} | options | more)

    return {name: single(*variant) for name, variant in VARIANTS.items()}


def family() -> dict[str, Build]:
    """All of the singles, and compositions and nests of them."""

    def stages(*names: str, dim: int = DIM) -> list[Quantizer]:
        return [build_quantizer(name, dim, SIZE, seed=0) for name in names]

    def halves(name: str) -> Quantizer:
        return build_quantizer(name, DIM // 2, SIZE, seed=0)

    def projected(**more) -> Quantizer:
        features = torch.randn(SIZE, 4, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        return ProjectedVQ(features, DIM, **{"seed": 0} | more)

    return singles() | {
        "projected": projected,
        "residual": lambda **more: Residual(stages("lgq", "vq", "fsq"), **more),
        "residual shared": lambda **more: Residual.of(lambda: stages("vq")[0], 3, shared=True, **more),
        "residual projected": lambda **more: Residual(
            stages("vq", "lgq", "vq", dim=DIM // 2), dim=DIM, **more
        ),
        "residual fsq": lambda **more: ResidualFSQ(DIM, SIZE, 3, **{"seed": 0} | more),
        "grouped": lambda **more: Grouped(stages("lgq", "vq", dim=DIM // 2), **more),
        "grouped shared": lambda **more: Grouped.of(lambda: halves("vq"), 2, shared=True, **more),
        "grouped residual": lambda **more: Grouped.of(
            lambda: Residual(stages("lgq", "lgq", dim=DIM // 2)), 2, **more
        ),
        "residual grouped": lambda **more: Residual.of(
            lambda: Grouped.of(lambda: halves("lgq"), 2), 2, **more
        ),
        "multiscale": lambda **more: MultiScale(stages("lgq")[0], (1, 2, 4), axes=1, **more),
    }


CLASSES = [*QUANTIZERS, "projected", "residual", "grouped", "multiscale"]
"""One of each class, for laws that take long."""
