"""Training a tokenizer: whatever stops it, it ends where it would have ended."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cheap_inception import FEATURES, CheapInception
from identity import assert_identical
from leftovers import last_state
from PIL import Image
from tiny_run import EVERYTHING, RUNS, TINY, before_step, left_by, terminate, train

from lgq.data import FolderDataset
from lgq.data.images import random_subset
from lgq.distributed import join_processes
from lgq.errors import LGQError
from lgq.metrics.metric_networks import MetricNetworks
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.quantizers import QUANTIZERS
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import Checkpoints
from lgq.training.journal import read_records
from lgq.training.loop import DivergedError
from lgq.training.losses import LossWeights
from lgq.training.networks import build_metric_networks
from lgq.training.settings import LoopSettings, TokenizerRun
from lgq.training.tokenizer_trainer import TokenizerTrainer
from lgq.training.tokenizer_trainer import train as train_tokenizer
from lgq.weights import WeightsError

pytestmark = pytest.mark.usefixtures("_no_tensorboard", "_small_discriminator")


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_equals_an_unbroken_run_bit_for_bit(name, photos, tmp_path):
    train(RUNS[name], photos, tmp_path / "unbroken")
    for step in (0, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            before_step(step, terminate, patch)
            assert train(RUNS[name], photos, tmp_path / "broken").reason == "interrupted"
    assert train(RUNS[name], photos, tmp_path / "broken", resume="must").reason == "finished"
    assert_identical(left_by(tmp_path / "broken"), left_by(tmp_path / "unbroken"))


NAN = float("nan")
SPOILED = {
    "l1": lambda trainer: trainer.tokenizer.decoder.to_image.bias.data.fill_(NAN),
    "the encoder's output": lambda trainer: trainer.tokenizer.encoder.stem.bias.data.fill_(NAN),
    "gradient": lambda trainer: trainer.tokenizer.decoder.to_image.bias.register_hook(lambda dy: dy * NAN),
}


@pytest.mark.parametrize("culprit", SPOILED)
def test_nan_gives_a_diagnosis_and_leaves_the_last_good_checkpoint(culprit, photos, tmp_path, monkeypatch):
    before_step(5, SPOILED[culprit], monkeypatch)
    with pytest.raises(DivergedError, match=rf"^{culprit} is not finite at step 5: .*of step 4.*\d\.png"):
        train(TINY, photos, tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").latest().name == "step-000004"
    assert all(p.isfinite().all() for p in Tokenizer.from_pretrained(tmp_path / "last").parameters())


def begin(run: TokenizerRun, photos: Path, out: Path) -> TokenizerTrainer:
    data = FolderDataset(photos)
    return TokenizerTrainer(run, data, data, out)


def start_and_stream(run: TokenizerRun, photos: Path, out: Path) -> dict[str, Any]:
    trainer = begin(run, photos, out)
    start = {
        name: tensor.clone()
        for name, tensor in trainer.tokenizer.state_dict().items()
        if not name.startswith("quantizer.") and tensor.ndim
    }
    seen: list[Any] = []
    trainer.tokenizer.encoder.register_forward_pre_hook(lambda _, images: seen.append(images[0].clone()))
    for step in range(2):
        trainer.train_step(step)
        seen.append(list(trainer.batch_names))
    return {"start": start, "seen": seen}


def test_all_quantizers_start_from_the_same_backbone_and_see_the_same_batches(photos, tmp_path):
    expected = start_and_stream(TINY, photos, tmp_path)
    for quantizer in QUANTIZERS:
        run = replace(TINY, quantizer=quantizer)
        assert_identical(start_and_stream(run, photos, tmp_path), expected, quantizer)
    other = start_and_stream(replace(TINY, seed=1), photos, tmp_path)
    assert not torch.equal(other["seen"][0], expected["seen"][0])
    assert any(not torch.equal(other["start"][name], tensor) for name, tensor in expected["start"].items())
    codebooks = [begin(replace(TINY, seed=s), photos, tmp_path).tokenizer.quantizer.codebook for s in (0, 1)]
    assert not torch.equal(*codebooks)


def test_the_discriminator_joins_at_its_step_and_learns(photos, tmp_path):
    train(EVERYTHING, photos, tmp_path)
    train_records = [r["values"] for r in read_records(tmp_path) if r["split"] == "train"]
    assert ["gan" in values for values in train_records] == [False, False, True, True, True, True]
    assert train_records[-1]["discriminator_gradient"] > 0
    rates = [values["learning_rate"] for values in train_records]
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[5]


def test_best_and_last_hold_the_averaged_weights_and_records_say_by_what(photos, tmp_path):
    outcome = train(replace(TINY, average_decay=0.9), photos, tmp_path)
    for name in ("best", "last"):
        tokens = Tokenizer.from_pretrained(tmp_path / name).encode(torch.zeros(1, 3, 12, 12))
        assert tokens.shape == (1, 6, 6)
    state = last_state(tmp_path)["trainer"]
    saved = Tokenizer.from_pretrained(tmp_path / "last").state_dict()["decoder.to_image.weight"]
    assert torch.equal(saved, state["average"]["weights.decoder.to_image.weight"])
    assert not torch.equal(saved, state["model"]["decoder.to_image.weight"])
    validation = [record for record in read_records(tmp_path) if record["split"] == "validation"]
    assert {record["best_by"] for record in validation} == {"l1"}
    assert outcome.best == min(record["values"]["l1"] for record in validation)
    assert validation[0]["values"].keys() >= {"psnr", "ssim", "l1", "utilization", "perplexity"}
    names = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert names == ["step-000003.png", "step-000006.png"]
    with Image.open(tmp_path / "images" / names[0]) as picture:
        pixels = torch.tensor(np.asarray(picture)).permute(2, 0, 1) / 127.5 - 1
    batch = next(iter(begin(TINY, photos, tmp_path)._validation_loader.one_pass(TINY.validation_images)))
    torch.testing.assert_close(pixels[:, :12], torch.cat(list(batch.images), dim=2), rtol=0, atol=1 / 127)
    assert pixels.shape == (3, 24, 24)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(precision, photos, tmp_path):
    run = replace(TINY, precision=precision, loop=LoopSettings(steps=2, log_every=1))
    assert train(run, photos, tmp_path).reason == "finished"


def test_the_stages_of_a_residual_quantizer_count_their_codes_apart(photos, tmp_path):
    run = replace(TINY, stages=2, loop=LoopSettings(steps=1))
    train(run, photos, tmp_path)
    tokenizer = Tokenizer.from_pretrained(tmp_path / "last")
    batches = begin(run, photos, tmp_path)._validation_loader.one_pass(run.validation_images)
    tokens = torch.cat([tokenizer.encode(batch.images) for batch in batches]).flatten(0, 2)
    used = sum(len(stage.unique()) for stage in tokens.T)
    assert read_records(tmp_path)[-1]["values"]["utilization"] == pytest.approx(used / 32)


def test_epochs_and_options_are_resolved_in_config_and_annealing_follows(photos, tmp_path):
    # Two passes over five images, two at a time.
    run = replace(TINY, loop=replace(TINY.loop, steps=1_000, epochs=2))
    assert train(run, photos, tmp_path).step == 5
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["loop"]["steps"], config["loop"]["epochs"]) == (5, 2)
    assert config["quantizer_options"]["tau_start"] == 1.0
    assert config["data"] == {"source": f"FolderDataset({str(photos)!r})", "images": 5}
    taus = [record["values"]["tau"] for record in read_records(tmp_path) if record["split"] == "train"]
    assert taus == pytest.approx(np.linspace(1.0, 0.1, 5).tolist())


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_checkpointed_activations_change_no_bit_of_any_quantizer(quantizer, photos, tmp_path):
    plain = replace(TINY, quantizer=quantizer)
    frugal = replace(plain, backbone=replace(plain.backbone, checkpointing=True))
    states = []
    for run in (plain, frugal):
        trainer = begin(run, photos, tmp_path)
        for step in range(3):
            trainer.train_step(step)
        states.append(trainer.state())
    assert_identical(*states)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["lgq", "vq that restarts codes"])
def test_a_compiled_run_is_the_same_run_within_rounding(name, photos, tmp_path, monkeypatch):
    # Traced and differentiated as ever, but left to torch's own kernels: to build others takes a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    ends = []
    for compiled in (False, True):
        trainer = begin(replace(RUNS[name], compile=compiled), photos, tmp_path)
        terms = [trainer.train_step(step) for step in range(3)]
        ends.append({"terms": terms, "weights": dict(trainer.tokenizer.state_dict())})
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-4)


def test_lpips_is_learned_from_and_decides_which_weights_are_best(photos, tmp_path, monkeypatch):
    network = LPIPS()
    monkeypatch.setattr(LPIPS, "pretrained", lambda **_: network)
    run = replace(TINY, image_size=16, loss=LossWeights(l1=0.0, lpips=1.0, gan=0.0), best_by="lpips")
    train(replace(run, loop=LoopSettings(steps=2, log_every=1)), photos, tmp_path)
    *training, validated = read_records(tmp_path)
    losses = [record["values"]["loss"] for record in training]
    parts = [record["values"]["quantizer"] + record["values"]["lpips"] for record in training]
    assert losses == pytest.approx(parts)
    assert validated["best_by"] == "lpips"
    tokenizer, batches = Tokenizer.from_pretrained(tmp_path / "last"), begin(run, photos, tmp_path)
    (batch, rest) = batches._validation_loader.one_pass(run.validation_images)
    images = torch.cat([batch.images, rest.images])
    distances = network(images, tokenizer(images).reconstruction.clamp(-1, 1))
    assert validated["values"]["lpips"] == pytest.approx(distances.mean().item())


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> CheapInception:
    """Stands for Inception."""
    cheap = CheapInception()
    monkeypatch.setattr(InceptionV3, "pretrained", lambda: cheap)
    monkeypatch.setattr("lgq.metrics.quality.FEATURES", FEATURES)
    return cheap


def test_rfid_decides_which_weights_are_best_and_the_originals_pass_inception_once(photos, tmp_path, network):
    run = replace(TINY, best_by="rfid", loop=LoopSettings(steps=2, validate_every=1))
    train(run, photos, tmp_path)
    first, second = (r for r in read_records(tmp_path) if r["split"] == "validation")
    assert first["best_by"] == second["best_by"] == "rfid"
    assert second["best"] == (second["values"]["rfid"] < first["values"]["rfid"])
    images = min(run.validation_images, len(FolderDataset(photos)))
    assert network.seen == 3 * images
    # A validation that knows nothing finds the same.
    fresh = begin(run, photos, tmp_path)
    fresh.tokenizer.load_state_dict(Tokenizer.from_pretrained(tmp_path / "last").state_dict())
    assert fresh.validate(2)["rfid"] == pytest.approx(second["values"]["rfid"])


def test_rfid_may_be_taken_on_part_of_the_validated_images(photos, tmp_path, network, monkeypatch):
    run = replace(TINY, best_by="rfid", rfid_images=2, batch_size=1, loop=LoopSettings(steps=1))
    train(run, photos, tmp_path)
    assert network.seen == 2 * 2
    values = read_records(tmp_path)[-1]["values"]
    few = begin(replace(run, validation_images=2, rfid_images=None), photos, tmp_path)
    few.tokenizer.load_state_dict(Tokenizer.from_pretrained(tmp_path / "last").state_dict())
    # The images of a validation of 3, and the first two thirds of them.
    first_two = list(few._validation_loader.one_pass(3))[:2]
    monkeypatch.setattr(few._validation_loader, "one_pass", lambda *_, **__: first_two)
    alone = few.validate(1)
    assert values["rfid"] == pytest.approx(alone["rfid"])
    assert values["psnr"] != pytest.approx(alone["psnr"])


@pytest.mark.parametrize("name", QUANTIZERS)
def test_validations_follow_the_norms_of_learned_codes(name, photos, tmp_path):
    trainer = begin(replace(TINY, quantizer=name), photos, tmp_path)
    trainer.tokenizer.eval()
    values = trainer.validate(0)
    assert ("live_norm_min" in values) == (name not in ("fsq", "lfq", "bsq"))
    if "live_norm_min" in values:
        norms = trainer.tokenizer.quantizer.codebook.norm(dim=1)
        seen = [values[f"{state}_norm_{end}"] for state in ("dead", "live") for end in ("min", "max")]
        assert min(seen) == pytest.approx(norms.min().item(), rel=1e-5)
        assert max(seen) == pytest.approx(norms.max().item(), rel=1e-5)


def test_where_a_network_is_not_at_hand_the_next_score_decides_and_config_says_so(
    photos, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))
    train(replace(TINY, best_by="rfid", loop=LoopSettings(steps=1)), photos, tmp_path / "run")
    assert caplog.text.count("lgq weights fetch") == 2
    assert json.loads((tmp_path / "run/config.json").read_text())["best_by"] == "l1"
    assert read_records(tmp_path / "run")[-1]["best_by"] == "l1"


def test_rfid_comes_first_and_lpips_second(monkeypatch):
    inception, lpips = InceptionV3(), LPIPS()
    monkeypatch.setattr(LPIPS, "pretrained", lambda: lpips)
    monkeypatch.setattr(InceptionV3, "pretrained", lambda: inception)

    def chosen(best_by: str, lpips: LPIPS | None = None, images: int = 2, **more: int) -> Any:
        run = replace(TINY, best_by=best_by, **more)
        return build_metric_networks(run, lpips, torch.device("cpu"), images=images)

    assert chosen("rfid") == ("rfid", MetricNetworks(None, inception))
    assert chosen("rfid", images=1) == chosen("lpips") == ("lpips", MetricNetworks(lpips))
    assert chosen("l1", lpips) == ("l1", MetricNetworks(lpips))
    assert chosen("l1", rfid_images=2) == ("l1", MetricNetworks(None, inception))
    assert chosen("lpips", rfid_images=2) == ("lpips", MetricNetworks(lpips, inception))
    assert chosen("l1", images=1, rfid_images=2) == ("l1", MetricNetworks(None))


def test_without_the_weights_of_lpips_nothing_is_written(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))
    with pytest.raises(WeightsError, match="lgq weights fetch"):
        train(replace(TINY, loss=LossWeights(gan=0.0)), photos, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_too_small_for_the_discriminator_are_refused_at_the_start(photos, tmp_path):
    with pytest.raises(LGQError, match="24 pixels or more, got `image_size` 12"):
        train(replace(EVERYTHING, image_size=12), photos, tmp_path / "run")


def test_a_rank_that_is_alone_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    with pytest.raises(LGQError, match=r"WORLD_SIZE is 2, but the process group has 1"):
        join_processes()


@pytest.mark.parametrize(
    "leftovers", [(), ("environment.json", ".lock"), ("metrics.jsonl", "tensorboard/events", "slurm-7.out")]
)
def test_a_run_starts_among_leftovers_of_one_that_was_stopped(leftovers, photos, tmp_path):
    for name in leftovers:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert train(replace(TINY, loop=LoopSettings(steps=1)), photos, tmp_path).reason == "finished"


def test_a_run_starts_in_no_directory_of_other_files(photos, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    with pytest.raises(LGQError, match="not a run directory, and it is not empty: it holds notes; give"):
        train(TINY, photos, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_run_starts_in_no_folder_of_its_images(photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (tmp_path / "link").symlink_to(folder)
    images = random_subset(FolderDataset(folder), 2)
    for out in (folder, tmp_path / "link", folder / "deep" / "run"):
        for data, validation in ((images, None), (photos, images)):
            with pytest.raises(LGQError, match="the folder of "):
                train_tokenizer(TINY, data, out, val_data=validation)
    once = replace(TINY, loop=LoopSettings(steps=1))
    assert train(once, folder, folder / ".runs" / "a").reason == "finished"
    assert len(FolderDataset(folder)) == len(FolderDataset(photos))
