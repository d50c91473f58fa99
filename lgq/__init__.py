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

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
try:
    __version__ = version("lgq")
except PackageNotFoundError:  # used from its sources, without an installation
    __version__ = "unknown"
