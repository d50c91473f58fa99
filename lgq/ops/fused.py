"""The CUDA implementation of the operators: fused kernels if asked for and trusted, otherwise tiles of torch.

The variable LGQ_KERNEL says which: `torch` (the default), `auto` or `triton`. `auto` takes the kernels for
float32 vectors of up to 64 channels, on an architecture with known tiles, after they have agreed with torch
in float64 on this device; otherwise it warns once with the reason and takes torch. `triton` does without that
comparison, and keeps errors as they are.
n = vectors, k = codes, c = channels.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lgq.errors import LGQError
from lgq.ops import assignment, search
from lgq.ops.numerics import min_log_weight
from lgq.ops.search import Scores, score_centre, score_dtype

KERNEL_VARIABLE = "LGQ_KERNEL"
KERNELS = ("auto", "torch", "triton")
MOST_CHANNELS = 64
"""Number of channels up to which a block of vectors fits in registers."""
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton's interpreter runs the kernels, on a CPU: Triton reads this variable when it is imported."""

_LEAST_CHANNELS = 32  # `tl.dot` takes 16 too, but for some of those kernels the compiler spills registers
_MOST_OFFSET = 2**31  # offsets inside the kernels are 32-bit integers
_MOST_PARTS = 16
_PROGRAMS_PER_PROCESSOR = 2

_log = logging.getLogger(__name__)


class Tile(NamedTuple):
    """Block of the score matrix that a program works on, and how it is compiled."""

    vectors: int
    codes: int
    warps: int = 4
    stages: int = 2


TILES = {
    (8, 0): Tile(64, 32),
    (8, 9): Tile(64, 32),
    (9, 0): Tile(64, 64),
    (10, 0): Tile(64, 32),
    (12, 0): Tile(64, 32),
}
"""Tile by compute capability: the largest for which no kernel spills registers or exceeds on-chip memory."""
_INTERPRETED_TILE = Tile(64, 128)


def kernel_choice() -> str:
    """Return the value of LGQ_KERNEL."""
    choice = os.environ.get(KERNEL_VARIABLE, "torch")
    if choice not in KERNELS:
        raise LGQError(f"{KERNEL_VARIABLE} must be 'auto', 'torch' or 'triton', got {choice!r}.")
    return choice


@contextmanager
def chosen_kernel(choice: str) -> Iterator[None]:
    """Context in which LGQ_KERNEL has another value."""
    before = os.environ.get(KERNEL_VARIABLE)
    os.environ[KERNEL_VARIABLE] = choice
    try:
        yield
    finally:
        del os.environ[KERNEL_VARIABLE]
        if before is not None:
            os.environ[KERNEL_VARIABLE] = before


# When they suit


def obstacle(device: torch.device, dtype: torch.dtype, channels: int, *, largest: int = 0) -> str | None:
    """Return why the kernels cannot serve scores of this kind, or None if they can.

    largest: number of vectors or of codes, whichever is larger.
    """
    if channels > MOST_CHANNELS:
        return f"the vectors have {channels} channels, and the kernels take at most {MOST_CHANNELS}"
    if dtype != torch.float32 and not (INTERPRETED and dtype == torch.float64):
        return f"the scores are in {dtype}, and the kernels compute in torch.float32"
    if largest * padded(channels) * 3 >= _MOST_OFFSET:
        return f"{largest} vectors or codes are too many for the offsets of the kernels"
    try:
        _kernels()
    except Exception as error:  # an import may fail in any way
        return f"Triton cannot be loaded ({_summary(error)}); pip install 'lgq[kernels]' brings it"
    capability = None if INTERPRETED else torch.cuda.get_device_capability(device)
    if capability is not None and capability not in TILES:
        known = ", ".join(f"{major}.{minor}" for major, minor in TILES)
        found = ".".join(map(str, capability))
        return f"the device has compute capability {found}, and the kernels are made for {known}"
    return None


@cache
def disagreement(device: torch.device, channels: int) -> str | None:
    """Return how the kernels fail their self-check, or None if they pass; computed once per process."""
    try:
        differences = self_check(device, channels)
    except Exception as error:  # a compiler or a driver may fail in any way
        return f"their self-check failed ({_summary(error)})"
    if differences.small:
        return None
    found = ", ".join(f"{name} {value:.1e}" for name, value in differences._asdict().items())
    return f"their self-check found results unlike those of torch (relative differences: {found})"


