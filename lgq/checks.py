"""Checks of settings and inputs; each raises an error that names the value, the rule and the way out.

Values of tensors are checked where Python runs them, not where a tracer of torch records operations.
"""

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from lgq.errors import LGQError

MOST_CODES = 2**63 - 1
"""Number of codes, or of their combinations, that indices in int64 can count."""
_FARTHEST_VALUE = 2.0
"""Largest absolute value of an image: resizing and augmentation overshoot 1, but not by far."""


def _require(holds: Callable[[Any], bool], rule: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        try:
            held = holds(value)
        except (TypeError, RuntimeError):  # what cannot be compared with a number
            held = False
        if not held:
            raise LGQError(f"`{name}` must {rule}, got {value!r}.")


def require_at_least(lowest: float, **values: float) -> None:
    _require(lambda value: value >= lowest, f"be at least {lowest}", values)


def require_at_most(highest: float, **values: float) -> None:
    _require(lambda value: value <= highest, f"be at most {highest}", values)


def require_whole(**values: int) -> None:
    _require(lambda value: type(value) is int, "be a whole number", values)


def require_indexable(codebook_size: int) -> None:
    if codebook_size > MOST_CODES:
        raise LGQError(
            f"`codebook_size` must be at most 2^63 - 1, as indices are int64, got {codebook_size}: use fewer "
            "levels or bits, or split the channels by Grouped."
        )


def require_above_zero(**values: float) -> None:
    _require(lambda value: 0 < value < float("inf"), "be positive and finite", values)


def require_between(lowest: float, highest: float, **values: float) -> None:
    _require(lambda value: lowest <= value <= highest, f"lie in {lowest}..{highest}", values)


def require_one_of(choices: tuple[str, ...], **values: str) -> None:
    _require(lambda value: value in choices, f"be {' or '.join(map(repr, choices))}", values)


def require_known(kind: str, name: str, known: Collection[str]) -> None:
    """Raise an error for an unknown name, and suggest the closest known one."""
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}."
        raise LGQError(f"unknown {kind} {name!r}: {hint}")


def require_tensor(kind: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise LGQError(f"{kind} must be a tensor, got {type(value).__name__}: convert by torch.as_tensor.")


def require_channels(z: Tensor, dim: int, channel_dim: int) -> None:
    require_tensor("latents", z)
    fits = channel_dim in range(-z.ndim, z.ndim) and (is_jit_traced() or z.shape[channel_dim] == dim)
    if not fits:
        raise LGQError(
            f"expected {dim} channels at axis {channel_dim}, got shape {tuple(z.shape)}: "
            f"set `dim`, or `channel_dim` (1 for BCHW)."
        )
    if not z.is_floating_point():
        raise LGQError(f"latents must be floating point, got {z.dtype}: convert them first.")


def require_mask(mask: Tensor, tokens: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool:
        raise LGQError(
            f"`mask` must be boolean, True for vectors that count, got {mask.dtype}: compare first."
        )
    if not is_jit_traced() and mask.shape != tokens:
        raise LGQError(
            f"`mask` must have one value per vector, so shape {tuple(tokens)}, got {tuple(mask.shape)}: "
            f"leave out the axis of the channels."
        )


def require_images(images: Tensor) -> None:
    if not images.is_floating_point():
        raise LGQError(
            f"images must be float in [-1, 1], got {images.dtype}: convert them, images / 127.5 - 1."
        )
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise LGQError(f"images must be RGB of shape (b, 3, h, w), got shape {tuple(images.shape)}.")


def require_image_values(images: Tensor) -> None:
    """Refuse values far outside of [-1, 1]; images in [0, 1] look like bright ones, and pass."""
    if not isinstance(images, Tensor):
        kind = f"{type(images).__module__}.{type(images).__qualname__}"
        raise LGQError(
            f"images must be a tensor of shape (b, 3, h, w), got {kind}: convert an array by "
            "torch.from_numpy(array), or give one file, PIL image or array to encode_image."
        )
    # A check of values would break the graph of torch.compile, and meta tensors have none.
    if (
        torch.compiler.is_compiling()
        or images.is_meta
        or not images.is_floating_point()
        or not images.numel()
    ):
        return
    low, high = (float(value) for value in torch.stack(images.detach().aminmax()).float().cpu())
    if max(-low, high) > _FARTHEST_VALUE:
        raise LGQError(
            f"images must lie in [-1, 1], got values from {low:g} to {high:g}: convert bytes by "
            "images / 127.5 - 1, or undo another normalization."
        )


def require_finite(z: Tensor) -> None:
    # The sum first, which needs no memory: it is finite unless an element is not, or it overflows.
    if not has_values(z) or torch.isfinite(z.detach().sum()) or torch.isfinite(z).all():
        return
    bad = int((~torch.isfinite(z)).any(1).sum())
    raise LGQError(
        f"{bad} of {len(z)} latent vectors contain NaN or infinity, so they have no nearest code: "
        f"check the learning rate, the loss scale and the input."
    )


def require_indices(indices: Tensor, codebook_size: int, *, lowest: int = 0) -> Tensor:
    """Return indices of any integer dtype as int64, after checking their range."""
    require_tensor("indices", indices)
    if indices.is_floating_point() or indices.dtype == torch.bool:
        raise LGQError(f"indices must be integers, got {indices.dtype}: convert them with .long().")
    indices = indices.long()
    if not has_values(indices) or indices.numel() == 0:
        return indices
    low, high = int(indices.min()), int(indices.max())
    if low < lowest or high >= codebook_size:
        wrong = low if low < lowest else high
        raise LGQError(
            f"index {wrong} is outside {lowest}..{codebook_size - 1}: "
            f"were these tokens made by another quantizer?"
        )
    return indices


def is_exported() -> bool:
    """Tell whether torch.export, torch.onnx.export or torch.jit.trace records the code as a program."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
    return is_jit_traced()


def is_jit_traced() -> bool:
    """Tell whether torch.jit.trace records the code: a comparison of sizes would then warn."""
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return traced


def needs_plain_formulas() -> bool:
    """Tell whether the code runs where operators of this package have no meaning.

    That is so in exported programs, which other runtimes execute, and in transformations of torch.func, which
    derive gradients and batches themselves. torch.compile keeps operators as they are.
    """
    if torch.compiler.is_compiling():
        return is_exported()
    return is_exported() or torch._C._are_functorch_transforms_active()


def has_values(x: Tensor) -> bool:
    """Tell whether Python may look at the values of a tensor: not while it is traced, or on `meta`."""
    return not (torch.compiler.is_compiling() or needs_plain_formulas() or x.is_meta)


def is_recomputed() -> bool:
    """Tell whether activation checkpointing computes a forward pass again, within a backward pass.

    The batch has then been counted. Compiled code cannot tell.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
