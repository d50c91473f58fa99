"""An evaluation is one pass that equals the plain formulas, on one process or several, cached or not."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cheap_inception import FEATURES, CheapInception
from PIL import Image
from process_groups import on_processes
from torch import Tensor

from lgq.data import DataError, FolderDataset, ImageLoader, LoaderSettings
from lgq.distributed import world_size
from lgq.evaluation import best_median_worst
from lgq.metrics import quality
from lgq.metrics.fid import FeatureStatistics
from lgq.metrics.kid import kernel_distance
from lgq.metrics.metric_networks import RECONSTRUCTION_FEATURE_METRICS, MetricNetworks
from lgq.metrics.precision_recall import precision_recall
from lgq.metrics.quality import (
    ImageScore,
    ReconstructionEvaluation,
    evaluate_reconstructions,
    evaluate_tokenizer,
    reconstruct_with,
)
from lgq.metrics.reconstruction import l1, psnr, ssim
from lgq.models.autoencoder import Backbone
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.results import append_result, read_results
from lgq.tokenizer import Tokenizer

TINY = Backbone(widths=(8, 16), blocks=1, attention_heads=2, groups=4, latent_channels=8, latent_groups=2)
SIDE, IMAGES = 16, 9
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "FEATURES", FEATURES)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


@pytest.fixture(scope="module")
def lpips() -> LPIPS:
    return LPIPS()


@pytest.fixture
def networks(lpips: LPIPS) -> MetricNetworks:
    return MetricNetworks(lpips, CheapInception())


def put_pictures(folder: Path, count: int = IMAGES, broken: tuple[int, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    for seed in range(count):
        coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((20, 20), Image.Resampling.BICUBIC).save(folder / f"{seed}.png")
    for number in broken:
        (folder / f"{number}.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_pictures(tmp_path_factory.mktemp("data") / "photos")


def build(**settings: Any) -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(TINY, **({"quantizer": "lgq", "codebook_size": 40} | settings)).eval()


def assess(
    folder: Path, networks: MetricNetworks, tokenizer: Tokenizer | None = None, **options: Any
) -> ReconstructionEvaluation:
    settings = {"image_size": SIDE, "batch_size": 4} | options
    return evaluate_tokenizer(tokenizer or build(), FolderDataset(folder), networks, **settings)


def all_images(folder: Path) -> Tensor:
    loader = ImageLoader(FolderDataset(folder), LoaderSettings(image_size=SIDE))
    return torch.cat([batch.images for batch in loader.one_pass()])


def test_every_metric_is_that_of_its_plain_formula(photos, networks):
    tokenizer, images = build(), all_images(photos)
    found = assess(photos, networks, tokenizer)
    with torch.no_grad():
        outputs = tokenizer(images).reconstruction.clamp(-1, 1)
        lpips, inception = networks.lpips, networks.inception
        expected = {f.__name__: f(images, outputs).mean() for f in (psnr, ssim, l1)}
        expected["lpips"] = lpips(images, outputs).mean()
        features, originals = inception(outputs), inception(images)
    gaussians = []
    for rows in (features, originals):
        gaussians.append(FeatureStatistics.empty(FEATURES))
        gaussians[-1].update(rows)
    expected["reconstruction_loss"] = expected["l1"] + expected["lpips"]
    expected["rfid"] = gaussians[0].gaussian().distance(gaussians[1].gaussian())
    expected["kid"] = kernel_distance(features, originals)
    expected |= precision_recall(features, originals)._asdict()
    used = len(tokenizer.encode(images).unique())
    expected |= {"utilization": used / 40, "dead_codes": 40 - used}
    found_too = {name: found.metrics[name] for name in expected}
    assert found_too == pytest.approx({name: float(x) for name, x in expected.items()}, rel=1e-4, abs=1e-7)
    assert found.images == IMAGES
    assert found.absent == found.broken == {}
    assert [score.number for score in found.scores] == list(range(IMAGES))
    ratios = torch.tensor([score.psnr for score in found.scores])
    torch.testing.assert_close(ratios, psnr(images, outputs), rtol=1e-4, atol=1e-4)


def unchanged(images: Tensor) -> tuple[Tensor, Tensor]:
    return images, torch.zeros(len(images), 1, dtype=torch.int64)


def test_images_against_themselves_are_perfect(photos, lpips, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("LGQ_CACHE", str(photos.parent / "identity"))
    folder = put_pictures(photos.parent / "two", 2)
    loader = ImageLoader(FolderDataset(folder), LoaderSettings(image_size=SIDE, batch_size=1))
    metrics = evaluate_reconstructions(
        unchanged, 1, loader, MetricNetworks(lpips, InceptionV3()), CPU
    ).metrics
    assert metrics["psnr"] == torch.inf
    assert metrics["ssim"] == pytest.approx(1)
    assert metrics["l1"] == metrics["lpips"] == metrics["reconstruction_loss"] == 0
    assert 0 <= metrics["rfid"] < 1e-3


def test_images_lie_on_their_own_manifold(photos, networks):
    loader = ImageLoader(FolderDataset(photos), LoaderSettings(image_size=SIDE))
    metrics = evaluate_reconstructions(unchanged, 1, loader, networks, CPU).metrics
    assert metrics["precision"] == metrics["recall"] == 1
    assert metrics["kid"] <= 0


def test_batches_change_rounding_only(photos, networks):
    one, many = (assess(photos, networks, batch_size=size, use_cache=False) for size in (1, IMAGES))
    assert one.metrics == pytest.approx(many.metrics, rel=1e-4, abs=1e-7)


def test_features_of_the_images_are_computed_once(photos, networks, cache):
    first = assess(photos, networks)
    assert networks.inception.seen == 2 * IMAGES
    again = assess(photos, networks)
    assert networks.inception.seen == 3 * IMAGES
    assert again.metrics == first.metrics
    assert again.fid == first.fid
    assert len(list(cache.iterdir())) == 1


def test_the_same_files_in_another_folder_are_known(photos, networks, tmp_path):
    first = assess(photos, networks)
    (tmp_path / "moved").mkdir()
    for number, path in enumerate(sorted(photos.iterdir())):
        shutil.copy(path, tmp_path / "moved" / f"renamed-{number}.png")
    assert assess(tmp_path / "moved", networks).metrics == first.metrics
    assert networks.inception.seen == 3 * IMAGES


def test_other_images_sizes_and_networks_are_not(photos, networks, tmp_path, cache):
    assess(photos, networks)
    assess(photos, networks, image_size=20)
    assess(put_pictures(tmp_path / "fewer", IMAGES - 1), networks)
    assert networks.inception.seen == 2 * (3 * IMAGES - 1)
    other = CheapInception(seed=1)
    assess(photos, MetricNetworks(None, other))
    assert other.seen == 2 * IMAGES
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("harm", ["cut", "bit"])
def test_damaged_features_are_made_anew(photos, networks, cache, caplog, harm):
    first = assess(photos, networks)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] if harm == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    assert assess(photos, networks).metrics == first.metrics
    assert networks.inception.seen == 4 * IMAGES
    assert file.read_bytes() == whole
    assert "is damaged" in caplog.text


def test_without_the_cache_nothing_is_read_or_left(photos, networks, cache):
    assess(photos, networks, use_cache=False)
    assert not cache.exists()
    assess(photos, networks)
    assess(photos, networks, use_cache=False)
    assert networks.inception.seen == 6 * IMAGES


def test_a_cache_that_cannot_be_written_costs_no_result(photos, networks, cache, caplog):
    cache.parent.write_text("a file, where the directory would be")
    assert assess(photos, networks).metrics["rfid"] > 0
    assert "cannot cache" in caplog.text


def test_without_networks_their_metrics_are_absent_by_name(photos):
    found = assess(photos, MetricNetworks(absent={"rfid": "no weights"}))
    assert found.absent == {"rfid": "no weights"}
    assert not {"lpips", "reconstruction_loss", *RECONSTRUCTION_FEATURE_METRICS} & found.metrics.keys()
    assert found.metrics["psnr"] > 0
    assert found.fid is found.lpips is None


@pytest.mark.parametrize(
    ("count", "taken"), [(1, set()), (3, {"rfid", "kid"}), (4, set(RECONSTRUCTION_FEATURE_METRICS))]
)
def test_few_images_have_no_manifold_and_fewer_no_distance(tmp_path, networks, count, taken):
    found = assess(put_pictures(tmp_path / "few", count), networks)
    assert taken == found.metrics.keys() & set(RECONSTRUCTION_FEATURE_METRICS)
    assert found.absent.keys() == set(RECONSTRUCTION_FEATURE_METRICS) - taken
    assert all(f"{count} images are too few" in reason for reason in found.absent.values())
    assert (found.fid is None) == (not taken)


def test_broken_images_are_left_out_and_named(tmp_path, networks):
    folder = put_pictures(tmp_path / "photos", broken=(2, 5))
    found = assess(folder, networks)
    for number in (2, 5):
        (folder / f"{number}.png").unlink()
    whole = assess(folder, networks)
    assert found.metrics == pytest.approx(whole.metrics, rel=1e-4, abs=1e-7)
    assert found.broken.keys() == {"2.png", "5.png"}
    assert [score.number for score in found.scores] == [0, 1, 3, 4, 6, 7, 8]


def test_a_data_set_without_a_readable_image_is_a_mistake(tmp_path, networks):
    with pytest.raises(DataError, match="none of 2 images can be read"):
        assess(put_pictures(tmp_path / "broken", 2, broken=(0, 1)), networks)


def test_a_tokenizer_in_train_mode_is_judged_in_eval_mode_and_learns_nothing(photos, networks):
    tokenizer = build(quantizer="vq")
    expected, fingerprint = assess(photos, networks, tokenizer).metrics, tokenizer.fingerprint()
    tokenizer.train()
    assert assess(photos, networks, tokenizer).metrics == expected
    assert tokenizer.training
    assert tokenizer.fingerprint() == fingerprint


def test_stages_have_codes_of_their_own(photos):
    tokenizer, images = build(stages=2), all_images(photos)
    counts = assess(photos, MetricNetworks(), tokenizer).usage.counts
    tokens = tokenizer.encode(images)
    stages = [torch.bincount(tokens[..., stage].flatten(), minlength=40) for stage in range(2)]
    assert torch.equal(counts, torch.cat(stages))


def test_half_precision_is_judged_in_full(photos, networks):
    images = all_images(photos)
    reconstruction, _ = reconstruct_with(build().to(torch.bfloat16))(images)
    assert reconstruction.dtype == torch.float32
    assert reconstruction.abs().max() <= 1


def test_progress_ends_with_every_image(photos, networks):
    seen: list[tuple[int, int]] = []
    assess(photos, networks, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(4, IMAGES), (8, IMAGES), (IMAGES, IMAGES)]


def test_a_record_tells_what_the_numbers_rest_on(photos, networks, tmp_path):
    found = assess(photos, networks)
    append_result(tmp_path / "results.jsonl", found.record())
    (record,) = read_results(tmp_path / "results.jsonl")
    assert record["metrics"] == found.metrics
    assert record["images"] == record["fid"]["images"] == record["fid"]["reference_images"] == IMAGES
    assert record["fid"]["weights"] == "cheap"
    assert record["fid"]["image_size"] == SIDE
    assert len(record["fid"]["reference_sha256"]) == 64
    assert record["lpips"] == {"weights_sha256": None}
    assert json.dumps(record["fid"]).count("uint8")


SCORES = [ImageScore(i, ratio) for i, ratio in enumerate([20.0, 31.0, torch.inf, 25.0, 18.0, 25.0, 22.0])]


def test_best_median_and_worst_are_ranked_by_psnr():
    chosen = best_median_worst(SCORES, 2)
    numbers = {kind: [score.number for score in scores] for kind, scores in chosen.items()}
    assert numbers == {"best": [2, 1], "median": [3, 5], "worst": [4, 0]}


def test_the_median_of_one_is_the_middle_one():
    assert best_median_worst(SCORES, 1)["median"] == [ImageScore(5, 25.0)]


def test_groups_larger_than_the_set_are_the_set():
    chosen = best_median_worst(SCORES[:3], 8)
    assert [len(chosen[kind]) for kind in ("best", "median", "worst")] == [3, 3, 3]
    assert chosen["worst"] == chosen["best"][::-1]
    assert best_median_worst([], 1) == {"best": [], "median": [], "worst": []}


def test_groups_need_an_image():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        best_median_worst(SCORES, 0)


def everything(folder: Path) -> dict:
    """Twice, so that the second finds the first one's features; and where one process reads nothing."""
    networks = MetricNetworks(LPIPS(), CheapInception())
    both = [assess(folder / "photos", networks, batch_size=2) for _ in range(2)]
    lonely = assess(folder / "half", networks, batch_size=1)
    return {
        "world_size": world_size(),
        "seen": networks.inception.seen,
        "metrics": [found.metrics for found in both],
        "counts": [both[0].usage.counts, both[0].images],
        "scores": [list(score) for score in both[0].scores],
        "fid": both[0].fid,
        "broken": both[0].broken,
        "lonely": [lonely.images, lonely.broken, lonely.metrics],
    }


def everything_cheap(folder: str) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "FEATURES", FEATURES)
        patch.setenv("LGQ_CACHE", f"{folder}/cache-of-two")
        return everything(Path(folder))


def test_two_processes_give_what_one_gives(tmp_path):
    put_pictures(tmp_path / "photos", broken=(3,))
    put_pictures(tmp_path / "half", 2, broken=(1,))
    both, alone = on_processes(2, tmp_path, everything_cheap, str(tmp_path)), everything(tmp_path)
    assert [result["world_size"] for result in both] == [2, 2]
    assert sum(result["seen"] for result in both) == alone["seen"] == 3 * (IMAGES - 1) + 2
    assert both[0]["metrics"] == both[1]["metrics"]
    for result in both:
        for metrics, expected in zip(result["metrics"], alone["metrics"], strict=True):
            assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)
        torch.testing.assert_close(result["counts"], alone["counts"], rtol=0, atol=0)
        torch.testing.assert_close(result["scores"], alone["scores"])
        assert result["fid"] == alone["fid"]
        assert result["broken"] == alone["broken"]
        assert result["lonely"][:2] == alone["lonely"][:2]
        assert result["lonely"][2] == pytest.approx(alone["lonely"][2], rel=1e-5)
