"""One word on the command line opens any kind of data set, or says in one line why not."""

from pathlib import Path

import pytest
from shard_files import picture, write_shard

from lgq.data import (
    BrokenImage,
    DataError,
    EncodedImage,
    FileDataset,
    FolderDataset,
    PipeDataset,
    SampleDataset,
    ShardDataset,
    open_dataset,
)
from lgq.data.images import Subset


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working and home directory with two shards, two folders of odd names, and an image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for i in range(2):
        write_shard(tmp_path / f"t-{i}.tar", i, 1)
    for path in (tmp_path / "x.tar", tmp_path / "sample"):
        path.mkdir()
        (path / "a.png").write_bytes(picture(1))
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "kind", "images"),
    [
        *((spec, FolderDataset, 2) for spec in ("~", "~/", ".", Path())),
        ("x.tar", FolderDataset, 1),
        ("./sample", FolderDataset, 1),
        *((spec, ShardDataset, 2) for spec in ("t-{0..1}.tar", "t-*.tar", "~/t-{0,1}.tar")),
        ("t-0.tar", ShardDataset, 1),
        *((spec, FileDataset, 1) for spec in ("x.tar/a.png", "~/sample/a.png", ["x.tar/a.png"])),
        (["x.tar/a.png", Path("sample/a.png")], FileDataset, 2),
        (("~/x.tar/a.png", "sample", "x.tar"), FileDataset, 3),
        (["t-{0..1}.tar"], ShardDataset, 2),
        *((spec, SampleDataset, len(SampleDataset("train"))) for spec in ("sample", "sample:train")),
        ("sample:held-out", SampleDataset, len(SampleDataset("held-out"))),
    ],
)
@pytest.mark.usefixtures("here")
def test_data_opens_by_its_name(spec, kind, images):
    dataset = open_dataset(spec)
    assert isinstance(dataset, kind)
    assert len(dataset) == images
    assert open_dataset(dataset) is dataset


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("x.tar", "x.tar"),
        ("t-{0..1}.tar", "t-0.tar and 1 more"),
        (["x.tar/a.png", "sample"], "x.tar/a.png, sample"),
        ("sample:held-out", "sample:held-out"),
        ("pipe:cat t-{0..2}.tar", "pipe:cat t-0.tar and 2 more"),
    ],
)
@pytest.mark.usefixtures("here")
def test_messages_name_data_as_it_was_given(spec, shown):
    dataset = open_dataset(spec)
    assert str(dataset) == shown
    assert str(Subset(dataset, range(3))) == f"{shown}, images 0 to 2"
    assert str(Subset(dataset, [1], role="validation")) == f"1 images (validation) of {shown}"


def test_a_data_set_may_be_a_list_of_its_own():
    images = [EncodedImage(picture(1), None, "a"), EncodedImage(picture(2), 0, "b")]
    assert open_dataset(images) is images


@pytest.mark.usefixtures("here")
def test_files_keep_their_order_and_their_names():
    dataset = FileDataset(["sample", "x.tar/a.png", "gone.png"])
    assert [dataset[i].name for i in range(2)] == ["a.png", "a.png"]
    assert dataset[0].data == picture(1)
    assert dataset[0].label is None
    with pytest.raises(BrokenImage, match=r"gone\.png: No such file"):
        dataset[2]
    assert repr(dataset) == "FileDataset(sample, x.tar/a.png, gone.png: 3 images)"
    assert repr(FileDataset(["gone.png"] * 9)) == "FileDataset(gone.png, ..., gone.png: 9 images)"
    with pytest.raises(DataError, match="no image is named"):
        FileDataset([])


def test_a_pipe_opens_one_command_per_shard_and_starts_none(tmp_path):
    stream = open_dataset(f"pipe:touch {tmp_path}/x; cat ~/t-{{08..10}}.tar")
    assert isinstance(stream, PipeDataset)
    assert stream.commands == tuple(f"touch {tmp_path}/x; cat ~/t-{i}.tar" for i in ("08", "09", "10"))
    assert not list(tmp_path.iterdir())


NOWHERE = ["", "no/such/folder", "no-{0..3}.tar", "no-*.tar", "no.zip", "https://x.org/a.tar"]


@pytest.mark.parametrize("spec", [*NOWHERE, "sample:", "sample:all", "pipe:", "pipe:cat {a}.tar"])
@pytest.mark.usefixtures("here")
def test_what_cannot_be_opened_is_one_clear_line(spec):
    with pytest.raises(DataError) as caught:
        open_dataset(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 20
