"""Discrete image tokenizers and generators on their tokens: LGQ and its baselines, exact and memory-light.

    import lgq

    run = lgq.run("pocket-lgq", codebook_size=4096)          # a named run with changes
    lgq.train(run, data="photos", out="runs/photos")
    lgq.evaluate("runs/photos", data="photos").metrics
    tokenizer = lgq.load_tokenizer("runs/photos")
    lgq.encode(tokenizer, data="photos", out="tokens")

Functions have the names of the commands. Every name is loaded when it is first used, so that `import lgq`
itself imports nothing else.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgq.errors import LGQError
    from lgq.maskgit import MaskGIT
    from lgq.models.sampling import Sampling
    from lgq.quantizers import FSQ, IBQ, LFQ, LGQ, VQ, Residual, RotVQ, SimVQ, build_quantizer, register
    from lgq.tokenizer import Tokenizer

__all__ = [
    "FSQ",
    "IBQ",
    "LFQ",
    "LGQ",
    "VQ",
    "LGQError",
    "MaskGIT",
    "Residual",
    "RotVQ",
    "Sampling",
    "SimVQ",
    "Tokenizer",
    "build_quantizer",
    "register",
]

_MODULES = {
    "lgq.errors": ("LGQError",),
    "lgq.maskgit": ("MaskGIT",),
    "lgq.models.sampling": ("Sampling",),
    "lgq.quantizers": (
        "FSQ",
        "IBQ",
        "LFQ",
        "LGQ",
        "VQ",
        "Residual",
        "RotVQ",
        "SimVQ",
        "build_quantizer",
        "register",
    ),
    "lgq.tokenizer": ("Tokenizer",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    if not name.startswith("_"):
        try:
            return import_module(f"lgq.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"lgq.{name}":
                raise
    raise AttributeError(f"module 'lgq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    try:
        return version("lgq")
    except PackageNotFoundError:  # used from its sources, without an installation
        return "unknown"
