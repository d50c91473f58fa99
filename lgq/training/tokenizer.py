"""Training of a tokenizer: the recipe of VQ-GAN (Esser et al. 2021), as LGQ (Altun et al. 2026) sets it.

    run = named_run("pocket-lgq")
    outcome = train_tokenizer(run, open_dataset("photos/"), None, "runs/photos")

Runs of one seed that differ in the quantizer alone begin with the same encoder and decoder, and see
the same crops in the same order.
"""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from lgq.checks import require_above_zero, require_at_least, require_between, require_one_of
from lgq.config import to_json
from lgq.data import Batch, ImageDataset, ImageLoader, Loading, RandomCrop
from lgq.distributed import rank, sum_over_ranks, world_size
from lgq.evaluation.codebook import CodeUsage
from lgq.evaluation.reconstruction import ReconstructionQuality
from lgq.files import make_directory, replace_file
from lgq.models.autoencoder import Backbone
from lgq.models.discriminator import PatchDiscriminator
from lgq.quantizers import Quantized
from lgq.tokenizer import Tokenized, Tokenizer
from lgq.training.ema import WeightAverage
from lgq.training.loop import LoopSettings, NonFiniteError, Outcome, Resume, RunError, run_loop
from lgq.training.losses import LossWeights, Objective
from lgq.training.schedule import Schedule

Precision = Literal["float32", "bf16", "fp16"]

IMAGES = "images"
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_GRID_COLUMNS = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TokenizerRun:
    """All that decides how a tokenizer is trained; the defaults are the paper's ImageNet run."""

    quantizer: str = "lgq"
    """lgq, ibq, vq, rotvq, fsq, lfq or simvq."""
    codebook_size: int = 16_384
    """Number of codes, of each stage if there are several."""
    stages: int = 1
    """Above 1, a residual quantizer: each stage takes what the last left over."""
    quantizer_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the quantizer's constructor; its `seed` is the run's unless given here."""
    backbone: Backbone = field(default_factory=Backbone)
    """Encoder and decoder."""
    image_size: int = 256
    """Side of the square images, a multiple of the backbone's factor."""
    batch_size: int = 8
    """Images a process takes at a time."""
    workers: int = 4
    """Processes that decode images ahead of each trainer; 0 leaves it to the trainer itself."""
    crop: RandomCrop = field(default_factory=RandomCrop)
    """How training images are cut."""
    loss: LossWeights = field(default_factory=LossWeights)
    """What each part of the objective counts."""
    learning_rate: float = 3e-4
    """Of AdamW, for tokenizer and discriminator alike, before the schedule."""
    weight_decay: float = 0.01
    """Of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decays of AdamW's running means of the gradient and of its square."""
    schedule: Schedule = field(default_factory=Schedule)
    """The learning rate over the run."""
    accumulate: int = 1
    """Batches whose gradients make one optimizer step."""
    clip: float | None = None
    """Largest norm of a gradient, longer ones are shortened to it; None leaves all as they are."""
    precision: Precision = "float32"
    """Of convolutions and products; quantizer, losses and weights stay float32."""
    average_decay: float | None = None
    """Of a moving average of the weights, which is then what is validated and saved; None has none."""
    channels_last: bool = False
    """Keep images and features with the channels last in memory, often faster."""
    compile: bool = False
    """Compile encoder, quantizer and decoder for training."""
    seed: int = 0
    """Of the random start, the order of the images and their crops."""
    validation_images: int = 1_000
    """Images of a validation, evenly spread over its data."""
    loop: LoopSettings = field(default_factory=LoopSettings)
    """Length, records, checkpoints."""

    def __post_init__(self) -> None:
        require_at_least(1, codebook_size=self.codebook_size, stages=self.stages, image_size=self.image_size)
        require_at_least(1, batch_size=self.batch_size, accumulate=self.accumulate)
        require_at_least(1, validation_images=self.validation_images)
        require_at_least(0, workers=self.workers, weight_decay=self.weight_decay, seed=self.seed)
        require_above_zero(learning_rate=self.learning_rate)
        require_one_of(get_args(Precision), precision=self.precision)
        require_between(0, 1, beta_1=self.betas[0], beta_2=self.betas[1])
        if self.clip is not None:
            require_above_zero(clip=self.clip)
        if self.average_decay is not None:
            require_between(0, 1, average_decay=self.average_decay)
        if self.image_size % self.backbone.factor:
            rule = f"a multiple of {self.backbone.factor}, the backbone's factor"
            raise ValueError(f"image_size must be {rule}, got {self.image_size}.")
        self.schedule.multiplier(0, self.loop.steps)  # refuses a warm-up without end


