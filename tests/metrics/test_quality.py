"""An evaluation is one pass that equals the plain formulas, on one process or several, cached or not."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cheap_inception import (
    FEATURES,
    CheapInception,
    expect_cheap_networks,
    gaussian,
    put_pictures,
)
from torch import Tensor

from lgq.data import DataError, FolderDataset, ImageLoader, LoaderSettings
from lgq.errors import LGQWarning
from lgq.metrics.kid import kernel_distance
from lgq.metrics.metric_networks import RECONSTRUCTION_FEATURE_METRICS, MetricNetworks
from lgq.metrics.precision_recall import precision_recall
from lgq.metrics.quality import (
    ReconstructionEvaluation,
    evaluate_reconstructions,
    evaluate_tokenizer,
    reconstruct_with,
)
from lgq.metrics.reconstruction import l1, psnr, ssim
from lgq.models.autoencoder import Backbone
from lgq.models.lpips import LPIPS
from lgq.results import append_result, read_results
from lgq.tokenizer import Tokenizer

TINY = Backbone(widths=(8, 16), blocks=1, attention_heads=2, groups=4, latent_channels=8, latent_groups=2)
SIDE, IMAGES = 16, 9


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    expect_cheap_networks(monkeypatch)
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


@pytest.fixture(scope="module")
def lpips() -> LPIPS:
    return LPIPS()


@pytest.fixture
def networks(lpips: LPIPS) -> MetricNetworks:
    return MetricNetworks(lpips, CheapInception())


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_pictures(tmp_path_factory.mktemp("data") / "photos", IMAGES)


def build(**settings: Any) -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(TINY, **({"quantizer": "lgq", "codebook_size": 40} | settings)).eval()


def evaluate(
    folder: Path, networks: MetricNetworks, tokenizer: Tokenizer | None = None, **options: Any
) -> ReconstructionEvaluation:
    settings = {"image_size": SIDE, "batch_size": 4} | options
    return evaluate_tokenizer(tokenizer or build(), FolderDataset(folder), networks, **settings)


def all_images(folder: Path) -> Tensor:
    loader = ImageLoader(FolderDataset(folder), LoaderSettings(image_size=SIDE))
    return torch.cat([batch.images for batch in loader.one_pass()])


@pytest.mark.parametrize("batch_size", [1, 4, IMAGES])
def test_every_metric_equals_its_plain_formula(photos, networks, batch_size):
    tokenizer, images = build(), all_images(photos)
    evaluation = evaluate(photos, networks, tokenizer, batch_size=batch_size)
    with torch.no_grad():
        outputs = tokenizer(images).reconstruction.clamp(-1, 1)
        expected = {metric.__name__: metric(images, outputs).mean() for metric in (psnr, ssim, l1)}
        expected["lpips"] = networks.lpips(images, outputs).mean()
        features, originals = networks.inception(outputs), networks.inception(images)
    expected["reconstruction_loss"] = expected["l1"] + expected["lpips"]
    expected["rfid"] = gaussian(features).distance(gaussian(originals))
    expected["kid"] = kernel_distance(features, originals)
    expected |= precision_recall(features, originals)
    used = len(tokenizer.encode(images).unique())
    expected |= {"utilization": used / 40, "dead_codes": 40 - used}
    values = {name: evaluation.metrics[name] for name in expected}
    assert values == pytest.approx({name: float(x) for name, x in expected.items()}, rel=1e-4, abs=1e-7)
    assert evaluation.images == IMAGES
    assert evaluation.absent == evaluation.broken == {}
    assert [score.number for score in evaluation.scores] == list(range(IMAGES))
    assert [score.name for score in evaluation.scores] == [f"{i:02}.png" for i in range(IMAGES)]
    by_image = {"psnr": psnr(images, outputs), "ssim": ssim(images, outputs)}
    by_image["lpips"] = networks.lpips(images, outputs)
    for name, values in by_image.items():
        scores = torch.tensor([getattr(score, name) for score in evaluation.scores])
        torch.testing.assert_close(scores, values, rtol=1e-4, atol=1e-4)
        error = float(values.std() / IMAGES**0.5)
        assert evaluation.standard_error[name] == pytest.approx(error, rel=1e-3)
    assert evaluation.standard_error.keys() == by_image.keys()


def test_features_of_the_images_are_computed_once_unless_the_cache_is_left_alone(
    photos, networks, cache, tmp_path
):
    evaluate(photos, networks, use_cache=False)
    assert not cache.exists()
    first = evaluate(photos, networks)
    assert networks.inception.seen == 4 * IMAGES
    (tmp_path / "moved").mkdir()
    for number, path in enumerate(sorted(photos.iterdir())):
        shutil.copy(path, tmp_path / "moved" / f"renamed-{number}.png")
    for reads, folder in enumerate((photos, tmp_path / "moved"), 5):
        again = evaluate(folder, networks)
        assert networks.inception.seen == reads * IMAGES
        assert (again.metrics, again.fid) == (first.metrics, first.fid)
    assert len(list(cache.iterdir())) == 1
    evaluate(photos, networks, use_cache=False)
    assert networks.inception.seen == 8 * IMAGES


def test_resamples_give_deviations_and_are_counted(photos, networks):
    counts: list[tuple[int, int]] = []
    evaluation = evaluate(photos, networks, resamples=5, on_progress=lambda *count: counts.append(count))
    assert counts[-5:] == [(i, 5) for i in range(1, 6)]
    assert evaluation.bootstrap_std.keys() == {"rfid", "kid"}
    assert evaluation.bootstrap_std == evaluate(photos, networks, resamples=5).bootstrap_std


def test_one_image_and_equal_images_have_no_standard_error(tmp_path, photos):
    assert evaluate(put_pictures(tmp_path / "one", 1), MetricNetworks()).standard_error == {}
    settings = LoaderSettings(image_size=SIDE, batch_size=4)
    loader, device = ImageLoader(FolderDataset(photos), settings), torch.device("cpu")
    perfect = evaluate_reconstructions(
        lambda images: (images, torch.zeros(len(images), 1, dtype=torch.long)),
        1,
        loader,
        MetricNetworks(),
        device,
    )
    assert perfect.metrics["psnr"] == torch.inf
    assert perfect.standard_error == {"ssim": pytest.approx(0, abs=1e-6)}


def test_without_networks_their_metrics_are_absent_by_name(photos):
    evaluation = evaluate(photos, MetricNetworks(absent={"rfid": "no weights"}))
    assert evaluation.absent == {"rfid": "no weights"}
    needs_networks = {"lpips", "reconstruction_loss", *RECONSTRUCTION_FEATURE_METRICS}
    assert not needs_networks & evaluation.metrics.keys()
    assert evaluation.metrics["psnr"] > 0
    assert evaluation.fid is evaluation.lpips is evaluation.scores[0].lpips is None
    assert evaluation.standard_error.keys() == {"psnr", "ssim"}


@pytest.mark.parametrize(
    ("count", "present"), [(1, set()), (3, {"rfid", "kid"}), (4, set(RECONSTRUCTION_FEATURE_METRICS))]
)
def test_too_few_images_are_a_reason(tmp_path, networks, count, present):
    evaluation = evaluate(put_pictures(tmp_path / "few", count), networks)
    assert present == evaluation.metrics.keys() & set(RECONSTRUCTION_FEATURE_METRICS)
    assert evaluation.absent.keys() == set(RECONSTRUCTION_FEATURE_METRICS) - present
    subject = "1 image is" if count == 1 else f"{count} images are"
    fewest = {"rfid": 2, "kid": 2, "precision": 4, "recall": 4}
    for name, reason in evaluation.absent.items():
        assert reason == f"{subject} too few: take {fewest[name]} or more."
    assert (evaluation.fid is None) == (not present)


@pytest.mark.parametrize(("count", "warns"), [(FEATURES - 1, True), (FEATURES, False)])
def test_an_rfid_of_fewer_images_than_features_warns(tmp_path, networks, count, warns):
    folder = put_pictures(tmp_path / "few", count)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LGQWarning)
        evaluate(folder, networks)
    expected = [f"rFID of {count} images is biased upwards"] if warns else []
    assert [str(warning.message).partition(":")[0] for warning in caught] == expected
    noise = "singular; KID, precision and recall of fewer than 100 images are mostly noise; take 12 images"
    assert all(noise in str(warning.message) for warning in caught)


def test_broken_images_are_left_out_and_named(tmp_path, networks):
    folder = put_pictures(tmp_path / "photos", IMAGES, broken=(2, 5))
    evaluation = evaluate(folder, networks)
    for number in (2, 5):
        (folder / f"{number:02}.png").unlink()
    assert evaluation.metrics == pytest.approx(evaluate(folder, networks).metrics, rel=1e-4, abs=1e-7)
    assert evaluation.broken.keys() == {"02.png", "05.png"}
    assert [score.number for score in evaluation.scores] == [0, 1, 3, 4, 6, 7, 8]
    with pytest.raises(DataError, match="none of 2 images can be read"):
        evaluate(put_pictures(tmp_path / "broken", 2, broken=(0, 1)), networks)


def test_a_tokenizer_in_train_mode_is_evaluated_in_eval_mode_and_does_not_change(photos, networks):
    tokenizer = build(quantizer="vq")
    expected, fingerprint = evaluate(photos, networks, tokenizer).metrics, tokenizer.fingerprint()
    tokenizer.train()
    assert evaluate(photos, networks, tokenizer).metrics == expected
    assert tokenizer.training
    assert tokenizer.fingerprint() == fingerprint


def test_stages_have_their_own_codes(photos):
    tokenizer, images = build(stages=2), all_images(photos)
    counts = evaluate(photos, MetricNetworks(), tokenizer).usage.counts
    tokens = tokenizer.encode(images)
    stages = [torch.bincount(tokens[..., stage].flatten(), minlength=40) for stage in range(2)]
    assert torch.equal(counts, torch.cat(stages))


def test_half_precision_is_measured_in_float32(photos):
    reconstruction, _ = reconstruct_with(build().to(torch.bfloat16))(all_images(photos))
    assert reconstruction.dtype == torch.float32
    assert reconstruction.abs().max() <= 1


def test_progress_and_a_record_with_all_that_the_metrics_depend_on(photos, networks, tmp_path):
    counts: list[tuple[int, int]] = []
    evaluation = evaluate(photos, networks, on_progress=lambda *count: counts.append(count))
    assert counts == [(4, IMAGES), (8, IMAGES), (IMAGES, IMAGES)]
    append_result(tmp_path / "results.jsonl", evaluation.record())
    (record,) = read_results(tmp_path / "results.jsonl")
    assert record["metrics"] == evaluation.metrics
    assert record["images"] == record["fid"]["images"] == record["fid"]["reference_images"] == IMAGES
    assert (record["fid"]["weights"], record["fid"]["image_size"]) == ("cheap", SIDE)
    assert len(record["fid"]["reference_sha256"]) == 64
    assert record["lpips"] == {"weights_sha256": None}
    assert "uint8" in str(record["fid"])
