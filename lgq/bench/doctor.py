"""What an installation has and does: versions, devices, kernels, weights, disk, and a short benchmark.

The result is one page of plain text, for an issue or for the question which setting of LGQ_KERNEL to choose.
"""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import lgq
from lgq import weights
from lgq.bench.measure import available_bytes, interleaved_ms
from lgq.bench.quantizers import QuantizerRow, six_gemms, training_step
from lgq.checks import require_at_least
from lgq.ops import fused, passes
from lgq.quantizers import LGQ

_DIM = 64
_WORTHWHILE = 1.1  # times as fast: less is within the noise of a short benchmark
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Size of the short benchmark."""

    vectors: int = 2048
    """Vectors in a batch."""
    codebook_size: int = 16_384
    """Number of codes."""
    repeats: int = 3
    """Rounds, of which the best counts."""


def examine(settings: Examination) -> Iterator[str]:
    """Yield the lines of the page."""
    require_at_least(
        1, vectors=settings.vectors, codebook_size=settings.codebook_size, repeats=settings.repeats
    )
    yield f"lgq {lgq.__version__}, torch {torch.__version__}, Triton {_version('triton')}"
    yield f"Python {platform.python_version()}, {platform.platform()}"
    yield "\nDevices"
    threads = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"
    yield f"  cpu     {processor_model()}, {threads}, {_memory()}"
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    for device in devices:
        properties = torch.cuda.get_device_properties(device)
        capability = f"compute capability {properties.major}.{properties.minor}"
        yield f"  {device}  {properties.name}, {properties.total_memory / _GIB:.0f} GiB, {capability}"
    if not devices:
        yield "  no CUDA device: training on a CPU is slow beyond the scale `pocket`"
    yield "\nWeights of the networks behind the metrics"
    for name, state in weights.status().items():
        how = "" if state == "here" else f": {weights.SETS[name].command}"
        yield f"  {name:14} {state}{how}"
    yield "\nDisk"
    for what, folder in (("here", Path.cwd()), ("cache", weights.cache_directory())):
        yield f"  {what:6}  {_free(folder):.0f} GiB free in {folder}"
    size = f"{settings.vectors:,} vectors of {_DIM} channels, {settings.codebook_size:,} codes"
    yield f"\nSpeed of LGQ's training step ({size})"
    for device in devices or [torch.device("cpu")]:
        yield from _speed(device, settings)
    yield f"\nKernels ({fused.KERNEL_VARIABLE}={fused.kernel_choice()})"
    yield f"  cpu     {_passes()}"
    if not devices:
        yield "  the fused kernels are for CUDA devices: there is nothing to choose here"
    for device in devices:
        yield from _advice(device, settings)


def _speed(device: torch.device, settings: Examination) -> Iterator[str]:
    size, vectors = settings.codebook_size, settings.vectors
    row = QuantizerRow(quantizer="lgq", implementation="ours", codebook_size=size, tokens=vectors)
    step, floor = training_step(LGQ, row, _DIM, device), six_gemms(vectors, _DIM, size, device)
    for call in (step, floor):
        call()
    best = interleaved_ms({"step": step, "floor": floor}, repeats=settings.repeats, device=device)
    ratio = best["step"] / best["floor"]
    floor_ms = f"{best['floor']:.1f} ms of the matrix products that it cannot do without"
    yield f"  {device!s:6}  {best['step']:.1f} ms, {ratio:.2f} times the {floor_ms}"


def _passes() -> str:
    """Say what works between the matrix products on the CPU."""
    if not passes.is_native_wanted():
        return f"torch between the matrix products, as {passes.NATIVE_VARIABLE}=0 says"
    obstacle = passes.native_obstacle(torch.float32)
    if obstacle is not None:
        return f"torch between the matrix products; C would be faster, but {obstacle}"
    return "C between the matrix products, compiled for this processor"


def _advice(device: torch.device, settings: Examination) -> Iterator[str]:
    """Say whether the kernels work on a device, how fast they are, and which setting to choose."""
    reason = fused.obstacle(device, torch.float32, _DIM) or fused.disagreement(device, _DIM)
    if reason is not None:
        yield f"  {device}  not usable: {reason}"
        yield f"  choose  {fused.KERNEL_VARIABLE}=torch, the default, and please report the line above"
        return
    yield f"  {device}  the self-check passed: the fused kernels give what torch gives in float64"
    best = {}
    row = QuantizerRow(
        quantizer="lgq", implementation="ours", codebook_size=settings.codebook_size, tokens=settings.vectors
    )
    step = training_step(LGQ, row, _DIM, device)
    for kernel in ("torch", "triton"):
        with fused.chosen_kernel(kernel):
            step()
            best[kernel] = interleaved_ms({"step": step}, repeats=settings.repeats, device=device)["step"]
    ratio = best["torch"] / best["triton"]
    choice = "auto" if ratio >= _WORTHWHILE else "torch"
    times = f"torch {best['torch']:.2f} ms, kernels {best['triton']:.2f} ms"
    yield f"  {device}  {times}: {ratio:.1f} times as fast"
    yield f"  choose  {fused.KERNEL_VARIABLE}={choice}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"


def processor_model() -> str:
    """Return the model of the processor, as the system names it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory() -> str:
    return f"{available_bytes(torch.device('cpu')) / _GIB:.0f} GiB of memory free"


def _free(folder: Path) -> float:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(existing).free / _GIB
