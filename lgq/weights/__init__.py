"""Weights of other people's networks: where they come from, by which hash, and a cache of their tensors.

    fetch("lpips-vgg16")                  # once, with the network; no work when it is there
    import_file(Path("weights.pth"))      # or from a file at hand, recognised by its content
    tensors = load("lpips-vgg16")         # without the network ever after

Nothing that comes along with the weights is ever run: neither the build code of an archive nor the
code that a pickle or a TorchScript file can hold.
"""

from lgq.weights.cache import CACHE_VARIABLE, Status, cache_directory, fetch, import_file, load, status
from lgq.weights.convert import WeightsError
from lgq.weights.registry import FETCHABLE, SETS, WeightSet

__all__ = [
    "CACHE_VARIABLE",
    "FETCHABLE",
    "SETS",
    "Status",
    "WeightSet",
    "WeightsError",
    "cache_directory",
    "fetch",
    "import_file",
    "load",
    "status",
]
