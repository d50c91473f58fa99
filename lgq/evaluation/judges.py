"""Networks that judge images, of the weights that are here; a metric without its weights is absent."""

from dataclasses import dataclass, field

import torch

from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.weights import WeightsError

NEED_LPIPS = ("lpips", "reconstruction_loss")
NEED_INCEPTION = ("rfid", "kid", "precision", "recall")


@dataclass(frozen=True)
class Judges:
    """Of which each may be missing."""

    lpips: LPIPS | None = None
    inception: InceptionV3 | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics that cannot be taken here, with the reason and the command that changes it."""


def judges_at_hand(device: torch.device) -> Judges:
    """Those whose weights are in the cache, on a device; nothing is downloaded."""
    absent: dict[str, str] = {}
    lpips = inception = None
    try:
        lpips = LPIPS.pretrained().to(device)
    except WeightsError as error:
        absent |= dict.fromkeys(NEED_LPIPS, str(error))
    try:
        inception = InceptionV3.pretrained().to(device)
    except WeightsError as error:
        absent |= dict.fromkeys(NEED_INCEPTION, str(error))
    return Judges(lpips, inception, absent)
