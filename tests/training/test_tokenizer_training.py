"""Training a tokenizer: whatever stops it, it ends where it would have ended."""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from identity import assert_identical
from PIL import Image
from torch import Tensor

from lgq.data import FolderDataset
from lgq.models.autoencoder import Backbone
from lgq.models.discriminator import PatchDiscriminator
from lgq.quantizers import QUANTIZERS
from lgq.runs import named_run
from lgq.tokenizer import Tokenizer
from lgq.training import tokenizer as training
from lgq.training.checkpoint import Checkpoints
from lgq.training.journal import read_records
from lgq.training.lock import run_lock
from lgq.training.loop import DivergedError, LoopSettings, RunError
from lgq.training.losses import LossWeights
from lgq.training.schedule import Schedule
from lgq.training.tokenizer import TokenizerRun, TokenizerTraining, train_tokenizer

TINY = TokenizerRun(
    codebook_size=16,
    backbone=Backbone(
        widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2
    ),
    image_size=12,
    batch_size=2,
    workers=0,
    loss=LossWeights(lpips=0.0, gan=0.0),
    learning_rate=1e-2,
    validation_images=3,
    loop=LoopSettings(steps=6, log_every=1, validate_every=3, checkpoint_every=2),
)
EVERYTHING = replace(
    TINY,
    image_size=24,
    loss=LossWeights(lpips=0.0, gan=0.1, discriminator_start=2, adaptive_gan=True),
    schedule=Schedule(kind="cosine", warmup_steps=2),
    average_decay=0.9,
    accumulate=2,
    clip=0.5,
    channels_last=True,
)
RUNS = {
    "lgq": TINY,
    "vq that restarts codes": replace(TINY, quantizer="vq", quantizer_options={"restart_below": 0.9}),
    "discriminator, average, accumulation": EVERYTHING,
}


class NoBoard:
    def __init__(self, *args, **kwargs):
        pass

    def add_scalar(self, *args) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


NO_TENSORBOARD = SimpleNamespace(SummaryWriter=NoBoard)


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)
    monkeypatch.setattr(training, "PatchDiscriminator", partial(PatchDiscriminator, base_width=4))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for i in range(5):
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        coarse.resize((28, 28)).save(folder / f"{i}.png")
    return folder


def train(run: TokenizerRun, photos: Path, out: Path, **options: Any) -> Any:
    return train_tokenizer(run, FolderDataset(photos), None, out, **options)


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before_step(step, lambda _: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)


