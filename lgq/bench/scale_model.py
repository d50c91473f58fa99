"""How long work takes on n GPUs: arithmetic on counted work and a stated cluster, nothing measured here.

    time of a step = max(compute, reading) + communication that is not hidden + checkpoints
    time of an encoding = images of the busiest process * max(compute, reading) + what the first does alone

Gradients go around a ring, so that a process sends 2 (n - 1) / n of their bytes (Patarasuk & Yuan 2009),
bucket after bucket while the backward pass still runs (Li et al. 2020). What comes after it, the
discriminator's gradients and the agreement to go on, is not hidden. All times are in seconds.
"""

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from lgq.checks import require_above_zero, require_at_least

Bound = Literal["compute", "reading", "communication"]

BUCKET = 25 * 2**20
"""Bytes of gradients that DistributedDataParallel sends at a time."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What the forecast assumes; the defaults are nodes of eight A100 that share one file system."""

    gpus_per_node: int = 8
    peak: float = 312e12
    """Operations a second of a GPU: A100, dense bf16."""
    utilisation: float = 0.2
    """Share of the peak that a convolutional network reaches. ResNet-50 with mixed precision on an A100
    trains on 2,470 images/s at 24.6 G operations each (NVIDIA's DeepLearningExamples): 19%."""
    link: float = 200e9
    """Bytes a second that a GPU sends within its node: two thirds of the 300 GB/s of NVLink 3 one way."""
    network: float = 25e9
    """Bytes a second that a node sends to others: one port of 200 Gbit/s; a DGX A100 has eight."""
    latency: float = 20e-6
    """Of a hop in a sum over GPUs. An assumption."""
    host_latency: float = 100e-6
    """Of a hop in a sum over the processes' CPUs. An assumption."""
    workers: int = 4
    """Processes that decode images for each GPU: what imagenet256 has."""
    storage: float = 10e9
    """Bytes a second that the file system reads for all nodes together. An assumption."""
    disk: float = 1e9
    """Bytes a second that one process reads or writes. An assumption."""

    def __post_init__(self) -> None:
        require_at_least(1, gpus_per_node=self.gpus_per_node, workers=self.workers)
        require_at_least(0, latency=self.latency, host_latency=self.host_latency)
        require_above_zero(
            peak=self.peak,
            utilisation=self.utilisation,
            link=self.link,
            network=self.network,
            storage=self.storage,
            disk=self.disk,
        )

    def compute(self, operations: float) -> float:
        return operations / (self.peak * self.utilisation)


@dataclass(frozen=True, kw_only=True)
class Images:
    """What is read."""

    count: int
    bytes: float
    """Of an image's file."""
    decoded: float
    """Images a second that one worker decodes."""

    def reading(self, gpus: int, cluster: Cluster) -> float:
        """Until each of so many GPUs has one image more."""
        return max(1 / (cluster.workers * self.decoded), gpus * self.bytes / cluster.storage)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training, by what each process does in a step."""

    images: Images
    """`count` is that of all epochs together."""
    batch_size: int
    forward: float
    """Operations of an image."""
    backward: float
    gradients: int
    """Bytes that are summed while the backward pass runs."""
    late_gradients: int
    """Bytes that are summed after it: the discriminator's."""
    late_sums: int
    """In so many calls."""
    agreements: int
    """Sums over the processes' CPUs in a step: is the loss finite, is there time, has anyone been stopped?"""
    checkpoint: int
    """Bytes."""
    checkpoint_every: int
    """Steps."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Images to tokens, a shard at a time."""

    images: Images
    forward: float
    """Operations of an image."""
    shard_size: int
    tokens: float
    """Bytes that an image leaves in its shard."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Of a step in training, of an image in encoding; `hours` of it all."""

    gpus: int
    nodes: int
    images_per_step: int
    compute: float
    reading: float
    communication: float
    """All of it."""
    exposed: float
    """Of it, what is not hidden behind the backward pass."""
    other: float
    """Checkpoints, or the share of what the first process does alone."""
    hours: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.reading) + self.exposed + self.other

    @property
    def efficiency(self) -> float:
        """Share of the time in which GPUs compute."""
        return self.compute / self.seconds

    @property
    def bound(self) -> Bound:
        """What takes longest."""
        times: dict[Bound, float] = {
            "compute": self.compute,
            "reading": self.reading,
            "communication": self.exposed,
        }
        return max(times, key=times.__getitem__)


def ring_bytes(payload: float, processes: int) -> float:
    """That a process sends, for a sum of so many bytes over all."""
    return 2 * (processes - 1) / processes * payload


def summing(payload: float, calls: int, gpus: int, cluster: Cluster) -> float:
    """Time of so many sums over all GPUs, of so many bytes in all."""
    slowest = cluster.link if gpus <= cluster.gpus_per_node else min(cluster.link, cluster.network)
    return ring_bytes(payload, gpus) / slowest + calls * _hops(gpus) * cluster.latency


def training_forecast(work: Training, gpus: int, cluster: Cluster) -> Forecast:
    forward, backward = (work.batch_size * cluster.compute(each) for each in (work.forward, work.backward))
    buckets = max(1, ceil(work.gradients / BUCKET))
    hideable = summing(work.gradients, buckets, gpus, cluster)
    # The last bucket is full when the backward pass is over.
    shown = max(hideable / buckets, hideable - backward)
    late = summing(work.late_gradients, work.late_sums, gpus, cluster)
    late += work.agreements * _hops(gpus) * cluster.host_latency
    forecast = Forecast(
        gpus=gpus,
        nodes=-(-gpus // cluster.gpus_per_node),
        images_per_step=gpus * work.batch_size,
        compute=forward + backward,
        reading=work.batch_size * work.images.reading(gpus, cluster),
        communication=hideable + late,
        exposed=shown + late,
        other=work.checkpoint / cluster.disk / work.checkpoint_every,
        hours=0.0,
    )
    steps = work.images.count / forecast.images_per_step
    return _lasting(forecast, steps * forecast.seconds)


def encoding_forecast(work: Encoding, gpus: int, cluster: Cluster) -> Forecast:
    shards = ceil(work.images.count / work.shard_size)
    busiest = min(work.images.count, ceil(shards / gpus) * work.shard_size)
    # The first process reads every shard twice at the end: is it whole, and what is its hash?
    alone = 2 * work.images.count * work.tokens / cluster.disk
    forecast = Forecast(
        gpus=gpus,
        nodes=-(-gpus // cluster.gpus_per_node),
        images_per_step=gpus,
        compute=cluster.compute(work.forward),
        reading=work.images.reading(gpus, cluster),
        communication=0.0,
        exposed=0.0,
        other=alone / busiest,
        hours=0.0,
    )
    return _lasting(forecast, busiest * forecast.seconds)


def _lasting(forecast: Forecast, seconds: float) -> Forecast:
    return Forecast(**vars(forecast) | {"hours": seconds / 3600})


def _hops(processes: int) -> int:
    """Up a tree and down again."""
    return 2 * ceil(log2(processes))
