"""The contract of every quantizer: latents in; codes, indices and a loss out, in any tensor layout.

n = vectors, k = codes, c = channels.
"""

import difflib
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from lgq.checks import (
    has_values,
    is_exported,
    is_recomputed,
    require_at_least,
    require_channels,
    require_finite,
    require_indices,
    require_mask,
    require_tensor,
    require_whole,
)
from lgq.errors import LGQError, warn
from lgq.ops.numerics import at_least_float32, outside_autocast
from lgq.ops.search import Score, nearest_codes
from lgq.quantizers import peer_names
from lgq.quantizers.projection import Projection
from lgq.quantizers.quantized import Quantized, require_contract

NO_CODE = -1
"""Index of a vector that is masked, or of a stage that dropout skipped; it decodes to zero."""

CodeScore = Literal["l2", "dot", "cosine"]
"""Scores of codes: negative squared distance, inner product, or cosine of the angle."""

_SCALE_CHECKS = (1, 10, 100)
"""Training batches whose scale is measured."""
_FEWEST_VECTORS = 8
"""Vectors of a batch below which its mean and spread say little."""
LEAST_MAPPED_SPREAD = 0.05
"""Spread of latents below which the bias of an untrained map to the codes outweighs them, so that nearly all
get one code, and the map takes long to make up for it."""
NORMALIZE = "Put a BatchNorm before the quantizer"
"""Advice for quantizers that have no other start."""
_FARTHEST_MEAN = 3.0
"""Mean of latents, in units of their spread, beyond which most codes around the origin are never chosen."""


