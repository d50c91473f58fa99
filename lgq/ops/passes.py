"""Passes over the elements of a tile, between the matrix products of soft assignment.

`TorchPasses` has the formulas in operators of torch, for any device and dtype. Each of them reads and writes
the tile once, which takes a CPU a third as long as the products. `NativePasses` does the same on a CPU in C
(passes.c), in two or three readings. It is compiled for the processor at hand when a large call first needs
it, which takes a second, and used if it agrees with `TorchPasses`. Without a C compiler, or with
LGQ_NATIVE=0, torch does it all; results differ by rounding.
n = vectors, k = codes, t = vectors of a tile, w = its row length.
"""

import ctypes
import logging
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lgq.errors import LGQError
from lgq.ops.numerics import min_log_weight
from lgq.ops.search import blockwise_argmax

NATIVE_VARIABLE = "LGQ_NATIVE"
LOG2_E = math.log2(math.e)
"""Weights are powers of two: torch's exp2 takes a third of the time of its exp."""

_FEWEST_SCORES = 2**22  # with fewer, a step takes less time than the compiler
_BLOCK_ELEMENTS = 2**19  # two blocks of float32 stay in the caches of two cores
_AGREEMENT = 1e-4
_SOURCE = Path(__file__).with_suffix(".c")
_log = logging.getLogger(__name__)


class Weighed(NamedTuple):
    """What `weigh` writes for the vectors of a tile."""

    peak: Float[Tensor, " t"]
    """Largest score."""
    indices: Int[Tensor, " t"]
    """Code of the largest score."""
    log_sum: Float[Tensor, " t"]
    """Logarithm of the sum of the weights, relative to the largest."""
    purity: Float[Tensor, " t"]
    entropy: Float[Tensor, " t"]


