"""Published weights of third-party networks: their sources, their hashes, and a cache of their tensors.

    fetch("lpips-vgg16")                  # downloads once
    import_file(Path("weights.pth"))      # or takes a file, which it recognises by its content
    tensors = load("lpips-vgg16")         # reads the cache, without network access

No code that comes with weights is ever run: neither the build code of an archive nor code in a pickle or in a
TorchScript file.
"""

from lgq.weights.cache import CACHE_VARIABLE, cache_directory, fetch, import_file, load, status
from lgq.weights.convert import WeightsError
from lgq.weights.registry import FETCHABLE, SETS, WeightSet

__all__ = [
    "CACHE_VARIABLE", "FETCHABLE", "SETS", "WeightSet", "WeightsError", "cache_directory", "fetch",
    "import_file", "load", "status",
]  # fmt: skip