class Quantizer(nn.Module, ABC):
    """Maps each latent vector to one of `codebook_size` codes.

    dim: number of channels of the latents.
    codebook_size: number of codes.
    channel_dim: axis of the channels in the input; -1 for (batch, ..., dim), 1 for BCHW, BCT or BCTHW.
    codebook_dim: number of channels of the codes; latents are projected to it and codes back, by linear maps
        that learn. None compares latents with codes directly.
    seed: seed of the initial codes; None draws one from torch's default generator, so that
        `torch.manual_seed` fixes it and no two quantizers start alike. The attribute `seed` has the number.
    """

    label: ClassVar[str]
    """Name in tables and figures."""
    maps: ClassVar[tuple[str, ...]] = ("project_in", "project_out")
    """Modules that map latents to the channels of the codes and back, if it has them."""
    learned_codes: ClassVar[bool] = True
    """Whether training moves the codes of `codebook`; False for a fixed grid, or without one codebook."""
    scale_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options of the named runs of each scale that differ from the constructor's defaults."""
    score: CodeScore = "l2"
    """Score by which `select` compares codes."""
    frozen = False
    """Whether `freeze` keeps the codes as they are."""
    float32_buffers: tuple[str, ...] = ()
    """Buffers that stay in float32 or better when the module is moved to half precision."""
    good_scale: tuple[float, float] | None = None
    """Spread of latents, from and to, for which the initial codes or a temperature are made: the root mean
    square over channels of the standard deviation over vectors. None for any latents."""
    scale_is_norm = False
    """Whether `good_scale` is of the root mean square of latents instead, which sets the size of inner
    products."""
    has_temperature: ClassVar[bool] = False
    """Whether a temperature is made for `good_scale`, wherever the codes come from."""
    codes_are_given = False
    """Whether the codes come from data, a caller or another library, instead of from a seed."""
    off_scale_advice: str = ""
    """What to do about latents of another scale, as a sentence without its full stop."""
    index_shape: tuple[int, ...] = ()
    """Shape of one vector's indices: () for a single index, such as (stages,) for a composition."""
    dense_matrices: ClassVar[int | None] = None
    """Number of n x k matrices that `dense_forward` and its gradients hold at most; None without one."""

    _constants: Mapping[str, Sequence[float]] = {}
    scale_matters = True
    """Whether `watch` measures the scale of the latents: until it has warned, or codes were loaded."""
    _training_forwards = 0
    _is_known = True
    """Whether results need no check, as the class is of this package, or its first one was checked."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._is_known = cls.__module__.partition(".")[0] == "lgq"

    def __new__(cls, *arguments: Any, **options: Any) -> "Quantizer":
        """Refuse an option that the constructor does not have, with the one that may be meant.

        Options alone are told what comes before them; without any, this may be a copy.
        """
        parameters = inspect.signature(cls.__init__).parameters
        unknown = [name for name in options if name not in parameters]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise TypeError(_no_such_option(cls.__name__, unknown[0], list(parameters)[1:]))
        if options:
            _require_all(cls.__name__, list(parameters.values())[1:], len(arguments), options)
        return super().__new__(cls)

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        channel_dim: int = -1,
        codebook_dim: int | None = None,
        seed: int | None = None,
    ):
        super().__init__()
        seed = draw_seed() if seed is None else seed
        require_whole(dim=dim, codebook_size=codebook_size, channel_dim=channel_dim, seed=seed)
        require_at_least(1, dim=dim, codebook_size=codebook_size)
        self.dim = dim
        self.codebook_size = codebook_size
        self.channel_dim = channel_dim
        self.seed = seed
        self.codebook_dim = codebook_dim
        self.code_dim = dim
        """Channels of a row of `codebook`."""
        if codebook_dim is not None:
            require_whole(codebook_dim=codebook_dim)
            require_at_least(1, codebook_dim=codebook_dim)
            self.code_dim = codebook_dim
            self.project_in = Projection(dim, codebook_dim, seed=2 * seed)
            self.project_out = Projection(codebook_dim, dim, seed=2 * seed + 1)
        self.register_load_state_dict_post_hook(_after_loading)

    def register_constants(self, **constants: Sequence[float]) -> None:
        """Register buffers that follow from the settings: they are no part of the state.

        Float ones are in float32 or better whatever the module is moved to. All have their values again when
        the module, or its loaded state, leaves the device `meta`.
        """
        self._constants = {**self._constants, **constants}
        for name, values in constants.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self._restore_constants()

    def _restore_constants(self, device: torch.device | None = None) -> None:
        """Set the constants again, on their device or another one."""
        for name, values in self._constants.items():
            buffer: Tensor = getattr(self, name)
            dtype = buffer.dtype
            if dtype.is_floating_point:
                dtype = torch.promote_types(dtype, torch.float32)
            setattr(self, name, torch.tensor(values, dtype=dtype, device=device or buffer.device))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name not in peer_names.METHODS:
                raise
            hint = f"{peer_names.METHODS[name]} takes its place (docs/from-vector-quantize-pytorch.md)"
            raise AttributeError(f"{type(self).__name__} has no {name}: {hint}") from error

    @abstractmethod
    def quantize_vectors(self, z: Float[Tensor, "n c"]) -> Quantized:
        """Compute `forward` for a matrix of vectors in float32 or better; called outside autocast.

        With `codebook_dim`, vectors and codes have that many channels here, and in `select` and `lookup`.
        Parameters keep the dtype of the module: after `.half()` they are float16 and the vectors float32, so
        a linear map is a `lgq.quantizers.projection.Projection`, or casts its weights by `.to(z.dtype)`.
        """

    def quantize(self, z: Float[Tensor, "n c"]) -> Quantized:
        """Call `quantize_vectors` between the projections of `codebook_dim`."""
        result = self.quantize_vectors(z if self.codebook_dim is None else self.project_in(z))
        if not isinstance(result, Quantized):
            raise LGQError(
                f"quantize_vectors of {type(self).__name__} returned {type(result).__name__}, which has no "
                "names: return Quantized(quantized, indices, loss, terms)."
            )
        if not self._is_known and has_values(z):
            self._is_known = True
            require_contract(self, z if self.codebook_dim is None else self.project_in(z), result)
        if self.codebook_dim is None:
            return result
        codes, indices, loss = result
        return Quantized(self.project_out(codes), indices, loss, result.terms)

    def assign(self, z: Float[Tensor, "n c"]) -> Int[Tensor, "n ..."]:
        """Call `select`, which has no gradients, behind the projection of `codebook_dim`."""
        return self.select(z if self.codebook_dim is None else self.project_in(z))

    def dense_forward(self, z: Float[Tensor, "n c"]) -> Quantized:
        """Compute the plain formulas with n x k matrices: the reference for tests and benchmarks.

        Optional: a quantizer that defines it also sets `dense_matrices`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no dense reference.")

    @torch.no_grad()
    def select(self, z: Float[Tensor, "n c"]) -> Int[Tensor, "n ..."]:
        """Find the index of each vector's code, the best row of `codebook` by `score`; without gradients."""
        codebook: Any = self.codebook
        return nearest_codes(self.compared(z), self.compared(codebook), score=self.product).indices

    def lookup(self, indices: Int[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Return the code of each index: a row of `codebook`, of unit norm with `score="cosine"`."""
        codebook: Any = self.codebook
        codes: Tensor = codebook[indices]
        return self.compared(codes)

    def compared(self, x: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """Return vectors or codes as `score` compares them: on the unit sphere for `cosine`."""
        return F.normalize(at_least_float32(x), dim=1) if self.score == "cosine" else x

    @property
    def product(self) -> Score:
        """Score of the operators for what `compared` returns."""
        return "dot" if self.score == "cosine" else self.score

    def freeze(self, *, codes_only: bool = False) -> "Quantizer":
        """Keep codes and maps as they are: no gradients, no running means, no start from data.

        codes_only: let the maps between latents and codes learn, such as those of `codebook_dim`.

        The loss still moves the latents. `unfreeze` undoes it. It is no part of the state.
        """
        self._set_frozen(True)
        if codes_only:
            for module in self.modules():
                for name in module.maps if isinstance(module, Quantizer) else ():
                    getattr(module, name, nn.Identity()).requires_grad_(True)
        return self

    def unfreeze(self) -> "Quantizer":
        """Let codes and maps learn again."""
        return self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> "Quantizer":
        for module in self.modules():
            if isinstance(module, Quantizer):
                module.frozen = frozen
        return self.requires_grad_(not frozen)

    @abstractmethod
    def reset_parameters(self, seed: int) -> None:
        """Redraw the initial parameters and buffers from `seed`."""

    def begin_batch(self) -> None:
        """Bring codes up to date before a training batch; most quantizers have nothing to do.

        Called once per batch, also where a composition uses the quantizer several times.
        """

    def anneal(self, progress: float) -> None:
        """Set what changes over training, at `progress` from 0 to 1; most quantizers have nothing to set."""
        if not isinstance(progress, int | float | Tensor) or not 0 <= progress <= 1:
            raise LGQError(f"progress runs from 0 to 1, got {progress!r}: pass step / (steps - 1).")

    def forward(self, z: Float[Tensor, "*shape"], mask: Bool[Tensor, "*vectors"] | None = None) -> Quantized:
        """Quantize the vectors of `z`; those where `mask` is False take no part.

        mask: True for each vector that counts, in the shape of `z` without channels. The others have the
            index -1 and the output 0, and enter no loss, no usage and no running mean.
        """
        vectors, tokens, kept = self._to_vectors(z, mask)
        new_batch = self.training and not is_recomputed()
        if new_batch and has_values(vectors):
            with torch.no_grad():  # a recomputation does not watch, and must save as many tensors
                self.watch(vectors)
        elif not self.training and has_values(vectors):
            self.watch_evaluation()
        with outside_autocast(z):
            if new_batch:
                self.begin_batch()
            if self.training or (torch.is_grad_enabled() and not is_exported()):
                result = self.quantize(vectors)
            else:
                indices = self.assign(vectors)
                result = Quantized(self.codes_of(indices), indices, vectors.new_zeros(()))
        codes = _put_back(result.quantized.to(z.dtype), kept, 0)
        loss = result.loss if self.training else torch.zeros_like(result.loss)
        terms = {name: term.detach() for name, term in result.terms.items()}
        indices = _unflatten(_put_back(result.indices, kept, NO_CODE), tokens)
        return Quantized(self._from_vectors(codes, tokens), indices, loss, terms)

    @torch.no_grad()
    def encode(
        self, z: Float[Tensor, "*shape"], mask: Bool[Tensor, "*vectors"] | None = None
    ) -> Int[Tensor, "*tokens"]:
        """Return the index of each vector's code, without gradients, in the shape of `z` without channels.

        mask: as in `forward`; vectors where it is False have the index -1.
        """
        vectors, tokens, kept = self._to_vectors(z, mask)
        if has_values(vectors):
            self.watch_evaluation()
        with outside_autocast(z):
            return _unflatten(_put_back(self.assign(vectors), kept, NO_CODE), tokens)

    def decode(self, indices: Integer[Tensor, "*indices"]) -> Float[Tensor, "*shape"]:
        """Return the code of each index, with the channels at `channel_dim`; the index -1 gives zeros."""
        require_tensor("indices", indices)
        axes = len(self.index_shape)
        if indices.ndim < axes:
            raise LGQError(
                f"each vector has indices of shape {self.index_shape}, got shape {tuple(indices.shape)}."
            )
        tokens = indices.shape[: indices.ndim - axes]
        checked = self.checked_indices(indices.reshape(-1, *indices.shape[indices.ndim - axes :]))
        with outside_autocast(indices):
            return self._from_vectors(self.codes_of(checked), tokens)

    def checked_indices(self, indices: Integer[Tensor, "n ..."]) -> Int[Tensor, "n ..."]:
        """Return the indices of vectors as int64; an index that no code has raises an error."""
        return require_indices(indices, self.codebook_size, lowest=NO_CODE)

    def codes_of(self, indices: Int[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        """Return the code of each index, and zeros for the index -1."""
        codes = self.lookup(indices.clamp_min(0))
        if self.codebook_dim is not None:
            codes = self.project_out(codes)
        return codes.masked_fill(indices[:, None] < 0, 0)

    def indices_to_codes(self, indices: Integer[Tensor, "*indices"]) -> Float[Tensor, "*shape"]:
        """Call `decode`, by its name in vector-quantize-pytorch."""
        return self.decode(indices)

    def watch(self, z: Float[Tensor, "n c"]) -> None:
        """Warn, once, of training that will probably fail; called for each batch, except in compiled code."""
        self._training_forwards += 1
        # Few batches: the measurement waits for the device.
        early = self._training_forwards in _SCALE_CHECKS and len(z) >= _FEWEST_VECTORS
        if not (early and self.scale_matters) or (self.codes_are_given and not self.has_temperature):
            return
        trouble = self._scale_trouble(z if self.codebook_dim is None else self.project_in(z).detach())
        if trouble is not None:
            self.scale_matters = False
            warn(
                f"the latents of {type(self).__name__} have {trouble}: few codes may be used. "
                f"{self.off_scale_advice}.",
            )

    def watch_evaluation(self) -> None:
        """Warn, once, of a training that lacked something; called by evaluations, not in compiled code."""

    def _scale_trouble(self, z: Float[Tensor, "n c"]) -> str | None:
        """Say what is wrong with the scale of latents, or return None."""
        if self.good_scale is None:
            return None
        (low, high), made = self.good_scale, "initial codes are" if self.learned_codes else "initial map is"
        made = "temperature is" if self.codes_are_given else made
        if self.scale_is_norm:
            rms = float(z.square().mean().sqrt())
            if low <= rms <= high:
                return None
            return f"a root mean square of {rms:.2g} per channel, and its {made} made for {low:g} to {high:g}"
        spread, mean = float(z.std(0, correction=0).square().mean().sqrt()), z.mean(0).square().mean().sqrt()
        # Distances between latents and codes that were taken from them do not depend on the mean.
        farthest = float("inf") if self.codes_are_given and self.score == "l2" else _FARTHEST_MEAN
        if low <= spread <= high and mean <= farthest * spread:
            return None
        rules = [f"at least {low:g}"] if low else []
        rules = [f"{low:g} to {high:g}"] if high < float("inf") else rules
        rules += [f"a mean of at most {farthest:g} times that"] if farthest < float("inf") else []
        return (
            f"a standard deviation of {spread:.2g} per channel around a mean of {float(mean):.2g}, and its "
            f"{made} made for {' and '.join(rules)}"
        )

    def extra_repr(self) -> str:
        """Return the sizes, and the arguments of the constructor that differ from its defaults."""
        shown = []
        for name, argument in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, argument.default)
            if isinstance(value, Tensor) and value.ndim > 1:
                value = f"<{' x '.join(map(str, value.shape))}>"
            elif isinstance(value, Tensor) and not value.is_meta:
                value = tuple(value.tolist())
            if not isinstance(value, nn.Module | Tensor) and value != argument.default:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)

    def _reset_projections(self, seed: int) -> None:
        if self.codebook_dim is not None:
            self.project_in.reset_parameters(2 * seed)
            self.project_out.reset_parameters(2 * seed + 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Quantizer":
        before = {name: getattr(self, name) for name in self.float32_buffers}
        super()._apply(fn, recurse)
        self._restore_constants()
        for name, buffer in before.items():
            moved = getattr(self, name)
            if moved.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, at_least_float32(buffer).to(moved.device))
        return self

    def _to_vectors(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, torch.Size, "_Kept | None"]:
        """Return the vectors that count as a matrix, the shape of all, and which of them count."""
        require_channels(z, self.dim, self.channel_dim)
        last = z.movedim(self.channel_dim % z.ndim, z.ndim - 1)  # ONNX knows no negative axes here
        vectors, tokens = at_least_float32(last.reshape(-1, self.dim)), last.shape[:-1]
        kept = None
        if mask is not None:
            require_mask(mask, tokens)
            kept = _Kept(mask.flatten().nonzero().squeeze(1), vectors.shape[0])
            vectors = vectors[kept.positions]
        require_finite(vectors)
        return vectors, tokens, kept

    def _from_vectors(self, vectors: Tensor, tokens: torch.Size) -> Tensor:
        last = vectors.reshape((*tokens, self.dim))
        return last.movedim(last.ndim - 1, self.channel_dim % last.ndim)


def _after_loading(quantizer: nn.Module, _missing_and_unexpected_keys: Any) -> None:
    loaded = next((parameter for parameter in quantizer.parameters() if not parameter.is_meta), None)
    if loaded is not None:  # by load_state_dict(assign=True), which leaves what is no part of the state
        for part in quantizer.modules():
            if isinstance(part, Quantizer) and any(getattr(part, name).is_meta for name in part._constants):
                part._restore_constants(loaded.device)
    quantizer.scale_matters = False  # type: ignore[assignment]  # loaded codes have found their latents
    for name, tensor in itertools.chain(quantizer.named_parameters(), quantizer.named_buffers()):
        if not tensor.is_meta and not torch.isfinite(tensor).all():
            raise LGQError(
                f"{name} of {type(quantizer).__name__} contains NaN or infinity in the loaded state: "
                "load the state of a training that had not diverged."
            )


def _no_such_option(quantizer: str, name: str, options: list[str]) -> str:
    ours = peer_names.OPTIONS.get(name, "")
    option, _, _ = ours.partition("=")
    # A method or a composition suits every quantizer, an option only those that have it.
    if "." in option or option in options:
        meant = f"{ours} takes its place (docs/from-vector-quantize-pytorch.md has all names)"
    else:
        close = difflib.get_close_matches(name, options, n=1)
        meant = f"did you mean {close[0]}?" if close else f"it takes {', '.join(options)}"
    return f"{quantizer} has no option {name}: {meant}"


def _require_all(
    quantizer: str, parameters: list[inspect.Parameter], positional: int, options: Mapping[str, Any]
) -> None:
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    missing = [name for name in needed[positional:] if name not in options]
    if missing:
        given = [f"{name}={value!r}" for name, value in options.items() if name not in needed]
        call = f"{quantizer}({', '.join(needed + given)})"
        raise TypeError(f"{quantizer} needs {' and '.join(missing)}: write {call}")


def draw_seed() -> int:
    """Draw a seed from torch's default generator, also where tensors have no values (`meta`)."""
    return int(torch.randint(2**31, (), device="cpu"))


class _Kept(NamedTuple):
    """Vectors of a batch that a mask keeps."""

    positions: Int[Tensor, " m"]
    all: int


def _put_back(values: Tensor, kept: _Kept | None, fill: int) -> Tensor:
    """Return values of the kept vectors at their places among all, which have `fill`."""
    if kept is None:
        return values
    filled = values.new_full((kept.all, *values.shape[1:]), fill)
    return filled.index_copy(0, kept.positions, values)


def _unflatten(indices: Tensor, tokens: torch.Size) -> Tensor:
    return indices.reshape((*tokens, *indices.shape[1:]))
