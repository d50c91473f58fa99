"""Trained modules of vector-quantize-pytorch as quantizers of this package, with their weights.

    q = from_vector_quantize_pytorch(module)         # the same indices and values in eval mode

docs/from-vector-quantize-pytorch.md maps every class and argument. Nothing of that package is imported:
classes are known by their names.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lgq.errors import LGQError, warn
from lgq.quantizers import (
    BSQ,
    FSQ,
    LFQ,
    VQ,
    Grouped,
    ProjectedVQ,
    Quantizer,
    Residual,
    ResidualFSQ,
    SimVQ,
)
from lgq.quantizers.projection import Projection

_INSTEAD = {"num_codebooks": "train a Grouped of one quantizer per codebook"}
"""What to train in place of an option."""
_INVERSE_TEMPERATURE = 100.0
"""Inverse temperature of the peer's LFQ, an argument of its `forward`."""
_EPSILON = 1e-5
"""Smoothing of the counts of running means in `VQ`."""


@torch.no_grad()
def from_vector_quantize_pytorch(module: nn.Module, *, channel_dim: int | None = None) -> Quantizer:
    """Convert a module of vector-quantize-pytorch, with its weights, running means, mode and device.

    channel_dim: axis of the channels; None takes that of the module's own flags. It must be given for an FSQ
        or LFQ without `channel_first`, which reads them from axis 1 of images and videos, and from the last
        axis of anything else.

    Classes: VectorQuantize, ResidualVQ, GroupedResidualVQ, FSQ, ResidualFSQ, GroupedResidualFSQ, LFQ (BSQ if
    it is spherical) and SimVQ. What would change indices or values without a counterpart here is an error;
    what changes only the training is a warning.
    """
    kind = type(module).__name__
    if kind not in _CONVERTERS:
        raise LGQError(f"{kind} has no counterpart: these have, {', '.join(_CONVERTERS)}.")
    quantizer = _CONVERTERS[kind](module, _channel_dim(module) if channel_dim is None else channel_dim)
    _compare_gradients(module)
    quantizer.scale_matters = False  # converted codes have found their latents
    tensors = [*module.parameters(), *module.buffers()]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    if floats:
        quantizer.to(floats[0].device, floats[0].dtype)
    return quantizer.train(module.training)


def _channel_dim(module: Any) -> int:
    """Return the axis of the channels by the flags of a module or of its layers."""
    kind = type(module).__name__
    # False is the default of FSQ there, and leaves images channels-first, as None does for LFQ.
    unset = {"FSQ": False, "LFQ": None}
    if kind in unset and module.channel_first is unset[kind]:
        raise LGQError(
            f"{kind} without `channel_first` takes its channels from axis 1 of input with four axes or more, "
            "and else from the last; a quantizer has one axis for them: pass channel_dim=1 for images "
            "and videos, or channel_dim=-1 for (batch, tokens, channels)."
        )
    parts = list(module.modules())
    flags = ("accept_image_fmap", "accept_3d_fmap", "channel_first", "is_channel_first")
    first = any(getattr(part, flag, False) for part in parts for flag in flags)
    return 1 if first or not all(getattr(part, "channel_last", True) for part in parts) else -1


