"""An image tokenizer (VQ-GAN, Esser et al. 2021) around any quantizer: images to a grid of tokens and back.

b = images, h w = height and width, of images in pixels and of tokens in tokens.

    tokenizer = Tokenizer()                          # the LGQ paper's model: f = 16, 16,384 codes
    tokens = tokenizer.encode(images)                # (b, h / f, w / f), int64
    images = tokenizer.decode(tokens)
    tokens = tokenizer.encode_image("cat.jpg")       # or bytes, a PIL image, an array: (1, h / f, w / f)
    tokenizer.decode_image(tokens).save("cat.png")   # a PIL image
    tokenizer.save_pretrained("mine")                # config.json, model.safetensors, README.md
    tokenizer = Tokenizer.from_pretrained("mine")    # or "owner/name" on the Hugging Face Hub
    tokenizer = load_tokenizer("photo-f8")           # a run directory too, or what comes with the package

Images in tensors are RGB and float in [-1, 1], of any size that f divides. Tokenizers whose backbone is local
(`Backbone.reach`) encode and decode large images in tiles, with the same result and in bounded memory. Those
with attention refuse images for which it would take hours (`ImageTooLargeError`).
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64, Integer
from PIL import Image
from torch import Tensor

from lgq.checks import (
    is_jit_traced,
    require_at_least,
    require_at_most,
    require_image_values,
    require_tensor,
)
from lgq.config import from_json, to_json
from lgq.data.images import ImageSource, to_rgb
from lgq.data.transforms import centre_square, cropped_to_multiple, to_picture, to_tensor
from lgq.distributed import resolve_device
from lgq.errors import LGQError
from lgq.files import WeightsChoice
from lgq.hub import (
    CONFIG,
    WEIGHTS,
    HubModel,
    build_pretrained,
    published_weights,
    read_settings,
    run_settings,
)
from lgq.model_sources import require_kind
from lgq.models.autoencoder import Backbone, Decoder, Encoder
from lgq.models.magvit2 import MAGVIT2Backbone, MAGVIT2Decoder, MAGVIT2Encoder
from lgq.models.tiling import in_tiles, tile_at
from lgq.models.vqgan import VQGANBackbone, VQGANDecoder, VQGANEncoder
from lgq.ops.numerics import outside_autocast
from lgq.quantizers import (
    QUANTIZERS,
    MultiScale,
    Quantized,
    Quantizer,
    Residual,
    build_quantizer,
    require_quantizer,
)
from lgq.quantizers.base import draw_seed

_PAPER = Backbone()
_MOST_STAGES = 1_000  # so that no config.json can ask for an endless network
_TILE_BYTES = 2**26
"""Largest size of the features of one layer; a network keeps a few layers at once."""
_MOST_POSITIONS = {"cpu": 2**16}
_MOST_POSITIONS_ELSEWHERE = 2**19
"""Most positions of an attention layer by type of device: one or two minutes on a CPU core, as the time grows
with their square."""


class ImageTooLargeError(LGQError):
    """An image that attention cannot compute in a reasonable time."""


class Tokenized(NamedTuple):
    """Result of a tokenizer's `forward`."""

    reconstruction: Float[Tensor, "b 3 h w"]
    quantized: Quantized
    """Codes and tokens (`indices`) of the latents, and the loss of the quantizer."""


