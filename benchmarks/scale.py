"""Scaling of training and encoding: a measurement on this machine, and a forecast for n GPUs.

    torchrun --standalone --nproc_per_node 2 benchmarks/scale.py measure > measured.json
    python benchmarks/scale.py forecast > forecast.json

`measure` assumes nothing: processor time of a training step, alone and with summed gradients, bytes sent, and
photographs decoded per second. `forecast` measures nothing: it is arithmetic on the counted work of a run and
on the cluster that its options describe. No GPU has confirmed it.
"""

import io
import json
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from math import ceil, log2
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from lgq.data.images import StoredImage
from lgq.data.photographs import photograph_pixels
from lgq.data.transforms import RandomCrop, random_crop, render
from lgq.distributed import join_processes, leave_processes, rank, wait_for_all, world_size
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer

# ---------------------------------------------------------------- measured on this machine


def measure(name: str = "pocket-lgq", batch_sizes: tuple[int, ...] = (4, 8, 16), rounds: int = 4) -> None:
    """Time training steps in all processes that torchrun started, and the decoding of photographs.

    Args:
        name: Named run whose tokenizer is trained, with the l1 loss and AdamW.
        batch_sizes: Images per process and step.
        rounds: Steps of each kind, taken in turns; the fastest counts.
    """
    device = join_processes()
    steps = [measure_step(name, size, rounds, device) for size in batch_sizes]
    if rank() == 0:
        record = {"run": name, "processes": world_size(), "threads_per_process": torch.get_num_threads()}
        print(json.dumps(record | {"decoded_per_second": decoding_rate(), "steps": steps}, indent=1))
    leave_processes()


def measure_step(name: str, batch_size: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Processor seconds of a step of the first process alone, and of all processes together."""
    run = named_run(name)
    tokenizer: torch.nn.Module = Tokenizer(run.backbone, run.quantizer, run.codebook_size).to(device)
    if world_size() > 1:
        tokenizer = DistributedDataParallel(tokenizer)
    optimizer = torch.optim.AdamW(tokenizer.parameters(), lr=run.learning_rate)
    images = torch.rand(batch_size, 3, run.image_size, run.image_size, device=device)

    def step(*, together: bool) -> float:
        wait_for_all()
        started = time.process_time()
        if together or rank() == 0:
            silent = isinstance(tokenizer, DistributedDataParallel) and not together
            with tokenizer.no_sync() if silent else nullcontext():
                reconstruction, quantized = (tokenizer.module if silent else tokenizer)(images)
                ((reconstruction - images).abs().mean() + quantized.loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - started

    step(together=True)  # connects the processes and creates the state of AdamW
    written = bytes_written()
    step(together=True)
    sent = bytes_written() - written
    times = [(step(together=False), step(together=True)) for _ in range(rounds)]
    return {
        "batch_size": batch_size,
        "alone_seconds": min(alone for alone, _ in times),
        "together_seconds": min(together for _, together in times),
        "gradient_bytes": 4 * sum(parameter.numel() for parameter in tokenizer.parameters()),
        "sent_bytes": sent,
    }


def bytes_written() -> int:
    """Bytes that this process has written, to sockets too (Linux)."""
    return int(Path("/proc/self/io").read_text().split()[3])


def decoding_rate(images: int = 64) -> float:
    """Photographs per second on one core: a JPEG of ImageNet's usual size to a random crop of 256 pixels."""
    photograph = io.BytesIO()
    photograph_pixels("coffee.png").resize((500, 375)).save(photograph, "JPEG", quality=95)
    started = time.process_time()
    for index in range(images):
        stored = StoredImage(photograph.getvalue(), "photograph.jpg")
        render(stored, random_crop(stored.size, RandomCrop(), seed=0, epoch=0, index=index), 256)
    return images / (time.process_time() - started)


# ------------------------------------------------------------- forecast: nothing is measured

GPUS = tuple(2**i for i in range(13))
IMAGENET_IMAGES, IMAGENET_BYTES = 1_281_167, 147_897_477_120  # the training set, and its archive
PAPER_BATCH = 32  # images per step of the paper's run, over four GPUs
BUCKET = 25 * 2**20  # bytes of gradients that DistributedDataParallel sums at a time
AGREEMENTS = 3  # sums over CPUs per step of the training loop
SHARD_SIZE = 4096  # images per shard of tokens


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Assumed hardware: by default, nodes of eight A100 that share one file system."""

    gpus_per_node: int = 8
    peak: float = 312e12
    """Operations per second of a GPU: A100, dense bf16."""
    utilisation: float = 0.2
    """Share of the peak that is reached: 19% for ResNet-50, by NVIDIA's DeepLearningExamples."""
    link: float = 200e9
    """Bytes per second between the GPUs of a node: two thirds of NVLink 3 one way."""
    network: float = 25e9
    """Bytes per second between nodes: one port of 200 Gbit/s."""
    latency: float = 20e-6
    """Seconds per hop of a sum over GPUs."""
    host_latency: float = 100e-6
    """Seconds per hop of a sum over CPUs."""
    workers: int = 4
    """Processes per GPU that decode images."""
    decoded: float = 410.0
    """Images per second that a worker decodes: `decoded_per_second` of `measure`."""
    storage: float = 10e9
    """Bytes per second that the file system reads for all nodes together."""
    disk: float = 1e9
    """Bytes per second that one process reads."""

    def compute(self, operations: float) -> float:
        return operations / (self.peak * self.utilisation)

    def reading(self, gpus: int) -> float:
        """Seconds until each of `gpus` GPUs has one more image."""
        files = gpus * IMAGENET_BYTES / IMAGENET_IMAGES / self.storage
        return max(1 / (self.workers * self.decoded), files)

    def all_reduce(self, payload: float, calls: int, gpus: int) -> float:
        """Seconds to sum `payload` bytes over all GPUs in `calls` calls, around a ring."""
        slowest = self.link if gpus <= self.gpus_per_node else min(self.link, self.network)
        return ring_bytes(payload, gpus) / slowest + calls * hops(gpus) * self.latency


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of the run `imagenet256-lgq`, as torch counts it on the networks (a test counts again)."""

    encoder: float = 209_639_702_528
    """Operations per image from pixels to tokens."""
    forward: float = 517_817_696_256
    """Operations per image of all forward passes of a step: tokenizer, LPIPS, discriminator."""
    backward: float = 910_014_611_456
    """Operations per image of the backward passes."""
    gradients: int = 116_159_244
    """Bytes of the gradients that are summed during the backward pass."""
    late_gradients: int = 11_062_532
    """Bytes of the discriminator's gradients, which are summed after it."""
    late_sums: int = 13
    """Number of those sums, one per tensor."""
    batch_size: int = 8
    """Images per GPU and step."""
    tokens: int = 512
    """Bytes of tokens per image."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Seconds per step of a training, or per image of an encoding; hours of the whole."""

    gpus: int
    compute: float
    reading: float
    communication: float = 0.0
    """Only what the backward pass does not hide."""
    hours: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.compute, self.reading) + self.communication

    @property
    def bound(self) -> str:
        return max(("compute", "reading", "communication"), key=lambda part: getattr(self, part))


