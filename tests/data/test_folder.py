"""A folder gives every image once, in one order, with the first-level directory as its class."""

import errno
import logging
import os
import pickle

import pytest
from PIL import Image

from lgq.data.folder import FileDataset, FolderDataset, require_apart
from lgq.data.images import BrokenImage, DataError


def put(path, colour="red", kind=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), colour).save(path, kind)
    return path


def names(dataset):
    return [dataset[i].name for i in range(len(dataset))]


def test_first_level_directories_are_classes_in_sorted_order(tmp_path):
    for name in ("zebra/1.png", "ant/b.png", "ant/2020/may/a.png", "Mole/x.png", "stray.png"):
        put(tmp_path / name)
    dataset = FolderDataset(tmp_path)
    assert dataset.classes == ("Mole", "ant", "zebra")
    assert [(item.name, item.label) for item in dataset] == [
        ("Mole/x.png", 0),
        ("ant/2020/may/a.png", 1),
        ("ant/b.png", 1),
        ("stray.png", None),
        ("zebra/1.png", 2),
    ]


def test_pictures_of_formats_that_are_not_read_are_counted(tmp_path, caplog):
    for name in ("a.png", "b.HEIC", "album/c.dng", "notes.txt", ".d.heic"):
        put(tmp_path / name, kind="PNG")
    with caplog.at_level(logging.INFO, "lgq"):
        assert names(FolderDataset(tmp_path)) == ["a.png"]
    assert caplog.messages == [f"{tmp_path} has 2 files with a suffix that is not read: .dng, .heic"]
    with pytest.raises(DataError, match=r"no image .* It has 1 file with a suffix that is not read: \.dng\."):
        FolderDataset(tmp_path / "album")


@pytest.mark.parametrize("suffix", ["jpg", "JPG", "jpeg", "png", "webp", "gif", "bmp", "tif", "TIFF"])
def test_every_known_suffix_is_found_in_either_case(tmp_path, suffix):
    put(tmp_path / f"a.{suffix}", kind={"jpg": "JPEG", "tif": "TIFF"}.get(suffix.lower(), suffix.upper()))
    (tmp_path / "notes.txt").write_text("not an image")
    assert names(FolderDataset(tmp_path)) == [f"a.{suffix}"]


def test_hidden_files_pipes_devices_and_directories_without_images_do_not_count(tmp_path):
    for name in ("cat/a.png", ".cache/b.png", "cat/._a.png"):
        put(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "logs").mkdir()
    dataset = FolderDataset(tmp_path)
    assert names(dataset) == ["cat/a.png"]
    assert dataset.classes == ("cat",)
    copy = pickle.loads(pickle.dumps(dataset))
    assert (list(copy), copy.classes) == (list(dataset), dataset.classes)


def test_links_are_followed_circles_end_and_dangling_ones_are_broken_images(tmp_path):
    put(tmp_path / "elsewhere/deep/a.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/circle").symlink_to(tmp_path / "data")
    assert names(FolderDataset(tmp_path / "data")) == ["cat/deep/a.png"]
    (tmp_path / "data/gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(BrokenImage, match=r"gone\.png: No such file"):
        FolderDataset(tmp_path / "data")[1]


def test_names_need_not_be_text(tmp_path):
    put(tmp_path / "größe/ü 1.png")
    strange = os.fsdecode(b"\xff.png")
    try:
        put(tmp_path / "größe" / strange)
    except OSError:
        pytest.skip("this file system stores Unicode only")
    assert names(FolderDataset(tmp_path)) == ["größe/ü 1.png", f"größe/{strange}"]


def test_a_wrong_path_is_one_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist.*folder of images"):
        FolderDataset(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"a\.png is a file"):
        FolderDataset(put(tmp_path / "a.png"))
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=r"hold no image \(\.jpg"):
        FolderDataset(tmp_path / "cat")
    (tmp_path / "cat/train-000.tar").touch()
    with pytest.raises(DataError, match=r"did you mean .*/\*\.tar"):
        FolderDataset(tmp_path / "cat")


def test_a_forbidden_folder_is_one_clear_error(tmp_path, monkeypatch):
    put(tmp_path / "a.png")

    def refuse(folder):  # root may list every folder, so permissions alone would not do
        raise PermissionError(errno.EACCES, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=rf"cannot list {tmp_path}: Permission denied"):
        FolderDataset(tmp_path)


@pytest.mark.parametrize("has_pictures", [True, False])
def test_files_that_are_named_keep_no_folder_for_themselves(tmp_path, has_pictures):
    file = put(tmp_path / "cats" / "a.png")
    for place in (file.parent, file.parent / "pictures"):
        require_apart(place, FileDataset([file]), has_pictures=has_pictures)
    with pytest.raises(DataError, match="is the folder of the images"):
        require_apart(file.parent, FileDataset([file, file.parent]), has_pictures=has_pictures)