class Differences(NamedTuple):
    """Largest differences between the kernels and torch in float64."""

    regret: float
    """Distance in score between the best code and the chosen one, relative to |x| |y|."""
    outputs: float
    gradients: float

    @property
    def small(self) -> bool:
        # A NaN is not small.
        return self.regret <= 1e-6 and self.outputs <= 1e-4 and self.gradients <= 5e-4


def self_check(device: torch.device, channels: int) -> Differences:
    """Compare search, forward and backward pass of the kernels with torch in float64, on small problems."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    n, k = 192, 700
    z, codes = normal(n, channels), normal(k, channels) * channels**-0.5
    gradients = (normal(n, channels), normal(n), normal(n), normal(k))
    # LGQ's gradients at the end of its annealing, and all of them at its beginning.
    cases = ((0.05, (*gradients[:2], None, gradients[3]), "soft"), (1.0, gradients, "both"))
    regrets, outputs, derivatives = [], [], []
    for score, (tau, of_outputs, route) in product(("l2", "dot"), cases):
        problem: Any = (z, codes, torch.tensor(tau, device=device))
        exact_problem: Any = [x.double() for x in problem]
        settings: Any = (score, route, n)
        fused = assign_fused(*problem, *settings)
        exact = assignment.assign_in_tiles(*exact_problem, *settings)
        outputs += [_difference(ours, theirs) for ours, theirs in zip(fused[2:5], exact[2:5], strict=True)]
        chosen = (fused[1], search_fused(z, codes, score)[0])
        regrets += [_regret(exact_problem, indices, score) for indices in chosen]
        arguments: Any = (*of_outputs, *problem, *_kept(fused), *settings, True)
        doubled: Any = [None if g is None else g.double() for g in of_outputs]
        exact_arguments: Any = (*doubled, *exact_problem, *_kept(exact), *settings, True)
        pairs = zip(gradients_fused(*arguments), assignment.gradients_in_tiles(*exact_arguments), strict=True)
        derivatives += [_difference(ours, theirs) for ours, theirs in pairs]
    # The largest of tensors, not of numbers: it keeps a NaN.
    return Differences(*(float(torch.stack(values).amax()) for values in (regrets, outputs, derivatives)))


def _kept(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs of the forward pass that the backward pass takes: indices, peaks and log-sums."""
    return outputs[1], *outputs[5:]


def _difference(ours: Tensor, theirs: Tensor) -> Tensor:
    return torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs)


def _regret(problem: list[Tensor], indices: Tensor, score: str) -> Tensor:
    z, codes, _ = problem
    scores = Scores(z, codes, score, score_centre(z, codes))
    dense = scores.inputs @ scores.codes.T + scores.bias
    lengths = scores.inputs.norm(dim=1) * scores.codes.norm(dim=1).amax()
    return ((dense.amax(1) - dense.gather(1, indices[:, None]).squeeze(1)) / lengths).amax()


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


@cache
def _warn_once(reason: str) -> None:
    _log.warning("soft assignment and search run in torch, not in fused kernels: %s.", reason)


# Operators