def ring_bytes(payload: float, processes: int) -> float:
    """Bytes that a process sends to sum `payload` bytes around a ring (Patarasuk & Yuan 2009)."""
    return 2 * (processes - 1) / processes * payload


def hops(processes: int) -> int:
    return 2 * ceil(log2(processes))


def forecast_training(work: Work, cluster: Cluster, gpus: int, batch_size: int, images: int) -> Forecast:
    """All buckets of gradients but the last are summed behind the backward pass (Li et al. 2020)."""
    backward = batch_size * cluster.compute(work.backward)
    buckets = max(1, ceil(work.gradients / BUCKET))
    hideable = cluster.all_reduce(work.gradients, buckets, gpus)
    late = cluster.all_reduce(work.late_gradients, work.late_sums, gpus)
    agreements = AGREEMENTS * hops(gpus) * cluster.host_latency
    step = Forecast(
        gpus=gpus,
        compute=batch_size * cluster.compute(work.forward) + backward,
        reading=batch_size * cluster.reading(gpus),
        communication=max(hideable / buckets, hideable - backward) + late + agreements,
    )
    return replace(step, hours=images / (gpus * batch_size) * step.seconds / 3600)


def forecast_encoding(work: Work, cluster: Cluster, gpus: int, images: int) -> Forecast:
    """The busiest process decides; then the first one reads every shard twice, to check and to hash it."""
    busiest = min(images, ceil(ceil(images / SHARD_SIZE) / gpus) * SHARD_SIZE)
    image = Forecast(gpus=gpus, compute=cluster.compute(work.encoder), reading=cluster.reading(gpus))
    return replace(image, hours=(busiest * image.seconds + 2 * images * work.tokens / cluster.disk) / 3600)


def forecast(*, cluster: Cluster, work: Work, epochs: int = 50, encoded_images: int = 10**9) -> None:
    """Forecast training on ImageNet-1k and encoding, on 1 to 4,096 GPUs.

    Args:
        epochs: Epochs of the training.
        encoded_images: Images to encode, of the size of ImageNet's.
    """
    images, shared = epochs * IMAGENET_IMAGES, [gpus for gpus in GPUS if gpus <= PAPER_BATCH]
    forecasts = {
        "training": [forecast_training(work, cluster, n, work.batch_size, images) for n in GPUS],
        "paper": [forecast_training(work, cluster, n, PAPER_BATCH // n, images) for n in shared],
        "encoding": [forecast_encoding(work, cluster, n, encoded_images) for n in GPUS],
    }
    for title, rows in forecasts.items():
        table = Table("GPUs", "compute ms", "reading ms", "sending ms", "hours", "bound by", title=title)
        for row in rows:
            times = (f"{1e3 * part:,.2f}" for part in (row.compute, row.reading, row.communication))
            table.add_row(f"{row.gpus:,}", *times, f"{row.hours:,.1f}", row.bound)
        Console(stderr=True).print(table)
    record = {title: [asdict(row) for row in rows] for title, rows in forecasts.items()}
    print(json.dumps({"cluster": asdict(cluster), "work": asdict(work)} | record, indent=1))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"measure": measure, "forecast": forecast})
