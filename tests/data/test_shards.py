"""Shards give random access to the images of local tar files, and nothing outside of them."""

import pickle
import tarfile
from multiprocessing import get_context

import pytest
from shard_files import picture, write_shard, write_tar

from lgq.data.images import DataError, EncodedImage, decode
from lgq.data.shards import _OPEN_FILES, ShardDataset, expand_braces


def shades(dataset):
    return [decode(data, name)[0, 0, 0].item() for data, _, name in dataset]


def test_images_come_with_their_labels_in_the_order_of_the_shards(tmp_path):
    dataset = ShardDataset([write_shard(tmp_path / "b.tar", 7, 2), write_shard(tmp_path / "a.tar", 3, 2)])
    places = [("b", 7), ("b", 8), ("a", 3), ("a", 4)]
    assert list(dataset) == [EncodedImage(picture(i), i, f"{shard}.tar/000{i}.png") for shard, i in places]
    assert dataset.classes == tuple("012345678")
    assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset), "a worker reads the same"


def test_labels_find_their_image_wherever_they_stand(tmp_path):
    members = [("b.cls", b"2"), ("x/a.png", picture(1)), ("b.png", picture(2)), ("x/a.cls", b"1")]
    dataset = ShardDataset([write_tar(tmp_path / "a.tar", [*members, ("c.png", picture(3))])])
    labels = {item.name: item.label for item in dataset}
    assert labels == {"a.tar/x/a.png": 1, "a.tar/b.png": 2, "a.tar/c.png": None}


def link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_links_and_devices_are_not_followed(tmp_path):
    (tmp_path / "secret.png").write_bytes(picture(99))
    members = [
        link("a.png", str(tmp_path / "secret.png"), tarfile.SYMTYPE),
        link("b.png", "../secret.png", tarfile.LNKTYPE),
        link("c.png", "", tarfile.CHRTYPE),
        link("d.png", "", tarfile.DIRTYPE),
        ("e.png", picture(1)),
    ]
    assert shades(ShardDataset([write_tar(tmp_path / "a.tar", members)])) == [1]


@pytest.mark.parametrize("name", ["/etc/x.png", "../../etc/x.png", "./etc/../../etc/x.png", "//etc/x.png"])
def test_names_never_lead_outside(tmp_path, name):
    item = ShardDataset([write_tar(tmp_path / "a.tar", [(name, picture(1))])])[0]
    assert not set(item.name.split("/")) & {"", ".", ".."}
    assert item.name.endswith("etc/x.png")
    assert item.data == picture(1)


def test_forked_readers_do_not_disturb_each_other(tmp_path):
    dataset = ShardDataset([write_shard(tmp_path / "a.tar", 0, 60)])
    expected = [dataset[i].data for i in range(60)]
    with get_context("fork").Pool(2) as pool:
        images = pool.map(dataset.__getitem__, list(range(60)) * 3, chunksize=1)
    assert [item.data for item in images] == expected * 3


def test_more_shards_than_files_may_be_open(tmp_path):
    paths = [write_shard(tmp_path / f"{i:03d}.tar", i, 1) for i in range(_OPEN_FILES + 6)]
    dataset = ShardDataset(paths)
    assert shades(dataset) == shades(dataset) == list(range(_OPEN_FILES + 6))
    assert len(dataset._files) <= _OPEN_FILES


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("t-{000..002}.tar", ["t-000.tar", "t-001.tar", "t-002.tar"]),
        ("t-{8..11}.tar", ["t-8.tar", "t-9.tar", "t-10.tar", "t-11.tar"]),
        ("t-{2..0}.tar", ["t-2.tar", "t-1.tar", "t-0.tar"]),
        ("{val,train}-{0..1}.tar", ["val-0.tar", "val-1.tar", "train-0.tar", "train-1.tar"]),
        ("a{,b}.tar", ["a.tar", "ab.tar"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern, expected):
    assert expand_braces(pattern) == expected


@pytest.mark.parametrize("pattern", ["{a}.tar", "{}.tar", "{0..}.tar", "{a,{b,c}}.tar"])
def test_braces_that_mean_nothing_are_refused(pattern):
    with pytest.raises(DataError, match="braces hold"):
        expand_braces(pattern)


def test_patterns_mix_braces_and_stars_and_open_a_shard_once(tmp_path):
    for name, first in (("train-0", 0), ("train-1", 10), ("val-0", 20)):
        write_shard(tmp_path / f"{name}.tar", first, 1)
    assert shades(ShardDataset.from_pattern(f"{tmp_path}/{{val-0,train-*,train-1}}.tar")) == [20, 0, 10]


def test_missing_shards_and_shards_without_images_are_one_clear_error(tmp_path):
    write_shard(tmp_path / "t-0.tar", 0, 3)
    for pattern, missing in (("t-{0..2}", r"t-1"), ("v-*", r"v-\*")):
        with pytest.raises(DataError, match=rf"no shard at .*{missing}\.tar"):
            ShardDataset.from_pattern(f"{tmp_path}/{pattern}.tar")
    with pytest.raises(DataError, match=r"a\.tar.* holds no image; members must be named <key>\.jpg"):
        ShardDataset([write_tar(tmp_path / "a.tar", [("a.json", b"{}")])])
    with pytest.raises(DataError, match="at least one tar file"):
        ShardDataset([])


@pytest.mark.parametrize("label", [b"cat", b"-1", b"", b"1.5", b"9" * 30, b"1000000"])
def test_a_label_that_is_no_class_is_named(tmp_path, label):
    path = write_tar(tmp_path / "a.tar", [("a.png", picture(1)), ("a.cls", label)])
    with pytest.raises(DataError, match=r"a\.tar/a\.cls: a label is a number"):
        ShardDataset([path])


DAMAGES = {
    "empty": lambda whole: b"",
    "text": lambda whole: b"not found" * 200,
    "cut in an image": lambda whole: whole[: 512 * 5 + 100],
    "cut in a header": lambda whole: whole[: 512 * 8 + 100],
    "damaged header": lambda whole: whole[: 512 * 8] + b"\xff" * 512 + whole[512 * 9 :],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_no_whole_tar_is_one_clear_error(tmp_path, damage):
    path = write_shard(tmp_path / "a.tar", 0, 9)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(DataError, match=r"a\.tar is"):
        ShardDataset([path])
