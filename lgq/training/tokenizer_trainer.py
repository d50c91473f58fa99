"""Training of a tokenizer: the recipe of VQ-GAN (Esser et al. 2021), as LGQ (Altun et al. 2026) sets it.

    outcome = train(lgq.run("pocket-lgq"), "photos/", "runs/photos")

Runs of one seed that differ only in the quantizer start from the same encoder and decoder, and see the same
crops in the same order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lgq.config import to_json
from lgq.data import ImageDataset, ImageLoader, LoaderSettings, StreamLoader, open_dataset
from lgq.data.folder import require_apart
from lgq.data.loader import evenly_spread, loaded_onto
from lgq.data.stream import require_random_access, training_loader
from lgq.distributed import join_processes, rank, resolve_device, stack_over_ranks, world_size
from lgq.errors import LGQError
from lgq.metrics.code_usage import batch_utilization, learned_codebook, usage_bars
from lgq.metrics.features import FeatureSet
from lgq.metrics.quality import TokenizerQuality, reconstruct_with
from lgq.models.inception import FEATURES
from lgq.quantizers import Quantizer
from lgq.quantizers.compositions.composition import Composition
from lgq.quantizers.continuous import Continuous
from lgq.tokenizer import Tokenized, Tokenizer, default_options
from lgq.training.history import History
from lgq.training.loop import Outcome, run_loop
from lgq.training.losses import Objective
from lgq.training.networks import build_metric_networks, build_networks, require_feasible, start_tokenizer
from lgq.training.run_directory import Resume, has_checkpoints, require_resumable, save_codebook
from lgq.training.settings import TokenizerRun, require_run
from lgq.training.trainer import ClippedAdamW, NonFiniteError, Trainer
from lgq.training.watch import (
    BATCH_UTILIZATION,
    UTILIZATION,
    CodeUse,
    Watch,
    idle_discriminator,
    slow_precision,
    unreliable_rfid,
)

_COLUMNS = 8  # of the picture, each an image above its reconstruction


def train(
    run: TokenizerRun,
    data: ImageDataset | str | Path,
    out: str | Path,
    *,
    val_data: ImageDataset | str | Path | None = None,
    start_from: Tokenizer | str | Path | None = None,
    resume: Resume = "auto",
    device: str | torch.device = "auto",
) -> Outcome:
    """Train a tokenizer into the run directory `out`; the same call continues a run that was stopped.

    A call with more steps extends the run.

    run: the settings, such as `lgq.run("pocket-lgq")`.
    data: images to train on: a data set, or what `open_dataset` opens. It may be a stream.
    val_data: images to validate on, no stream; None takes images from the training data.
    start_from: a tokenizer whose weights a new run begins with, or what `load_tokenizer` loads it from. With
        another quantizer or fewer codes, its encoder and decoder. A resumed run does not need it.
    resume: `auto` continues the run in `out`, if there is one; `never` refuses a directory with a run,
        `must` one without.
    device: where to compute, the words of `--device` (`lgq.distributed.resolve_device`).

    Processes that torchrun started share the work: each takes `batch_size` images at a time.
    """
    require_run(run, TokenizerRun)
    training_data = _opened(data)
    validation_data = training_data if val_data is None else _opened(val_data)
    for dataset in (training_data, validation_data):
        require_apart(Path(out), dataset, has_pictures=True)
    require_resumable(Path(out), resume)
    require_feasible(run, resolve_device(device))
    require_random_access(validation_data, "validation (`val_data`)")
    trainer = TokenizerTrainer(
        run, training_data, validation_data, Path(out), start_from=start_from, device=device
    )
    warning = "no validation data (`val_data`): validating on images of the training data"
    return run_loop(trainer, resume, warning=warning if val_data is None else None)


def _opened(data: ImageDataset | str | Path) -> ImageDataset:
    return open_dataset(data) if isinstance(data, str | Path) else data


class TokenizerTrainer(Trainer):
    """A tokenizer in training, with the discriminator where the loss has a GAN term.

    start_from: a tokenizer whose weights the run begins with, or what `load_tokenizer` loads it from.
    """

    run: TokenizerRun

    def __init__(
        self,
        run: TokenizerRun,
        data: ImageDataset,
        validation_data: ImageDataset,
        out: Path,
        *,
        start_from: Tokenizer | str | Path | None = None,
        device: str | torch.device = "auto",
    ):
        device = join_processes(device)
        if run.loop.epochs is not None:
            run = run.for_data(len(data), ranks=world_size())
        self._layout = torch.channels_last if run.channels_last else torch.contiguous_format
        self.tokenizer, self.discriminator, perceptual = build_networks(run, device, self._layout)
        start = start_tokenizer(self.tokenizer, run, start_from, resumed=has_checkpoints(out))
        self.history = History(start_from=start)
        self._objective = Objective(
            run.loss,
            perceptual=perceptual,
            discriminator=self.discriminator,
            last_layer=self.tokenizer.decoder.to_image.weight,
        )
        self._discriminator_optimizer = (
            None if self.discriminator is None else ClippedAdamW(self.discriminator, run, device)
        )
        validated = evenly_spread(len(validation_data), min(run.validation_images, len(validation_data)))
        self.best_by, self._metric_networks = build_metric_networks(
            run, perceptual, device, images=len(validated)
        )
        self._rfid_images: Int64[Tensor, " n"] | None = None  # all that are validated
        if run.rfid_images is not None and run.rfid_images < len(validated):
            self._rfid_images = torch.tensor(validated)[evenly_spread(len(validated), run.rfid_images)]
        settings = LoaderSettings.of_process(
            device,
            image_size=run.image_size,
            batch_size=run.batch_size,
            seed=run.seed,
            crop=run.crop,
            workers=run.workers,
        )
        self._validation_loader = ImageLoader(validation_data, settings)
        self._reference: FeatureSet | None = None
        super().__init__(run, self.tokenizer, training_loader(data, settings), out, device)

    def config(self) -> dict[str, Any]:
        options = self.tokenizer.settings["quantizer_options"]
        return to_json(self.run) | {
            "quantizer_options": options,
            "best_by": self.best_by,
            "data": _describe(self._loader),
            "validation_data": _describe(self._validation_loader),
        }

    def default_config(self) -> dict[str, Any]:
        return to_json(TokenizerRun()) | {"quantizer_options": default_options(self.run.quantizer)}

    def watch(self) -> Watch:
        images = min(self.run.validation_images, len(self._validation_loader.dataset))
        rfid_images = 0 if self._metric_networks.inception is None else self.run.rfid_images or images
        use = CodeUse(self.run, self.tokenizer.settings["quantizer_options"], images)
        start = [
            slow_precision(self.run, self.device),
            idle_discriminator(self.run),
            unreliable_rfid(min(rfid_images, images), FEATURES),
        ]
        return Watch(start, use)

    def train_step(self, step: int) -> dict[str, Tensor]:
        self.tokenizer.anneal(self.history.progress(step, self.run.loop.steps))
        terms = super().train_step(step)
        if self._discriminator_optimizer is not None and self._objective.adversarial(step):
            self._discriminator_optimizer.average_gradients()
            norm = self._discriminator_optimizer.step(self.run.learning_rate_at(step))
            terms["discriminator_gradient"] = norm
        return terms | _temperature(self.tokenizer)

    def _accumulate(self, step: int) -> dict[str, Tensor]:
        images = self._next_images()
        with self.run.autocast(self.device.type):
            reconstruction, quantized = self._reconstruct(images)
            loss = self._objective.tokenizer_loss(images, reconstruction, quantized.loss, step=step)
        self._optimizer.backward(loss.total / self.run.accumulate)
        terms = {f"quantizer/{name}": term for name, term in quantized.terms.items()}
        if self.run.loop.logs(step + 1):
            levels, codes = self.tokenizer.by_level(quantized.indices), self.tokenizer.codebook_size
            terms |= _per_stage(BATCH_UTILIZATION, [batch_utilization(level, codes) for level in levels])
        terms |= loss.terms | {"loss": loss.total.detach()}
        if self._discriminator_optimizer is not None and self._objective.adversarial(step):
            with self.run.autocast(self.device.type):
                loss = self._objective.discriminator_loss(images, reconstruction)
            self._discriminator_optimizer.backward(loss.total / self.run.accumulate)
            terms |= loss.terms
        return terms

    def _next_images(self) -> Float[Tensor, "b 3 s s"]:
        batch = self._next_batch()
        if isinstance(self._loader, StreamLoader):
            # The first rank writes the checkpoint, with the positions of all ranks.
            self._position = stack_over_ranks(torch.tensor(batch.position)).flatten(0, 1).tolist()
        return self._to_device(batch.images)

    def _reconstruct(self, images: Float[Tensor, "b 3 s s"]) -> Tokenized:
        try:
            result: Tokenized = self._forward(images)
        except LGQError as error:
            # Quantizers refuse NaN latents before there is a loss to check.
            with torch.no_grad():
                if torch.isfinite(self.tokenizer.encoder(images)).all():
                    raise
            raise NonFiniteError("the encoder's output") from error
        return result

    def validate(self, step: int) -> dict[str, float]:
        """Measure reconstructions in float32 whatever the precision of training, as users will see them."""
        tokenizer, limit = self.tokenizer, self.run.validation_images
        quality = TokenizerQuality.empty(
            self._metric_networks,
            tokenizer.codebook_size * tokenizer.levels,
            images=limit,
            reference=self._reference,
            feature_images=self._rfid_images,
        )
        tokenizer.eval()
        picture = None
        with self._averaged_weights():
            reconstruct = reconstruct_with(tokenizer)
            # A rank whose images are all broken still meets the others, who wait for its counts.
            for batch in self._validation_loader.one_pass(limit, may_be_empty=world_size() > 1):
                images = self._to_device(batch.images)
                reconstruction, codes = reconstruct(images)
                quality.update(images, reconstruction, codes, batch.indices)
                if picture is None:
                    picture = torch.cat([images[:_COLUMNS], reconstruction[:_COLUMNS]])
            quality = quality.over_ranks()
            codebook = learned_codebook(tokenizer.quantizer)
            norms = {} if codebook is None else quality.usage.norm_summary(codebook)
            codebooks = [learned_codebook(stage) for stage in _stages(tokenizer)]
        self._reference = quality.reference
        by_stage = quality.usage.by_stage(tokenizer.levels)
        if rank() == 0:
            save_codebook(self.out, step, [usage.counts for usage in by_stage], codebooks)
        if rank() == 0 and picture is not None:
            grid = self._save_picture(step, picture, columns=len(picture) // 2)
            self.pictures = {"reconstructions": grid, "usage": usage_bars(by_stage)}
        metrics = quality.metrics()
        if isinstance(tokenizer.quantizer, Continuous):  # it has no codes to use
            return {name: value for name, value in metrics.items() if name not in quality.usage.summary()}
        return metrics | norms | _per_stage(UTILIZATION, [usage.utilization for usage in by_stage])

    def save_pretrained(self, directory: Path) -> None:
        with self._averaged_weights():
            self.tokenizer.save_pretrained(directory)

    def state(self) -> dict[str, Any]:
        state = super().state()
        if self.discriminator is not None and self._discriminator_optimizer is not None:
            state["discriminator"] = self.discriminator.state_dict()
            state["discriminator_optimizer"] = self._discriminator_optimizer.state()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        if self.discriminator is not None and self._discriminator_optimizer is not None:
            self.discriminator.load_state_dict(state["discriminator"])
            self._discriminator_optimizer.load_state(state["discriminator_optimizer"])

    def _to_device(self, images: Float[Tensor, "b 3 s s"]) -> Float[Tensor, "b 3 s s"]:
        return loaded_onto(self.device, images).contiguous(memory_format=self._layout)


def _stages(tokenizer: Tokenizer) -> list[Quantizer]:
    """Return the quantizers with a codebook each; all scales share one."""
    quantizer = tokenizer.quantizer
    return quantizer.parts if isinstance(quantizer, Composition) else [quantizer]


def _describe(loader: Any) -> dict[str, Any]:
    """Return what config.json says about the data."""
    if isinstance(loader, StreamLoader):
        return loader.describe()
    return {"source": repr(loader.dataset), "images": len(loader.dataset)}


def _per_stage(name: str, values: Sequence[Any] | Tensor) -> dict[str, Any]:
    """Return a value of a plain quantizer by its name, those of several stages with the stage behind it."""
    if len(values) == 1:
        return {name: values[0]}
    return {f"{name}/{stage}": value for stage, value in enumerate(values)}


def _temperature(tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return the quantizer's tau, if it has one; stages share theirs."""
    taus = (buffer for name, buffer in tokenizer.quantizer.named_buffers() if name.endswith("tau"))
    tau = next(taus, None)
    return {} if tau is None else {"tau": tau.detach().clone()}
