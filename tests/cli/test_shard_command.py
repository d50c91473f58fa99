"""Much data, as a user types it: shards, streams, and what encoding would take."""

import json
import re

import pytest
from command_line import TINY_TOKENIZER, lgq
from PIL import Image
from safetensors.torch import load_file

from lgq import Tokenizer
from lgq.data import FolderDataset, open_dataset
from lgq.data.tokens import TokenDataset
from lgq.inference.encode import encode, estimate_encoding
from lgq.training.journal import read_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs of two classes, their shards, and a run of two steps on the stream of them."""
    folder = tmp_path_factory.mktemp("data")
    for i in range(10):
        path = folder / "photos" / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + i, 20), (20 * i, 40, 120)).save(path)
    shard(folder)
    train(folder)
    return folder


def shard(folder):
    lgq("shard", f"{folder}/photos", "--out", f"{folder}/shards", "--shard-size", "4", "--seed", "0")


def train(folder):
    shards = f"pipe:cat '{folder}/shards/'shard-{{000000..000002}}.tar"
    data = ["--data", shards, "--val-data", f"{folder}/photos"]
    lgq("train", "pocket-lgq", *data, "--out", f"{folder}/run", "--steps", "2", *TINY_TOKENIZER)


def test_shards_are_data_for_every_command(folder, capsys):
    shards = open_dataset(f"{folder}/shards/shard-*.tar")
    photos = FolderDataset(folder / "photos")
    assert sorted(image.data for image in shards) == sorted(image.data for image in photos)
    assert shards.classes == ("cat", "dog")
    lgq("encode", f"{folder}/run", "--data", f"{folder}/shards/shard-*.tar", "--out", f"{folder}/tokens")
    assert TokenDataset(folder / "tokens").classes == ("cat", "dog")


def test_the_end_names_the_pattern_of_the_shards(folder, capsys):
    shard(folder)
    line = capsys.readouterr().err.strip().replace("\n", "")
    assert line == f"lgq: 10 images in 3 shards: {folder}/shards/shard-{{000000..000002}}.tar"


def test_what_is_left_out_is_counted_and_listed(folder, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/bad.png").write_bytes(b"damaged")
    Image.new("RGB", (9, 9)).save(tmp_path / "in/good.png")
    lgq("shard", f"{tmp_path}/in", "--out", f"{tmp_path}/out", "--workers", "1")
    assert "1 images in 1 shard, 1 left out (listed in index.json)" in capsys.readouterr().err
    assert json.loads((tmp_path / "out/index.json").read_text())["shards"][0]["broken"][0][0] == "bad.png"


def test_a_run_on_a_stream_is_continued_by_the_same_command(folder, capsys):
    assert len([line for line in read_records(folder / "run") if line["split"] == "train"]) == 2
    train(folder)
    assert "all 2 steps are done" in capsys.readouterr().err
    config = json.loads((folder / "run/config.json").read_text())
    assert (config["data"]["shards"], config["data"]["readers"]) == (3, 1)


def test_a_dry_run_of_encode_says_what_it_takes_and_leaves_nothing(folder, tmp_path, capsys):
    command = ["encode", f"{folder}/run", "--data", f"{folder}/photos", "--out", f"{tmp_path}/out"]
    lgq(*command, "--batch-size", "2", "--shard-size", "4", "--dry-run")
    rows = dict(
        re.split(r" {2,}", line.strip(), maxsplit=1) for line in capsys.readouterr().out.strip().splitlines()
    )
    assert rows["images"] == "10"
    assert rows["token files"] == "3; a stop loses at most one"
    assert re.fullmatch(r"[\d.,]+ images/s, on 8 images and 1 process", rows["measured"])
    assert re.fullmatch(r"\d+ s", rows["time"])
    assert re.fullmatch(r"[\d,]+ h \d\d min|\d+ s", rows["a million images"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flips", [False, True])
def test_the_bytes_of_an_estimate_are_those_of_the_tokens(folder, tmp_path, flips):
    tokenizer, photos = Tokenizer.from_pretrained(folder / "run/best"), FolderDataset(folder / "photos")
    options = {"image_size": 16, "shard_size": 4, "flips": flips}
    cost = estimate_encoding(tokenizer, photos, **options)
    encode(tokenizer, photos, tmp_path, **options)
    tensors = [tensor for path in tmp_path.glob("*.safetensors") for tensor in load_file(path).values()]
    assert cost.bytes == sum(tensor.nbytes for tensor in tensors)
    assert cost.shards == len(list(tmp_path.glob("*.safetensors")))
    assert (cost.images, cost.measured, cost.processes) == (10, 10, 1)
    assert cost.seconds == pytest.approx(10 / cost.images_per_second)