class Tokenizer(HubModel, tags=["image-tokenizer", "vector-quantization"]):
    """Encoder, quantizer and decoder, with one token for every `factor` x `factor` pixels.

    backbone: settings of encoder and decoder; by default those of the paper's ImageNet model. Imported models
        have a `VQGANBackbone` or a `MAGVIT2Backbone`.
    quantizer: a name from `lgq.quantizers.QUANTIZERS`.
    codebook_size: number of codes per stage.
    stages: above 1, a residual quantizer; tokens then have a trailing axis of stages.
    scales: sides of the grids of a multi-scale quantizer (VAR), such as (1, 2, 4, 8); tokens are then one
        sequence per image, the coarsest grid first. The last one stands for all tokens of a side.
    quantizer_options: keyword arguments of the quantizer's constructor. Its `seed` is 0 by default; None
        draws one from torch's default generator.
    image_size: side of the images that it is trained on, or for which it is meant; the default of `encode`
        and `evaluate`. None if there is no such size.

    All of these, with the defaults written out, are `settings`, the content of config.json. Under one
    `torch.manual_seed`, encoder and decoder start with the same weights whatever the quantizer: they are
    built first, and quantizers have seeds of their own.
    """

    encoder: Encoder | VQGANEncoder | MAGVIT2Encoder
    decoder: Decoder | VQGANDecoder | MAGVIT2Decoder
    _has_trained = False

    def __init__(
        self,
        backbone: Backbone | VQGANBackbone | MAGVIT2Backbone = _PAPER,
        quantizer: str = "lgq",
        codebook_size: int = 16_384,
        *,
        stages: int = 1,
        scales: tuple[int, ...] = (),
        quantizer_options: dict[str, Any] | None = None,
        image_size: int | None = None,
    ):
        super().__init__()
        require_at_least(1, stages=stages)
        require_at_most(_MOST_STAGES, stages=stages)
        if scales and stages > 1:
            raise LGQError(f"a tokenizer has `stages` or `scales`, got {stages} stages and scales {scales}.")
        options = from_json(_options_of(quantizer), quantizer_options or {}, path="quantizer_options")
        self.encoder, self.decoder = backbone.networks()
        if getattr(options, "seed", 0) is None:
            options.seed = draw_seed()  # after the networks, which start alike whatever the quantizer
        self.settings = self._hub_mixin_config = {
            "backbone": to_json(backbone),
            "quantizer": quantizer,
            "codebook_size": codebook_size,
            "stages": stages,
            "scales": list(scales),
            "quantizer_options": to_json(options),
        }
        self.image_size = image_size
        self.tokens_frozen = False
        self.backbone = backbone
        self.factor, self.codebook_size, self.stages = backbone.factor, codebook_size, stages
        self.scales = tuple(scales)
        options = self.settings["quantizer_options"] | {"channel_dim": 1}
        quantizers = [
            build_quantizer(quantizer, backbone.latent_channels, codebook_size, **options)
            for _ in range(stages)
        ]
        self.quantizer: Quantizer = quantizers[0]
        if stages > 1:
            self.quantizer = Residual(quantizers, channel_dim=1)
        elif scales:
            self.quantizer = MultiScale(quantizers[0], self.scales, channel_dim=1)

    @property
    def image_size(self) -> int | None:
        """Side of the images that it is trained on, or for which it is meant."""
        return self.settings.get("image_size")

    @image_size.setter
    def image_size(self, image_size: int | None) -> None:
        self.settings.pop("image_size", None)
        if image_size is not None:
            self.settings["image_size"] = image_size

    @property
    def levels(self) -> int:
        """Number of stages or scales, whose codes are counted apart."""
        return len(self.scales) or self.stages

    def by_level(
        self, tokens: Int64[Tensor, "b *tokens"], grid: tuple[int, int] | None = None
    ) -> list[Int64[Tensor, "b ..."]]:
        """Return the tokens of each stage or scale.

        grid: rows and columns of the latents; needed with `scales` where images are not square.
        """
        if isinstance(self.quantizer, MultiScale):
            return self.quantizer.grids(tokens, grid)
        return [tokens] if self.stages == 1 else list(tokens.unbind(-1))

    def first_levels(
        self, tokens: Int64[Tensor, "b *tokens"], levels: int, grid: tuple[int, int] | None = None
    ) -> Int64[Tensor, "b *first"]:
        """Return the tokens of the first stages or scales, which `decode` turns into a coarser image.

        grid: rows and columns of the latents; needed with `scales` where images are not square.
        """
        require_at_least(1, levels=levels)
        require_at_most(self.levels, levels=levels)
        if self.scales:
            return tokens[:, : sum(level[0].numel() for level in self.by_level(tokens, grid)[:levels])]
        return tokens if self.stages == 1 else tokens[..., :levels]

    def token_shape(self, image_size: int | tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the tokens of one image.

        image_size: side of a square image, or height and width.
        """
        sides = (image_size, image_size) if isinstance(image_size, int) else image_size
        grid = (sides[0] // self.factor, sides[1] // self.factor)
        if isinstance(self.quantizer, MultiScale):
            return (sum(self.quantizer.lengths(grid)),)
        return grid if self.stages == 1 else (*grid, self.stages)

    @property
    def device(self) -> torch.device:
        """Device of the weights, on which images to encode must be."""
        return next(self.parameters()).device

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> Tokenized:
        """Reconstruct images, with gradients; values may leave [-1, 1], where a clamp would have none."""
        if not torch.compiler.is_compiling():
            self._check_values(images)
        if self.tokens_frozen:
            # In float32 whatever the precision of training: the tokens that `encode` returns.
            with torch.no_grad(), outside_autocast(images):
                quantized = self.quantizer(self._latents(images))
        else:
            quantized = self.quantizer(self._latents(images))
        return Tokenized(self._images(quantized.quantized), quantized)

    def freeze_tokens(self) -> "Tokenizer":
        """Keep encoder and quantizer as they are in training, and so the tokens of every image."""
        self.encoder.requires_grad_(False)
        self.quantizer.freeze()
        self.tokens_frozen = True
        return self

    @torch.no_grad()
    def encode(self, images: Float[Tensor, "b 3 h w"]) -> Int64[Tensor, "b *tokens"]:
        """Return the tokens of images, without gradients; the same in train and in eval mode.

        Their shape is (b, h / f, w / f), with a trailing axis of stages, or (b, l) for the l tokens of all
        scales.
        """
        require_image_values(images)
        self.encoder.require_fitting(images)
        b, _, height, width = images.shape
        self.require_few_positions(height, width)
        side = self._tile_side(b, height // self.factor, width // self.factor)
        if side is None:
            return self.quantizer.encode(self._latents(images))
        halo = self.backbone.reach or 0
        latents = in_tiles(self._latents, images, side=side, halo=halo, shrinks=self.factor)
        return self.quantizer.encode(latents)

    @torch.no_grad()
    def decode(
        self, tokens: Integer[Tensor, "b *tokens"], grid: tuple[int, int] | None = None
    ) -> Float[Tensor, "b 3 h w"]:
        """Return the images of tokens, without gradients and, unlike `forward`, clamped to [-1, 1].

        The first stages or scales suffice; fewer give a coarser image. The token -1 stands for no code: its
        vector is zeros, as that of a vector that a quantizer was told to mask.

        grid: rows and columns of the latents; needed with `scales` where images are not square.
        """
        if tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise LGQError(f"tokens must be integers, got {tokens.dtype}: convert them with .long().")
        if isinstance(self.quantizer, MultiScale):
            if tokens.ndim != 2:
                shape = tuple(tokens.shape)
                raise LGQError(f"tokens must have shape (b, tokens of all scales), got {shape}.")
            codes = self.quantizer.decode(tokens.long(), grid)
            self.require_few_positions(*(self.factor * side for side in codes.shape[2:]))
            return self._images(codes).clamp(-1, 1)
        axes = "(b, h, w)" if self.stages == 1 else f"(b, h, w, 1 to {self.stages} stages)"
        shape, dims = tuple(tokens.shape), 3 if self.stages == 1 else 4
        if len(shape) != dims or 0 in shape[1:] or (dims == 4 and shape[3] > self.stages):
            way_out = "were they made by another tokenizer?"
            raise LGQError(f"tokens must have shape {axes}, got {shape}: {way_out}")
        # Narrow integers save space on disk, but torch takes uint8 indices for a mask.
        codes = self.quantizer.decode(tokens.long())
        b, _, h, w = codes.shape
        self.require_few_positions(self.factor * h, self.factor * w)
        if (side := self._tile_side(b, h, w)) is None:
            return self._images(codes).clamp_(-1, 1)
        halo = self.backbone.reach or 0
        return in_tiles(self._images, codes, side=side, halo=halo, enlarges=self.factor).clamp_(-1, 1)

    def decode_around(
        self, tokens: Integer[Tensor, "b h w *stages"], rows: slice, columns: slice
    ) -> tuple[Float[Tensor, "b 3 _ _"], tuple[slice, slice]]:
        """Return the pixels that tokens in these rows and columns can change, and their place in the image.

        They are those of `decode`, up to rounding. Of a local backbone (`Backbone.reach`) only what they
        depend on is decoded; of any other, they are the whole image.
        """
        (h, w), reach = tokens.shape[1:3], self.backbone.reach
        if reach is None:
            reach = max(h, w)
        reached = tile_at(h, w, rows, columns, halo=reach).padded
        tile = tile_at(h, w, *reached, halo=reach)
        part, pixels = self.decode(tokens[(slice(None), *tile.padded)]), tile.scaled(self.factor)
        return part[(..., *pixels.inner)], pixels.core

    def encode_image(
        self, image: ImageSource, *, image_size: int | None = None
    ) -> Int64[Tensor, "1 *tokens"]:
        """Return the tokens of one image, on the device of the tokenizer.

        image: a file, its bytes, a PIL image, or an array of shape (h, w), (h, w, 3) or (h, w, 4) of uint8,
            uint16 or floats in [0, 1]. It is turned upright, and what is transparent becomes white.
        image_size: side to which the centre square of the image is resized. None keeps its size, except for
            up to f - 1 rows and columns at the borders, as f must divide it.
        """
        if image_size is not None:
            square = centre_square(image, self.resolve_image_size(image_size))
            return self.encode(square[None].to(self.device))
        name = str(image) if isinstance(image, str | Path) else "the image"
        pixels = to_tensor(cropped_to_multiple(to_rgb(image), self.factor, name))
        return self.encode(pixels[None].to(self.device))

    def decode_image(
        self, tokens: Integer[Tensor, "..."], grid: tuple[int, int] | None = None
    ) -> Image.Image | list[Image.Image]:
        """Return the image of tokens as a PIL image, or a list of images for a batch of several.

        tokens: what `encode_image` or `encode` returned, or the tokens of one image without the batch axis.
            The token -1 stands for no code, as in `decode`.
        grid: as in `decode`.
        """
        require_tensor("tokens", tokens)
        if tokens.ndim == (1 if self.scales else 2 if self.stages == 1 else 3):
            tokens = tokens[None]
        pictures = [to_picture(image) for image in self.decode(tokens.to(self.device), grid)]
        return pictures[0] if len(pictures) == 1 else pictures

    def resolve_image_size(self, image_size: int | None) -> int:
        """Return the given image size, else that of the images of its run; a multiple of `factor`."""
        size = self.image_size if image_size is None else image_size
        if size is None:
            raise LGQError("this tokenizer does not say for which images it is: give `image_size` in pixels.")
        if size < 1 or size % self.factor:
            raise LGQError(f"`image_size` must be a multiple of f = {self.factor}, got {size}.")
        self.require_few_positions(size, size)
        return size

    def attention_positions(self, height: int, width: int) -> int:
        """Return the positions of the largest attention layer for an image; 0 without attention."""
        h, w = (math.ceil(side / self.factor) for side in (height, width))
        return h * w * self.backbone.attention_per_token

    def require_few_positions(self, height: int, width: int) -> None:
        """Refuse an image over which attention would take hours, by its size in pixels."""
        if is_jit_traced() or torch.compiler.is_compiling():
            return
        device, positions = self.device.type, self.attention_positions(height, width)
        most = _MOST_POSITIONS.get(device, _MOST_POSITIONS_ELSEWHERE)
        if positions > most:
            side = math.isqrt(most // self.backbone.attention_per_token) * self.factor
            raise ImageTooLargeError(
                f"{width:,} x {height:,} pixels are too many for the attention of this tokenizer: "
                f"{positions:,} positions, and at most {most:,} on {device}, as {side:,} x {side:,} pixels "
                "have; give a smaller `image_size`, or take a tokenizer whose networks are local, such as "
                "photo-f8 or that of a photo-* run."
            )

    def anneal(self, progress: float) -> None:
        """Anneal the quantizer to `progress` of training, from 0 to 1."""
        self.quantizer.anneal(progress)

    def parameter_counts(self) -> dict[str, int]:
        """Count the learned parameters of each part; the moving averages of VQ's codebook are none."""
        parts = {"encoder": self.encoder, "decoder": self.decoder, "quantizer": self.quantizer}
        return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}

    def to_diffusers(self) -> Any:
        """Return the same model as a `diffusers.VQModel`, in eval mode and with copies of the weights.

        Only a `VQGANBackbone` has the layers of diffusers, and only VQ of one stage chooses codes as it does.
        """
        # Here: other commands do without these names.
        from lgq.models.vqgan_names import CODEBOOK, DIFFUSERS, diffusers_settings, to_theirs

        backbone, quantizer = self.backbone, self.settings["quantizer"]
        options = self.settings["quantizer_options"]
        reasons = {
            "its backbone has other layers": not isinstance(backbone, VQGANBackbone),
            f"{quantizer} chooses other codes": quantizer not in ("vq", "rotvq"),
            "it compares codes by cosine": options.get("score") == "cosine",
            "its codes have a `codebook_dim`": options.get("codebook_dim") is not None,
            f"it has {self.levels} stages or scales": self.levels > 1,
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), None):
            rule = "VQModel is a VQGANBackbone around a VQ of one stage"
            raise LGQError(f"this tokenizer has no counterpart in diffusers, as {reason}: {rule}.")
        assert isinstance(backbone, VQGANBackbone)
        try:
            from diffusers import VQModel
        except ImportError as error:
            way_out = "install it with: pip install 'lgq[diffusers]'"
            raise LGQError(f"diffusers cannot be imported ({error!s:.200}): {way_out}.") from error
        with torch.random.fork_rng(devices=[]):  # the initial weights are about to be overwritten
            model: Any = VQModel(**diffusers_settings(backbone), num_vq_embeddings=self.codebook_size)
        state = self.state_dict()
        weights = to_theirs(state, backbone, DIFFUSERS) | {CODEBOOK: state["quantizer.codebook"]}
        # `assign` keeps dtype and device.
        own = {name: x.detach().clone(memory_format=torch.contiguous_format) for name, x in weights.items()}
        model.load_state_dict(own, assign=True)
        return model.eval()

    def fingerprint(self) -> str:
        # Without the defaults: an option that is added later, at its default, changes no fingerprint.
        options = default_options(self.settings["quantizer"])
        defaults = {"backbone": to_json(type(self.backbone)()), "quantizer_options": options}
        chosen = {
            group: {name: value for name, value in self.settings[group].items() if value != values[name]}
            for group, values in defaults.items()
        }
        without = {"image_size"} | (set() if self.scales else {"scales"})
        settings = {name: value for name, value in (self.settings | chosen).items() if name not in without}
        return self._fingerprint_with(settings)

    @classmethod
    def _load(cls, find: Callable[[str], Path]) -> "Tokenizer":
        # Weights first: a run directory has a config.json too, which is not the tokenizer's.
        weights, config = find(WEIGHTS), find(CONFIG)
        arguments = vars(read_settings(_keywords_of(cls.__init__, but=("self",)), config))
        return build_pretrained(lambda: cls(**arguments), config, weights)

    def _card(self) -> dict[str, str]:
        factor = self.factor
        return {
            "title": f"Image tokenizer: {self.settings['quantizer']}, f = {factor}",
            "text": f"Turns an RGB image into a grid of integers, one for every {factor} x {factor} pixels, "
            "and such a grid back into an image.",
            "example": "from lgq import Tokenizer\n\n"
            'tokenizer = Tokenizer.from_pretrained("path/to/this/directory")  # or owner/name on the Hub\n'
            f"tokens = tokenizer.encode(images)  # (b, 3, h, w) in [-1, 1], sides multiples of {factor}\n"
            "images = tokenizer.decode(tokens)\n"
            'tokenizer.decode_image(tokenizer.encode_image("cat.jpg")).save("cat.png")',
        }

    def _check_values(self, images: Tensor) -> None:
        """Check the range of images; of a training only the first batch, as a GPU waits for each check."""
        if not (self.training and self._has_trained):
            require_image_values(images)
        self._has_trained = self._has_trained or self.training

    def _tile_side(self, b: int, h: int, w: int) -> int | None:
        """Return the side of tiles for a grid of tokens whose features would take much memory, else None.

        Networks that see the whole image at once cannot be cut.
        """
        if self.backbone.reach is None or is_jit_traced() or torch.compiler.is_compiling():
            return None
        bytes_per_token = 4 * self.backbone.values_per_pixel * self.factor**2
        if b * h * w * bytes_per_token <= _TILE_BYTES:
            return None
        return max(1, self.backbone.reach, math.isqrt(int(_TILE_BYTES / (b * bytes_per_token))))

    def _latents(self, images: Tensor) -> Tensor:
        if images.is_floating_point():
            images = images.to(self.encoder.stem.weight.dtype)
        latents: Tensor = self.encoder(images)
        return latents

    def _images(self, codes: Tensor) -> Tensor:
        """Decode in the dtype and memory format of the weights; quantizers return channels last."""
        weight = self.decoder.to_image.weight
        layout = torch.contiguous_format if weight.is_contiguous() else torch.channels_last
        images: Tensor = self.decoder(codes.to(weight.dtype).contiguous(memory_format=layout))
        return images