class TorchPasses:
    """Passes over the tiles of n vectors and k codes, and sums over all vectors along the way."""

    def __init__(self, n: int, k: int, like: Tensor):
        self.n, self.k = n, k
        self.lowest = LOG2_E * min_log_weight(like.dtype)
        self.sums = like.new_zeros(torch.get_num_threads() if isinstance(self, NativePasses) else 1, k)
        # One buffer: the allocator returns one of this size to the system, whose pages cost more than exp2.
        self._exponentials = like.new_empty(0)

    def column_sums(self) -> Float[Tensor, " k"]:
        """Return the mean of p of each code after `weigh`, or the sum of dL/d log-weights."""
        return self.sums.sum(0)

    def weigh(self, scores: Float[Tensor, "t w"], scale: Float[Tensor, ""], result: Weighed) -> None:
        """Assign the vectors of a tile with p = 2^(scores * scale) / sum, and overwrite their scores."""
        for block in self._blocks_in_cache(scores):
            w, (peak, indices, log_sum, purity, entropy) = scores[block], (part[block] for part in result)
            # The best before the division by tau, which may round two scores to one value:
            # `nearest_codes` compares them undivided too.
            peak[:], indices[:] = blockwise_argmax(w)
            w = w[:, : self.k]
            w.sub_(peak[:, None]).mul_(scale).clamp_(min=self.lowest)
            e = torch.exp2(w, out=self._exponentials.resize_(w.shape))
            total = e.sum(1)
            purity[:] = (torch.linalg.vector_norm(e, dim=1) / total).square()
            self.sums[0].addmv_(e.T, 1 / (total * self.n))
            log_sum[:] = total.log()
            entropy[:] = log_sum - w.mul_(e).sum(1) / (total * LOG2_E)

    def differentiate(
        self,
        log_weights: Float[Tensor, "t w"],
        dp: Float[Tensor, "t w"],
        indices: Int[Tensor, " t"],
        log_sum: Float[Tensor, " t"],
        grad_purity: Float[Tensor, " t"] | None,
        grad_entropy: Float[Tensor, " t"] | None,
    ) -> None:
        """Turn log2-weights and dL/dp of the linear outputs into p and dL/d log-weights, in place.

        The weight of the best code is 1 by definition. Large scores, computed again, differ from those of the
        forward pass by more than their differences may be, so the weights count from it.
        """
        for block in self._blocks_in_cache(dp):
            p, ds = log_weights[block, : self.k], dp[block, : self.k]
            best = p.gather(1, indices[block, None])
            p.sub_(best + LOG2_E * log_sum[block, None]).clamp_(min=self.lowest)
            if grad_entropy is not None:
                ds.addcmul_(p, (grad_entropy[block] / -LOG2_E)[:, None])
            p.exp2_()
            if grad_purity is not None:
                ds.addcmul_(p, 2 * grad_purity[block, None])
            ds.scatter_(1, indices[block, None], 0.0)
            ds.mul_(p)
            ds.addcmul_(p, -ds.sum(1, keepdim=True))
            self.sums[0].addmv_(ds.T, ds.new_ones(len(ds)))

    def _blocks_in_cache(self, tile: Tensor) -> list[slice]:
        """Cut a tile, which is large enough for an efficient GEMM, for the passes over its elements."""
        rows = max(1, _BLOCK_ELEMENTS // self.k) if tile.is_cpu else len(tile)
        return [slice(start, start + rows) for start in range(0, len(tile), rows)]


class NativePasses(TorchPasses):
    """The same passes in C, in as many threads as torch uses, each with sums of its own."""

    def weigh(self, scores: Float[Tensor, "t w"], scale: Float[Tensor, ""], result: Weighed) -> None:
        shape = (len(scores), self.k, scores.stride(0), len(self.sums))
        numbers = (self.lowest, float(scale), 1 / self.n)
        _call("weigh", scores, *shape, self.sums, *numbers, *result)

    def differentiate(
        self,
        log_weights: Float[Tensor, "t w"],
        dp: Float[Tensor, "t w"],
        indices: Int[Tensor, " t"],
        log_sum: Float[Tensor, " t"],
        grad_purity: Float[Tensor, " t"] | None,
        grad_entropy: Float[Tensor, " t"] | None,
    ) -> None:
        none = dp.new_zeros(len(dp))
        of_p = none if grad_purity is None else (2 * grad_purity).contiguous()
        of_log = none if grad_entropy is None else (grad_entropy / -LOG2_E).contiguous()
        shape = (len(dp), self.k, dp.stride(0), len(self.sums))
        of_rows = (indices, log_sum, of_p, of_log)
        _call("differentiate", log_weights, dp, *shape, self.sums, self.lowest, *of_rows)


def passes_for(n: int, k: int, like: Tensor) -> TorchPasses:
    """Return the passes for scores of n vectors and k codes, of the device and the dtype of a tensor."""
    is_large = like.is_cpu and like.dtype in _REALS and n * k >= _FEWEST_SCORES
    is_native = is_large and is_native_wanted() and native_obstacle(like.dtype) is None
    return (NativePasses if is_native else TorchPasses)(n, k, like)


def is_native_wanted() -> bool:
    """Whether LGQ_NATIVE allows passes in C."""
    wanted = os.environ.get(NATIVE_VARIABLE, "1")
    if wanted not in ("0", "1"):
        raise LGQError(
            f"{NATIVE_VARIABLE} must be 1 (passes in C, if they can be compiled) or 0, got {wanted!r}."
        )
    return wanted == "1"


@cache
def native_obstacle(dtype: torch.dtype) -> str | None:
    """Say why the passes in C cannot be used on this machine, or return None."""
    try:
        _compiled(dtype)
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
        _log.info("soft assignment uses torch alone: %s", reason)
        return reason
    difference = _disagreement(dtype)
    if not difference <= _AGREEMENT:  # NaN neither
        reason = f"passes in C and in torch differ by {difference:.1g}"
        _log.warning(
            "soft assignment uses torch alone: %s. Please report this, with your C compiler.", reason
        )
        return reason
    return None


_REALS: dict[torch.dtype, type] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


@cache
def _compiled(dtype: torch.dtype) -> ctypes.CDLL:
    """Compile passes.c for this process and this processor, and load it."""
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or ""]
    if not compiler[0]:
        raise FileNotFoundError("there is no C compiler (cc or gcc) on the PATH")
    wide = ["-mprefer-vector-width=512"] if platform.machine() == "x86_64" else []
    options = ["-O3", "-march=native", *wide, "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC"]
    double = f"-DDOUBLE={int(dtype == torch.float64)}"
    with tempfile.TemporaryDirectory(prefix="lgq-") as folder:
        compiled, library = Path(folder, "passes.o"), Path(folder, "passes.so")
        # Linked without OpenMP's library: torch has brought one, whose threads then serve both.
        for step in (
            [*options, double, "-c", str(_SOURCE), "-o", str(compiled)],
            ["-shared", str(compiled), "-o", str(library)],
        ):
            done = subprocess.run([*compiler, *step], capture_output=True, text=True, timeout=60, check=False)
            if done.returncode:
                said = done.stderr.strip().splitlines() or ["nothing"]
                raise OSError(f"{shlex.join(compiler)} cannot compile {_SOURCE.name}: {said[0]}")
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOW)
    address, count, real = ctypes.c_void_p, ctypes.c_int64, _REALS[dtype]
    shape = [count, count, count, ctypes.c_int, address, real]
    loaded.weigh.argtypes = [address, *shape, real, ctypes.c_double, *[address] * 5]
    loaded.differentiate.argtypes = [address, address, *shape, *[address] * 4]
    return loaded


def _call(name: str, scores: Tensor, *arguments: object) -> None:
    """Call a function of passes.c, which takes tensors by the addresses of their first elements."""
    function = getattr(_compiled(scores.dtype), name)
    function(*(a.data_ptr() if isinstance(a, Tensor) else a for a in (scores, *arguments)))


def _disagreement(dtype: torch.dtype) -> float:
    """Return the largest difference between both on a small problem, relative to each result's largest."""
    n, k = 5, 700
    generator = torch.Generator().manual_seed(0)
    first, again, dp = (torch.randn(n, 768, generator=generator, dtype=dtype) for _ in range(3))
    grads = torch.randn(2, n, generator=generator, dtype=dtype)
    results = []
    for make in (TorchPasses, NativePasses):
        s, p, d = first.clone(), again.clone(), dp.clone()
        s[:, k:] = -torch.inf
        weigh, differentiate = make(n, k, first), make(n, k, first)
        weighed = Weighed(*(torch.zeros(n, dtype=torch.int64 if i == 1 else dtype) for i in range(5)))
        weigh.weigh(s, first.new_tensor(3.0), weighed)
        differentiate.differentiate(p, d, weighed.indices, weighed.log_sum, *grads)
        results.append([*weighed, p[:, :k], d[:, :k], weigh.column_sums(), differentiate.column_sums()])
    pairs = zip(*results, strict=True)
    return max(float((ours - plain).abs().max() / plain.abs().max()) for plain, ours in pairs)
