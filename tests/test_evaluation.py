"""`lgq.evaluate`: the record of a tokenizer or a generator, from a directory or a loaded model."""

import csv
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cheap_inception import put_pictures, use_cheap_networks
from fuzz.seeds import BACKBONE
from PIL import Image
from process_groups import on_processes
from token_sets import write_tokens

import lgq
from lgq import MaskGIT, Sampling, Tokenizer
from lgq.data import FolderDataset
from lgq.distributed import world_size
from lgq.errors import LGQError, LGQWarning
from lgq.evaluation import best_median_worst
from lgq.metrics.metric_networks import MetricNetworks
from lgq.metrics.quality import ImageScore
from lgq.models.transformer import TransformerSettings
from lgq.quantizers import CONTINUOUS
from lgq.results import read_results

SIDE, CODES, CLASSES = 8, 6, ("cat", "dog")
FAST: dict[str, Any] = {"batch_size": 4, "workers": 0}


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MetricNetworks:
    return use_cheap_networks(monkeypatch, tmp_path / "cache")


def build() -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(BACKBONE, codebook_size=CODES)


def build_generator() -> MaskGIT:
    settings = TransformerSettings(layers=1, width=8, heads=2, hidden=8)
    return MaskGIT(build(), image_size=SIDE, classes=CLASSES, transformer=settings)


def write_val_tokens(folder: Path) -> Path:
    tokens, labels = torch.randint(CODES, (4, 4, 4)), [0, 1, 0, 1]
    meaning = {"codebook_size": CODES, "fingerprint": build().fingerprint(), "classes": CLASSES}
    return write_tokens(folder, tokens, labels=labels, **meaning).path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_pictures(tmp_path_factory.mktemp("data") / "photos", 12)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    build().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_directory_gets_a_record_and_pictures(saved, photos, networks):
    networks.absent["lpips"] = "no weights"
    record = lgq.evaluate(saved, photos, image_size=SIDE, **FAST)
    assert record.directory == saved / "evaluation"
    assert read_results(record.directory / "results.jsonl") == [json.loads(record.to_json())]
    assert {path.stem for path in record.directory.glob("*.png")} == {"best", "median", "worst"}
    assert record.metrics["rfid"] > 0
    assert record.absent == {"lpips": "no weights"}
    command = ["lgq", "evaluate", str(saved), "--data", str(photos), "--image-size", "8"]
    assert record.fields["command"] == [*command, "--batch-size", "4", "--workers", "0"]


