"""One word on the command line opens any kind of data set, or says in one line why not."""

import pytest
from shard_files import picture, write_shard

from lgq.data import DataError, FolderDataset, PipeDataset, SampleDataset, ShardDataset, open_dataset


def test_a_folder_opens_as_text_or_as_path(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(1))
    for spec in (tmp_path, str(tmp_path), f"{tmp_path}/"):
        assert isinstance(open_dataset(spec), FolderDataset)


def test_shards_open_by_name_by_braces_and_by_star(tmp_path):
    for i in range(2):
        write_shard(tmp_path / f"t-{i}.tar", i, 1)
    for pattern, images in (("t-0.tar", 1), ("t-{0..1}.tar", 2), ("t-*.tar", 2)):
        dataset = open_dataset(f"{tmp_path}/{pattern}")
        assert isinstance(dataset, ShardDataset)
        assert len(dataset) == images


def test_a_pipe_opens_one_command_a_shard_and_starts_none(tmp_path):
    stream = open_dataset(f"pipe:touch {tmp_path}/x; cat ~/t-{{08..10}}.tar")
    assert isinstance(stream, PipeDataset)
    assert stream.commands == tuple(f"touch {tmp_path}/x; cat ~/t-{i}.tar" for i in ("08", "09", "10"))
    assert not list(tmp_path.iterdir())


def test_a_folder_may_look_like_a_shard(tmp_path):
    (tmp_path / "x.tar").mkdir()
    (tmp_path / "x.tar/a.png").write_bytes(picture(1))
    assert isinstance(open_dataset(tmp_path / "x.tar"), FolderDataset)


def test_the_home_directory_has_its_short_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.png").write_bytes(picture(1))
    assert len(open_dataset("~")) == 1


def test_sample_is_the_training_side_and_held_out_the_other():
    for spec, split in (("sample", "train"), ("sample:train", "train"), ("sample:held-out", "held-out")):
        dataset = open_dataset(spec)
        assert isinstance(dataset, SampleDataset)
        assert dataset.split == split


def test_a_folder_called_sample_is_reached_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample/a.png").write_bytes(picture(1))
    assert isinstance(open_dataset("./sample"), FolderDataset)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "no/such/folder",
        "no-{0..3}.tar",
        "no-*.tar",
        "sample:",
        "sample:all",
        "https://x.org/a.tar",
        "pipe:",
        "pipe:cat {a}.tar",
        "no.zip",
    ],
)
def test_what_cannot_be_opened_is_one_clear_line(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        open_dataset(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 20