def assign_fused(
    z: Tensor, codes: Tensor, tau: Tensor, score: str, codebook_gradient: str, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute what `assign_in_tiles` does, with kernels; `rows` does not matter."""
    problem = _Problem(z, codes, score)
    n, k, inverse = problem.n, problem.k, problem.inverse(tau)
    chunk, parts = problem.chunks("codes")
    peaks, sums, squares, products = (problem.empty(parts, n) for _ in range(4))
    positions = problem.empty(parts, n, dtype=torch.int32)
    outputs = (peaks, positions, sums, squares, products)
    problem.over_codes("scan", chunk, parts, problem.bias, inverse, *outputs, FLOOR=problem.floor)
    peak, part = peaks.max(0)
    indices = positions.gather(0, part[None])[0].long()
    # Each part has its sums relative to its own peak.
    shift = ((peaks - peak) * inverse).clamp_(min=problem.floor)
    factor = shift.exp()
    total = (sums * factor).sum(0)
    log_sum = total.log()
    purity = (squares * factor.square()).sum(0) / total.square()
    entropy = log_sum - ((products + shift * sums) * factor).sum(0) / total
    chunk, parts = problem.chunks("vectors")
    totals = problem.empty(parts, k)
    inputs = (problem.bias, inverse, peak, log_sum, indices)
    problem.over_vectors("usage", chunk, parts, *inputs, totals, FLOOR=problem.floor)
    return codes[indices].to(z.dtype), indices, purity, entropy, totals.sum(0) / n, peak, log_sum


def gradients_fused(
    grad_output: Tensor | None,
    grad_purity: Tensor | None,
    grad_entropy: Tensor | None,
    grad_usage: Tensor | None,
    z: Tensor,
    codes: Tensor,
    tau: Tensor,
    indices: Tensor,
    peak: Tensor,
    log_sum: Tensor,
    score: str,
    codebook_gradient: str,
    rows: int,
    codes_learn: bool,
) -> tuple[Tensor, Tensor]:
    """Compute what `gradients_in_tiles` does, with kernels; `rows` does not matter."""
    problem = _Problem(z, codes, score)
    n, k, c, inverse = problem.n, problem.k, z.shape[1], problem.inverse(tau)
    g, a, b, u = (problem.contiguous(grad) for grad in (grad_output, grad_purity, grad_entropy, grad_usage))
    u = None if u is None else u / n
    reference = assignment.best_code_gradient(problem.codes, indices, log_sum, g, a, u)
    planes = None if g is None else _planes(g, problem.channels, 2)
    inputs = (planes, problem.bias, u, inverse, peak, log_sum, a, b, indices, reference)
    given: dict[str, Any] = {
        "OUTPUT": g is not None,
        "USAGE": u is not None,
        "PURITY": a is not None,
        "ENTROPY": b is not None,
    }
    given |= {"FLOOR": problem.floor}
    chunk, parts = problem.chunks("codes")
    inners = problem.empty(parts, n)
    weighted, means = (problem.empty(parts, n, problem.channels) for _ in range(2))
    problem.over_codes("to_z", chunk, parts, *inputs, inners, weighted, means, **given)
    inner = inners.sum(0)
    dz = (weighted.sum(0) - inner[:, None] * means.sum(0))[:, :c] * (
        2 * inverse if score == "l2" else inverse
    )
    if not codes_learn:
        return dz.to(z.dtype), codes.new_empty(0)
    chunk, parts = problem.chunks("vectors")
    dcodes, dbias = problem.empty(parts, k, problem.channels), problem.empty(parts, k)
    given |= {"SOFT": codebook_gradient != "hard"}
    problem.over_vectors("to_codes", chunk, parts, *inputs, inner, dcodes, dbias, **given)
    dcodes = dcodes.sum(0)[:, :c]
    if score == "l2":
        dcodes = torch.addcmul(dcodes, problem.codes, (dbias.sum(0) * -2 * inverse)[:, None])
    if g is not None and codebook_gradient != "soft":
        dcodes = dcodes.index_add(0, indices, g)
    return dz.to(z.dtype), dcodes.to(codes.dtype).contiguous()


def search_fused(z: Tensor, codes: Tensor, score: str) -> tuple[Tensor, Tensor]:
    """Compute what `search_in_tiles` does, with a kernel."""
    problem = _Problem(z, codes, score)
    chunk, parts = problem.chunks("codes")
    peaks = problem.empty(parts, problem.n)
    positions = problem.empty(parts, problem.n, dtype=torch.int32)
    problem.over_codes("search", chunk, parts, problem.bias, peaks, positions)
    indices = positions.gather(0, peaks.max(0).indices[None])[0].long()
    return indices, codes[indices]


class _Problem:
    """Operands of the kernels for one call of an operator, and how they are launched."""

    def __init__(self, z: Tensor, codes: Tensor, score: str):
        scores = Scores(z, codes, score, score_centre(z, codes))
        self.n, self.k, self.channels = len(z), len(codes), padded(z.shape[1])
        self.codes, self.bias = scores.codes, scores.bias
        self.x, self.y = (_planes(operand, self.channels, 3) for operand in (scores.inputs, scores.codes))
        self.floor = min_log_weight(self.bias.dtype)
        self.device = z.device
        self.tile = _INTERPRETED_TILE if INTERPRETED else TILES[torch.cuda.get_device_capability(z.device)]

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.bias.new_empty(shape, dtype=dtype or self.bias.dtype)

    def contiguous(self, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        # Autograd passes on expanded gradients and parts of others; Triton would compile once more for those.
        gradient = gradient.to(self.bias.dtype).contiguous()
        return gradient if gradient.data_ptr() % 16 == 0 else gradient.clone()

    def inverse(self, tau: Tensor) -> Tensor:
        return 1 / tau.to(self.bias)

    def chunks(self, streamed: str) -> tuple[int, int]:
        """Length of the chunks of the streamed axis, `codes` or `vectors`, and how many there are.

        There are enough to keep the device busy where the other axis has few blocks.
        """
        vectors, codes = (self.n, self.tile.vectors), (self.k, self.tile.codes)
        (rows, row_block), (length, block) = (vectors, codes) if streamed == "codes" else (codes, vectors)
        blocks, programs = _blocks(length, block), _PROGRAMS_PER_PROCESSOR * _processors(self.device)
        wanted = _blocks(programs, _blocks(rows, row_block))
        chunk = _blocks(blocks, min(wanted, _MOST_PARTS, blocks)) * block
        return chunk, _blocks(length, chunk)

    def over_codes(
        self, name: str, chunk: int, parts: int, *tensors: Tensor | None, **constants: Any
    ) -> None:
        """Run a kernel whose programs own vectors and stream over the codes."""
        self._launch(name, (_blocks(self.n, self.tile.vectors), parts), chunk, *tensors, **constants)

    def over_vectors(
        self, name: str, chunk: int, parts: int, *tensors: Tensor | None, **constants: Any
    ) -> None:
        """Run a kernel whose programs own codes and stream over the vectors."""
        self._launch(name, (_blocks(self.k, self.tile.codes), parts), chunk, *tensors, **constants)

    def _launch(
        self, name: str, grid: tuple[int, int], chunk: int, *tensors: Tensor | None, **constants: Any
    ) -> None:
        kernel = getattr(_kernels(), name)
        constants |= block_constants(self.tile, self.channels, self.bias.dtype)
        with torch.cuda.device_of(self.bias):
            kernel[grid](
                self.x, self.y, *tensors, self.n, self.k, chunk, **constants,
                num_warps=self.tile.warps, num_stages=self.tile.stages,
            )  # fmt: skip


def block_constants(tile: Tile, channels: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Constants that every kernel is compiled with."""
    types = _kernels().tl
    return {
        "ROWS": tile.vectors,
        "COLUMNS": tile.codes,
        "C": channels,
        "TYPE": types.float64 if dtype == torch.float64 else types.float32,
        "SPLIT": dtype == torch.float32,
    }


def padded(channels: int) -> int:
    """Number of channels of a block: a power of two."""
    return max(_LEAST_CHANNELS, 1 << (channels - 1).bit_length())


def _planes(operand: Tensor, channels: int, count: int) -> Tensor:
    """Split float32 into bfloat16 planes that add up to it, and pad the channels; float64 is one plane."""
    rest = F.pad(operand, (0, channels - operand.shape[1]))
    if operand.dtype == torch.float64:
        return rest[None].contiguous()
    planes = torch.empty(count, *rest.shape, dtype=torch.bfloat16, device=rest.device)
    for plane in planes:
        plane.copy_(rest)
        rest = rest - plane
    # The interpreter would multiply the bit patterns of bfloat16.
    return planes.float() if INTERPRETED else planes


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


@cache
def _processors(device: torch.device) -> int:
    return 1 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


def _kernels() -> ModuleType:
    import lgq.ops.kernels  # which needs Triton

    return lgq.ops.kernels


# Registration


def _register(operator: Any, fused: Callable[..., Any], tiled: Callable[..., Any], position: int) -> None:
    """Register `fused` for CUDA, with `tiled` in its stead; vectors and codes are at `position`."""

    def run(*arguments: Any) -> Any:
        z, codes = arguments[position : position + 2]
        choice = kernel_choice()
        if choice == "torch" or len(z) == 0:
            return tiled(*arguments)
        reason = obstacle(z.device, score_dtype(z, codes), z.shape[1], largest=max(len(z), len(codes)))
        if reason is None and choice == "auto":
            reason = disagreement(z.device, padded(z.shape[1]))
        if reason is None:
            try:
                return fused(*arguments)
            except Exception as error:  # a launch may fail in any way
                if choice == "triton":
                    raise
                reason = _summary(error)
        _warn_once(reason)
        return tiled(*arguments)

    operator.register_kernel(["cuda", "cpu"] if INTERPRETED else "cuda")(run)


_register(assignment._soft_assignment, assign_fused, assignment.assign_in_tiles, 0)
_register(assignment._soft_assignment_backward, gradients_fused, assignment.gradients_in_tiles, 4)
_register(search._nearest_codes, search_fused, search.search_in_tiles, 0)
if INTERPRETED:
    search.search_on_cpu = search._nearest_codes