def load_tokenizer(
    source: str | Path | Tokenizer,
    weights: WeightsChoice = "best",
    *,
    device: str | torch.device | None = None,
) -> Tokenizer:
    """Load the tokenizer of a run directory, of a directory that `save_pretrained` wrote, of the package by
    its name (`photo-f8`), or of the Hub.

    weights: of a run, those of the best validation or those of the last checkpoint.
    device: the words of `--device`, such as "auto" or "cuda"; None loads onto the CPU.

    A tokenizer that is loaded already is returned as it is, on the device if one is given.
    """
    if isinstance(source, Tokenizer):
        return source if device is None else source.to(resolve_device(device))
    require_kind(source, "tokenizer")
    own = resolve_device(device or "cpu")
    tokenizer = Tokenizer.from_pretrained(published_weights(source, weights), map_location=own)
    if settings := run_settings(source):  # weights of earlier versions do not say it themselves
        tokenizer.image_size = int(settings["image_size"])
    return tokenizer


def default_options(quantizer: str) -> dict[str, Any]:
    """Return the options that a quantizer has in a tokenizer unless `quantizer_options` says otherwise."""
    return to_json(_options_of(quantizer)())


def _options_of(quantizer: str) -> type[Any]:
    """Return a dataclass of the options of a quantizer that a tokenizer does not set itself."""
    require_quantizer(quantizer)
    # A fixed seed: a tokenizer is the same model wherever its settings are read.
    return _keywords_of(QUANTIZERS[quantizer], but=("dim", "codebook_size", "channel_dim"), seed=0)


def _keywords_of(constructor: Callable[..., Any], *, but: tuple[str, ...], **defaults: Any) -> type[Any]:
    """Return a dataclass of a constructor's keywords, with their types and defaults, for `lgq.config`."""
    keywords = [p for p in inspect.signature(constructor).parameters.values() if p.name not in but]
    # A quantizer of the user's own may come without types.
    types = {p.name: Any if p.annotation is p.empty else p.annotation for p in keywords}
    fields = [(p.name, types[p.name], defaults.get(p.name, p.default)) for p in keywords]
    return make_dataclass("Settings", fields, kw_only=True)
