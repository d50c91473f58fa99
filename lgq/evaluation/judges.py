"""Networks that judge images, of the weights that are here; a metric without its weights is absent."""

from dataclasses import dataclass, field

import torch

from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.weights import WeightsError


@dataclass(frozen=True)
class Judges:
    lpips: LPIPS | None = None
    inception: InceptionV3 | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics that cannot be taken here, with the reason and the command that changes it."""


def judges_at_hand(device: torch.device) -> Judges:
    """What the cache of weights holds, on a device; logs nothing and downloads nothing."""
    absent: dict[str, str] = {}
    lpips = inception = None
    try:
        lpips = LPIPS.pretrained().to(device)
    except WeightsError as error:
        absent["lpips"] = str(error)
    try:
        inception = InceptionV3.pretrained().to(device)
    except WeightsError as error:
        absent["rfid"] = str(error)
    return Judges(lpips, inception, absent)