def _vq(module: Any, channel_dim: int, *, shared: bool = False) -> Quantizer:
    """shared: the codebook serves all stages of a ResidualVQ, which updates it once per batch."""
    book = module._codebook
    _refuse(
        module,
        affine_param=book.affine_param,
        vq_bridge=book.vq_bridge is not None,
        layernorm_after_project_in=any(isinstance(part, nn.LayerNorm) for part in module.modules()),
    )
    _leave_behind(
        module,
        commitment_use_cross_entropy_loss=module.commitment_use_cross_entropy_loss,
        orthogonal_reg_weight=module.orthogonal_reg_weight,
        codebook_diversity_loss_weight=module.codebook_diversity_loss_weight,
        sync_update_v=module.sync_update_v,
        stochastic_sample_codes=book.gumbel_sample.keywords["stochastic"],
        manual_ema_update=book.manual_ema_update and not shared,
        in_place_codebook_optimizer=module.in_place_codebook_optimizer is not None,
        **{
            "route_gradients_to_input=False": not module.route_gradients_to_input,
            f"eps={book.eps:g}": book.ema_update and book.eps != _EPSILON,
            "noise of directional_reparam": module.directional_reparam,
        },
    )
    # Codes that learn neither by running means nor by gradients stay as they are.
    frozen = module.freeze_codebook or not (book.ema_update or module.learnable_codebook)
    width = book.embed.shape[-1]
    if module.heads > 1 and module.has_projections:
        raise LGQError(
            f"VectorQuantize with {module.heads} heads of {width} channels projects its {module.dim} "
            "channels to those of all heads, which has no counterpart: keep the module, or train with "
            f"codebook_dim = dim / heads = {module.dim / module.heads:g}."
        )
    learning = "gradient" if module.learnable_codebook else "ema"
    options: dict[str, Any] = {
        "channel_dim": channel_dim,
        "gradient": _gradient_of(module),
        "learning": learning,
        "score": "cosine" if book.use_cosine_sim else "l2",
        "codebook_dim": width if module.has_projections else None,
        "decay": book.decay,
        "commitment_weight": module.commitment_weight if module.has_commitment_loss else 0.0,
        "codebook_weight": module.commitment_weight if module.has_commitment_loss else 0.0,
        "noise_variance": module.directional_reparam_variance,
        "restart_below": book.threshold_ema_dead_code or None,
        "init": "normal" if book.initted else "kmeans",
        "seed": 0,
    }
    if frozen and not book.initted:
        raise LGQError(
            "VectorQuantize with frozen codes and `kmeans_init` has no codes yet: give it one training "
            "batch, then convert it."
        )
    codebooks = []
    for rows, sums, counts in zip(book.embed, book.embed_avg, book.cluster_size, strict=True):
        dim = width if module.heads > 1 else module.dim
        codebook = VQ(dim, book.codebook_size, **options)
        codebook.codebook.copy_(rows)
        codebook.sums.copy_(sums)
        codebook.counts.copy_(counts)
        codebook.codes_are_given = True
        if frozen:
            codebook.freeze(codes_only=True)
        codebooks.append(codebook)
    if module.heads > 1:
        heads = codebooks if len(codebooks) > 1 else codebooks * module.heads
        return Grouped(heads, channel_dim=channel_dim)
    (codebook,) = codebooks
    if module.has_projections:
        _copy(codebook.project_in, _linear(module.project_in))
        _copy(codebook.project_out, _linear(module.project_out))
    return codebook


def _gradient_of(module: Any) -> str:
    if module.directional_reparam:
        return "step"
    return "rotation" if module.rotation_trick else "straight_through"


def _residual_vq(module: Any, channel_dim: int) -> Quantizer:
    _refuse(
        module,
        implicit_neural_codebook=module.implicit_neural_codebook,
        beam_size=module.beam_size,
    )
    if module.shared_codebook:
        stages = [_vq(module.layers[0], channel_dim, shared=True)] * len(module.layers)
    else:
        stages = [_vq(layer, channel_dim) for layer in module.layers]
    dim = module.project_in.in_features if module.has_projections else None
    q = Residual(stages, dim=dim, channel_dim=channel_dim, dropout=_dropout(module, len(stages)))
    if module.has_projections:
        _copy(q.project_in, module.project_in)
        _copy(q.project_out, module.project_out)
    return q


def _compare_gradients(module: nn.Module) -> None:
    """Warn, once per conversion, of stages whose gradients reach the encoder in another way here."""
    layers: list[Any] = [part for part in module.modules() if type(part).__name__ == "ResidualVQ"]
    fractions = {part.quant_grad_frac for part in layers if len(part.layers) > 1} - {1}
    if fractions:
        default = ", its default," if fractions == {0} else ""
        warn(
            f"quant_grad_frac={min(fractions):g} of ResidualVQ{default} passes the gradient of each stage to "
            "the encoder once more, and here it is that of their sum: encoding and decoding are the same, a "
            "training that continues moves the encoder otherwise."
        )


