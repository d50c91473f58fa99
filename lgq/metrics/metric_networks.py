"""Networks behind metrics: LPIPS, and Inception for features and class probabilities.

A metric whose weights are not on this machine is absent, by name and with the reason. Nothing is downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from lgq.distributed import stack_over_ranks
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.weights import WeightsError

Network = TypeVar("Network", bound=nn.Module)

LPIPS_METRICS = ("lpips", "reconstruction_loss")
RECONSTRUCTION_FEATURE_METRICS = ("rfid", "kid", "precision", "recall")
GENERATION_FEATURE_METRICS = ("gfid", "kid", "precision", "recall")
CLASSIFIER_METRICS = ("inception_score",)


@dataclass(frozen=True)
class MetricNetworks:
    """LPIPS and Inception; None where one is missing."""

    lpips: LPIPS | None = None
    inception: InceptionV3 | None = None
    """Features for FID, KID, precision and recall."""
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics that cannot be computed, each with the reason and the command that changes it."""
    classifier: InceptionV3 | None = None
    """Inception with its classifier, for Inception Score. It is the same object as `inception` where both
    have the same features, so that one forward pass serves both."""

    @classmethod
    def available(cls, device: torch.device, *, for_generation: bool = False) -> "MetricNetworks":
        """Load the networks whose weights are in the cache; every process must find the same ones.

        for_generation: those for generated images (Inception for features and classes) in place of those
            for reconstructions (LPIPS and Inception).
        """
        networks = _for_generation(device) if for_generation else _for_reconstruction(device)
        return networks.require_on_all_ranks()

    def require_on_all_ranks(self) -> "MetricNetworks":
        """Return these networks; an error where another process has others, and would wait forever."""
        present = torch.tensor([x is not None for x in (self.lpips, self.inception, self.classifier)])
        if not (stack_over_ranks(present.long()) == present).all():
            raise WeightsError(
                "processes find different weights: run `lgq weights fetch` on every machine, or let "
                "LGQ_CACHE name a directory that all of them share."
            )
        return self

    def require_inception(self) -> InceptionV3:
        """Return Inception, without which generated images cannot be measured."""
        if self.inception is None:
            reason = self.absent.get("gfid", "no Inception was given.")
            raise WeightsError(f"generated images cannot be measured: {reason}")
        return self.inception


def on_device(network: Network, device: torch.device) -> Network:
    """Move a network, in the layout that takes about 30% less time on a CPU (rounding: see `InceptionV3`)."""
    moved: Network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


def _for_reconstruction(device: torch.device) -> MetricNetworks:
    absent: dict[str, str] = {}
    lpips = _load(LPIPS.pretrained, device, LPIPS_METRICS, absent)
    inception = _load(InceptionV3.pretrained, device, RECONSTRUCTION_FEATURE_METRICS, absent)
    return MetricNetworks(lpips, inception, absent)


def _for_generation(device: torch.device) -> MetricNetworks:
    """The weights with the classifier serve for both where they are the only ones, or where their features
    equal those of FID in every bit. In the second case they keep the name of the latter in records."""
    absent: dict[str, str] = {}
    features = _load(InceptionV3.pretrained, device, GENERATION_FEATURE_METRICS, absent)
    with_classifier = partial(InceptionV3.pretrained, classifier=True)
    classifier = _load(with_classifier, device, CLASSIFIER_METRICS, absent)
    if classifier is None or (features is not None and not _same_features(features, classifier)):
        return MetricNetworks(None, features, absent, classifier)
    if features is not None:
        classifier.convention = features.convention
    return MetricNetworks(None, classifier, {}, classifier)


def _load(
    pretrained: Callable[[], Network], device: torch.device, metrics: tuple[str, ...], absent: dict[str, str]
) -> Network | None:
    """Load a network; without its weights, add its metrics to `absent`."""
    try:
        return on_device(pretrained(), device)
    except WeightsError as error:
        absent |= dict.fromkeys(metrics, str(error))
        return None


def _same_features(a: InceptionV3, b: InceptionV3) -> bool:
    pairs = zip(a.network.buffers(), b.network.buffers(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)
