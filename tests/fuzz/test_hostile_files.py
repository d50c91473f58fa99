"""No attack runs code, takes unbounded memory, leaves its directory or controls the terminal.

More attacks are tested beside what they target: weights, tokenizers, shards, folders, images, reports.
"""

import io
import json
import os
import pickle
import resource
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fuzz import seeds
from fuzz.parsers import PARSERS
from lgq.cli import main
from lgq.cli.console import printable
from lgq.data import BrokenImage, DataError, FolderDataset, ShardDataset, open_dataset
from lgq.data.images import FILE_LIMIT
from lgq.errors import LGQError
from lgq.files import Fingerprint, sealed_json
from lgq.maskgit import MaskGIT
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import Checkpoints, read_manifest
from lgq.weights.convert import WeightsError, torchscript
from lgq.weights.download import read_member

HUGE = 2**45
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture(autouse=True)
def _at_most_one_more_gibibyte() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


class Trap:
    """Unpickling a trap creates a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def add_to_manifest(checkpoint: Path, name: str, data: bytes) -> None:
    """Name a file in the manifest, with the hash of its data."""
    manifest = asdict(read_manifest(checkpoint))
    manifest["files"][name] = asdict(Fingerprint.of(data))
    (checkpoint / "manifest.json").write_bytes(sealed_json(manifest))


def test_a_pickle_in_a_checkpoint_with_a_matching_hash_is_not_run(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path, data = checkpoints.save(3, seeds.state()), pickle.dumps(Trap(tmp_path / "sprung"))
    for name in ("state.safetensors", "state.json"):
        (path / name).write_bytes(data)
        add_to_manifest(path, name, data)
        with pytest.raises(LGQError, match="cannot load"):
            checkpoints.load(path)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(data)
    assert (tmp_path / "sprung").exists(), "the trap works"


@pytest.mark.parametrize("name", ["/dev/zero", "../../secret", "a\0b"])
def test_a_checkpoint_names_no_file_outside_of_itself(name, tmp_path):
    path = Checkpoints(tmp_path).save(3, seeds.state())
    add_to_manifest(path, name, b"")
    with pytest.raises(LGQError, match="is no file within it"):
        read_manifest(path)


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def claiming(archive: bytes, size: int) -> bytes:
    """The archive with a wrong size of its first member in the central directory."""
    place = archive.index(b"PK\x01\x02") + 24
    return archive[:place] + size.to_bytes(4, "little") + archive[place + 4 :]


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    bomb = zipped(**{"a/b": bytes(2**27)})
    assert len(bomb) < 2**18
    with pytest.raises(WeightsError, match="has 11 bytes instead of 10"):
        read_member(bomb, "a/b", Fingerprint.of(b"0123456789"))
    with pytest.raises(WeightsError, match="unpacks to over"):
        torchscript(claiming(zipped(**{"m/data.pkl": b"x"}), 2**32 - 2))
    (tmp_path / "a.npz").write_bytes(claiming(zipped(**{"mu.npy": b"x"}), 2**32 - 2))
    with pytest.raises(StatisticsError, match=r"unpacks to 4,294,967,294 bytes"):
        Gaussian.load(tmp_path / "a.npz")


def test_an_array_that_claims_terabytes_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (HUGE,)})
    (tmp_path / "a.npz").write_bytes(zipped(**{"mu.npy": header.getvalue(), "sigma.npy": header.getvalue()}))
    with pytest.raises(StatisticsError, match=r"\.npz file with"):
        Gaussian.load(tmp_path / "a.npz")


@pytest.mark.parametrize("claim", ["header", "tensor"])
def test_weights_that_claim_terabytes_are_refused(claim, tmp_path):
    seeds.tokenizers()[0].save_pretrained(tmp_path)
    tensor = {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}
    header = json.dumps({"encoder.stem.bias": tensor}).encode()
    size = HUGE if claim == "header" else len(header)
    (tmp_path / "model.safetensors").write_bytes(size.to_bytes(8, "little") + header)
    with pytest.raises(LGQError, match="damaged or cut short"):
        Tokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.GNUTYPE_SPARSE]
)
def test_a_shard_that_claims_terabytes_is_refused(kind, tmp_path):
    header = tarfile.TarInfo("a.png")
    header.size, header.type = HUGE, kind
    (tmp_path / "a.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(DataError, match="not a whole, uncompressed tar file"):
        ShardDataset([tmp_path / "a.tar"])
    with pytest.raises(DataError, match="no whole, uncompressed tar file"):
        list(open_dataset(f"pipe:cat {tmp_path / 'a.tar'}").images(0))


def test_a_shard_with_a_name_of_megabytes_is_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(seeds.tar({"a" * 2**20 + ".png": b""}))
    with pytest.raises(DataError, match="name of over 4,096 characters"):
        ShardDataset([tmp_path / "a.tar"])


def test_an_image_file_of_terabytes_is_a_broken_image(tmp_path):
    (tmp_path / "a.png").touch()
    os.truncate(tmp_path / "a.png", 2**42)
    with pytest.raises(BrokenImage, match=f"more than the {FILE_LIMIT:,}"):
        FolderDataset(tmp_path)[0]


def test_a_link_in_a_zip_archive_is_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        link = zipfile.ZipInfo("a")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(tmp_path / "secret"))
    with pytest.raises(WeightsError, match="in the archive has"):
        read_member(buffer.getvalue(), "a", Fingerprint.of(b"secret"))


def test_a_link_to_a_device_is_skipped(tmp_path):
    (tmp_path / "a.png").write_bytes(seeds.images()[1])
    (tmp_path / "b.png").symlink_to("/dev/zero")
    assert [item.name for item in FolderDataset(tmp_path)] == ["a.png"]


@pytest.mark.parametrize("name", [name for name in PARSERS if PARSERS[name].kind in ("json", "lines")])
def test_json_of_a_hundred_thousand_lists_is_refused_or_skipped(name, tmp_path, without_shape_checks):
    prepared = PARSERS[name].prepare(tmp_path)
    outcomes = {prepared.outcome(data) for data in (DEEP, b'{"step":' + DEEP + b"}\n")}
    assert outcomes <= {"accepted", "refused"}


@pytest.mark.parametrize("braces", ["0..999999999999", "0..999}{0..999}{0..999", "0.." + "9" * 5_000])
def test_a_pattern_of_too_many_shards_is_refused(braces):
    with pytest.raises(DataError, match=r"shards|braces"):
        open_dataset(f"train-{{{braces}}}.tar")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("codebook_size", 10**12),
        ("codebook_size", 10**30),
        ("stages", 10**9),
        ("backbone.blocks", 10**9),
        ("backbone.widths", [2**40, 2**41]),
        ("backbone.widths", [2] * 10**3),
        ("backbone.latent_channels", 2**50),
        ("transformer.layers", 10**9),
        ("image_size", 2**30),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused_before_they_take_memory(path, value, tmp_path):
    generates = path in ("transformer.layers", "image_size")
    model = seeds.generator() if generates else seeds.tokenizers()[0]
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    *section, field = path.split(".")
    (settings[section[0]] if section else settings)[field] = value
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(LGQError):
        (MaskGIT if generates else Tokenizer).from_pretrained(tmp_path)


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command ends, with exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    return line


@pytest.mark.parametrize(
    ("option", "value"),
    [("--codebook-size", 10**12), ("--codebook-size", 10**30), ("--backbone.blocks", 10**9)],
)
def test_a_run_that_fits_no_memory_is_refused(option, value, tmp_path, capsys):
    command = ["train", "pocket-lgq", "--data", "sample", "--out", str(tmp_path / "run")]
    assert error_line([*command, option, str(value)], capsys)
    assert not (tmp_path / "run").exists()


def test_names_cannot_control_the_terminal_or_forge_a_line(tmp_path, capsys):
    data, out = str(tmp_path / "no\x1b[31mwhere\r\nlgq: all is well\x07\u202e"), str(tmp_path / "run")
    line = error_line(["train", "pocket-lgq", "--data", data, "--out", out], capsys)
    assert r"no\x1b[31mwhere\r\nlgq: all is well\x07\u202e" in line
    assert printable("Größe [b] 犬 'a'") == "Größe [b] 犬 'a'"
    assert printable("\udc80") == r"\udc80"
