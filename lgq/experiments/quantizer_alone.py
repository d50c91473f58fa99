"""A quantizer alone: trained on vectors that no encoder changes, to find how it uses its codes by itself.

n = vectors of a batch, c = channels.

The loss is the squared error of the quantized vectors, through the quantizer's own gradient path, and the
quantizer's own loss; AdamW with a cosine schedule. One run takes seconds to minutes of one core.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from lgq.distributed import rank
from lgq.errors import LGQWarning
from lgq.metrics.code_usage import CodeUsage, batch_utilization, learned_codebook
from lgq.models import in_eval_mode
from lgq.progress import ProgressLines, unwatched
from lgq.quantizers import Quantizer, build_quantizer
from lgq.training.settings import Schedule

TEST_VECTORS_PER_CODE = 8
"""Gaussian vectors per code that measure a quantizer after its training."""
_CURVE_POINTS = 10
_BATCH = 4_096


@dataclass(frozen=True, kw_only=True)
class AloneSettings:
    """A quantizer and its training on vectors."""

    quantizer: str
    codebook_size: int
    quantizer_options: dict[str, Any]
    dim: int
    vectors: int
    """Vectors per step."""
    steps: int
    learning_rate: float


@dataclass(frozen=True)
class AloneResult:
    """A quantizer after its training, and how it got there."""

    quantizer: Quantizer
    curve: list[dict[str, float]]
    """Error and use of codes of single batches over training: `step`, `mse`, `batch_utilization`."""


def train_alone(
    settings: AloneSettings,
    draw: Callable[[], Float[Tensor, "n c"]],
    *,
    seed: int,
    check_stop: Callable[[], None] = lambda: None,
) -> AloneResult:
    """Train a quantizer on the vectors that `draw` returns at each step."""
    size, options = settings.codebook_size, {"seed": seed} | settings.quantizer_options
    quantizer = build_quantizer(settings.quantizer, settings.dim, size, **options)

    def loss_at(progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        z = draw()
        quantizer.anneal(progress)
        with warnings.catch_warnings(action="ignore", category=LGQWarning):
            # Latents of another scale than the codes are what is measured.
            out = quantizer(z)
        error = F.mse_loss(out.quantized, z)
        return error + out.loss, {"mse": error, "batch_utilization": batch_utilization(out.indices, size)}

    curve = descend(
        quantizer, loss_at, steps=settings.steps, learning_rate=settings.learning_rate, check_stop=check_stop
    )
    return AloneResult(quantizer, curve)


def descend(
    module: nn.Module,
    loss_at: Callable[[float], tuple[Tensor, dict[str, Tensor]]],
    *,
    steps: int,
    learning_rate: float,
    clip: float | None = None,
    check_stop: Callable[[], None] = lambda: None,
) -> list[dict[str, float]]:
    """Train what learns in a module, by AdamW with a cosine schedule; return its curve.

    A line on the error output says every 30 seconds how far it is.

    loss_at: the loss of a step, by the share of training done, and values for the curve.
    clip: largest norm of the gradient; None for any.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate) if parameters else None
    schedule, curve = Schedule(kind="cosine"), []
    every = max(1, steps // _CURVE_POINTS)
    report = ProgressLines("training") if rank() == 0 else unwatched
    for step in range(steps):
        check_stop()
        loss, values = loss_at(step / max(1, steps - 1))
        if optimizer is not None and loss.requires_grad:
            optimizer.param_groups[0]["lr"] = learning_rate * schedule.multiplier(step, steps)
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
        if (step + 1) % every == 0:
            numbers = {name: float(value.detach()) for name, value in values.items()}
            curve.append({"step": step + 1} | numbers)
        report(step + 1, steps)
    return curve


@torch.no_grad()
def measure_alone(quantizer: Quantizer, batches: Iterable[Float[Tensor, "_ c"]]) -> dict[str, float]:
    """Return the error per channel (mse), and the use of codes, over vectors that training has not seen."""
    usage, error, count = CodeUsage.empty(quantizer.codebook_size), 0.0, 0
    with in_eval_mode(quantizer):
        for batch in batches:
            for z in batch.split(_BATCH):
                out = quantizer(z)
                usage.update(out.indices)
                error += float((out.quantized - z).square().sum())
                count += z.numel()
    codebook = learned_codebook(quantizer)
    norms = {} if codebook is None else usage.norm_summary(codebook)
    return {"mse": error / count} | usage.summary() | norms


def random_rows(rows: Float[Tensor, "m c"], count: int, generator: torch.Generator) -> Float[Tensor, "n c"]:
    """Draw rows with replacement."""
    chosen: Int64[Tensor, " n"] = torch.randint(len(rows), (count,), generator=generator)
    return rows[chosen].float()
