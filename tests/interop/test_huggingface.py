"""Data sets of Hugging Face: images to shards byte for byte, and tokens to a data set of theirs."""

import io
import pickle
import sys

import datasets
import pytest
import torch
from PIL import Image

import lgq
from lgq.data.shards import ShardDataset
from lgq.errors import LGQError
from lgq.interop.huggingface import HuggingFaceImages, tokens_to_datasets
from lgq.models.autoencoder import Backbone
from lgq.tokenizer import Tokenizer

TINY = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)
LABELS = datasets.ClassLabel(names=["cat", "dog"])


def picture(shade: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 90, 30)).save(file, kind)
    return file.getvalue()


def pictures(labels: list[int | None] | None, feature: object = LABELS) -> datasets.Dataset:
    count = 4 if labels is None else len(labels)
    images = [{"bytes": picture(40 * i, "JPEG" if i % 2 else "PNG"), "path": None} for i in range(count)]
    features = {"image": datasets.Image()} | ({} if labels is None else {"label": feature})
    rows = {"image": images} | ({} if labels is None else {"label": labels})
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


@pytest.mark.parametrize("workers", [0, 1])
def test_images_become_shards_byte_for_byte_with_their_labels(workers, tmp_path):
    images = HuggingFaceImages(pictures([1, 0, 1, None]))
    index = lgq.shard(images, tmp_path / "shards", workers=workers)
    stored = ShardDataset.from_pattern(str(tmp_path / "shards" / index.pattern))
    assert stored.classes == images.classes == ("cat", "dog")
    assert [stored[i].label for i in range(4)] == [1, 0, 1, None]
    expected = [picture(40 * i, "JPEG" if i % 2 else "PNG") for i in range(4)]
    assert [stored[i].data for i in range(4)] == [images[i].data for i in range(4)] == expected
    assert lgq.shard(images, tmp_path / "shards") == index  # the same call continues


def test_labels_are_class_labels_or_numbers_or_left_out():
    numbers = HuggingFaceImages(pictures([2, 0, 1, 0], datasets.Value("int64")))
    assert numbers.classes == ("0", "1", "2")
    assert [numbers[i].label for i in range(4)] == [2, 0, 1, 0]
    for images in (HuggingFaceImages(pictures(None)), HuggingFaceImages(pictures([1, 0]), label=None)):
        assert images.classes == ()
        assert images[0].label is None
    assert pickle.loads(pickle.dumps(numbers))[1] == numbers[1]


def test_images_in_files_are_read_and_missing_ones_are_listed(tmp_path):
    (tmp_path / "here.png").write_bytes(picture(7))
    rows = {"image": [str(tmp_path / "here.png"), str(tmp_path / "gone.png"), None]}
    features = datasets.Features({"image": datasets.Image()})
    images = HuggingFaceImages(datasets.Dataset.from_dict(rows, features=features))
    assert images[0].data == picture(7)
    index = lgq.shard(images, tmp_path / "shards")
    assert index.images == 1
    assert index.broken.keys() == {"00000001", "00000002"}


@pytest.mark.parametrize("settings", [{}, {"stages": 2}, {"scales": (1, 2, 4)}])
@pytest.mark.parametrize("flips", [False, True])
def test_tokens_become_a_data_set_of_the_same_tokens_labels_and_names(settings, flips, tmp_path):
    tokenizer = Tokenizer(TINY, "vq", 300, **settings).eval()
    images = HuggingFaceImages(pictures([1, 0, 1, 0]))
    tokens = lgq.encode(tokenizer, images, tmp_path / "tokens", image_size=8, flips=flips)
    table = tokens_to_datasets(tmp_path / "tokens", cache_dir=tmp_path / "cache").with_format("numpy")
    assert len(table) == 4
    assert ("flipped" in table.column_names) == flips
    assert table.features["label"].names == ["cat", "dog"]
    assert "uint16" in str(table.features["tokens"])  # in files as narrow as in ours
    for i in range(4):
        row, image = table[i], tokens[i]
        assert torch.equal(torch.from_numpy(row["tokens"]), image.tokens)
        assert (row["label"], row["name"]) == (image.label, image.name)
        if flips:
            assert (row["flipped"] == tokens.flipped(i).numpy()).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: HuggingFaceImages(datasets.DatasetDict(train=pictures(None))),
            "got DatasetDict: choose a split",
        ),
        (lambda: HuggingFaceImages(pictures([1, 0]), image="img"), "got 'img': its images are in image"),
        (lambda: HuggingFaceImages(pictures([1, 0]), image="label"), "got 'label': its images are in image"),
        (lambda: HuggingFaceImages(pictures(["a", "b"], datasets.Value("string"))), "got 'label' of Value"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_has_no_images_or_labels_is_refused_in_one_sentence(call, message):
    with pytest.raises(LGQError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_without_datasets_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LGQError, match=r"pip install 'lgq\[datasets\]'"):
        tokens_to_datasets(tmp_path)
