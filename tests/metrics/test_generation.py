"""Generated images are judged as the plain formulas judge all of them, seed by seed, by any processes."""

import json
from collections import Counter
from dataclasses import replace
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
from lgq.metrics import generation, reference
from lgq.metrics.fid import FeatureStatistics, StatisticsError
from lgq.metrics.generation import PICTURES, GenerationEvaluation, evaluate_generation
from lgq.metrics.kid import kernel_distance
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.precision_recall import precision_recall
from lgq.metrics.reference import Reference
from lgq.random import batch_seed
from lgq.results import append_result, read_results
from lgq.weights import WeightsError

SIDE, IMAGES, CLASSES, SAMPLES = 8, 21, 5, 33
LOGITS = 7
CPU = torch.device("cpu")
METRICS = {"gfid", "kid", "precision", "recall", "inception_score"}


class CheapClassifier(CheapInception):
    def logits(self, features: Tensor) -> Tensor:
        return 3 * features[:, :LOGITS]


def draw(classes: Tensor, seed: int) -> Tensor:
    """Coarse noise around a colour of the class."""
    noise = torch.rand(len(classes), 3, 2, 2, generator=torch.Generator().manual_seed(seed)) - 0.5
    colours = torch.linspace(-0.5, 0.5, CLASSES * 3).view(CLASSES, 3)[classes]
    return (noise + colours[:, :, None, None]).repeat_interleave(4, 2).repeat_interleave(4, 3)


