# The public names and where they live: read by type checkers, and by `lgq/__init__.py` at run time.

from . import interop as interop
from . import metrics as metrics
from . import models as models
from . import quantizers as quantizers
from . import weights as weights
from .data.shard_writer import shard as shard
from .errors import LGQError as LGQError
from .errors import LGQWarning as LGQWarning
from .evaluation import evaluate as evaluate
from .experiments.runner import experiment as experiment
from .inference.decode import decode as decode
from .inference.encode import encode as encode
from .inference.inpaint import inpaint as inpaint
from .inference.reconstruct import reconstruct as reconstruct
from .inference.sample import sample as sample
from .interop.checkpoints import import_tokenizer as import_tokenizer
from .maskgit import MaskGIT as MaskGIT
from .maskgit import load_generator as load_generator
from .metrics.code_usage import CodeUsage as CodeUsage
from .models.sampling import Sampling as Sampling
from .quantizers import BSQ as BSQ
from .quantizers import FSQ as FSQ
from .quantizers import IBQ as IBQ
from .quantizers import LFQ as LFQ
from .quantizers import LGQ as LGQ
from .quantizers import VQ as VQ
from .quantizers import DiVeQ as DiVeQ
from .quantizers import Grouped as Grouped
from .quantizers import MultiScale as MultiScale
from .quantizers import ProjectedVQ as ProjectedVQ
from .quantizers import Residual as Residual
from .quantizers import ResidualFSQ as ResidualFSQ
from .quantizers import RotVQ as RotVQ
from .quantizers import SimVQ as SimVQ
from .quantizers import WassersteinVQ as WassersteinVQ
from .quantizers import build_quantizer as build_quantizer
from .quantizers import register as register
from .reporting.page import report as report
from .runs import run as run
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import load_tokenizer as load_tokenizer
from .training.generator_trainer import train_generator as train_generator
from .training.tokenizer_trainer import train as train
from .viewer.view import view as view

__version__: str
