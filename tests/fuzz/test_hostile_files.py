"""No attack runs code, takes unbounded memory, leaves its directory or controls the terminal.

Defects that fuzzing has found stay fixed. More attacks are tested beside what they target: weights,
tokenizers, shards, folders, images, reports.
"""

import io
import json
import os
import pickle
import resource
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import mistake
from PIL import Image
from safetensors.numpy import load, save

from fuzz import seeds
from fuzz.parsers import PARSERS
from lgq.cli.console import printable
from lgq.data import BrokenImage, DataError, FolderDataset, ShardDataset, open_dataset
from lgq.data.images import FILE_LIMIT, decode
from lgq.data.token_format import HEADER, TokenError, shard_name
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError
from lgq.files import Fingerprint, sealed_json
from lgq.maskgit import MaskGIT
from lgq.metrics.features import FeatureSet
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.reporting.page import report_page
from lgq.reporting.result_set import read_result_set
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import Checkpoints, read_manifest
from lgq.weights.convert import WeightsError, inception_with_classifier, torchscript
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


# --- checkpoints and tokens with matching hashes --------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Checkpoints(tmp_path).save(3, seeds.state())


def reseal_manifest(checkpoint: Path, **changes: Any) -> None:
    """Change fields of the manifest, or remove those that are None; `files` are added to those it names."""
    manifest = asdict(read_manifest(checkpoint))
    if files := changes.get("files"):
        changes["files"] = manifest["files"] | {name: asdict(Fingerprint.of(files[name])) for name in files}
    kept = {name: value for name, value in (manifest | changes).items() if value is not None}
    (checkpoint / "manifest.json").write_bytes(sealed_json(kept))


def test_a_pickle_in_a_checkpoint_with_a_matching_hash_is_not_run(checkpoint, tmp_path):
    data = pickle.dumps(seeds.Trap(tmp_path / "sprung"))
    for name in ("state.safetensors", "state.json"):
        (checkpoint / name).write_bytes(data)
        reseal_manifest(checkpoint, files={name: data})
        with pytest.raises(LGQError, match="cannot load"):
            Checkpoints(tmp_path).load(checkpoint)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(data)
    assert (tmp_path / "sprung").exists(), "the trap works"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"files": {name: b""}}, "is no file within it") for name in ("/dev/zero", "../../secret", "a\0b")),
        *(({name: None}, r"manifest\.json is none") for name in ("step", "world_size", "files")),
        ({"format_version": None}, "format"),
    ],
)
def test_a_manifest_needs_every_field_and_names_no_file_outside(changes, message, checkpoint):
    reseal_manifest(checkpoint, **changes)
    with pytest.raises(LGQError, match=message):
        read_manifest(checkpoint)


def reseal_tokens(folder, change_header=lambda header: None, change_shard=lambda shard: None):
    """Replace the header and the first shard by forged ones with matching hashes."""
    tensors = load((folder / shard_name(0)).read_bytes())
    change_shard(tensors)
    data = save(tensors)
    (folder / shard_name(0)).write_bytes(data)
    header = json.loads((folder / HEADER).read_bytes())
    header.pop("checksum")
    header["shards"][0]["sha256"] = Fingerprint.of(data).sha256
    change_header(header)
    (folder / HEADER).write_bytes(sealed_json(header))


FORGERIES = {
    "a token too large": ("shard", lambda shard: shard.update(tokens=np.full((3, 2, 3), 6, np.uint8))),
    "another grid": ("shard", lambda shard: shard.update(tokens=np.zeros((3, 3, 3), np.uint8))),
    "no mirrored tokens": ("shard", lambda shard: shard.pop("flipped")),
    "fractions": ("shard", lambda shard: shard.update(tokens=np.zeros((3, 2, 3), np.float32))),
    "a label that is no class": ("shard", lambda shard: shard.update(labels=np.array([2, 0, 0]))),
    "a name that is no text": ("shard", lambda shard: shard["names"].fill(0xFF)),
    "names that end before they begin": ("shard", lambda shard: shard.update(name_ends=np.array([-5, 3, 2]))),
    "a file outside": ("header", lambda header: header["shards"][0].update(file="/dev/zero")),
    "too many images": ("header", lambda header: header["shards"][0].update(images=10**12)),
    "a negative grid": ("header", lambda header: header["encoding"].update(grid=[-1, 3])),
    "an empty shard": ("header", lambda header: header["encoding"].update(shard_size=0)),
    "no images": ("header", lambda header: header.update(images=0)),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_tokens_with_a_matching_hash_are_refused(forgery, tmp_path):
    reseal_tokens(seeds.tokens(tmp_path))
    assert TokenDataset(tmp_path)[0].label == 0
    part, change = FORGERIES[forgery]
    reseal_tokens(tmp_path, **{f"change_{part}": change})
    with pytest.raises(TokenError, match=r"is not what tokens\.json says|cut short or altered"):
        TokenDataset(tmp_path)[0]


def test_features_without_a_tensor_are_refused(tmp_path):
    seeds.feature_set().save(tmp_path / "a")
    tensors = load((tmp_path / "a").read_bytes()[32:])
    del tensors["slots"]
    data = save(tensors)
    (tmp_path / "a").write_bytes(bytes.fromhex(Fingerprint.of(data).sha256) + data)
    with pytest.raises(StatisticsError, match="delete"):
        FeatureSet.load(tmp_path / "a")


# --- files that claim to be huge ------------------------------------------------------------------------


def claiming(archive: bytes, size: int) -> bytes:
    """The archive with a wrong size of its first member in the central directory."""
    place = archive.index(b"PK\x01\x02") + 24
    return archive[:place] + size.to_bytes(4, "little") + archive[place + 4 :]


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    bomb = seeds.zipped({"a/b": bytes(2**27)})
    assert len(bomb) < 2**18
    with pytest.raises(WeightsError, match="has 11 bytes instead of 10"):
        read_member(bomb, "a/b", Fingerprint.of(b"0123456789"))
    with pytest.raises(WeightsError, match="unpacks to over"):
        torchscript(claiming(seeds.zipped({"m/data.pkl": b"x"}), 2**32 - 2))
    (tmp_path / "a.npz").write_bytes(claiming(seeds.zipped({"mu.npy": b"x"}), 2**32 - 2))
    with pytest.raises(StatisticsError, match=r"unpacks to 4,294,967,294 bytes"):
        Gaussian.load(tmp_path / "a.npz")


def test_an_array_that_claims_terabytes_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (HUGE,)})
    arrays = {"mu.npy": header.getvalue(), "sigma.npy": header.getvalue()}
    (tmp_path / "a.npz").write_bytes(seeds.zipped(arrays))
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


