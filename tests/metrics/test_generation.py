"""Metrics of generated images equal the plain formulas over all of them, seed by seed, on any processes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cheap_inception import (
    FEATURES,
    LOGITS,
    CheapClassifier,
    CheapInception,
    gaussian,
    put_pictures,
    use_cheap_networks,
)
from torch import Tensor

from lgq.data import DataError, FolderDataset, ImageLoader, LoaderSettings
from lgq.errors import LGQWarning
from lgq.metrics import generation
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.metrics.generation import PICTURES, GenerationEvaluation, evaluate_generation
from lgq.metrics.inception_score import InceptionScore
from lgq.metrics.kid import kernel_distance
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.precision_recall import precision_recall
from lgq.metrics.reference import Reference
from lgq.random import batch_seed
from lgq.results import append_result, read_results
from lgq.weights import WeightsError

SIDE, IMAGES, CLASSES, SAMPLES = 8, 21, 5, 33
CPU = torch.device("cpu")
METRICS = {"gfid", "kid", "precision", "recall", "inception_score"}


class Generator:
    """Coarse noise around a colour of the class; keeps what it was asked for."""

    def __init__(self) -> None:
        self.classes: list[int] = []
        self.seeds: list[int] = []

    def __call__(self, classes: Tensor, seed: int) -> Tensor:
        self.classes += classes.tolist()
        self.seeds.append(seed)
        noise = torch.rand(len(classes), 3, 2, 2, generator=torch.Generator().manual_seed(seed)) - 0.5
        colours = torch.linspace(-0.5, 0.5, CLASSES * 3).view(CLASSES, 3)[classes]
        return (noise + colours[:, :, None, None]).repeat_interleave(4, 2).repeat_interleave(4, 3)


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MetricNetworks:
    return use_cheap_networks(monkeypatch, tmp_path / "cache")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_pictures(tmp_path_factory.mktemp("data") / "photos", IMAGES)


def reference_of(folder: Path, networks: MetricNetworks, **options: Any) -> Reference:
    return Reference.from_images(FolderDataset(folder), SIDE, networks.inception, CPU, **options)


@pytest.fixture
def reference(photos: Path, networks: MetricNetworks) -> Reference:
    return reference_of(photos, networks)


def evaluate(
    reference: Reference, networks: MetricNetworks, generate: Any = None, **options: Any
) -> GenerationEvaluation:
    settings = {"samples": SAMPLES, "seeds": (3, 8), "batch_size": 4, "device": CPU} | options
    classes = settings.pop("classes", CLASSES)
    return evaluate_generation(generate or Generator(), classes, reference, networks, **settings)


def all_images(seed: int, samples: int = SAMPLES) -> Tensor:
    batches = torch.arange(samples).split(4)
    return torch.cat([Generator()(batch % CLASSES, batch_seed(seed, int(batch[0]))) for batch in batches])


def plain_score(logits: Tensor) -> float:
    """The published score: over ten consecutive splits."""
    score = InceptionScore.empty(LOGITS)
    score.update(logits, torch.arange(len(logits)) * 10 // len(logits))
    return score.compute()


def test_every_metric_equals_its_plain_formula(photos, reference, networks):
    loader = ImageLoader(FolderDataset(photos), LoaderSettings(image_size=SIDE))
    real = networks.inception(torch.cat([batch.images for batch in loader.one_pass()]))
    evaluation = evaluate(reference, networks)
    assert [result["seed"] for result in evaluation.seeds] == [3, 8]
    for result in evaluation.seeds:
        generated = networks.inception(all_images(int(result["seed"])))
        expected = {"seed": result["seed"], "gfid": gaussian(generated).distance(gaussian(real))}
        expected |= {"kid": kernel_distance(generated, real)} | precision_recall(generated, real)
        expected["inception_score"] = plain_score(networks.classifier.logits(generated))
        assert result == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert evaluation.absent == {}
    assert evaluation.metrics.keys() == METRICS


def test_mean_and_sample_deviation_are_over_the_seeds(reference, networks):
    evaluation = evaluate(reference, networks, seeds=(1, 2, 4))
    for name in METRICS:
        values = [result[name] for result in evaluation.seeds]
        assert evaluation.metrics[name] == pytest.approx(np.mean(values), rel=1e-12)
        assert evaluation.std[name] == pytest.approx(np.std(values, ddof=1), rel=1e-9)
    assert evaluation.std["gfid"] > 0
    single = evaluate(reference, networks, seeds=(4,))
    assert single.std == {}
    assert single.seeds == evaluation.seeds[2:] == [{"seed": 4} | single.metrics]


@pytest.mark.parametrize(("samples", "fewest", "most"), [(33, 6, 7), (30, 6, 6), (3, 0, 1)])
def test_classes_are_balanced_and_every_batch_has_its_own_seed(reference, networks, samples, fewest, most):
    generate = Generator()
    evaluation = evaluate(reference, networks, generate, samples=samples)
    assert generate.classes == 2 * [i % CLASSES for i in range(samples)]
    assert evaluation.classes == {"number": CLASSES, "fewest": fewest, "most": most}
    assert generate.seeds == [batch_seed(seed, first) for seed in (3, 8) for first in range(0, samples, 4)]
    assert len(set(generate.seeds)) == len(generate.seeds)
    assert torch.equal(evaluation.pictures, all_images(3, samples)[:PICTURES])


class CertainClassifier(CheapInception):
    """Tells 20 grey levels apart as classes."""

    def logits(self, features: Tensor) -> Tensor:
        return 1000 * torch.nn.functional.one_hot(features[:, 0].long(), 20).float()

    def forward(self, images: Tensor) -> Tensor:
        level = ((images[:, 0, 0, 0] + 0.95) * 10).round()
        return level[:, None].repeat(1, FEATURES)


def test_every_split_of_inception_score_has_all_classes(reference, monkeypatch):
    """20 certain classes score 20; a split of every tenth image would have only 2 of them."""
    monkeypatch.setattr(generation, "CLASSES", 20)
    network = CertainClassifier()

    def generate(classes: Tensor, seed: int) -> Tensor:
        return (classes / 10 - 0.95)[:, None, None, None].expand(-1, 3, SIDE, SIDE)

    networks = MetricNetworks(None, network, {}, network)
    evaluation = evaluate(reference, networks, generate, samples=400, classes=20)
    assert evaluation.metrics["inception_score"] == pytest.approx(20, rel=1e-9)


def test_each_network_sees_an_image_once(reference, networks):
    seen = networks.inception.seen
    metrics = evaluate(reference, networks).metrics
    assert networks.inception.seen == seen + 2 * SAMPLES
    features, classifier = CheapInception(), CheapClassifier()
    assert evaluate(reference, MetricNetworks(None, features, {}, classifier)).metrics == metrics
    assert (features.seen, classifier.seen) == (2 * SAMPLES, 2 * SAMPLES)


def test_a_file_of_statistics_gives_the_same_gfid_and_no_metric_of_single_images(
    reference, networks, tmp_path
):
    reference.gaussian.save(tmp_path / "statistics.npz")
    by_file = evaluate(Reference.from_file(tmp_path / "statistics.npz"), networks)
    by_images = evaluate(reference, networks).metrics
    assert by_file.metrics == {name: by_images[name] for name in ("gfid", "inception_score")}
    assert by_file.absent.keys() == {"kid", "precision", "recall"}
    assert all("only a mean and a covariance" in reason for reason in by_file.absent.values())
    assert by_file.fid["reference_sha256"] == reference.gaussian.sha256
    assert by_file.fid["reference_images"] == IMAGES
    assert by_file.fid["reference_image_size"] is by_file.fid["reference_sample"] is None


def test_without_a_classifier_its_score_is_absent_with_the_reason(reference):
    networks = MetricNetworks(None, CheapInception(), {"inception_score": "no weights", "lpips": "-"})
    evaluation = evaluate(reference, networks)
    assert evaluation.absent == {"inception_score": "no weights"}
    assert evaluation.inception_score is None
    assert evaluation.metrics.keys() == METRICS - {"inception_score"}


@pytest.mark.parametrize(
    ("samples", "photographs", "missing"),
    [
        (2, IMAGES, {"precision", "recall", "inception_score"}),
        (4, IMAGES, {"inception_score"}),
        (10, IMAGES, set()),
        (SAMPLES, 3, {"precision", "recall"}),
    ],
)
def test_too_few_images_are_a_reason(tmp_path, networks, samples, photographs, missing):
    evaluation = evaluate(
        reference_of(put_pictures(tmp_path / "few", photographs), networks), networks, samples=samples
    )
    assert evaluation.absent.keys() == missing == METRICS - evaluation.metrics.keys()
    fewer = min(samples, photographs)
    assert all(f"{fewer} images are too few" in reason for reason in evaluation.absent.values())


@pytest.mark.parametrize(("samples", "photographs"), [(11, IMAGES), (SAMPLES, 11)])
def test_a_gfid_of_fewer_images_than_features_on_either_side_warns(tmp_path, networks, samples, photographs):
    reference = reference_of(put_pictures(tmp_path / "few", photographs), networks)
    with pytest.warns(LGQWarning, match=r"^gFID of 11 images .* the 12 features of .*; take 12 images"):
        evaluate(reference, networks, samples=samples)


def test_unreadable_real_images_are_left_out_and_progress_counts_all(tmp_path, photos, networks):
    folder = put_pictures(tmp_path / "photos", IMAGES, broken=(2, 5))
    assert reference_of(folder, networks).gaussian.count == IMAGES - 2
    with pytest.raises(DataError, match="none of 2 images can be read"):
        reference_of(put_pictures(tmp_path / "broken", 2, broken=(0, 1)), networks)
    with pytest.raises(StatisticsError, match="at least 2 images, got 1"):
        reference_of(put_pictures(tmp_path / "one", 1), networks)
    counts: list[tuple[int, int]] = []
    options = {"batch_size": 12, "on_progress": lambda *count: counts.append(count)}
    evaluate(reference_of(photos, networks, **options), networks, samples=16, **options)
    assert counts == [(12, IMAGES), (IMAGES, IMAGES), (12, 32), (16, 32), (28, 32), (32, 32)]


def test_a_record_holds_all_that_the_metrics_depend_on(reference, networks, tmp_path):
    evaluation = evaluate(reference, networks)
    append_result(tmp_path / "results.jsonl", evaluation.record())
    (record,) = read_results(tmp_path / "results.jsonl")
    for name in ("metrics", "std", "seeds"):
        assert record[name] == getattr(evaluation, name)
    assert (record["images"], record["batch_size"]) == (SAMPLES, 4)
    assert "pictures" not in record
    assert "uint8" in json.dumps(record["fid"])
    expected = {"weights": "cheap", "images": SAMPLES, "image_size": SIDE, "sample": SAMPLES}
    expected |= {"reference_sample": IMAGES, "reference_images": IMAGES, "reference_image_size": SIDE}
    expected |= {"reference": reference.name, "reference_sha256": reference.sha256}
    assert expected.items() <= record["fid"].items()
    assert record["inception_score"]["splits"] == "10, consecutive"
    assert record["inception_score"]["weights"] == "cheap"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 1}, "`samples` must be at least 2, got 1"),
        ({"classes": 0}, "`classes` must be at least 1, got 0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"seeds": ()}, r"one or more different numbers, got \[\]"),
        ({"seeds": (1, 2, 1)}, r"one or more different numbers, got \[1, 2, 1\]"),
    ],
)
def test_mistakes_are_named_before_anything_is_generated(reference, networks, options, message):
    generate = Generator()
    with pytest.raises(ValueError, match=message):
        evaluate(reference, networks, generate, **options)
    assert generate.seeds == []


def test_a_reference_or_network_that_does_not_fit_is_named_before_anything_is_generated(
    reference, networks, tmp_path
):
    generate = Generator()
    Gaussian(torch.zeros(3).double(), torch.eye(3).double()).save(tmp_path / "other.npz")
    with pytest.raises(StatisticsError, match=r"other\.npz has 3 features per image, and Inception has 12"):
        evaluate(Reference.from_file(tmp_path / "other.npz"), networks, generate)
    foreign = replace(reference, convention=CheapInception(seed=1).convention)
    with pytest.raises(StatisticsError, match=r"seed 1.*seed 0.*with the same network"):
        evaluate(foreign, networks, generate)
    with pytest.raises(WeightsError, match="generated images cannot be measured: run `x`"):
        evaluate(reference, MetricNetworks(absent={"gfid": "run `x`"}), generate)
    assert generate.seeds == []