class Recorder:
    """Draws, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.classes: list[list[int]] = []
        self.seeds: list[int] = []

    def __call__(self, classes: Tensor, seed: int) -> Tensor:
        self.classes.append(classes.tolist())
        self.seeds.append(seed)
        return draw(classes, seed)


def put_pictures(folder: Path, count: int = IMAGES, broken: tuple[int, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    for seed in range(count):
        coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((12, 9), Image.Resampling.BICUBIC).save(folder / f"{seed:02}.png")
    for number in broken:
        (folder / f"{number:02}.png").write_bytes(b"no picture")
    return folder


def make_cheap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(generation, "FEATURES", FEATURES)
    patch.setattr(generation, "CLASSES", LOGITS)
    patch.setattr(reference, "FEATURES", FEATURES)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    make_cheap(monkeypatch)
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_pictures(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture
def networks() -> MetricNetworks:
    network = CheapClassifier()
    return MetricNetworks(None, network, {}, network)


def real(folder: Path, networks: MetricNetworks, **options: Any) -> Reference:
    return Reference.from_images(FolderDataset(folder), SIDE, networks.inception, CPU, **options)


@pytest.fixture
def originals(photos: Path, networks: MetricNetworks) -> Reference:
    return real(photos, networks)


def assess(
    originals: Reference, networks: MetricNetworks, draw: Any = draw, **options: Any
) -> GenerationEvaluation:
    settings = {"samples": SAMPLES, "seeds": (3, 8), "batch_size": 4, "device": CPU} | options
    return evaluate_generation(draw, settings.pop("classes", CLASSES), originals, networks, **settings)


def all_images(seed: int, samples: int = SAMPLES, batch_size: int = 4) -> Tensor:
    """One batch after the other."""
    starts = range(0, samples, batch_size)
    numbers = [torch.arange(first, min(first + batch_size, samples)) for first in starts]
    return torch.cat([draw(each % CLASSES, batch_seed(seed, int(each[0]))) for each in numbers])


def photographs(folder: Path) -> Tensor:
    loader = ImageLoader(FolderDataset(folder), LoaderSettings(image_size=SIDE))
    return torch.cat([batch.images for batch in loader.one_pass()])


def plain_frechet(x: Tensor, y: Tensor) -> float:
    gaussians = []
    for rows in (x, y):
        gaussians.append(FeatureStatistics.empty(FEATURES))
        gaussians[-1].update(rows)
    return gaussians[0].gaussian().distance(gaussians[1].gaussian())


def plain_score(logits: Tensor) -> float:
    """Salimans et al.'s own: consecutive splits, exp of the mean KL divergence in each."""
    p, n, scores = logits.double().softmax(1).numpy(), len(logits), []
    for split in range(10):
        # Image i belongs to split floor(10 i / n).
        part = p[-(-split * n // 10) : -(-(split + 1) * n // 10)]
        scores.append(np.exp(np.mean(np.sum(part * (np.log(part) - np.log(part.mean(0))), 1))))
    return float(np.mean(scores))


def test_every_metric_is_that_of_its_plain_formula(photos, originals, networks):
    found, theirs = assess(originals, networks), networks.inception(photographs(photos))
    assert [one["seed"] for one in found.seeds] == [3, 8]
    for one in found.seeds:
        mine = networks.inception(all_images(int(one["seed"])))
        expected = {"seed": one["seed"], "gfid": plain_frechet(mine, theirs)}
        expected |= {"kid": kernel_distance(mine, theirs)} | precision_recall(mine, theirs)._asdict()
        expected["inception_score"] = plain_score(networks.classifier.logits(mine))
        assert one == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert found.absent == {}
    assert found.metrics.keys() == METRICS


def test_mean_and_sample_deviation_are_over_the_seeds(originals, networks):
    found = assess(originals, networks, seeds=(1, 2, 3, 4))
    for name in METRICS:
        values = [one[name] for one in found.seeds]
        assert found.metrics[name] == pytest.approx(np.mean(values), rel=1e-12)
        assert found.std[name] == pytest.approx(np.std(values, ddof=1), rel=1e-9)
    assert found.std["gfid"] > 0


def test_one_seed_has_no_deviation(originals, networks):
    one = assess(originals, networks, seeds=(8,))
    assert one.std == {}
    assert one.seeds == assess(originals, networks, seeds=(3, 8)).seeds[1:]
    assert {"seed": 8} | one.metrics == one.seeds[0]


@pytest.mark.parametrize(("samples", "fewest", "most"), [(33, 6, 7), (30, 6, 6), (3, 0, 1)])
def test_classes_are_balanced(originals, networks, samples, fewest, most):
    recorder = Recorder()
    found = assess(originals, networks, recorder, samples=samples, seeds=(3, 8))
    asked = [label for batch in recorder.classes for label in batch]
    assert asked == 2 * [i % CLASSES for i in range(samples)]
    counts = Counter(asked[:samples])
    assert {counts[label] for label in range(CLASSES)} == {fewest, most}
    assert found.classes == {"number": CLASSES, "fewest": fewest, "most": most}


def test_every_batch_of_every_seed_has_a_seed_of_its_own(originals, networks):
    recorder = Recorder()
    assess(originals, networks, recorder)
    assert recorder.seeds == [batch_seed(seed, first) for seed in (3, 8) for first in range(0, SAMPLES, 4)]
    assert len(set(recorder.seeds)) == len(recorder.seeds)
    assert all(0 <= seed < 2**63 for seed in recorder.seeds)


def sure_of_its_class(classes: Tensor, seed: int) -> Tensor:
    return (classes / 10 - 0.95)[:, None, None, None].expand(-1, 3, SIDE, SIDE)


class SureClassifier(CheapInception):
    """Knows each of 20 grey levels as a class."""

    def logits(self, features: Tensor) -> Tensor:
        return 1000 * torch.nn.functional.one_hot(features[:, 0].long(), 20).float()

    def forward(self, images: Tensor) -> Tensor:
        level = ((images[:, 0, 0, 0] + 0.95) * 10).round()
        return level[:, None].repeat(1, FEATURES)


def test_every_split_of_inception_score_has_all_classes(originals, monkeypatch):
    """20 classes, each certain, score 20; in a split of every tenth image only 2 would occur."""
    monkeypatch.setattr(generation, "CLASSES", 20)
    network = SureClassifier()
    found = assess(
        originals, MetricNetworks(None, network, {}, network), sure_of_its_class, samples=400, classes=20
    )
    assert found.metrics["inception_score"] == pytest.approx(20, rel=1e-9)


def test_one_network_sees_an_image_once_and_two_see_it_once_each(originals, networks):
    seen = networks.inception.seen
    one = assess(originals, networks)
    assert networks.inception.seen == seen + 2 * SAMPLES
    features, classifier = CheapInception(), CheapClassifier()
    two = assess(originals, MetricNetworks(None, features, {}, classifier))
    assert (features.seen, classifier.seen) == (2 * SAMPLES, 2 * SAMPLES)
    assert two.metrics == one.metrics


def test_a_file_of_statistics_gives_the_same_gfid_and_nothing_that_needs_features(
    originals, networks, tmp_path
):
    originals.gaussian.save(tmp_path / "statistics.npz")
    found = assess(Reference.from_file(tmp_path / "statistics.npz"), networks)
    by_images = assess(originals, networks)
    assert found.metrics["gfid"] == by_images.metrics["gfid"]
    assert found.metrics["inception_score"] == by_images.metrics["inception_score"]
    assert found.absent.keys() == {"kid", "precision", "recall"}
    assert all("only a mean and a covariance" in reason for reason in found.absent.values())
    assert found.fid["reference_sha256"] == originals.gaussian.sha256
    assert found.fid["reference_images"] == IMAGES
    assert found.fid["reference_image_size"] is found.fid["reference_sample"] is None


def test_without_a_classifier_its_score_is_absent_with_the_reason(originals):
    found = assess(
        originals, MetricNetworks(None, CheapInception(), {"inception_score": "no weights", "lpips": "-"})
    )
    assert found.absent == {"inception_score": "no weights"}
    assert found.inception_score is None
    assert found.metrics.keys() == METRICS - {"inception_score"}


@pytest.mark.parametrize(
    ("samples", "lacking"),
    [(2, {"precision", "recall", "inception_score"}), (4, {"inception_score"}), (10, set())],
)
def test_few_images_lack_what_needs_more(originals, networks, samples, lacking):
    found = assess(originals, networks, samples=samples)
    assert found.absent.keys() == lacking == METRICS - found.metrics.keys()
    assert all(f"{samples} images are too few" in reason for reason in found.absent.values())


def test_few_real_images_lack_it_too(tmp_path, networks):
    found = assess(real(put_pictures(tmp_path / "few", 3), networks), networks)
    assert set(found.absent) == {"precision", "recall"}
    assert "3 images are too few" in found.absent["recall"]


def test_features_of_real_images_are_computed_once(photos, networks, cache):
    first = real(photos, networks)
    assert networks.inception.seen == IMAGES
    again = real(photos, networks)
    assert networks.inception.seen == IMAGES
    assert len(list(cache.iterdir())) == 1
    assert (again.sha256, again.gaussian.sha256) == (first.sha256, first.gaussian.sha256)
    assert torch.equal(again.features.sample.features, first.features.sample.features)


def test_unreadable_real_images_are_left_out(tmp_path, networks):
    folder = put_pictures(tmp_path / "photos", broken=(2, 5))
    assert real(folder, networks).gaussian.count == IMAGES - 2
    with pytest.raises(DataError, match="none of 2 images can be read"):
        real(put_pictures(tmp_path / "broken", 2, broken=(0, 1)), networks)
    with pytest.raises(StatisticsError, match="at least 2 images, got 1"):
        real(put_pictures(tmp_path / "one", 1), networks)


def test_the_first_images_of_the_first_seed_are_handed_back(originals, networks):
    many = assess(originals, networks).pictures
    assert torch.equal(many, all_images(3)[:PICTURES])
    few = assess(originals, networks, samples=7).pictures
    assert torch.equal(few, all_images(3, 7))


def test_progress_counts_the_images_of_all_seeds(photos, originals, networks, tmp_path):
    seen: list[tuple[int, int]] = []
    assess(originals, networks, samples=6, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(4, 12), (6, 12), (10, 12), (12, 12)]
    seen.clear()
    folder = put_pictures(tmp_path / "photos", 5)
    real(folder, networks, batch_size=3, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(3, 5), (5, 5)]


def test_a_record_tells_what_the_numbers_rest_on(originals, networks, tmp_path):
    found = assess(originals, networks)
    append_result(tmp_path / "results.jsonl", found.record())
    (record,) = read_results(tmp_path / "results.jsonl")
    assert record["metrics"] == found.metrics
    assert record["std"] == found.std
    assert record["seeds"] == found.seeds
    assert (record["images"], record["batch_size"]) == (SAMPLES, 4)
    assert "pictures" not in record
    fid = record["fid"]
    assert (fid["weights"], fid["images"], fid["image_size"]) == ("cheap", SAMPLES, SIDE)
    assert (fid["sample"], fid["reference_sample"]) == (SAMPLES, IMAGES)
    assert (fid["reference_images"], fid["reference_image_size"]) == (IMAGES, SIDE)
    assert "FolderDataset" in fid["reference"]
    assert fid["reference_sha256"] == originals.sha256
    assert "uint8" in json.dumps(fid)
    assert record["inception_score"]["splits"] == "10, consecutive"
    assert record["inception_score"]["weights"] == "cheap"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 1}, "images must be at least 2, got 1"),
        ({"classes": 0}, "classes must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seeds": ()}, r"one or more different numbers, got \[\]"),
        ({"seeds": (1, 2, 1)}, r"one or more different numbers, got \[1, 2, 1\]"),
    ],
)
def test_mistakes_are_named_before_anything_is_drawn(originals, networks, options, message):
    recorder = Recorder()
    with pytest.raises(ValueError, match=message):
        assess(originals, networks, recorder, **options)
    assert recorder.seeds == []