@pytest.mark.parametrize(("key", "value"), [("GNU.sparse.size", "BINARY"), ("GNU.sparse.map", "1,a")])
def test_a_shard_with_words_for_numbers_or_a_name_of_megabytes_is_refused(key, value, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.png")
        member.pax_headers = {key: value}
        tar.addfile(member)
    with pytest.raises(DataError, match=r"a\.tar"):
        ShardDataset([tmp_path / "a.tar"])
    (tmp_path / "a.tar").write_bytes(seeds.tar({"a" * 2**20 + ".png": b""}))
    with pytest.raises(DataError, match="name of over 4,096 characters"):
        ShardDataset([tmp_path / "a.tar"])


@pytest.mark.parametrize("braces", ["0..999999999999", "0..999}{0..999}{0..999", "0.." + "9" * 5_000])
def test_a_pattern_of_too_many_shards_is_refused(braces):
    with pytest.raises(DataError, match=r"shards|braces"):
        open_dataset(f"train-{{{braces}}}.tar")


def test_an_image_file_of_terabytes_is_a_broken_image(tmp_path):
    (tmp_path / "a.png").touch()
    os.truncate(tmp_path / "a.png", 2**42)
    with pytest.raises(BrokenImage, match=f"more than the {FILE_LIMIT:,}"):
        FolderDataset(tmp_path)[0]


@pytest.mark.parametrize("name", [name for name in PARSERS if PARSERS[name].kind in ("json", "lines")])
def test_json_of_a_hundred_thousand_lists_is_refused_or_skipped(name, tmp_path, without_shape_checks):
    prepared = PARSERS[name].prepare(tmp_path)
    outcomes = {prepared.outcome(data) for data in (DEEP, b'{"step":' + DEEP + b"}\n")}
    assert outcomes <= {"accepted", "refused"}


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


# --- links, images and other networks -------------------------------------------------------------------


def test_pillow_does_not_warn():
    exif = Image.Exif()
    exif[0x010E] = "a note" * 20
    cut = seeds.encoded(Image.new("RGB", (4, 4)), "JPEG", exif=exif).replace(b"a note" * 20, b"a note")
    large = seeds.encoded(Image.new("1", (10_000, 10_000)), "PNG")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for data in (cut, large):
            with suppress(BrokenImage):
                decode(data, "a")
    assert warned == []


def test_a_picture_with_odd_transparency_does_not_stop_the_report(tmp_path):
    odd = seeds.encoded(Image.new("RGB", (8, 8)), "PNG", transparency=(1, 2, 3))
    seeds.results(tmp_path).write_pictures(seeds.RUN_ID, {"usage": odd, "samples": b"none"})
    assert report_page(read_result_set(tmp_path))


@pytest.mark.parametrize(
    "state",
    [
        {},
        [1],
        {"fc.weight": torch.ones(2), "Mixed_9z.x.bn.bias": torch.ones(2)},
        {"fc.weight": torch.ones(2, 2), "Conv2d_1a_3x3.bn.weight": torch.tensor([1.0, 0.9])},
    ],
)
def test_a_state_of_another_network_is_refused(state):
    file = io.BytesIO()
    torch.save(state, file)
    for data in (file.getvalue(), file.getvalue()[:-30]):
        with pytest.raises(WeightsError, match=r"damaged, or holds other weights|another network"):
            inception_with_classifier(data)


# --- command lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "sample run --classes " + "[" * 5_000,
        "train pocket-lgq --data x --out y --quantizer-options a=" + "[" * 5_000,
        f"train pocket-lgq --data sample --out run --codebook-size {10**12}",
        f"train pocket-lgq --data sample --out run --codebook-size {10**30}",
        f"train pocket-lgq --data sample --out run --backbone.blocks {10**9}",
    ],
)
def test_endless_words_and_runs_that_fit_no_memory_are_refused(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert mistake(capsys, *command.split())
    assert list(tmp_path.iterdir()) == []


def test_names_cannot_control_the_terminal_or_forge_a_line(tmp_path, capsys):
    data, out = str(tmp_path / "no\x1b[31mwhere\r\nlgq: all is well\x07\u202e"), str(tmp_path / "run")
    line = mistake(capsys, "train", "pocket-lgq", "--data", data, "--out", out)
    assert r"no\x1b[31mwhere\r\nlgq: all is well\x07\u202e" in line
    assert printable("Größe [b] 犬 'a'") == "Größe [b] 犬 'a'"
    assert printable("\udc80") == r"\udc80"
