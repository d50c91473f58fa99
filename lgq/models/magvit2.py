"""The network of Open-MAGVIT2 (Luo et al. 2024), the published tokenizer with lookup-free quantization.

b = images, h w = height and width in pixels, c = channels, z = channels of latents.

It differs from `lgq.models.vqgan`: convolutions of blocks without bias, strided convolutions with padding all
around, pixel shuffling on the way up, no attention, and, before each resolution of the decoder, a
normalisation whose scale and shift are read from the codes of the whole image. Layers have the names of the
published checkpoints (github.com/TencentARC/SEED-Voken, `improved_model.py`), except for the first and last.

    MAGVIT2Backbone()                                     # 256 x 256 pixels to 16 x 16 tokens of 18 bits
    MAGVIT2Backbone(widths=(128, 256, 256, 512))          # 128 x 128 pixels to 16 x 16 tokens
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lgq.checks import require_at_least, require_at_most
from lgq.errors import LGQError
from lgq.models.autoencoder import (
    MAX_BLOCKS,
    MAX_LEVELS,
    require_divides,
    require_divisible_images,
    require_latents,
)
from lgq.models.vqgan_names import NamesError

_EPS = 1e-6
_MOST_BITS = 60
_THEIR_NAMES = {"encoder.stem": "encoder.conv_in", "decoder.to_image": "decoder.conv_out"}


@dataclass(frozen=True, kw_only=True)
class MAGVIT2Backbone:
    """Settings that an encoder and its decoder share; the defaults are the published model of f = 16."""

    widths: tuple[int, ...] = (128, 128, 256, 256, 512)
    """Channels at each resolution, from the image's own on; each further entry halves the resolution."""
    blocks: int = 4
    """Number of residual blocks at each resolution, of the encoder and of the decoder."""
    middle_blocks: int = 4
    """Number of further residual blocks at the latents."""
    groups: int = 32
    """Number of groups of each GroupNorm."""
    latent_channels: int = 18
    """Number of channels of a latent vector: the `dim` of the quantizer, and its bits."""

    def __post_init__(self) -> None:
        require_at_least(1, blocks=self.blocks, latent_channels=self.latent_channels)
        require_at_least(0, middle_blocks=self.middle_blocks)
        require_at_most(MAX_BLOCKS, blocks=self.blocks, middle_blocks=self.middle_blocks)
        if len(self.widths) > MAX_LEVELS:
            raise LGQError(f"`widths` must be at most {MAX_LEVELS} numbers, got {len(self.widths)}.")
        require_divides("`groups`", self.groups, "`widths`", self.widths)

    @property
    def factor(self) -> int:
        """Side, in pixels, of the patch that becomes one latent."""
        return int(2 ** (len(self.widths) - 1))

    @property
    def reach(self) -> int | None:
        """None, as in `Backbone`: each normalisation sees the whole image, so none is computed in tiles."""
        return None

    @property
    def attention_per_token(self) -> int:
        """0: it has no attention."""
        return 0

    @property
    def values_per_pixel(self) -> float:
        """Values per pixel where they are most: the colours of the image, or features of a resolution."""
        features = (width / 4**level for level, width in enumerate(self.widths))
        # Before it is shuffled, what is doubled has as many values as after it.
        doubled = (width / 4 ** (level - 1) for level, width in enumerate(self.widths) if level)
        return max(3, *features, *doubled)

    def networks(self) -> tuple["MAGVIT2Encoder", "MAGVIT2Decoder"]:
        """Build an encoder and its decoder."""
        return MAGVIT2Encoder(self), MAGVIT2Decoder(self)