def _dropout(module: Any, stages: int) -> float:
    """Return the probability of fewer stages: there, their number is drawn from 1 to all with equal one."""
    if module.quantize_dropout:
        _leave_behind(
            module,
            quantize_dropout_cutoff_index=module.quantize_dropout_cutoff_index != 0,
            quantize_dropout_multiple_of=module.quantize_dropout_multiple_of != 1,
        )
    return 1 - 1 / stages if module.quantize_dropout else 0.0


def _grouped(module: Any, channel_dim: int) -> Quantizer:
    parts = [_CONVERTERS[type(part).__name__](part, channel_dim) for part in module.rvqs]
    for quantizer in {part for group in parts for part in group.modules() if isinstance(part, VQ)}:
        # The loss is the sum over the groups there, and their mean here.
        quantizer.commitment_weight *= len(parts)
        quantizer.codebook_weight *= len(parts)
    return Grouped(parts, channel_dim=channel_dim)


def _fsq(module: Any, channel_dim: int) -> Quantizer:
    _refuse(
        module,
        preserve_symmetry=module.preserve_symmetry,
        num_codebooks=module.num_codebooks > 1,
        bound_hard_clamp=module.bound_hard_clamp,
        orthogonal_rotation=module.orthogonal_rotation,
    )
    levels = module._levels.tolist()
    size = int(module._levels.prod())
    q = FSQ(module.dim, size, levels=levels, bound="atanh", channel_dim=channel_dim, seed=0)
    _copy(q.project_in, _linear(module.project_in))
    _copy(q.project_out, _linear(module.project_out))
    return q


def _residual_fsq(module: Any, channel_dim: int) -> Quantizer:
    first, levels = module.layers[0], list(module.levels)
    _refuse(
        module,
        **{"bound_hard_clamp=False": not first.bound_hard_clamp},
        orthogonal_rotation=first.orthogonal_rotation,
    )
    stages = len(module.layers)
    detaches = {"stage-wise gradient": stages > 1}
    _leave_behind(module, noise_dropout=first.noise_dropout, **detaches)
    linear = _linear(module.project_in)
    q = ResidualFSQ(
        len(levels) if linear is None else linear.in_features,
        int(module.codebook_size),
        stages,
        levels=levels,
        channel_dim=channel_dim,
        dropout=_dropout(module, stages),
        seed=0,
    )
    _copy(q.project_in, linear)
    _copy(q.project_out, _linear(module.project_out))
    return q


def _lfq(module: Any, channel_dim: int) -> Quantizer:
    _refuse(
        module,
        num_codebooks=module.num_codebooks > 1,
        cosine_sim_project_in=module.has_projections and not isinstance(module.project_in, nn.Linear),
        orthogonal_rotation=module.orthogonal_rotation,
    )
    _leave_behind(
        module,
        codebook_scale=module.codebook_scale != 1,
        diversity_gamma=module.diversity_gamma != 1,
        frac_per_sample_entropy=module.frac_per_sample_entropy != 1,
        straight_through_activation=not isinstance(module.activation, nn.Identity),
        soft_clamp_input_value=module.soft_clamp_input_value,
        experimental_softplus_entropy_loss=module.experimental_softplus_entropy_loss,
    )
    kind, bits = BSQ if module.spherical else LFQ, module.codebook_size.bit_length() - 1
    # As published, BSQ divides entropies by the inverse temperature and adds up the bits of a distance.
    entropy_scale, commitment_scale = (_INVERSE_TEMPERATURE, 1 / bits) if module.spherical else (1.0, 1.0)
    q = kind(
        module.dim,
        module.codebook_size,
        channel_dim=channel_dim,
        entropy_weight=module.entropy_loss_weight * entropy_scale,
        commitment_weight=module.commitment_loss_weight * commitment_scale,
        inverse_temperature=_INVERSE_TEMPERATURE,
        seed=0,
    )
    # There, the first bit is the highest of the index, and here the lowest.
    _copy(q.project_in, _linear(module.project_in), reverse=0)
    _copy(q.project_out, _linear(module.project_out), reverse=1)
    q.project_out.weight.mul_(module.codebook_scale)
    return q


