"""Names of the weights of a `VQGANBackbone` in published checkpoints, and the way between them and ours.

Three families of names belong to one network: those of taming-transformers, which IBQ shares, of LlamaGen and
of diffusers. Only attention is stored otherwise: three matrices where ours is one, or 1 x 1 convolutions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lgq.errors import LGQError
from lgq.models.vqgan import VQGANBackbone

CODEBOOK = "quantize.embedding.weight"


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of the layers in one family; `{}` is the number of a level, or of a block within its level."""

    down: str
    up: str
    up_from_finest: bool
    """Whether the decoder's levels are numbered from the finest resolution on; ours begin at the latents."""
    block: str
    attention: str
    downsample: str
    upsample: str
    middle_blocks: tuple[str, str]
    middle_attention: str
    norm: str
    shortcut: str
    attention_norm: str
    query_key_value: tuple[str, str, str]
    attention_out: str


TAMING = Names(
    down="encoder.down.{}",
    up="decoder.up.{}",
    up_from_finest=True,
    block="block.{}",
    attention="attn.{}",
    downsample="downsample.conv",
    upsample="upsample.conv",
    middle_blocks=("mid.block_1", "mid.block_2"),
    middle_attention="mid.attn_1",
    norm="norm_out",
    shortcut="nin_shortcut",
    attention_norm="norm",
    query_key_value=("q", "k", "v"),
    attention_out="proj_out",
)
LLAMAGEN = Names(
    down="encoder.conv_blocks.{}",
    up="decoder.conv_blocks.{}",
    up_from_finest=False,
    block="res.{}",
    attention="attn.{}",
    downsample="downsample.conv",
    upsample="upsample.conv",
    middle_blocks=("mid.0", "mid.2"),
    middle_attention="mid.1",
    norm="norm_out",
    shortcut="nin_shortcut",
    attention_norm="norm",
    query_key_value=("q", "k", "v"),
    attention_out="proj_out",
)
DIFFUSERS = Names(
    down="encoder.down_blocks.{}",
    up="decoder.up_blocks.{}",
    up_from_finest=False,
    block="resnets.{}",
    attention="attentions.{}",
    downsample="downsamplers.0.conv",
    upsample="upsamplers.0.conv",
    middle_blocks=("mid_block.resnets.0", "mid_block.resnets.1"),
    middle_attention="mid_block.attentions.0",
    norm="conv_norm_out",
    shortcut="conv_shortcut",
    attention_norm="group_norm",
    query_key_value=("to_q", "to_k", "to_v"),
    attention_out="to_out.0",
)


class NamesError(LGQError):
    """Weights that are not those of such a network; the message continues the name of their file."""


class Layer(NamedTuple):
    """A layer of ours, and the layers of a family whose weights it joins."""

    ours: str
    theirs: tuple[str, ...]


def layers(backbone: VQGANBackbone, names: Names) -> Iterator[Layer]:
    """List all layers of encoder and decoder."""
    last = len(backbone.widths) - 1
    finer = (backbone.widths[0], *backbone.widths)
    coarser = (*backbone.widths, backbone.widths[-1])
    yield Layer("encoder.stem", ("encoder.conv_in",))
    for level in range(last + 1):
        changes = finer[level] != finer[level + 1]
        place = names.down.format(level)
        yield from _level(f"encoder.levels.{level}", place, backbone, level, backbone.blocks, changes, names)
        if level < last:
            yield Layer(f"encoder.levels.{level}.resample.conv", (f"{place}.{names.downsample}",))
    yield from _middle("encoder", backbone, names)
    yield Layer("encoder.norm", (f"encoder.{names.norm}",))
    yield Layer("encoder.to_features", ("encoder.conv_out",))
    yield Layer("encoder.to_latent", ("quant_conv",))
    yield Layer("decoder.from_latent", ("post_quant_conv",))
    yield Layer("decoder.from_features", ("decoder.conv_in",))
    yield from _middle("decoder", backbone, names)
    for level in range(last, -1, -1):
        changes = coarser[level] != coarser[level + 1]
        ours, place = (
            f"decoder.levels.{last - level}",
            names.up.format(level if names.up_from_finest else last - level),
        )
        yield from _level(ours, place, backbone, level, backbone.blocks + 1, changes, names)
        if level:
            yield Layer(f"{ours}.resample.conv", (f"{place}.{names.upsample}",))
    yield Layer("decoder.norm", (f"decoder.{names.norm}",))
    yield Layer("decoder.to_image", ("decoder.conv_out",))


def _level(
    ours: str,
    theirs: str,
    backbone: VQGANBackbone,
    level: int,
    blocks: int,
    changes: bool,
    names: Names,
) -> Iterator[Layer]:
    for number in range(blocks):
        block = f"{theirs}.{names.block.format(number)}"
        yield from _block(f"{ours}.blocks.{number}", block, changes and number == 0, names)
        if level in backbone.attention_levels:
            attention = f"{theirs}.{names.attention.format(number)}"
            yield from _attention(f"{ours}.attentions.{number}", attention, names)


def _middle(network: str, backbone: VQGANBackbone, names: Names) -> Iterator[Layer]:
    for number, block in enumerate(names.middle_blocks):
        yield from _block(f"{network}.middle.blocks.{number}", f"{network}.{block}", False, names)
    if backbone.middle_attention:
        place = f"{network}.{names.middle_attention}"
        yield from _attention(f"{network}.middle.attention", place, names)