def train_tokenizer(
    run: TokenizerRun,
    data: ImageDataset,
    validation_data: ImageDataset | None,
    out: str | Path,
    resume: Resume = "auto",
) -> Outcome:
    """Train into the run directory `out`; the same call continues a run that was stopped or killed.

    Without `validation_data`, the middle of the training images serves for validation. Several
    processes, as torchrun starts them, share the work: each takes `batch_size` images at a time.
    """
    _require_possible(run)
    if validation_data is None:
        _log.warning("no validation data: validating on the middle of the training images")
    accelerator = _accelerator()
    return run_loop(
        TokenizerTraining(run, data, validation_data or data, Path(out), accelerator), run.loop, out, resume
    )


class TokenizerTraining:
    """A `Trainee`: the models of a run, their optimizers, and where they are in the data."""

    score = "l1"  # until LPIPS and rFID have their weights
    higher_is_better = False

    def __init__(
        self,
        run: TokenizerRun,
        data: ImageDataset,
        validation_data: ImageDataset,
        out: Path,
        accelerator: Accelerator,
    ):
        self.run, self.out, self.device = run, out, accelerator.device
        self.items_per_step = run.batch_size * run.accumulate * world_size()
        self._accelerator = accelerator
        self._layout = torch.channels_last if run.channels_last else torch.contiguous_format
        self.tokenizer, self.discriminator = _models(run, self.device, self._layout)
        self._parallel = accelerator.prepare_model(self.tokenizer)
        self._forward = torch.compile(self._parallel) if run.compile else self._parallel
        self._learner = _Learner(self.tokenizer, run, self.device)
        self._critic = _Learner(self.discriminator, run, self.device) if self.discriminator else None
        self._average = WeightAverage(self.tokenizer, run.average_decay) if run.average_decay else None
        last_layer = self.tokenizer.decoder.to_image.weight
        self._objective = Objective(run.loss, discriminator=self.discriminator, last_layer=last_layer)
        self._loader = ImageLoader(data, self._loading())
        self._validation_loader = ImageLoader(validation_data, self._loading())
        self._position, self._names = 0, list[str]()
        self._batches: Iterator[Batch] | None = None
        # What training itself draws differs between ranks, and does not depend on the models' start.
        torch.manual_seed(run.seed * world_size() + rank())

    def config(self) -> dict[str, Any]:
        options = {"quantizer_options": self.tokenizer.settings["quantizer_options"]}
        loaders = {"data": self._loader, "validation_data": self._validation_loader}
        sources = {
            name: {"source": repr(loader.dataset), "images": len(loader.dataset)}
            for name, loader in loaders.items()
        }
        return to_json(self.run) | options | sources

    def train_step(self, step: int) -> dict[str, Tensor]:
        steps = self.run.loop.steps
        rate = self.run.learning_rate * self.run.schedule.multiplier(step, steps)
        self.tokenizer.anneal(step / max(1, steps - 1))
        self.tokenizer.train()
        self._names.clear()
        batches = range(1, self.run.accumulate + 1)
        terms = _mean([self._backward(step, last=i == self.run.accumulate) for i in batches])
        terms["gradient"] = self._learner.step(rate)
        if self._critic is not None and self._objective.adversarial(step):
            _average_gradients(self._critic.parameters)
            terms["discriminator_gradient"] = self._critic.step(rate)
        if self._average is not None:
            self._average.update(self.tokenizer)
        return terms | {"learning_rate": torch.tensor(rate)} | _temperature(self.tokenizer)

    def _backward(self, step: int, *, last: bool) -> dict[str, Tensor]:
        """Add the gradients of one batch; ranks exchange them with the last one of a step."""
        images = self._next_images()
        with nullcontext() if last else self._accelerator.no_sync(self._parallel):
            with self._autocast():
                reconstruction, quantized = self._reconstruct(images)
                loss = self._objective.tokenizer_loss(images, reconstruction, quantized.loss, step=step)
            self._learner.backward(loss.total / self.run.accumulate)
        terms = _quantizer_terms(quantized) | loss.terms | {"loss": loss.total.detach()}
        if self._critic is not None and self._objective.adversarial(step):
            with self._autocast():
                verdict = self._objective.discriminator_loss(images, reconstruction)
            self._critic.backward(verdict.total / self.run.accumulate)
            terms |= verdict.terms
        return terms

    def _next_images(self) -> Float[Tensor, "b 3 s s"]:
        if self._batches is None:
            self._batches = self._loader.stream(self._position)
        batch = next(self._batches)
        self._position = batch.position
        self._names += batch.names
        return self._placed(batch.images)

    def _reconstruct(self, images: Float[Tensor, "b 3 s s"]) -> Tokenized:
        try:
            result: Tokenized = self._forward(images)
        except ValueError as error:
            # Quantizers refuse latents that are no numbers, before there is a loss to look at.
            with torch.no_grad():
                if torch.isfinite(self.tokenizer.encoder(images)).all():
                    raise
            raise NonFiniteError("the encoder's output") from error
        return result

    @torch.no_grad()
    def validate(self, step: int) -> dict[str, float]:
        """In float32 whatever the training's precision, as users of the weights will run them."""
        quality = ReconstructionQuality()
        usage = CodeUsage.of(self.run.codebook_size * self.run.stages)
        self.tokenizer.eval()
        with self._averaged():
            for batch in self._validation_loader.one_pass(self.run.validation_images):
                images = self._placed(batch.images)
                reconstruction, quantized = self.tokenizer(images)
                if quality.count == 0 and rank() == 0:
                    self._draw(step, images, reconstruction)
                quality.update(images, reconstruction.clamp(-1, 1))
                usage.update(_slots(quantized.indices, self.run))
        everywhere = usage.over_ranks()
        codes = {"utilization": everywhere.utilization, "perplexity": everywhere.perplexity}
        return quality.over_ranks().summary() | codes

    def save_pretrained(self, directory: Path) -> None:
        with self._averaged():
            self.tokenizer.save_pretrained(directory)

    def describe_batch(self) -> list[str]:
        return list(self._names)

    def state(self) -> dict[str, Any]:
        return {
            "position": self._position,
            "tokenizer": self.tokenizer.state_dict(),
            "learner": self._learner.state(),
            "discriminator": self.discriminator.state_dict() if self.discriminator else None,
            "critic": self._critic.state() if self._critic else None,
            "average": self._average.state_dict() if self._average else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._position, self._batches = state["position"], None
        self.tokenizer.load_state_dict(state["tokenizer"])
        self._learner.load_state(state["learner"])
        if self.discriminator is not None and self._critic is not None:
            self.discriminator.load_state_dict(state["discriminator"])
            self._critic.load_state(state["critic"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def _loading(self) -> Loading:
        return Loading(
            image_size=self.run.image_size,
            batch_size=self.run.batch_size,
            seed=self.run.seed,
            crop=self.run.crop,
            workers=self.run.workers,
            pin_memory=self.device.type == "cuda",
            rank=rank(),
            world_size=world_size(),
        )

    def _placed(self, images: Float[Tensor, "b 3 s s"]) -> Float[Tensor, "b 3 s s"]:
        return images.to(self.device, non_blocking=True).contiguous(memory_format=self._layout)

    def _autocast(self) -> AbstractContextManager[Any]:
        # Not Accelerate's own, whose precision is one for all that a process ever does.
        half = _HALF.get(self.run.precision)
        return torch.autocast(self.device.type, half) if half else nullcontext()

    def _averaged(self) -> AbstractContextManager[None]:
        return self._average.applied_to(self.tokenizer) if self._average else nullcontext()

    def _draw(
        self, step: int, images: Float[Tensor, "b 3 s s"], reconstructions: Float[Tensor, "b 3 s s"]
    ) -> None:
        make_directory(self.out / IMAGES)
        replace_file(self.out / IMAGES / f"step-{step:06d}.png", grid_png(images, reconstructions))


def grid_png(images: Float[Tensor, "b 3 s s"], reconstructions: Float[Tensor, "b 3 s s"]) -> bytes:
    """Up to eight images in a row, each above its reconstruction."""
    rows = [torch.cat(list(row[:_GRID_COLUMNS]), dim=2) for row in (images, reconstructions)]
    levels = (torch.cat(rows, dim=1).float().clamp(-1, 1) + 1) * 127.5
    file = io.BytesIO()
    Image.fromarray(levels.round().byte().permute(1, 2, 0).cpu().numpy()).save(file, "PNG")
    return file.getvalue()


class _Learner:
    """A module's parameters with their optimizer, and the scale that keeps fp16 gradients from vanishing."""

    def __init__(self, module: nn.Module, run: TokenizerRun, device: torch.device):
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self.parameters, lr=run.learning_rate, betas=run.betas, weight_decay=run.weight_decay
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=run.precision == "fp16")
        self._clip = float("inf") if run.clip is None else run.clip

    def backward(self, loss: Float[Tensor, ""]) -> None:
        self._scaler.scale(loss).backward()

    def step(self, rate: float) -> Float[Tensor, ""]:
        """Follow the gradients at this learning rate, and forget them; returns their norm."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._scaler.unscale_(self._optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self._clip < float("inf"):
            nn.utils.clip_grads_with_norm_(self.parameters, self._clip, norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()
        # Overflow is how the scaler finds its scale: it leaves such a step out, and the run goes on.
        return norm.nan_to_num(posinf=0.0) if self._scaler.is_enabled() else norm

    def state(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])


def _models(
    run: TokenizerRun, device: torch.device, layout: torch.memory_format
) -> tuple[Tokenizer, PatchDiscriminator | None]:
    torch.manual_seed(run.seed)
    tokenizer = Tokenizer(
        run.backbone,
        run.quantizer,
        run.codebook_size,
        stages=run.stages,
        quantizer_options={"seed": run.seed} | run.quantizer_options,
    )
    discriminator = None
    if run.loss.gan:
        # Its own seed: how many numbers the tokenizer drew is none of its business.
        torch.manual_seed(run.seed + 1)
        discriminator = PatchDiscriminator()
        if world_size() > 1 and device.type == "cuda":
            discriminator = nn.SyncBatchNorm.convert_sync_batchnorm(discriminator)
    for model in filter(None, (tokenizer, discriminator)):
        model.to(device, memory_format=layout)  # type: ignore[call-overload]
    return tokenizer, discriminator


def _require_possible(run: TokenizerRun) -> None:
    if run.loss.lpips:
        raise RunError(
            f"loss.lpips={run.loss.lpips} needs the LPIPS network, which this version of lgq does not "
            "have yet: set loss.lpips=0."
        )
    if run.loss.gan and run.image_size < PatchDiscriminator().smallest_side:
        least = PatchDiscriminator().smallest_side
        raise RunError(
            f"the discriminator needs images of {least} pixels or more, got image_size={run.image_size}: "
            "take larger ones, or set loss.gan=0."
        )


def _accelerator() -> Accelerator:
    """Devices and processes; refuses to train alone what was started as one of several."""
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    cpu = not torch.accelerator.is_available()
    if expected > 1 and not dist.is_initialized():
        # Counts and metrics meet on the CPU, gradients on the device.
        dist.init_process_group("gloo" if cpu else "cpu:gloo,cuda:nccl")
    # Under torchrun without a GPU, each rank would otherwise believe that it is alone.
    accelerator = Accelerator(cpu=cpu)
    if accelerator.num_processes != expected:
        raise RunError(
            f"started as one of {expected} processes (WORLD_SIZE), but accelerate sees "
            f"{accelerator.num_processes}: start with torchrun, or unset WORLD_SIZE."
        )
    return accelerator


def _average_gradients(parameters: list[nn.Parameter]) -> None:
    if world_size() > 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.copy_(sum_over_ranks(parameter.grad) / world_size())


def _quantizer_terms(quantized: Quantized) -> dict[str, Tensor]:
    return {f"quantizer/{name}": term for name, term in quantized.terms.items()}


def _temperature(tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The present tau, where the quantizer has one; stages share theirs."""
    buffers = (buffer for name, buffer in tokenizer.quantizer.named_buffers() if name.endswith("tau"))
    tau = next(buffers, None)
    return {} if tau is None else {"tau": tau.detach().clone()}


def _mean(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}


def _slots(indices: Tensor, run: TokenizerRun) -> Tensor:
    """Each stage has codes of its own: count them side by side."""
    if run.stages == 1:
        return indices
    return indices + run.codebook_size * torch.arange(run.stages, device=indices.device)