def _simvq(module: Any, channel_dim: int) -> Quantizer:
    _leave_behind(module, rotation_trick=module.rotation_trick)
    rows, transform = module.frozen_codebook, module.code_transform
    linears = [part for part in transform.modules() if isinstance(part, nn.Linear)]
    weights: dict[str, Any] = {
        "channel_dim": channel_dim,
        "weight": module.commitment_weight,
        "commitment_weight": module.input_to_quantize_commit_loss_weight,
        "seed": 0,
    }
    if isinstance(transform, nn.Linear):
        features = ProjectedVQ(rows, transform.out_features, **weights)
        _copy(features.transform, transform)
        return features
    dim = rows.shape[1]
    parts = [type(part) for part in transform] if isinstance(transform, nn.Sequential) else []
    widths = [linear.weight.shape for linear in linears]
    if parts != [nn.Linear, nn.ReLU, nn.Linear] or widths != [(2 * dim, dim), (dim, 2 * dim)]:
        raise LGQError(
            "`codebook_transform` of SimVQ has a counterpart if it is a Linear, or a Sequential of Linear, "
            f"ReLU and Linear with twice the channels in the middle, got {transform!r:.80}."
        )
    q = SimVQ(dim, module.codebook_size, transform="mlp", **weights)
    q.rows.copy_(rows)
    projections = [part for part in q.transform.modules() if isinstance(part, Projection)]
    for projection, linear in zip(projections, linears, strict=True):
        _copy(projection, linear)
    return q


_CONVERTERS: dict[str, Callable[[Any, int], Quantizer]] = {
    "VectorQuantize": _vq,
    "ResidualVQ": _residual_vq,
    "GroupedResidualVQ": _grouped,
    "FSQ": _fsq,
    "ResidualFSQ": _residual_fsq,
    "GroupedResidualFSQ": _grouped,
    "LFQ": _lfq,
    "SimVQ": _simvq,
}


def _linear(module: nn.Module) -> nn.Linear | None:
    """Return the linear layer of a projection; None for an identity."""
    return next((part for part in module.modules() if isinstance(part, nn.Linear)), None)


def _copy(to: Any, linear: nn.Linear | None, reverse: int | None = None) -> None:
    """Copy a linear layer, or an identity; what is not there does not learn here.

    reverse: 0 reverses the order of its outputs, 1 that of its inputs.
    """
    weight: Tensor = torch.eye(len(to.weight)) if linear is None else linear.weight
    bias = linear.bias if linear is not None and linear.bias is not None else torch.zeros(len(weight))
    to.weight.copy_(weight if reverse is None else weight.flip(reverse))
    to.weight.requires_grad_(linear is not None)
    if to.bias is not None:
        to.bias.copy_(bias.flip(0) if reverse == 0 else bias)
        to.bias.requires_grad_(linear is not None and linear.bias is not None)


def _refuse(module: nn.Module, **options: Any) -> None:
    """Raise an error for options that change indices or values, and have no counterpart."""
    for name, is_used in options.items():
        if is_used:
            way_out = _INSTEAD.get(name, "train without that option")
            raise LGQError(
                f"`{name}` of {type(module).__name__} has no counterpart, and codes would differ without it: "
                f"keep the module, or {way_out}."
            )


def _leave_behind(module: nn.Module, **options: Any) -> None:
    """Warn of options that change only the training, and have no counterpart."""
    names = [name for name, is_used in options.items() if is_used]
    if names:
        verb = "stays" if len(names) == 1 else "stay"
        warn(
            f"{', '.join(names)} of {type(module).__name__} {verb} behind: codes are the same, a training "
            "that continues is not.",
        )
