"""Quantizers with one contract, and the registry of their names."""

import difflib
import inspect
import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

from lgq.checks import require_known
from lgq.errors import LGQError
from lgq.quantizers.base import Quantizer
from lgq.quantizers.bsq import BSQ
from lgq.quantizers.compositions.grouped import Grouped
from lgq.quantizers.compositions.multiscale import MultiScale
from lgq.quantizers.compositions.residual import Residual
from lgq.quantizers.continuous import Continuous
from lgq.quantizers.fsq import FSQ, ResidualFSQ
from lgq.quantizers.ibq import IBQ
from lgq.quantizers.lfq import LFQ
from lgq.quantizers.lgq import LGQ
from lgq.quantizers.plugins import import_plugin, load_installed
from lgq.quantizers.quantized import Quantized
from lgq.quantizers.simvq import ProjectedVQ, SimVQ
from lgq.quantizers.vq import VQ, DiVeQ, RotVQ, WassersteinVQ

__all__ = [
    "BSQ", "CONTINUOUS", "FSQ", "IBQ", "LFQ", "LGQ", "QUANTIZERS", "VQ", "DiVeQ", "Grouped", "MultiScale",
    "ProjectedVQ", "Quantized", "Quantizer", "Residual", "ResidualFSQ", "RotVQ", "SimVQ", "WassersteinVQ",
    "build_quantizer", "foreign_quantizers", "import_plugin", "register", "require_quantizer",
]  # fmt: skip

CONTINUOUS = "none"
"""Name under which a tokenizer has no quantizer; found, but not listed, in `QUANTIZERS`."""

_log = logging.getLogger(__name__)


class Registry(MutableMapping[str, type[Quantizer]]):
    """Quantizer classes by name; those of installed packages are loaded when it is first read.

    `CONTINUOUS` can be looked up, so that tokenizers can be built and loaded with it, and is not among the
    names: it is no method.
    """

    def __init__(self, **classes: type[Quantizer]):
        self._classes = classes
        self._has_installed = False
        self.failures: dict[str, str] = {}
        """Why quantizers of installed packages could not be loaded, by name."""

    def _all(self) -> dict[str, type[Quantizer]]:
        if not self._has_installed:
            self._has_installed = True  # first, as plugins read the registry too
            self.failures = load_installed(register)
            for reason in self.failures.values():
                _log.warning("left out: %s", reason)
        return self._classes

    def __getitem__(self, name: str) -> type[Quantizer]:
        return Continuous if name == CONTINUOUS else self._all()[name]

    def __setitem__(self, name: str, quantizer: type[Quantizer]) -> None:
        self._classes[name] = quantizer

    def __delitem__(self, name: str) -> None:
        del self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


QUANTIZERS = Registry(
    lgq=LGQ,
    ibq=IBQ,
    vq=VQ,
    rotvq=RotVQ,
    fsq=FSQ,
    lfq=LFQ,
    simvq=SimVQ,
    bsq=BSQ,
    diveq=DiVeQ,
    wasserstein=WassersteinVQ,
)
"""Quantizer classes by name: the only list, for runs, experiments and benchmarks alike."""


def register(name: str, quantizer: type[Quantizer]) -> None:
    """Add a quantizer class to `QUANTIZERS`: with the name `mine`, `pocket-mine` is a run."""
    if not (isinstance(quantizer, type) and issubclass(quantizer, Quantizer)):
        raise LGQError(
            f"quantizer {name!r} must be a subclass of lgq.quantizers.Quantizer, got {quantizer!r}."
        )
    _require_complete(name, quantizer)
    _require_plain_constructor(name, quantizer)
    if QUANTIZERS.get(name, quantizer) is not quantizer:
        raise LGQError(f"quantizer {name!r} is {QUANTIZERS[name].__name__} already: choose another name.")
    QUANTIZERS[name] = quantizer


def _require_complete(name: str, quantizer: type[Quantizer]) -> None:
    """Refuse a class that lacks something; the error names all that it lacks."""
    missing = sorted(quantizer.__abstractmethods__)
    if not getattr(quantizer, "label", ""):
        missing.append("`label` (its name in tables)")
    parameters = inspect.signature(quantizer).parameters
    needed = ("dim", "codebook_size", "channel_dim", "seed")
    missing += [f"`{argument}` of __init__" for argument in needed if argument not in parameters]
    if missing:
        raise LGQError(
            f"quantizer {name!r} lacks {', '.join(missing)}: add what is missing to {quantizer.__name__}."
        )


def _require_plain_constructor(name: str, quantizer: type[Quantizer]) -> None:
    """Refuse a constructor whose options cannot be fields of config.json."""
    parameters = inspect.signature(quantizer).parameters
    for option, parameter in parameters.items():
        if option in ("dim", "codebook_size"):
            continue
        if (
            parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            or parameter.default is parameter.empty
        ):
            rule = "must name each option with its default, which config.json holds"
            raise LGQError(f"quantizer {name!r} {rule}: change {option} in {quantizer.__name__}.__init__.")


def foreign_quantizers() -> dict[str, str]:
    """Return the modules of registered quantizers that are no part of this package, by name."""
    modules = {name: quantizer.__module__ for name, quantizer in QUANTIZERS.items()}
    return {name: module for name, module in modules.items() if module.partition(".")[0] != "lgq"}


def require_quantizer(name: str) -> None:
    """Refuse a name that is not registered; the error says how to register one."""
    if name in QUANTIZERS:
        return
    if name in QUANTIZERS.failures:
        raise LGQError(f"{QUANTIZERS.failures[name]}.")
    close = difflib.get_close_matches(name.lower(), QUANTIZERS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? If it is your own, " if close else ""
    raise LGQError(
        f"unknown quantizer {name!r}: {hint}import the module that registers it, or pass --plugin MODULE. "
        f"Registered are {', '.join(QUANTIZERS)}."
    )


def build_quantizer(name: str, dim: int, codebook_size: int, **options: Any) -> Quantizer:
    """Build the quantizer of that name; options are its constructor's keyword arguments."""
    require_quantizer(name)
    known = [p for p in inspect.signature(QUANTIZERS[name]).parameters if p not in ("dim", "codebook_size")]
    for option in options:
        require_known(f"{name} option", option, known)
    return QUANTIZERS[name](dim, codebook_size, **options)