def before_step(
    step: int, action: Callable[[TokenizerTraining], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TokenizerTraining.train_step

    def train_step(self: TokenizerTraining, now: int) -> dict[str, Tensor]:
        if now == step:
            action(self)
        return plain(self, now)

    monkeypatch.setattr(TokenizerTraining, "train_step", train_step)


def content(out: Path) -> dict[str, Any]:
    """The last state and all records, but times."""
    checkpoints = Checkpoints(out / "checkpoints")
    state, records = checkpoints.load(checkpoints.paths()[0]), read_records(out)
    for timed in (state, *records):
        del timed["seconds"]
    del state["random"]["python"]  # the type checker of the tests draws from it
    weights = {name: (out / name / "model.safetensors").read_bytes() for name in ("best", "last")}
    images = {path.name: path.read_bytes() for path in (out / "images").iterdir()}
    return {"state": state, "records": records, "weights": weights, "images": images}


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_equals_an_unbroken_run_bit_for_bit(name, photos, tmp_path):
    train(RUNS[name], photos, tmp_path / "unbroken")
    for step in (0, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            stop_at(step, patch)
            assert train(RUNS[name], photos, tmp_path / "broken").reason == "interrupted"
    assert train(RUNS[name], photos, tmp_path / "broken", resume="must").reason == "finished"
    assert_identical(content(tmp_path / "broken"), content(tmp_path / "unbroken"))


def test_two_runs_of_other_seeds_are_not_equal(photos, tmp_path):
    ends = []
    for seed in (0, 1):
        train(replace(TINY, seed=seed, loop=LoopSettings(steps=1)), photos, tmp_path / str(seed))
        ends.append(Tokenizer.from_pretrained(tmp_path / str(seed) / "last").fingerprint())
    assert ends[0] != ends[1]


def child(run: TokenizerRun, photos: Path, out: Path, moment: tuple[str, str, int] | None) -> None:
    """Train, and send itself a signal at a moment: (call, part of a path or number of the call, signal)."""
    torch.set_num_threads(1)
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    if moment is not None:
        _arm(*moment)
    try:
        os._exit(train(run, photos, out).exit_code)
    except ValueError as error:
        print(error, file=sys.stderr)
        os._exit(2)


def _arm(call: str, where: str, number: int) -> None:
    owner = torch.optim.AdamW if call == "step" else os
    plain, calls = getattr(owner, call), []

    def armed(*args: Any, **kwargs: Any) -> Any:
        calls.append(call)
        if call == "step":
            hit = len(calls) == int(where)
        else:
            hit = where in (os.readlink(f"/proc/self/fd/{args[0]}") if call == "fsync" else str(args[0]))
        if hit:
            os.kill(os.getpid(), number)
        return plain(*args, **kwargs)

    setattr(owner, call, armed)


def in_child(*args: Any) -> int | None:
    # Forked from a process that only imports: fast, and without the threads of this one.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lgq.training.tokenizer", "lgq.runs", "pytest"])
    process = context.Process(target=child, args=args)
    process.start()
    process.join()
    return process.exitcode


KILLS = [
    ("fsync", "config.json.partial"),
    ("step", "2"),
    ("fsync", "step-000002.partial/state.safetensors"),
    ("rename", "last.partial"),
    ("rename", "best.partial"),
    ("fsync", "step-000004.partial/manifest.json"),
    ("rename", "step-000006.partial"),
]


def test_a_run_killed_again_and_again_ends_as_one_that_was_never_killed(photos, tmp_path):
    assert in_child(TINY, photos, tmp_path / "unbroken", None) == 0
    broken = tmp_path / "broken"
    for call, where in KILLS:
        moment = (call, where, signal.SIGKILL.value)
        assert in_child(TINY, photos, broken, moment) == -signal.SIGKILL, f"never came to {call} {where}"
        if call != "step":
            assert list(broken.rglob(f"{where.partition('/')[0]}")), "killed before it began to write"
    assert in_child(TINY, photos, broken, None) == 0
    assert_identical(content(broken), content(tmp_path / "unbroken"))


def test_sigterm_saves_and_exits_with_the_documented_code(photos, tmp_path):
    assert in_child(TINY, photos, tmp_path, ("step", "3", signal.SIGTERM.value)) == 75
    assert Checkpoints(tmp_path / "checkpoints").latest().name == "step-000003"


def test_a_second_process_on_the_directory_is_refused(photos, tmp_path):
    with run_lock(tmp_path):
        assert in_child(TINY, photos, tmp_path, None) == 2
    assert not (tmp_path / "config.json").exists()


def test_nan_in_the_weights_gives_a_diagnosis_and_leaves_the_last_good_checkpoint(
    photos, tmp_path, monkeypatch
):
    def spoil(trainee: TokenizerTraining) -> None:
        trainee.tokenizer.decoder.to_image.bias.data.fill_(float("nan"))

    before_step(3, spoil, monkeypatch)
    with pytest.raises(DivergedError, match=r"l1 is not finite at step 3: .*of step 2.*\d\.png, \d\.png"):
        train(TINY, photos, tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").latest().name == "step-000002"
    assert all(p.isfinite().all() for p in Tokenizer.from_pretrained(tmp_path / "last").parameters())


def test_nan_that_the_quantizer_refuses_is_a_diagnosis_too(photos, tmp_path, monkeypatch):
    def spoil(trainee: TokenizerTraining) -> None:
        trainee.tokenizer.encoder.stem.bias.data.fill_(float("nan"))

    before_step(3, spoil, monkeypatch)
    with pytest.raises(DivergedError, match=r"the encoder's output is not finite at step 3: .*of step 2"):
        train(TINY, photos, tmp_path)


def test_a_gradient_that_is_no_number_is_found_before_it_is_saved(photos, tmp_path, monkeypatch):
    def spoil(trainee: TokenizerTraining) -> None:
        trainee.tokenizer.decoder.to_image.bias.register_hook(lambda gradient: gradient * float("nan"))

    before_step(3, spoil, monkeypatch)
    with pytest.raises(DivergedError, match="gradient is not finite at step 3"):
        train(TINY, photos, tmp_path)


def begin(run: TokenizerRun, photos: Path, out: Path) -> TokenizerTraining:
    data = FolderDataset(photos)
    return TokenizerTraining(run, data, data, out, training._accelerator())


def start_and_stream(run: TokenizerRun, photos: Path, out: Path) -> dict[str, Any]:
    trainee = begin(run, photos, out)
    start = {
        name: tensor.clone()
        for name, tensor in trainee.tokenizer.state_dict().items()
        if not name.startswith("quantizer.") and tensor.ndim
    }
    seen: list[Any] = []
    trainee.tokenizer.encoder.register_forward_pre_hook(lambda _, images: seen.append(images[0].clone()))
    for step in range(2):
        trainee.train_step(step)
        seen.append(trainee.describe_batch())
    return {"start": start, "seen": seen}


def test_all_quantizers_start_from_the_same_backbone_and_see_the_same_batches(photos, tmp_path):
    expected = start_and_stream(TINY, photos, tmp_path)
    for quantizer in QUANTIZERS:
        run = replace(TINY, quantizer=quantizer)
        assert_identical(start_and_stream(run, photos, tmp_path), expected, quantizer)
    other = start_and_stream(replace(TINY, seed=1), photos, tmp_path)
    assert not torch.equal(other["seen"][0], expected["seen"][0])
    assert any(not torch.equal(other["start"][name], tensor) for name, tensor in expected["start"].items())


def test_the_seed_of_a_run_is_that_of_its_codes(photos, tmp_path):
    codebooks = [begin(replace(TINY, seed=s), photos, tmp_path).tokenizer.quantizer.codebook for s in (0, 1)]
    assert not torch.equal(*codebooks)


def test_accumulated_batches_have_the_gradient_of_one_large_batch(photos, tmp_path):
    # Diversity is no mean over images, so it is left out of this comparison.
    run = replace(TINY, quantizer_options={"diversity_weight": 0.0})
    norms = []
    for batch_size, accumulate in ((4, 1), (2, 2)):
        trainee = begin(replace(run, batch_size=batch_size, accumulate=accumulate), photos, tmp_path)
        norms.append(trainee.train_step(0)["gradient"])
    torch.testing.assert_close(*norms)


def test_tau_goes_all_the_way_with_every_step(photos, tmp_path):
    train(TINY, photos, tmp_path)
    taus = [record["values"]["tau"] for record in read_records(tmp_path) if record["split"] == "train"]
    assert taus == pytest.approx(np.linspace(1.0, 0.1, 6).tolist())


def test_the_discriminator_joins_at_its_step_and_learns(photos, tmp_path):
    train(EVERYTHING, photos, tmp_path)
    train_records = [r["values"] for r in read_records(tmp_path) if r["split"] == "train"]
    assert ["gan" in values for values in train_records] == [False, False, True, True, True, True]
    assert train_records[-1]["discriminator_gradient"] > 0
    rates = [values["learning_rate"] for values in train_records]
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[5]


def test_best_and_last_are_tokenizers_and_the_record_says_by_what(photos, tmp_path):
    outcome = train(replace(TINY, average_decay=0.5), photos, tmp_path)
    for name in ("best", "last"):
        tokens = Tokenizer.from_pretrained(tmp_path / name).encode(torch.zeros(1, 3, 12, 12))
        assert tokens.shape == (1, 6, 6)
    validation = [record for record in read_records(tmp_path) if record["split"] == "validation"]
    assert {record["best_by"] for record in validation} == {"l1"}
    assert outcome.best == min(record["values"]["l1"] for record in validation)
    assert validation[0]["values"].keys() == {"psnr", "ssim", "l1", "utilization", "perplexity"}


def test_what_is_saved_is_the_average_and_not_the_weights_themselves(photos, tmp_path):
    train(replace(TINY, average_decay=0.9), photos, tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    state = checkpoints.load(checkpoints.latest())["trainee"]
    saved = Tokenizer.from_pretrained(tmp_path / "last").state_dict()["decoder.to_image.weight"]
    assert torch.equal(saved, state["average"]["weights.decoder.to_image.weight"])
    assert not torch.equal(saved, state["tokenizer"]["decoder.to_image.weight"])


def test_a_validation_draws_images_above_reconstructions(photos, tmp_path):
    train(TINY, photos, tmp_path)
    names = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert names == ["step-000003.png", "step-000006.png"]
    with Image.open(tmp_path / "images" / names[0]) as grid:
        assert grid.size == (2 * 12, 2 * 12)


def test_a_grid_holds_the_images_themselves():
    images = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    black = torch.full((2, 3, 4, 4), -2.0)
    pixels = np.asarray(Image.open(BytesIO(training.grid_png(images, black))))
    assert pixels.shape == (8, 8, 3)
    assert (pixels[:4, :4].max(), pixels[:4, 4:].min(), pixels[4:].max()) == (0, 255, 0)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(precision, photos, tmp_path):
    run = replace(TINY, precision=precision, loop=LoopSettings(steps=2, log_every=1))
    assert train(run, photos, tmp_path).reason == "finished"


def test_the_stages_of_a_residual_quantizer_count_their_codes_apart(photos, tmp_path):
    run = replace(TINY, stages=2, loop=LoopSettings(steps=1))
    train(run, photos, tmp_path)
    assert 0 < read_records(tmp_path)[-1]["values"]["utilization"] <= 1
    slots = training._slots(torch.tensor([[3, 3]]), run)
    assert slots.tolist() == [[3, 19]]


def test_config_is_resolved_to_the_options_of_the_quantizer(photos, tmp_path):
    train(replace(TINY, loop=LoopSettings(steps=1)), photos, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantizer_options"]["tau_start"] == 1.0
    assert config["data"] == {"source": f"FolderDataset({str(photos)!r})", "images": 5}


def test_lpips_is_refused_before_anything_is_written(photos, tmp_path):
    with pytest.raises(RunError, match=r"loss\.lpips=1\.0 needs the LPIPS network.*set loss\.lpips=0"):
        train(named_run("imagenet256-lgq"), photos, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_too_small_for_the_discriminator_are_refused_at_the_start(photos, tmp_path):
    with pytest.raises(RunError, match="24 pixels or more, got image_size=12"):
        train(replace(EVERYTHING, image_size=12), photos, tmp_path / "run")


def test_a_rank_that_believes_it_is_alone_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(training.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(training, "Accelerator", lambda **_: SimpleNamespace(num_processes=1))
    with pytest.raises(RunError, match=r"one of 2 processes .*accelerate sees 1"):
        training._accelerator()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"image_size": 13}, "image_size must be a multiple of 2"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"clip": 0.0}, "clip"),
        ({"average_decay": 2.0}, "average_decay"),
        ({"schedule": Schedule(warmup_steps=9)}, "warmup_steps"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **wrong)
