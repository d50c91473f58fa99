"""Discrete image tokenizers and generators on their tokens: LGQ and its baselines, exact and memory-light.

    import lgq

    run = lgq.run("pocket-lgq", codebook_size=4096)          # a named run with changes
    lgq.train(run, data="photos", out="runs/photos")
    lgq.evaluate("runs/photos", data="photos").metrics
    tokenizer = lgq.load_tokenizer("runs/photos")
    lgq.encode(tokenizer, data="photos", out="tokens")

Functions have the names of the commands. `__init__.pyi` lists every public name; each is loaded when it is
first used, so that `import lgq` itself loads nothing else.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_COUNTERPARTS = {
    "GroupedResidualFSQ": "Grouped.of(lambda: ResidualFSQ(...), groups)",
    "GroupedResidualLFQ": "Grouped.of(lambda: Residual.of(...), groups)",
    "GroupedResidualVQ": "Grouped.of(lambda: Residual.of(...), groups)",
    "HierarchicalVQ": "MultiScale",
    "LatentQuantize": "FSQ",
    "RandomProjectionQuantizer": "VQ(...).freeze()",
    "ResidualLFQ": "Residual.of(lambda: LFQ(...), stages)",
    "ResidualSimVQ": "Residual.of(lambda: SimVQ(...), stages)",
    "ResidualVQ": "Residual.of(lambda: RotVQ(...), stages)",
    "VectorQuantize": "RotVQ, or VQ",
}
"""Classes of vector-quantize-pytorch that have another name here."""
try:
    __version__ = version("lgq")
except PackageNotFoundError:  # used from its sources, without an installation
    __version__ = "unknown"


def __getattr__(name: str) -> Any:
    if name in _COUNTERPARTS:  # not an AttributeError, whose text `from lgq import` would drop
        raise ImportError(
            f"lgq has no {name}: {_COUNTERPARTS[name]} takes its place "
            "(docs/from-vector-quantize-pytorch.md has all names)"
        )
    return _public(name)
