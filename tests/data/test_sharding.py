"""Shards hold the bytes, labels and names of any data set, and are the same whatever stopped their making."""

import io
import json
import os
import signal
import tarfile
from itertools import count
from multiprocessing import get_context

import pytest
from PIL import Image
from shard_files import picture, write_shard, write_tar

from lgq.data import DataError, FolderDataset, SampleDataset, ShardDataset, open_dataset
from lgq.data.shard_writer import INDEX, UNFINISHED, safe_key, shard
from lgq.files import LOCK_FILE

# torch finds two workers too many on a machine with one core.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def photos(tmp_path):
    """Eleven pictures of two classes and of none, in three formats; two cannot be stored."""
    folder = tmp_path / "photos"
    for i in range(9):
        kind = ("PNG", "JPEG", "WEBP")[i % 3]
        path = folder / ("cat", "dog", ".")[i % 3 - 1] / f"{i}.{kind.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(i, kind))
    (folder / "dog/damaged.jpg").write_bytes(picture(1, "JPEG")[:-200])
    (folder / "dog/drawing.gif").write_bytes(picture(2, "GIF"))
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != LOCK_FILE}


def stems(images, *, skip=0):
    """Bytes, label, and name without the suffix, which says the format of the bytes in a shard."""
    return [
        (image.data, image.label, "/".join(image.name.split("/")[skip:]).rpartition(".")[0])
        for image in images
    ]


def readable(folder):
    return [image for image in FolderDataset(folder) if "/d" not in image.name]


def test_shards_hold_all_of_a_folder_and_list_what_cannot_be_stored(photos, tmp_path):
    index = shard(FolderDataset(photos), tmp_path / "out", shard_size=4)
    dataset = open_dataset(f"{tmp_path}/out/{index.pattern}")
    assert stems(dataset, skip=1) == stems(readable(photos))
    assert dataset.classes == FolderDataset(photos).classes == ("cat", "dog")
    assert [record.images for record in index.shards] == [4, 4, 1]
    assert index.images == 9
    assert list(open_dataset(f"pipe:cat {tmp_path}/out/{index.pattern}").images(1)) == list(dataset)[4:8]
    assert all((tmp_path / "out" / record.file).stat().st_size == record.bytes for record in index.shards)
    assert set(index.broken) == {"dog/damaged.jpg", "dog/drawing.gif"}
    assert "not GIF: convert it" in index.broken["dog/drawing.gif"]
    written = json.loads((tmp_path / "out/index.json").read_text())
    assert [name for record in written["shards"] for name, _ in record["broken"]] == list(index.broken)


def test_a_seed_shuffles_and_none_keeps_the_order(tmp_path):
    source = ShardDataset([write_shard(tmp_path / "a.tar", 0, 30)])
    orders = []
    for out, seed in (("none", None), ("0", 0), ("0 again", 0), ("1", 1)):
        shard(source, tmp_path / out, seed=seed)
        dataset = ShardDataset([tmp_path / out / "shard-000000.tar"])
        assert all(image.data == picture(image.label) for image in dataset)
        orders.append([image.label for image in dataset])
    assert orders[0] == list(range(30))
    assert orders[1] == orders[2]
    assert len({tuple(order) for order in orders}) == 3
    assert sorted(orders[1]) == orders[0]


def test_bytes_end_a_shard_before_its_images_do(tmp_path):
    source = ShardDataset([write_tar(tmp_path / "a.tar", [(f"{i}.png", picture(9)) for i in range(7)])])
    size = len(picture(9))
    index = shard(source, tmp_path / "out", shard_bytes=3 * size + 10)
    assert [record.images for record in index.shards] == [3, 3, 1]
    tiny = shard(source, tmp_path / "tiny", shard_bytes=1)
    assert [record.images for record in tiny.shards] == [1] * 7


def test_keys_hold_nothing_that_shards_or_systems_stumble_over():
    names = ["a.jpg", "x/a.b.c.jpeg", "t.tar/x.y/a.png", "a\nb\\c\x00.png", "t.tar/.png", "bare"]
    keys = ["a", "x/a_b_c", "t.tar/x.y/a", "a_b_c_", "t.tar/_png", "bare"]
    assert [safe_key(name) for name in names] == keys


def test_names_that_would_share_a_key_get_their_own(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.b.png", "a_b.png", "a_b.jpg"):
        (folder / name).write_bytes(picture(len(name), "JPEG" if name.endswith("jpg") else "PNG"))
    (folder / os.fsdecode(b"\xff.png")).write_bytes(picture(9))
    (folder / ("x" * 200 + ".png")).write_bytes(picture(10))
    index = shard(FolderDataset(folder), tmp_path / "out")
    dataset = open_dataset(f"{tmp_path}/out/{index.pattern}")
    assert [image.data for image in dataset] == [image.data for image in FolderDataset(folder)]
    assert len({image.name.partition(".tar/")[2].rpartition(".")[0] for image in dataset}) == 5


def test_workers_and_times_and_owners_do_not_change_a_byte(photos, tmp_path):
    shard(FolderDataset(photos), tmp_path / "a", shard_size=4, seed=3)
    os.utime(photos / "0.png", (1, 1))
    shard(FolderDataset(photos), tmp_path / "b", shard_size=4, seed=3, workers=2)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    with tarfile.open(tmp_path / "a/shard-000000.tar") as tar:
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in tar} == {(0, 0, 0, "")}