def test_a_reference_of_another_network_is_refused_before_anything_is_drawn(originals, networks, tmp_path):
    recorder = Recorder()
    other = FeatureStatistics.empty(3)
    other.update(torch.randn(9, 3))
    other.gaussian().save(tmp_path / "other.npz")
    with pytest.raises(StatisticsError, match=r"other\.npz has 3 features per image, and Inception has 12"):
        assess(Reference.from_file(tmp_path / "other.npz"), networks, recorder)
    foreign = replace(originals, convention=CheapInception(seed=1).convention)
    with pytest.raises(StatisticsError, match=r"seed 1.*seed 0.*with the same network"):
        assess(foreign, networks, recorder)
    with pytest.raises(StatisticsError, match=r"absent\.npz does not exist"):
        Reference.from_file(tmp_path / "absent.npz")
    (tmp_path / "damaged.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:100])
    with pytest.raises(StatisticsError, match=r"damaged\.npz is not an \.npz file"):
        Reference.from_file(tmp_path / "damaged.npz")
    assert recorder.seeds == []


def test_without_inception_nothing_is_drawn(originals):
    recorder = Recorder()
    with pytest.raises(WeightsError, match="generated images cannot be measured: run `x`"):
        assess(originals, MetricNetworks(absent={"gfid": "run `x`"}), recorder)
    assert recorder.seeds == []


def everything(folder: Path) -> dict:
    """Also where one process draws nothing."""
    network, recorder = CheapClassifier(), Recorder()
    networks = MetricNetworks(None, network, {}, network)
    originals = [real(folder / "photos", networks, batch_size=2) for _ in range(2)]
    found = assess(originals[1], networks, recorder)
    lonely = assess(originals[1], networks, samples=3)
    return {
        "world_size": world_size(),
        "seen": network.seen,
        "seeds": found.seeds,
        "lonely": [lonely.metrics, lonely.fid],
        "record": [found.fid, found.absent, found.classes],
        "pictures": [found.pictures, lonely.pictures],
        "drawn": recorder.seeds,
    }


def everything_cheap(folder: str) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        make_cheap(patch)
        patch.setenv("LGQ_CACHE", f"{folder}/cache-of-two")
        return everything(Path(folder))


def test_two_processes_give_what_one_gives(tmp_path):
    put_pictures(tmp_path / "photos", broken=(3,))
    both = on_processes(2, tmp_path, everything_cheap, str(tmp_path))
    alone = everything(tmp_path)
    assert [result["world_size"] for result in both] == [2, 2]
    assert sum(result["seen"] for result in both) == alone["seen"] == IMAGES - 1 + 2 * SAMPLES + 2 * 3
    assert sorted(both[0]["drawn"] + both[1]["drawn"]) == sorted(alone["drawn"])
    assert both[0]["drawn"][:2] == alone["drawn"][:4:2]
    for result in both:
        for by_seed, expected in zip(result["seeds"], alone["seeds"], strict=True):
            assert by_seed == pytest.approx(expected, rel=1e-6, abs=1e-8)
        assert result["lonely"][0] == pytest.approx(alone["lonely"][0], rel=1e-6, abs=1e-8)
        assert result["lonely"][1] == alone["lonely"][1]
        assert result["record"] == alone["record"]
        torch.testing.assert_close(result["pictures"], alone["pictures"], rtol=0, atol=0)
    assert both[0]["seeds"] == both[1]["seeds"]