class MAGVIT2Encoder(nn.Module):
    """Maps images to latents, one per `factor` x `factor` pixels."""

    def __init__(self, backbone: MAGVIT2Backbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        widths = backbone.widths
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        halves = [nn.Conv2d(width, width, 3, stride=2, padding=1) for width in widths[:-1]]
        self.down = nn.Sequential(
            *(
                Level(backbone, *pair, downsample=halve)
                for pair, halve in zip(pairwise((widths[0], *widths)), (*halves, None), strict=True)
            )
        )
        self.mid_block = _middle(backbone)
        self.norm_out = nn.GroupNorm(backbone.groups, widths[-1], eps=_EPS)
        self.conv_out = nn.Conv2d(widths[-1], backbone.latent_channels, 1)

    def forward(
        self, images: Float[Tensor, "b 3 h w"]
    ) -> Float[Tensor, "b {self.latent_channels} h//{self.factor} w//{self.factor}"]:
        self.require_fitting(images)
        features = self.norm_out(self.mid_block(self.down(self.stem(images))))
        latents: Tensor = self.conv_out(F.silu(features))
        return latents

    def require_fitting(self, images: Tensor) -> None:
        """Refuse what is no batch of images, and sizes that `factor` does not divide."""
        require_divisible_images(images, self.factor)


class MAGVIT2Decoder(nn.Module):
    """Maps latents or codes to images, for targets in [-1, 1]; the output is not bounded."""

    def __init__(self, backbone: MAGVIT2Backbone):
        super().__init__()
        self.factor, self.latent_channels = backbone.factor, backbone.latent_channels
        widths, latent = backbone.widths, backbone.latent_channels
        coarser = (*widths[1:], widths[-1])
        self.conv_in = nn.Conv2d(latent, widths[-1], 3, padding=1)
        self.mid_block = _middle(backbone)
        self.adaptive = nn.ModuleList(AdaptiveNorm(backbone.groups, width, latent) for width in coarser)
        self.up = nn.ModuleList(
            Level(backbone, *pair, upsample=Double(pair[1]) if level else None)
            for level, pair in enumerate(zip(coarser, widths, strict=True))
        )
        self.norm_out = nn.GroupNorm(backbone.groups, widths[0], eps=_EPS)
        self.to_image = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(
        self, latents: Float[Tensor, "b {self.latent_channels} h w"]
    ) -> Float[Tensor, "b 3 h*{self.factor} w*{self.factor}"]:
        require_latents(latents, self.latent_channels)
        x = self.mid_block(self.conv_in(latents))
        for norm, level in reversed(list(zip(self.adaptive, self.up, strict=True))):
            x = level(norm(x, latents))
        images: Tensor = self.to_image(F.silu(self.norm_out(x)))
        return images


class Level(nn.Module):
    """Residual blocks at one resolution, then the way to the next."""

    def __init__(
        self,
        backbone: MAGVIT2Backbone,
        width: int,
        out_width: int,
        *,
        downsample: nn.Module | None = None,
        upsample: nn.Module | None = None,
    ):
        super().__init__()
        widths = pairwise((width, *[out_width] * backbone.blocks))
        self.block = nn.Sequential(*(Block(backbone.groups, *pair) for pair in widths))
        self.downsample, self.upsample = downsample, upsample

    def forward(self, x: Float[Tensor, "b c h w"]) -> Tensor:
        x = self.block(x)
        x = x if self.downsample is None else self.downsample(x)
        return x if self.upsample is None else self.upsample(x)


class Block(nn.Module):
    """Two convolutions without bias, each behind a normalisation, added to their input."""

    def __init__(self, groups: int, width: int, out_width: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, width, eps=_EPS)
        self.conv1 = nn.Conv2d(width, out_width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, out_width, eps=_EPS)
        self.conv2 = nn.Conv2d(out_width, out_width, 3, padding=1, bias=False)
        self.nin_shortcut = None if width == out_width else nn.Conv2d(width, out_width, 1, bias=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h w"]:
        change = self.conv1(F.silu(self.norm1(x)))
        change = self.conv2(F.silu(self.norm2(change)))
        kept: Tensor = x if self.nin_shortcut is None else self.nin_shortcut(x)
        return kept + change


class AdaptiveNorm(nn.Module):
    """GroupNorm whose scale is a linear map of the latents' deviations over an image, its shift of means."""

    def __init__(self, groups: int, width: int, latent_channels: int):
        super().__init__()
        self.gn = nn.GroupNorm(groups, width, eps=_EPS, affine=False)
        self.gamma = nn.Linear(latent_channels, width)
        self.beta = nn.Linear(latent_channels, width)

    def forward(self, x: Float[Tensor, "b c h w"], latents: Float[Tensor, "b z y x"]) -> Tensor:
        positions = latents.flatten(2)
        # A single position has no sample variance: it counts as 0.
        variance = positions.var(2, correction=min(1, positions.shape[2] - 1))
        scale, shift = self.gamma((variance + _EPS).sqrt()), self.beta(positions.mean(2))
        return torch.addcmul(shift[:, :, None, None], scale[:, :, None, None], self.gn(x))


class Double(nn.Module):
    """Doubles the resolution: four times the channels, which become squares of two by two positions."""

    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, 4 * width, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h*2 w*2"]:
        # Channels are grouped by their place in the square here, and by their own number in torch.
        places = self.conv1(x).unflatten(1, (4, -1)).transpose(1, 2)
        return F.pixel_shuffle(places.flatten(1, 2), 2)


def _middle(backbone: MAGVIT2Backbone) -> nn.Sequential:
    width = backbone.widths[-1]
    return nn.Sequential(*(Block(backbone.groups, width, width) for _ in range(backbone.middle_blocks)))


def backbone_of(weights: Mapping[str, Tensor]) -> MAGVIT2Backbone:
    """Read the settings of the network from the names and shapes of its weights."""

    def counted(place: str) -> Iterator[Tensor]:
        """Yield the tensors whose numbers follow each other."""
        for number in count():
            tensor = weights.get(place.format(number))
            if tensor is None or tensor.ndim != 4:
                return
            yield tensor

    first, last = "encoder.down.{}.block.0.conv1.weight", "encoder.conv_out.weight"
    widths = tuple(tensor.shape[0] for tensor in counted(first))
    for name, exists in {first.format(0): bool(widths), last: last in weights}.items():
        if not exists:
            raise NamesError(f"has no tensor {name}")
    bits = weights[last].shape[0] if weights[last].ndim else 0
    if not 1 <= bits <= _MOST_BITS:
        raise NamesError(f"has {last} for {bits} bits, where 1 to {_MOST_BITS} are known")
    return MAGVIT2Backbone(
        widths=widths,
        blocks=len(list(counted("encoder.down.0.block.{}.conv1.weight"))),
        middle_blocks=len(list(counted("encoder.mid_block.{}.conv1.weight"))),
        latent_channels=bits,
    )


def to_ours(weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return the weights of encoder and decoder under our names, in float32.

    shapes: shape of each weight of ours, by its name.
    """
    own = ("encoder.", "decoder.")
    converted, used = {}, set()
    for name, shape in shapes.items():
        if not name.startswith(own):
            continue
        layer, _, kind = name.rpartition(".")
        theirs = f"{_THEIR_NAMES.get(layer, layer)}.{kind}"
        if theirs not in weights:
            raise NamesError(f"has no tensor {theirs}")
        tensor = weights[theirs]
        if tensor.shape != shape or not tensor.is_floating_point():
            given = f"{tuple(tensor.shape)} and {tensor.dtype}"
            raise NamesError(f"has {theirs} of shape {given} instead of {tuple(shape)} and float")
        used.add(theirs)
        converted[name] = tensor.float()
    if unknown := sorted(name for name in weights if name.startswith(own) and name not in used):
        raise NamesError(f"has a tensor {unknown[0]:.100}, which this network does not have")
    return converted