def _block(ours: str, theirs: str, changes_width: bool, names: Names) -> Iterator[Layer]:
    for place, name in ((0, "norm1"), (2, "conv1"), (3, "norm2"), (5, "conv2")):
        yield Layer(f"{ours}.branch.{place}", (f"{theirs}.{name}",))
    if changes_width:
        yield Layer(f"{ours}.shortcut", (f"{theirs}.{names.shortcut}",))


def _attention(ours: str, theirs: str, names: Names) -> Iterator[Layer]:
    yield Layer(f"{ours}.branch.norm", (f"{theirs}.{names.attention_norm}",))
    joined = tuple(f"{theirs}.{name}" for name in names.query_key_value)
    yield Layer(f"{ours}.branch.query_key_value", joined)
    yield Layer(f"{ours}.branch.out", (f"{theirs}.{names.attention_out}",))


def backbone_of(weights: Mapping[str, Tensor], names: Names, *, groups: int) -> VQGANBackbone:
    """Read the settings of the network from the names and shapes of its weights, except `groups`."""

    def width_of(level: int, block: int) -> int | None:
        name = f"{names.down.format(level)}.{names.block.format(block)}.conv1.weight"
        return weights[name].shape[0] if name in weights else None

    def size(name: str) -> int:
        return _tensor(weights, name).shape[0]

    widths = [width] if (width := width_of(0, 0)) is not None else []
    while widths and (width := width_of(len(widths), 0)) is not None:
        widths.append(width)
    blocks = 0
    while width_of(0, blocks) is not None:
        blocks += 1
    if not blocks:
        raise NamesError(f"has no tensor {names.down.format(0)}.{names.block.format(0)}.conv1.weight")
    norm = f"{names.attention.format(0)}.{names.attention_norm}.weight"
    return VQGANBackbone(
        widths=tuple(widths),
        blocks=blocks,
        attention_levels=tuple(
            level for level in range(len(widths)) if f"{names.down.format(level)}.{norm}" in weights
        ),
        middle_attention=f"encoder.{names.middle_attention}.{names.attention_norm}.weight" in weights,
        groups=groups,
        features=size("encoder.conv_out.weight"),
        latent_channels=size("quant_conv.weight"),
    )


def to_ours(
    weights: Mapping[str, Tensor], backbone: VQGANBackbone, names: Names, shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """Return the weights of encoder and decoder under our names, in float32.

    shapes: shape of each weight of ours, by its name.
    """
    converted, used = {}, {CODEBOOK}
    for layer in layers(backbone, names):
        for kind in ("weight", "bias"):
            ours, theirs = f"{layer.ours}.{kind}", [f"{name}.{kind}" for name in layer.theirs]
            used.update(theirs)
            parts = [_tensor(weights, name) for name in theirs]
            shape = shapes[ours]
            # A 1 x 1 convolution and a matrix hold the same numbers.
            wanted = (shape[0] // len(parts), *shape[1:])
            for name, part in zip(theirs, parts, strict=True):
                if tuple(part.shape) != wanted and tuple(part.shape) != (*wanted, 1, 1):
                    raise NamesError(f"has {name} of shape {tuple(part.shape)} instead of {wanted}")
            converted[ours] = torch.cat([part.float().reshape(wanted) for part in parts])
    own = ("encoder.", "decoder.", "quantize.embed", "quantize.proj", "quant_conv.", "post_quant_conv.")
    if unknown := sorted(name for name in weights if name.startswith(own) and name not in used):
        raise NamesError(f"has a tensor {unknown[0]:.100}, which this network does not have")
    return converted


def to_theirs(weights: Mapping[str, Tensor], backbone: VQGANBackbone, names: Names) -> dict[str, Tensor]:
    """Return the weights of encoder and decoder under the names of a family, with matrices in attention."""
    converted: dict[str, Tensor] = {}
    for layer in layers(backbone, names):
        for kind in ("weight", "bias"):
            parts = weights[f"{layer.ours}.{kind}"].chunk(len(layer.theirs))
            converted |= {f"{name}.{kind}": part for name, part in zip(layer.theirs, parts, strict=True)}
    return converted


def diffusers_settings(backbone: VQGANBackbone) -> dict[str, Any]:
    """Return the arguments of `diffusers.VQModel` for this network, without the number of codes."""
    attends = [level in backbone.attention_levels for level in range(len(backbone.widths))]
    return {
        "down_block_types": tuple("AttnDownEncoderBlock2D" if x else "DownEncoderBlock2D" for x in attends),
        "up_block_types": tuple("AttnUpDecoderBlock2D" if x else "UpDecoderBlock2D" for x in attends[::-1]),
        "block_out_channels": backbone.widths,
        "layers_per_block": backbone.blocks,
        "latent_channels": backbone.features,
        "norm_num_groups": backbone.groups,
        "vq_embed_dim": backbone.latent_channels,
        "mid_block_add_attention": backbone.middle_attention,
    }


def _tensor(weights: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in weights:
        raise NamesError(f"has no tensor {name}")
    tensor = weights[name]
    if not tensor.is_floating_point() or tensor.ndim == 0:
        raise NamesError(
            f"has {name} of {tensor.dtype} and shape {tuple(tensor.shape)}, where weights must be"
        )
    return tensor