def write_and_die(folder, out, moment):
    """Killed before the disk is asked for the `moment`-th time to keep or to rename a file."""
    moments = iter(range(moment))

    def or_die(act):
        def step(*arguments):
            if next(moments, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments)

        return step

    os.replace, os.fsync = or_die(os.replace), or_die(os.fsync)
    shard(FolderDataset(folder), out, shard_size=3, seed=1)


def test_a_writing_killed_between_any_two_steps_of_the_disk_goes_on_to_the_same_bytes(photos, tmp_path):
    shard(FolderDataset(photos), tmp_path / "unbroken", shard_size=3, seed=1)
    for moment in count():
        out = tmp_path / str(moment)
        process = get_context("fork").Process(target=write_and_die, args=(photos, out, moment))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kept = {path: path.stat().st_ino for path in out.glob("*.tar")}
        shard(FolderDataset(photos), out, shard_size=3, seed=1)
        assert content(out) == content(tmp_path / "unbroken")
        rewritten = [path for path, inode in kept.items() if path.stat().st_ino != inode]
        assert len(rewritten) <= 1, "only a shard that was not yet noted is written again"
    assert moment > 10


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_finished_directory_is_mended(photos, tmp_path, damage):
    data = FolderDataset(photos)
    shard(data, tmp_path / "out", shard_size=2)
    before = content(tmp_path / "out")
    victim = tmp_path / "out/shard-000001.tar"
    victim.unlink() if damage == "gone" else victim.write_bytes(b"half")
    shard(data, tmp_path / "out", shard_size=2)
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"shard_size": 3}, "`shard_size` is 2, not 3"),
        ({"shard_size": 2, "seed": 0}, "`seed` is None, not 0"),
        ({"shard_size": 2, "shard_bytes": 5}, "`shard_bytes` is None, not 5"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_in_the_same_directory_are_refused(photos, tmp_path, settings, named, finished):
    data = FolderDataset(photos)
    shard(data, tmp_path / "out", shard_size=2)
    if not finished:
        (tmp_path / "out" / INDEX).rename(tmp_path / "out" / UNFINISHED)
    before = content(tmp_path / "out")
    with pytest.raises(DataError, match=named):
        shard(data, tmp_path / "out", **settings)
    assert content(tmp_path / "out") == before


def test_other_data_and_other_directories_are_refused(photos, tmp_path):
    shard(FolderDataset(photos), tmp_path / "out")
    with pytest.raises(DataError, match="holds other shards: their `source` is"):
        shard(SampleDataset(), tmp_path / "out")
    with pytest.raises(DataError, match="holds other files than shards"):
        shard(FolderDataset(photos), photos)
    with pytest.raises(DataError, match="is a file"):
        shard(FolderDataset(photos), photos / "dog/damaged.jpg")
    (tmp_path / "out/index.json").write_text("{}")
    with pytest.raises(DataError, match=r"cannot continue .*index\.json"):
        shard(FolderDataset(photos), tmp_path / "out")


def test_settings_that_make_no_shard_and_images_that_cannot_be_stored_leave_none(tmp_path):
    data = ShardDataset([write_tar(tmp_path / "a.tar", [("a.png", b"damaged"), ("b.png", b"")])])
    for settings in ({"shard_size": 0}, {"shard_bytes": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"`{next(iter(settings))}` must be at least"):
            shard(data, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match=r"none of 2 images of .* can be stored, such as a\.tar/a\.png"):
        shard(data, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar*"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["cat"]', "names 1 classes, but a label is 4"),
        ('{"0": "cat"}', "must be a list of names"),
        ("[1, 2, 3, 4, 5]", "must be a list of names"),
        ('[{"wnid": "n02121808"}]', "must be a list of names"),
        ('[{"class": 1, "name": "dog"}, {"class": 0, "name": "cat"}]', "that counts from 0"),
        ("[", "cannot read"),
    ],
)
def test_names_of_classes_that_do_not_fit_the_labels_are_refused(tmp_path, text, message):
    path = write_shard(tmp_path / "a.tar", 0, 5)
    (tmp_path / "classes.json").write_text(text)
    with pytest.raises(DataError, match=rf"classes\.json.*{message}|{message}.*classes\.json"):
        ShardDataset([path])


def test_a_large_jpeg_that_ends_early_is_found_though_it_is_decoded_small(tmp_path):
    buffer = io.BytesIO()
    Image.effect_noise((600, 400), 60).save(buffer, "JPEG")
    (tmp_path / "in").mkdir()
    for name, data in (("whole", buffer.getvalue()), ("cut", buffer.getvalue()[:-3_000])):
        (tmp_path / f"in/{name}.jpg").write_bytes(data)
    assert list(shard(FolderDataset(tmp_path / "in"), tmp_path / "out").broken) == ["cut.jpg"]


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ('["cat", "dog", "owl"]', ("cat", "dog", "owl")),
        ('[{"class": 0, "wnid": "n02121808", "name": "cat"}, {"name": ""}]', ("cat", "")),
    ],
)
def test_classes_have_names_and_may_have_no_images(tmp_path, text, classes):
    path = write_shard(tmp_path / "a.tar", 0, 2)
    (tmp_path / "classes.json").write_text(text)
    assert ShardDataset([path]).classes == classes
