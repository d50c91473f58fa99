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
    from lgq.data.shard_writer import shard as shard
    from lgq.errors import LGQError as LGQError
    from lgq.evaluation import evaluate as evaluate
    from lgq.experiments.runner import experiment as experiment
    from lgq.inference.decode import decode as decode
    from lgq.inference.encode import encode as encode
    from lgq.inference.inpaint import inpaint as inpaint
    from lgq.inference.reconstruct import reconstruct as reconstruct
    from lgq.inference.sample import sample as sample
    from lgq.maskgit import MaskGIT as MaskGIT
    from lgq.maskgit import load_generator as load_generator
    from lgq.models.sampling import Sampling as Sampling
    from lgq.quantizers import FSQ as FSQ
    from lgq.quantizers import IBQ as IBQ
    from lgq.quantizers import LFQ as LFQ
    from lgq.quantizers import LGQ as LGQ
    from lgq.quantizers import VQ as VQ
    from lgq.quantizers import Residual as Residual
    from lgq.quantizers import RotVQ as RotVQ
    from lgq.quantizers import SimVQ as SimVQ
    from lgq.quantizers import build_quantizer as build_quantizer
    from lgq.quantizers import register as register
    from lgq.reporting.page import report as report
    from lgq.runs import run as run
    from lgq.tokenizer import Tokenizer as Tokenizer
    from lgq.tokenizer import load_tokenizer as load_tokenizer
    from lgq.training.generator_trainer import train_generator as train_generator
    from lgq.training.tokenizer_trainer import train as train

    __version__: str

_MODULE_OF = {
    "FSQ": "lgq.quantizers",
    "IBQ": "lgq.quantizers",
    "LFQ": "lgq.quantizers",
    "LGQ": "lgq.quantizers",
    "LGQError": "lgq.errors",
    "MaskGIT": "lgq.maskgit",
    "Residual": "lgq.quantizers",
    "RotVQ": "lgq.quantizers",
    "Sampling": "lgq.models.sampling",
    "SimVQ": "lgq.quantizers",
    "Tokenizer": "lgq.tokenizer",
    "VQ": "lgq.quantizers",
    "build_quantizer": "lgq.quantizers",
    "decode": "lgq.inference.decode",
    "encode": "lgq.inference.encode",
    "evaluate": "lgq.evaluation",
    "experiment": "lgq.experiments.runner",
    "inpaint": "lgq.inference.inpaint",
    "load_generator": "lgq.maskgit",
    "load_tokenizer": "lgq.tokenizer",
    "reconstruct": "lgq.inference.reconstruct",
    "register": "lgq.quantizers",
    "report": "lgq.reporting.page",
    "run": "lgq.runs",
    "sample": "lgq.inference.sample",
    "shard": "lgq.data.shard_writer",
    "train": "lgq.training.tokenizer_trainer",
    "train_generator": "lgq.training.generator_trainer",
}
__all__ = list(_MODULE_OF)


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
