"""Networks of a tokenizer's training: tokenizer, discriminator, LPIPS, and those that metrics need."""

import logging
import os
import re
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from lgq.distributed import world_size
from lgq.errors import LGQError, warn
from lgq.metrics.metric_networks import MetricNetworks, on_device
from lgq.models.autoencoder import Decoder
from lgq.models.discriminator import PatchDiscriminator
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.quantizers import CONTINUOUS
from lgq.quantizers.codebook_init import DataInitQuantizer, split_codes
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.history import StartFrom, require_same_network, source_name
from lgq.training.settings import TokenizerRun
from lgq.weights import WeightsError

_log = logging.getLogger(__name__)

PretrainedNetwork = TypeVar("PretrainedNetwork", InceptionV3, LPIPS)


def require_feasible(run: TokenizerRun, device: torch.device) -> None:
    """Refuse images too small for the discriminator, and networks too large for the memory of the device."""
    if run.loss.gan and run.image_size < (smallest := PatchDiscriminator().min_side):
        raise LGQError(
            f"the discriminator needs images of {smallest} pixels or more, got `image_size` "
            f"{run.image_size}: use larger images, or set `loss.gan` to 0."
        )
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            # Weights, gradients and AdamW's two averages, in float32: a lower bound.
            needed = 4 * 4 * sum(_tokenizer(run).parameter_counts().values())
    except (RuntimeError, OverflowError, TypeError) as error:
        # Other errors of these types are bugs, and keep their traceback.
        if not re.search("overflow|too large|allocate memory", str(error), re.IGNORECASE):
            raise
        reason = " ".join(str(error).split())
        raise LGQError(f"no tokenizer has these sizes ({reason:.200}): choose smaller ones.") from error
    if needed > (total := _total_memory(device)):
        owner = "the GPU" if device.type == "cuda" else "this machine"
        raise LGQError(
            f"this tokenizer needs more than {needed / 2**30:,.0f} GiB, and {owner} has "
            f"{total / 2**30:,.0f}: choose a smaller `codebook_size` or backbone, or fewer `stages`."
        )


def _total_memory(device: torch.device) -> int:
    """Return the bytes of a CUDA device; the CPU and MPS share the memory of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def build_networks(
    run: TokenizerRun, device: torch.device, layout: torch.memory_format
) -> tuple[Tokenizer, nn.Module | None, LPIPS | None]:
    """Build tokenizer, discriminator and LPIPS with the weights of the run's seed; reseeds torch.

    The discriminator is None if the loss has no GAN term, and LPIPS, which is frozen, if it has no such term.
    LPIPS is loaded from the cache; without its weights, the `WeightsError` names the command that fetches
    them.
    """
    dtype = torch.bfloat16 if run.loss.lpips_precision == "bf16" else torch.float32
    perceptual = LPIPS.pretrained(dtype=dtype) if run.loss.lpips else None
    tokenizer = _tokenizer(run)
    discriminator: nn.Module | None = None
    if run.loss.gan:
        # Its own seed: its weights do not depend on how many numbers the tokenizer drew.
        torch.manual_seed(run.seed + 1)
        discriminator = PatchDiscriminator()
        if world_size() > 1 and device.type == "cuda":
            discriminator = nn.SyncBatchNorm.convert_sync_batchnorm(discriminator)
    # LPIPS, with many channels in every run, is a fifth faster in this layout.
    layouts = {tokenizer: layout, discriminator: layout, perceptual: torch.channels_last}
    for network, own_layout in layouts.items():
        if network is not None:
            network.to(device, memory_format=own_layout)  # type: ignore[call-overload]
    return tokenizer, discriminator, perceptual


def start_tokenizer(
    tokenizer: Tokenizer, run: TokenizerRun, source: Tokenizer | str | Path | None, *, resumed: bool
) -> StartFrom | None:
    """Give the tokenizer of a run its first weights, and freeze what `frozen_tokens` keeps.

    source: what `take_tokenizer` takes; None keeps the random weights.
    resumed: whether a checkpoint has the weights, so that the source is only named.
    """
    start: StartFrom | None = None
    if source is not None:
        start = StartFrom.named(source) if resumed else take_tokenizer(tokenizer, source)
    if run.frozen_tokens:
        if not resumed and (start is None or "quantizer" not in start.parts):
            raise LGQError(
                "`frozen_tokens` keeps encoder and quantizer as they start: name trained ones, with the same "
                "quantizer and number of codes (`codebook_size`), as `start_from`."
            )
        tokenizer.freeze_tokens()
    return start


def take_tokenizer(tokenizer: Tokenizer, source: Tokenizer | str | Path) -> StartFrom:
    """Give a tokenizer trained weights: all of them if its quantizer is the same in kind and shape.

    A learned codebook of more codes begins with the trained ones and copies of them at a small distance.
    With another quantizer, or fewer codes or other stages, only encoder and decoder are taken, with a
    warning where fewer codes drop a codebook. Another backbone is an error, except that a decoder may begin
    with the weights of one without a `refinement`.

    source: a tokenizer, or what `load_tokenizer` loads it from.
    """
    trained, name = load_tokenizer(source), source_name(source)
    here, there = tokenizer.settings["backbone"], trained.settings["backbone"]
    grown = () if there.get("refinement", 0) else ("refinement",)
    require_same_network(name, "backbone", here, there, but=("checkpointing", *grown))
    parts = ["encoder", "decoder"]
    if _quantizer_shape(tokenizer) == _quantizer_shape(trained):
        parts.append("quantizer")
    grows = "quantizer" not in parts and _take_codes(tokenizer, trained)
    for part in parts:
        module, state = getattr(tokenizer, part), getattr(trained, part).state_dict()
        module.take(state) if grown and isinstance(module, Decoder) else module.load_state_dict(state)
    parts += ["codes"] * grows
    start = StartFrom(source=name, fingerprint=trained.fingerprint(), parts=tuple(parts))
    own, other = _title(tokenizer), _title(trained)
    reason = f"{own} here and {other} there" if own != other else f"{own} with other options there"
    how = "has copies of the codes" if grows else "starts untrained"
    differs = "" if "quantizer" in parts else f"; the quantizer {how}, as it is {reason}"
    _log.info("starting from %s%s", start, differs)
    if _drops_codes(tokenizer, trained):
        codes = trained.codebook_size
        warn(
            f"the trained codebook of {name} is dropped, as it has {codes:,} codes and this run "
            f"{tokenizer.codebook_size:,}: `codebook_size` {codes} keeps it."
        )
    return start


def _drops_codes(tokenizer: Tokenizer, trained: Tokenizer) -> bool:
    """Tell whether a learned codebook is not taken for no other reason than that it has more codes."""
    (name, size, *levels), (old_name, old_size, *old_levels) = _kind(tokenizer), _kind(trained)
    learned = trained.quantizer.learned_codes and hasattr(trained.quantizer, "codebook")
    return (name, levels) == (old_name, old_levels) and size < old_size and learned


def _take_codes(tokenizer: Tokenizer, trained: Tokenizer) -> bool:
    """Give a quantizer the codes of one that differs by having fewer, and copies of them; tell whether."""
    quantizer, smaller = tokenizer.quantizer, trained.quantizer
    (name, size, *levels), (old_name, old_size, *old_levels) = _kind(tokenizer), _kind(trained)
    if (name, levels) != (old_name, old_levels) or size <= old_size:
        return False
    own, state = quantizer.state_dict(), smaller.state_dict()
    if not isinstance(quantizer, DataInitQuantizer) or "codebook" not in own or own.keys() != state.keys():
        return False
    if quantizer.code_dim != smaller.code_dim:
        return False
    quantizer.load_state_dict(own | {key: state[key] for key in own if own[key].shape == state[key].shape})
    quantizer.begin_with(split_codes(state["codebook"], size, seed=quantizer.seed))
    return True


def _quantizer_shape(tokenizer: Tokenizer) -> tuple[object, ...]:
    """Return what must be equal for a quantizer's weights to mean the same."""
    state = tokenizer.quantizer.state_dict()
    return (*_kind(tokenizer), {name: tensor.shape for name, tensor in state.items()})


