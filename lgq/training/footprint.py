"""What a run needs before it starts: its parameters, and an estimate of its memory (`lgq train --dry-run`).

Weights, gradients and optimizer states are counted. Activations are measured: one image goes forward, the
tensors that autograd saves are added up, and a batch takes batch_size times as much. Temporary buffers, the
data loader and torch itself are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lgq.data import ImageDataset, PipeDataset, open_dataset
from lgq.data.tokens import TokenDataset
from lgq.distributed import resolve_device
from lgq.errors import LGQError
from lgq.maskgit import MaskGIT
from lgq.models.lpips import LPIPS
from lgq.models.masking import masked_loss
from lgq.tokenizer import Tokenizer
from lgq.training.generator_trainer import build_generator, open_tokens, take_generator
from lgq.training.networks import build_networks, require_feasible, start_tokenizer
from lgq.training.run_directory import has_checkpoints
from lgq.training.settings import GeneratorRun, TokenizerRun, TrainingRun

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one process of a run needs."""

    run: TrainingRun
    """The run with its steps resolved for the data."""
    images: int
    """Number of training images."""
    parameters: dict[str, int]
    """Number of trained parameters by network."""
    bytes: dict[str, int]
    """Estimated bytes of memory by what they hold."""

    @property
    def epochs(self) -> float:
        """Epochs of the whole run on one process."""
        return self.run.loop.steps * self.run.images_per_step() / self.images


def tokenizer_footprint(
    run: TokenizerRun,
    data: ImageDataset | str | Path,
    *,
    start_from: Tokenizer | str | Path | None = None,
    out: str | Path | None = None,
    device: str | torch.device = "auto",
) -> Footprint:
    """Estimate what `train(run, data, out, ...)` needs; LPIPS need not be downloaded.

    out: the run directory, if there is to be one: a run in it has its weights, and takes none from a source.
    """
    data = open_dataset(data) if isinstance(data, str | Path) else data
    require_feasible(run, resolve_device(device))
    if isinstance(data, PipeDataset):
        raise LGQError(f"a dry run counts the images, and {data!r} does not tell: train without a dry run.")
    run = run.for_data(len(data))
    # LPIPS with random weights takes the same memory.
    without_lpips = replace(run, loss=replace(run.loss, lpips=0.0))
    tokenizer, discriminator, _ = build_networks(without_lpips, torch.device("cpu"), torch.contiguous_format)
    resumed = out is not None and has_checkpoints(Path(out))
    start_tokenizer(tokenizer, run, start_from, resumed=resumed)  # refuses what does not fit
    perceptual = LPIPS() if run.loss.lpips else None
    parameters = tokenizer.parameter_counts()
    if discriminator is not None:
        parameters["discriminator"] = _count(discriminator.parameters())
    sizes = _trained(run, parameters, tokenizer)
    if perceptual is not None:
        sizes["LPIPS"] = _FLOAT32 * _count(perceptual.buffers())
    image = torch.zeros(1, 3, run.image_size, run.image_size)

    def forward() -> None:
        reconstruction = tokenizer(image).reconstruction
        if perceptual is not None:
            perceptual(reconstruction, image)
        if discriminator is not None:
            discriminator(reconstruction)

    networks = [network for network in (tokenizer, discriminator, perceptual) if network is not None]
    sizes["activations"] = _activations(run, networks, forward)
    return Footprint(run=run, images=len(data), parameters=parameters, bytes=sizes)


def generator_footprint(
    run: GeneratorRun,
    tokens: TokenDataset | str | Path,
    *,
    val_tokens: TokenDataset | str | Path | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    start_from: MaskGIT | str | Path | None = None,
    device: str | torch.device = "auto",
) -> Footprint:
    """Estimate what `train_generator` needs with these arguments, with all tokens of an image masked."""
    resolve_device(device)
    training_tokens, _, decoder = open_tokens(tokens, val_tokens, tokenizer)
    run = run.for_data(len(training_tokens))
    maskgit = build_generator(run, training_tokens, decoder)
    if start_from is not None:
        take_generator(maskgit, start_from)
    transformer = maskgit.transformer
    parameters = {"transformer": _count(transformer.parameters())}
    sizes = _trained(run, parameters, transformer)
    sizes["tokenizer"] = _FLOAT32 * (_count(decoder.parameters()) + _count(decoder.buffers()))
    masked = torch.ones(1, transformer.length, dtype=torch.bool)
    blank = torch.full((1, transformer.length), transformer.mask_token)
    label = torch.zeros(1, dtype=torch.int64)

    def forward() -> None:
        masked_loss(transformer(blank, label, masked), torch.zeros(transformer.length, dtype=torch.int64))

    sizes["activations"] = _activations(run, [transformer], forward)
    return Footprint(run=run, images=len(training_tokens), parameters=parameters, bytes=sizes)


def _trained(run: TrainingRun, parameters: dict[str, int], model: nn.Module) -> dict[str, int]:
    """Return the bytes of weights, gradients, AdamW's averages and the model's weight average."""
    trained = _FLOAT32 * sum(parameters.values())
    buffers = _FLOAT32 * _count(model.buffers())
    sizes = {"weights": trained + buffers, "gradients": trained, "optimizer": 2 * trained}
    if run.average_decay is not None:
        sizes["average"] = _FLOAT32 * _count(model.parameters())
    return sizes


def _activations(run: TrainingRun, networks: Sequence[nn.Module], forward: Callable[[], object]) -> int:
    """Return the bytes that a batch keeps for its backward pass."""
    weights = {x.data_ptr() for network in networks for x in (*network.parameters(), *network.buffers())}
    saved: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with run.autocast("cpu"), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        forward()
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in saved}
    return run.batch_size * sum(size for address, size in sizes.items() if address not in weights)


def _count(tensors: Iterator[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
