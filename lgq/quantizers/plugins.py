"""Quantizers from outside of the package: modules that a user names, and entry points of installed packages.

A package offers quantizers in its pyproject.toml:

    [project.entry-points."lgq.quantizers"]
    mine = "my_package.my_module:MyQuantizer"
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from lgq.errors import LGQError
from lgq.quantizers.base import Quantizer

GROUP = "lgq.quantizers"


def import_plugin(module: str) -> None:
    """Import a module that registers quantizers: a name, found from here too, or the path of a file."""
    path = Path(module)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise LGQError(f"there is no file {module}: name a Python module, or the path of one.")
    folder = str(path.parent.resolve()) if is_file else str(Path.cwd())
    if folder not in sys.path:
        # Last, so that no file of the user's hides a module of others. Processes that are started from this
        # one get the same path, and so find the module too.
        sys.path.append(folder)
    try:
        imported = import_module(path.stem if is_file else module)
    except Exception as error:  # whatever the user's code raises
        raise LGQError(f"the plugin {module} cannot be imported: {_reason(error)}.") from error
    if is_file and Path(imported.__file__ or "").resolve() != path.resolve():
        raise LGQError(f"{path.stem} is the name of {imported.__file__} too: give {module} another name.")


def load_installed(register: Callable[[str, type[Quantizer]], None]) -> dict[str, str]:
    """Register what installed packages offer; return why some of it could not be loaded, by name."""
    failures = {}
    for entry in entry_points(group=GROUP):
        try:
            register(entry.name, _quantizer_class(entry))
        except Exception as error:  # whatever the package's code raises: it must not stop all others
            package = entry.dist.name if entry.dist else "of an unknown name"
            offered = f"quantizer {entry.name!r} of the package {package}"
            failures[entry.name] = f"{offered} cannot be loaded: {_reason(error)}"
    return failures


def _quantizer_class(entry: EntryPoint) -> type[Quantizer]:
    offered = entry.load()
    if not (isinstance(offered, type) and issubclass(offered, Quantizer)):
        raise LGQError(f"{entry.value} is no subclass of lgq.quantizers.Quantizer")
    return offered


def _reason(error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".")
    return reason if isinstance(error, LGQError) else f"{type(error).__name__}: {reason:.300}"
