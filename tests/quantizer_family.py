"""Quantizers on which every law is tested: all of the registry, and variants; of one seed unless told."""

from collections.abc import Callable

from lgq.quantizers import QUANTIZERS, Quantizer, Residual, build_quantizer

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
}

Build = Callable[..., Quantizer]


def singles() -> dict[str, Build]:
    def single(name: str, options: dict) -> Build:
        return lambda **more: build_quantizer(name, DIM, SIZE, **{"seed": 0} | options | more)

    return {name: single(*variant) for name, variant in VARIANTS.items()}


def family() -> dict[str, Build]:
    def residual(**more) -> Quantizer:
        stages = [build_quantizer(name, DIM, SIZE, seed=0) for name in ("lgq", "vq", "fsq")]
        return Residual(stages, **more)

    return singles() | {"residual": residual}
