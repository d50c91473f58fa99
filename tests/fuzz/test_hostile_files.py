"""Attacks, one by one: none runs code, takes memory without bound, leaves its directory or steers a terminal.

More of them where the files are tested: pickles, links and archives in test_weights.py and
test_tokenizer.py; links, devices and `..` of shards in test_shards.py; links and circles of folders,
which are followed, in test_folder.py; images of enormous sizes in test_images.py; markup in names,
which the report escapes, in test_page.py.
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

import fuzz_seeds as seeds
import numpy as np
import pytest
from fuzz_parsers import PARSERS, outcome

from lgq.cli import main
from lgq.cli.console import printable
from lgq.data import BrokenImage, DataError, FolderDataset, ShardDataset, open_dataset
from lgq.data.images import FILE_LIMIT
from lgq.errors import LGQError
from lgq.files import Fingerprint, sealed_json
from lgq.hub import PretrainedError
from lgq.maskgit import MaskGIT
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import Checkpoints, read_manifest
from lgq.weights.convert import WeightsError, torchscript
from lgq.weights.download import read_member

HUGE = 2**45
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture(autouse=True)
def _one_gibibyte_more_and_no_further() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


class Trap:
    """Unpickling this leaves a file behind."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_pickle_in_a_checkpoint_is_not_run_though_its_hash_fits(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(3, seeds.state())
    for name in ("state.safetensors", "state.json"):
        data = pickle.dumps(Trap(tmp_path / "sprung"))
        (path / name).write_bytes(data)
        manifest = asdict(read_manifest(path))
        manifest["files"][name] = asdict(Fingerprint.of(data))
        (path / "manifest.json").write_bytes(sealed_json(manifest))
        with pytest.raises(LGQError, match="cannot load"):
            checkpoints.load(path)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(data)
    assert (tmp_path / "sprung").exists(), "the trap works"


@pytest.mark.parametrize("name", ["/dev/zero", "../../secret", "a\0b"])
def test_a_checkpoint_names_no_file_outside_of_itself(name, tmp_path):
    path = Checkpoints(tmp_path).save(3, seeds.state())
    manifest = asdict(read_manifest(path))
    manifest["files"][name] = asdict(Fingerprint.of(b""))
    (path / "manifest.json").write_bytes(sealed_json(manifest))
    with pytest.raises(LGQError, match="is no file within it"):
        read_manifest(path)


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def claiming(archive: bytes, size: int) -> bytes:
    """With another size of its first member in the directory at the archive's end."""
    place = archive.index(b"PK\x01\x02") + 24
    return archive[:place] + size.to_bytes(4, "little") + archive[place + 4 :]


def test_a_member_that_unpacks_to_more_than_expected_is_not_unpacked_whole():
    bomb = zipped(**{"a/b": bytes(2**27)})
    assert len(bomb) < 2**18
    with pytest.raises(WeightsError, match="has 11 bytes instead of 10"):
        read_member(bomb, "a/b", Fingerprint.of(b"0123456789"))


def test_an_archive_of_modules_that_unpacks_without_bound_is_refused_before():
    with pytest.raises(WeightsError, match="unpacks to over"):
        torchscript(claiming(zipped(**{"m/data.pkl": b"x"}), 2**32 - 2))


def test_statistics_that_unpack_without_bound_are_refused_before(tmp_path):
    file = tmp_path / "a.npz"
    file.write_bytes(claiming(zipped(**{"mu.npy": b"x"}), 2**32 - 2))
    with pytest.raises(StatisticsError, match=r"unpacks to 4,294,967,294 bytes"):
        Gaussian.load(file)


def test_an_array_that_claims_terabytes_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (HUGE,)})
    (tmp_path / "a.npz").write_bytes(zipped(**{"mu.npy": header.getvalue(), "sigma.npy": header.getvalue()}))
    with pytest.raises(StatisticsError, match=r"is no \.npz file"):
        Gaussian.load(tmp_path / "a.npz")


@pytest.mark.parametrize("claim", ["header", "tensor"])
def test_weights_that_claim_terabytes_are_refused(claim, tmp_path):
    seeds.tokenizers()[0].save_pretrained(tmp_path)
    entry = json.dumps(
        {"encoder.stem.bias": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}}
    )
    size = HUGE if claim == "header" else len(entry)
    (tmp_path / "model.safetensors").write_bytes(size.to_bytes(8, "little") + entry.encode())
    with pytest.raises(PretrainedError, match="damaged or cut short"):
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


def test_a_name_of_megabytes_is_refused_for_all_names_would_take_its_room(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a" * 2**20 + ".png"))
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


def test_a_link_in_a_folder_is_followed_for_the_user_chose_the_folder(tmp_path):
    outside, folder = tmp_path / "outside.png", tmp_path / "folder"
    outside.write_bytes(seeds.images()[1])
    folder.mkdir()
    (folder / "a.png").symlink_to(outside)
    (folder / "b.png").symlink_to("/dev/zero")
    data = FolderDataset(folder)
    assert [item.name for item in data] == ["a.png"]
    assert data[0].data == outside.read_bytes()


@pytest.mark.parametrize(
    "name", [name for name, parser in PARSERS.items() if parser.kind in ("json", "lines")]
)
def test_json_of_a_hundred_thousand_lists_is_refused_or_passed_over(name, tmp_path, without_shape_checks):
    prepared = PARSERS[name].prepare(tmp_path)
    found = {outcome(PARSERS[name], prepared, data) for data in (DEEP, b'{"step":' + DEEP + b"}\n")}
    assert found <= {"accepted", "refused"}


@pytest.mark.parametrize(
    "braces", ["{0..999999999999}", "{0..999}{0..999}{0..999}", "{0.." + "9" * 5_000 + "}"]
)
def test_a_pattern_of_too_many_shards_is_refused(braces):
    with pytest.raises(DataError, match=r"shards|braces"):
        open_dataset(f"train-{braces}.tar")


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
    ],
)
def test_a_tokenizer_beyond_its_weights_is_refused_before_it_takes_memory(path, value, tmp_path):
    seeds.tokenizers()[0].save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    *outer, last = path.split(".")
    (settings[outer[0]] if outer else settings)[last] = value
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(LGQError):
        Tokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("layers", 10**9), ("image_size", 2**30)])
def test_a_generator_beyond_its_weights_is_refused_before_it_takes_memory(name, value, tmp_path):
    seeds.generator().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (settings if name == "image_size" else settings["transformer"])[name] = value
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(PretrainedError):
        MaskGIT.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "wish",
    [("--codebook-size", str(10**12)), ("--codebook-size", str(10**30)), ("--backbone.blocks", str(10**9))],
)
def test_a_run_that_no_memory_holds_is_refused_in_one_line(wish, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "pocket-lgq", "--data", "sample", "--out", str(tmp_path / "run"), *wish])
    assert end.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_names_cannot_steer_the_terminal_or_forge_a_line(tmp_path, capsys):
    name = "no\x1b[31mwhere\r\nlgq: all is well\x07\u202e"
    with pytest.raises(SystemExit) as end:
        main(["train", "pocket-lgq", "--data", str(tmp_path / name), "--out", str(tmp_path / "run")])
    printed = capsys.readouterr().err
    assert end.value.code == 2
    assert len(printed.splitlines()) == 1
    assert r"no\x1b[31mwhere\r\nlgq: all is well\x07\u202e" in printed


def test_what_is_printable_is_shown_as_it_is():
    assert printable("Größe [b] 犬 'a'") == "Größe [b] 犬 'a'"
    assert printable("\udc80") == r"\udc80"
