"""The networks of a run: the tokenizer, and what judges its reconstructions (Esser et al. 2021)."""

import logging
import os
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from lgq.distributed import world_size
from lgq.metrics.metric_networks import MetricNetworks, agreed, placed
from lgq.models.discriminator import PatchDiscriminator
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.tokenizer import Tokenizer
from lgq.training.run_directory import RunError
from lgq.training.settings import TokenizerRun
from lgq.weights import WeightsError

_log = logging.getLogger(__name__)

Judge = TypeVar("Judge", InceptionV3, LPIPS)


class Networks(NamedTuple):
    tokenizer: Tokenizer
    discriminator: nn.Module | None
    """Learns too; none where the objective has no GAN term."""
    perceptual: LPIPS | None
    """Does not learn; none where the objective has no LPIPS term."""


def require_possible(run: TokenizerRun) -> None:
    """Refuse settings that no network here can serve."""
    if run.loss.gan and run.image_size < PatchDiscriminator().smallest_side:
        least = PatchDiscriminator().smallest_side
        raise RunError(
            f"the discriminator needs images of {least} pixels or more, got image_size={run.image_size}: "
            "take larger ones, or set loss.gan=0."
        )
    _require_room(run)


def _require_room(run: TokenizerRun) -> None:
    """By weights, gradients and AdamW's two means alone: what is larger cannot even begin."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            needed = 4 * 4 * sum(_tokenizer(run).parameter_counts().values())
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes that no tensor can have
        raise RunError(f"no tokenizer has these sizes ({error!s:.200}): choose smaller ones.") from error
    if needed > total_memory():
        raise RunError(
            f"this tokenizer needs {needed / 2**30:,.0f} GiB and more, and here are "
            f"{total_memory() / 2**30:,.0f}: choose a smaller codebook_size or backbone, or fewer stages."
        )


def total_memory() -> int:
    """Bytes of the GPU, or of the machine that has none."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def build_networks(run: TokenizerRun, device: torch.device, layout: torch.memory_format) -> Networks:
    """On their device, as the run's seed starts them; leaves torch's own generator anywhere.

    LPIPS comes from the cache of weights, or is a `WeightsError` with the command that brings it there.
    """
    perceptual = LPIPS.pretrained() if run.loss.lpips else None
    tokenizer = _tokenizer(run)
    discriminator = _discriminator(run, device) if run.loss.gan else None
    for network in filter(None, (tokenizer, discriminator, perceptual)):
        network.to(device, memory_format=layout)  # type: ignore[call-overload]
    return Networks(tokenizer, discriminator, perceptual)


def build_judges(
    run: TokenizerRun, lpips: LPIPS | None, device: torch.device, *, images: int
) -> tuple[str, MetricNetworks]:
    """What validations choose by, of `run.best_by` and what stands in for it, and the networks they need.

    lpips: the network of the objective, if it has one.
    images: of a validation; a single one has no rfid.
    """
    best_by, judges = _judges_found(run, lpips, device, images)
    return best_by, agreed(judges)


def _judges_found(
    run: TokenizerRun, lpips: LPIPS | None, device: torch.device, images: int
) -> tuple[str, MetricNetworks]:
    takes_rfid = images > 1 and (run.best_by == "rfid" or run.rfid_images is not None)
    inception = _pretrained(InceptionV3, "rfid", device) if takes_rfid else None
    if inception is not None and run.best_by == "rfid":
        return "rfid", MetricNetworks(lpips, inception)
    if run.best_by != "l1" and (found := lpips or _pretrained(LPIPS, "lpips", device)):
        return "lpips", MetricNetworks(found, inception)
    return "l1", MetricNetworks(lpips, inception)


def _pretrained(network: type[Judge], metric: str, device: torch.device) -> Judge | None:
    try:
        return placed(network.pretrained(), device)
    except WeightsError as error:
        _log.warning("validations are without %s: %s", metric, error)
        return None


def _tokenizer(run: TokenizerRun) -> Tokenizer:
    torch.manual_seed(run.seed)
    return Tokenizer(
        run.backbone,
        run.quantizer,
        run.codebook_size,
        stages=run.stages,
        quantizer_options={"seed": run.seed} | run.quantizer_options,
    )


def _discriminator(run: TokenizerRun, device: torch.device) -> nn.Module:
    # Its own seed: how many numbers the tokenizer drew is none of its business.
    torch.manual_seed(run.seed + 1)
    discriminator = PatchDiscriminator()
    if world_size() > 1 and device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(discriminator)
    return discriminator
