"""Networks that judge images, of the weights that are here; a metric without its weights is absent."""

from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from lgq.distributed import stack_over_ranks
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.weights import WeightsError

Network = TypeVar("Network", bound=nn.Module)

NEED_LPIPS = ("lpips", "reconstruction_loss")
NEED_INCEPTION = ("rfid", "kid", "precision", "recall")
NEED_FEATURES = ("gfid", "kid", "precision", "recall")
"""Of generated images."""
NEED_CLASSIFIER = ("inception_score",)


@dataclass(frozen=True)
class MetricNetworks:
    """Of which each may be missing."""

    lpips: LPIPS | None = None
    inception: InceptionV3 | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics that cannot be taken here, with the reason and the command that changes it."""
    classifier: InceptionV3 | None = None
    """Inception with its classifier, for Inception Score; where its features are those of `inception`, it
    is the same object, and images pass one network."""


def judges_at_hand(device: torch.device) -> MetricNetworks:
    """Those whose weights are in the cache, on a device; nothing is downloaded."""
    absent: dict[str, str] = {}
    lpips = inception = None
    try:
        lpips = placed(LPIPS.pretrained(), device)
    except WeightsError as error:
        absent |= dict.fromkeys(NEED_LPIPS, str(error))
    try:
        inception = placed(InceptionV3.pretrained(), device)
    except WeightsError as error:
        absent |= dict.fromkeys(NEED_INCEPTION, str(error))
    return agreed(MetricNetworks(lpips, inception, absent))


def judges_of_generation(device: torch.device) -> MetricNetworks:
    """What generated images are judged by, likewise: Inception for features, and for classes.

    The weights with the classifier serve for both where they are alone here, or where their features are
    equal bit for bit to those of FID; then they go by the name of the latter.
    """
    absent: dict[str, str] = {}
    features = classifier = None
    try:
        features = placed(InceptionV3.pretrained(), device)
    except WeightsError as error:
        absent |= dict.fromkeys(NEED_FEATURES, str(error))
    try:
        classifier = placed(InceptionV3.pretrained(classifier=True), device)
    except WeightsError as error:
        absent |= dict.fromkeys(NEED_CLASSIFIER, str(error))
    if classifier is None or (features is not None and not _same_features(features, classifier)):
        return agreed(MetricNetworks(None, features, absent, classifier))
    if features is not None:
        classifier.convention = features.convention
    return agreed(MetricNetworks(None, classifier, {}, classifier))


def placed(network: Network, device: torch.device) -> Network:
    """On a device, in the layout in which a CPU takes about 30% less time; see `InceptionV3` on rounding."""
    placed_there: Network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return placed_there


def agreed(judges: MetricNetworks) -> MetricNetworks:
    """These judges, which all processes must have: where one lacks a network, the others wait for it."""
    here = torch.tensor([x is not None for x in (judges.lpips, judges.inception, judges.classifier)])
    if not (stack_over_ranks(here.long()) == here).all():
        raise WeightsError(
            "processes differ in the weights that they find: run `lgq weights fetch` on every machine, or "
            "let LGQ_CACHE name a directory that all of them share."
        )
    return judges


def _same_features(one: InceptionV3, other: InceptionV3) -> bool:
    pairs = zip(one.network.buffers(), other.network.buffers(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
