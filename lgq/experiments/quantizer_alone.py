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
from torch import Tensor

from lgq.errors import LGQWarning
from lgq.metrics.code_usage import CodeUsage, batch_utilization, learned_codebook
from lgq.models import in_eval_mode
from lgq.quantizers import Quantizer, build_quantizer
from lgq.training.settings import Schedule

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
    parameters = [parameter for parameter in quantizer.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate) if parameters else None
    schedule, curve = Schedule(kind="cosine"), []
    every = max(1, settings.steps // _CURVE_POINTS)
    for step in range(settings.steps):
        check_stop()
        z = draw()
        quantizer.anneal(step / max(1, settings.steps - 1))
        with warnings.catch_warnings(action="ignore", category=LGQWarning):
            # Latents of another scale than the codes are what is measured.
            out = quantizer(z)
        error = F.mse_loss(out.quantized, z)
        loss = error + out.loss
        if optimizer is not None and loss.requires_grad:
            rate = settings.learning_rate * schedule.multiplier(step, settings.steps)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if (step + 1) % every == 0:
            used = float(batch_utilization(out.indices, size))
            curve.append({"step": step + 1, "mse": float(error.detach()), "batch_utilization": used})
    return AloneResult(quantizer, curve)


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