def scores_of(directory: Path) -> list[dict[str, str]]:
    with open(directory / "scores.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_scores_of_every_image_are_a_file_beside_the_record(saved, tmp_path):
    folder, odd = put_pictures(tmp_path / "photos", 5, broken=(3,)), 'a, "b"\udcff.png'
    (folder / "04.png").rename(folder / odd)
    record = lgq.evaluate(saved, folder, image_size=16, **FAST)
    rows = scores_of(record.directory)
    assert [row["name"] for row in rows] == ["00.png", "01.png", "02.png", r'a, "b"\udcff.png']
    assert rows[0].keys() == {"name", "psnr", "ssim"}
    assert [(float(row["psnr"]), float(row["ssim"])) for row in rows] == [x[2:4] for x in record.scores]
    assert len(record.scores) == 4
    for name in ("psnr", "ssim"):
        mean = sum(float(row[name]) for row in rows) / len(rows)
        assert record.metrics[name] == pytest.approx(mean, rel=1e-6)
    lgq.evaluate(saved, folder, images=2, image_size=16, **FAST)
    assert len(scores_of(record.directory)) == 2
    assert not list(record.directory.glob("*.partial"))


def test_resamples_give_the_record_deviations_of_rfid_and_kid(saved, photos):
    record = lgq.evaluate(saved, photos, image_size=16, resamples=3, **FAST)
    assert record.fields["bootstrap_std"].keys() == {"rfid", "kid"}
    assert "--resamples 3" in " ".join(record.fields["command"])
    assert record.fields["standard_error"].keys() == {"psnr", "ssim"}
    assert lgq.evaluate(saved, photos, image_size=SIDE, **FAST).fields["bootstrap_std"] == {}


@pytest.mark.parametrize("resamples", [-1, 1])
def test_one_resample_has_no_deviation(saved, photos, resamples):
    with pytest.raises(LGQError, match=f"`resamples` must be 0, for none, or at least 2, got {resamples}"):
        lgq.evaluate(saved, photos, resamples=resamples)


def test_fewer_images_than_asked_for_are_said(saved, photos):
    with pytest.warns(LGQWarning, match=r"photos.* has 12 images, fewer than `images` 9,999: all are taken"):
        record = lgq.evaluate(saved, photos, images=9_999, image_size=SIDE, **FAST)
    assert record.fields["images"] == 12


def test_a_continuous_autoencoder_is_measured_by_all_but_codes(photos, tmp_path):
    Tokenizer(BACKBONE, CONTINUOUS, codebook_size=1).save_pretrained(tmp_path / "saved")
    record = lgq.evaluate(tmp_path / "saved", photos, image_size=SIDE, **FAST)
    assert record.metrics["psnr"] > 0
    codes = {"utilization", "perplexity", "normalized_entropy", "top_percent_mass", "dead_codes"}
    assert not codes & record.metrics.keys()
    assert all("has no codes" in record.absent[name] for name in codes)
    assert (record.directory / "worst.png").exists()
    with pytest.raises(LGQError, match="`geometry` studies codes"):
        lgq.evaluate(tmp_path / "saved", photos, image_size=SIDE, geometry="pca", **FAST)


def test_a_loaded_model_and_a_data_set_give_the_same_metrics_and_no_files(saved, photos, tmp_path):
    expected = lgq.evaluate(saved, photos, image_size=SIDE, **FAST)
    tokenizer, data = lgq.load_tokenizer(saved), FolderDataset(photos)
    record = lgq.evaluate(tokenizer, data, image_size=SIDE, **FAST)
    assert record.directory is record.fields["run"] is None
    fields, expected_fields = (json.loads(x.to_json()) for x in (record, expected))
    assert {name for name in fields if fields[name] != expected_fields[name]} == {"command", "run", "weights"}
    assert lgq.evaluate(tokenizer, data, image_size=SIDE, out=tmp_path / "out", **FAST).directory
    assert (tmp_path / "out" / "results.jsonl").is_file()


def test_a_generator_is_measured_by_images_and_tokens(photos, tmp_path):
    generator, tokens = build_generator(), write_val_tokens(tmp_path / "tokens")
    options = FAST | {"samples": 10, "sampling_seeds": [0, 1], "sampling": Sampling(steps=2)}
    record = lgq.evaluate(generator, photos, tokens=tokens, **options)
    assert record.metrics.keys() == {"gfid", "kid", "precision", "recall", "inception_score"}
    assert record.likelihood["nll"] > 0
    assert record.draw().keys() == {"samples"}
    few = lgq.evaluate(generator, photos, images=4, sampling=Sampling(steps=2), sampling_seeds=[0], **FAST)
    assert (few.fields["images"], few.fields["fid"]["reference_images"]) == (4, 4)
    only_tokens = lgq.evaluate(generator, tokens=tokens, masked_images=3, batch_size=4)
    assert (only_tokens.metrics, only_tokens.likelihood["images"]) == ({}, 3)


@pytest.mark.parametrize(
    ("build_model", "options", "message"),
    [
        (build, {}, "evaluated on images: give `data`"),
        (
            build,
            {"data": ".", "sampling_seeds": (1,)},
            "a tokenizer, to which `sampling_seeds` does not apply",
        ),
        (build, {"data": ".", "sampling": Sampling(steps=3)}, "to which `steps` does not apply"),
        (build_generator, {}, "give `data`, `reference`, or `tokens`"),
        (build_generator, {"resamples": 2}, "a generator, to which `resamples` does not apply"),
        (build_generator, {"image_size": 8}, "this is a generator, to which `image_size` does not apply"),
        (build_generator, {"train_tokens": "t", "reference": "r"}, "no effect without `tokens`"),
        (build_generator, {"images": 3, "tokens": "t"}, "`images` has no effect without `data`"),
        (build_generator, {"tokens": "t", "sampling_seeds": (1,)}, "no effect without `data` or `reference`"),
        (build_generator, {"tokens": "t", "masked_images": 0}, "`masked_images` must be at least 1, got 0"),
    ],
)
def test_options_that_do_not_apply_are_named(build_model, options, message):
    with pytest.raises(lgq.LGQError, match=message):
        lgq.evaluate(build_model(), **options)


def everything(folder: str) -> list[str]:
    """Records of a tokenizer (twice, so that features are cached) and of a generator.

    The first data set, the tokens and the samples are so few that one of two processes has none.
    """
    with pytest.MonkeyPatch.context() as patch:
        use_cheap_networks(patch, Path(f"{folder}/cache-{world_size()}"))
        options = FAST | {"out": f"{folder}/out-{world_size()}"}
        records = [
            lgq.evaluate(
                f"{folder}/saved", f"{folder}/{name}", image_size=16, resamples=3, geometry="pca", **options
            )
            for name in ("half", "photos", "photos")
        ]
        generator = MaskGIT.from_pretrained(f"{folder}/generator")
        few = {"samples": 3, "sampling_seeds": (0, 1), "sampling": Sampling(steps=2)}
        records.append(
            lgq.evaluate(generator, f"{folder}/photos", tokens=f"{folder}/tokens", **options, **few)
        )
    return [record.to_json() for record in records]


def test_under_torchrun_all_processes_return_the_record_of_one_and_the_first_writes_it(saved, tmp_path):
    put_pictures(tmp_path / "photos", 11, broken=(3,))
    put_pictures(tmp_path / "half", 2, broken=(1,))
    build_generator().save_pretrained(tmp_path / "generator")
    write_val_tokens(tmp_path / "tokens")
    first, second = on_processes(2, tmp_path, everything, str(tmp_path))
    assert first == second
    records, alone = ([json.loads(text) for text in texts] for texts in (first, everything(str(tmp_path))))
    assert read_results(tmp_path / "out-2" / "results.jsonl") == records
    for record, expected in zip(records, alone, strict=True):
        assert record.keys() == expected.keys()
        measures = {"metrics", "std", "bootstrap_std", "standard_error"}
        for name in measures & record.keys():
            assert record[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7)
        computed = measures | {"seeds", "likelihood", "geometry"}
        for name in record.keys() - computed - {"command", "environment"}:
            assert record[name] == expected[name], name
    together, by_one = (scores_of(tmp_path / f"out-{processes}") for processes in (2, 1))
    assert [row["name"] for row in together] == [f"{i:02}.png" for i in range(11) if i != 3]
    for row, expected in zip(together, by_one, strict=True):
        assert row["name"] == expected["name"]
        assert float(row["psnr"]) == pytest.approx(float(expected["psnr"]), rel=1e-5)
    assert records[0]["images"] == 1
    assert records[0]["broken"].keys() == {"01.png"}
    assert records[1]["geometry"]["metrics"] == pytest.approx(alone[1]["geometry"]["metrics"])
    assert records[3]["likelihood"]["nll"] == pytest.approx(alone[3]["likelihood"]["nll"], rel=1e-6)


SCORES = [
    ImageScore(i, f"{i}.png", psnr, 0.5, None)
    for i, psnr in enumerate([20.0, 31.0, torch.inf, 25.0, 18.0, 25.0, 22.0])
]


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        (SCORES, 2, {"best": [2, 1], "median": [3, 5], "worst": [4, 0]}),
        (SCORES, 1, {"best": [2], "median": [5], "worst": [4]}),
        (SCORES[:3], 8, {"best": [2, 1, 0], "median": [2, 1, 0], "worst": [0, 1, 2]}),
        ([], 1, {"best": [], "median": [], "worst": []}),
    ],
)
def test_best_median_and_worst_are_ranked_by_psnr(scores, count, expected):
    groups = best_median_worst(scores, count)
    assert {name: [score.number for score in group] for name, group in groups.items()} == expected


def test_enlarged_images_are_counted_once_with_the_size_that_enlarges_none(tmp_path):
    folder = put_pictures(tmp_path / "mixed", 5)
    with Image.open(folder / "00.png") as small:
        small.resize((40, 40)).save(folder / "large.png")
    with pytest.warns(LGQWarning, match="5 of 6 images are smaller than 24 x 24") as warned:
        record = lgq.evaluate(build(), folder, image_size=24, **FAST)
    own = [str(warning.message) for warning in warned if "enlarged" in str(warning.message)]
    assert len(own) == 1
    assert own[0].endswith("`image_size` 20 enlarges none.")
    assert (record.fields["enlarged"], record.fields["image_size"]) == (5, 24)


def test_images_as_large_as_the_size_raise_no_warning_of_it(photos):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        record = lgq.evaluate(build(), photos, image_size=20, **FAST)
    assert record.fields["enlarged"] == 0
    assert not any("enlarged" in str(warning.message) for warning in warned)