def _kind(tokenizer: Tokenizer) -> tuple[str, int, int, tuple[int, ...]]:
    return tokenizer.settings["quantizer"], tokenizer.codebook_size, tokenizer.stages, tokenizer.scales


def _title(tokenizer: Tokenizer) -> str:
    name, codes, stages, scales = _kind(tokenizer)
    if name == CONTINUOUS:
        return name
    levels = f" in {stages} stages" if stages > 1 else f" on {len(scales)} scales" if scales else ""
    return f"{name} of {codes:,} codes{levels}"


def build_metric_networks(
    run: TokenizerRun, lpips: LPIPS | None, device: torch.device, *, images: int
) -> tuple[str, MetricNetworks]:
    """Return the metric that selects the best weights, and the networks that validations need.

    The metric is `run.best_by`, or the next one of rfid, lpips, l1 whose network has its weights here.

    lpips: the network of the loss, if it has one.
    images: number of validation images; rFID needs two.
    """
    if run.loss.lpips_precision != "float32":
        lpips = None  # metrics are computed in float32
    best_by: str = run.best_by
    computes_rfid = images > 1 and (best_by == "rfid" or run.rfid_images is not None)
    inception = _pretrained(InceptionV3, "rfid", device) if computes_rfid else None
    if best_by == "rfid" and inception is None:
        best_by = "lpips"
    if best_by == "lpips":
        lpips = lpips or _pretrained(LPIPS, "lpips", device)
        best_by = "l1" if lpips is None else "lpips"
    return best_by, MetricNetworks(lpips, inception).require_on_all_ranks()


def _pretrained(
    network: type[PretrainedNetwork], metric: str, device: torch.device
) -> PretrainedNetwork | None:
    try:
        return on_device(network.pretrained(), device)
    except WeightsError as error:
        _log.warning("validation without %s: %s", metric, error)
        return None


def _tokenizer(run: TokenizerRun) -> Tokenizer:
    torch.manual_seed(run.seed)
    return Tokenizer(
        run.backbone,
        run.quantizer,
        run.codebook_size,
        stages=run.stages,
        scales=run.scales,
        quantizer_options={"seed": run.seed} | run.quantizer_options,
        image_size=run.image_size,
    )
