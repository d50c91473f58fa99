"""Defects that fuzzing has found stay fixed."""

import io
import json
import tarfile
import warnings
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load, save

from fuzz import seeds
from lgq.cli import main
from lgq.data import BrokenImage, DataError, ShardDataset
from lgq.data.images import decode
from lgq.data.token_format import HEADER, TokenError, shard_name
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError
from lgq.files import Fingerprint, sealed_json
from lgq.metrics.features import FeatureSet
from lgq.metrics.fid import StatisticsError
from lgq.reporting.page import report_page
from lgq.reporting.result_set import read_result_set
from lgq.training.checkpoint import Checkpoints, read_manifest
from lgq.weights.convert import WeightsError, inception_with_classifier


def test_pillow_does_not_warn():
    exif, cut, large = Image.Exif(), io.BytesIO(), io.BytesIO()
    exif[0x010E] = "a note" * 20
    Image.new("RGB", (4, 4)).save(cut, "JPEG", exif=exif)
    Image.new("1", (10_000, 10_000)).save(large, "PNG")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for data in (cut.getvalue().replace(b"a note" * 20, b"a note"), large.getvalue()):
            with suppress(BrokenImage):
                decode(data, "a")
    assert warned == []


@pytest.mark.parametrize(("key", "value"), [("GNU.sparse.size", "BINARY"), ("GNU.sparse.map", "1,a")])
def test_a_shard_with_words_for_numbers_is_refused(key, value, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.png")
        member.pax_headers = {key: value}
        tar.addfile(member)
    with pytest.raises(DataError, match=r"a\.tar"):
        ShardDataset([tmp_path / "a.tar"])


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


@pytest.mark.parametrize("field", ["format_version", "step", "world_size", "files"])
def test_a_manifest_without_a_field_is_refused(field, tmp_path):
    path = Checkpoints(tmp_path).save(3, seeds.state())
    manifest = asdict(read_manifest(path))
    del manifest[field]
    (path / "manifest.json").write_bytes(sealed_json(manifest))
    with pytest.raises(LGQError, match=r"format|manifest\.json is none"):
        read_manifest(path)


def test_features_without_a_tensor_are_refused(tmp_path):
    seeds.feature_set().save(tmp_path / "a")
    tensors = load((tmp_path / "a").read_bytes()[32:])
    del tensors["slots"]
    data = save(tensors)
    (tmp_path / "a").write_bytes(bytes.fromhex(Fingerprint.of(data).sha256) + data)
    with pytest.raises(StatisticsError, match="delete"):
        FeatureSet.load(tmp_path / "a")


def test_a_picture_with_odd_transparency_does_not_stop_the_report(tmp_path):
    results, file = seeds.results(tmp_path), io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG", transparency=(1, 2, 3))
    results.write_pictures(seeds.RUN_ID, {"usage": file.getvalue(), "samples": b"none"})
    assert report_page(read_result_set(tmp_path))


@pytest.mark.parametrize(
    "state", [{}, {"fc.weight": torch.ones(2), "Mixed_9z.x.bn.bias": torch.ones(2)}, [1]]
)
def test_a_state_of_another_network_is_refused(state):
    file = io.BytesIO()
    torch.save(state, file)
    for data in (file.getvalue(), file.getvalue()[:-30]):
        with pytest.raises(WeightsError, match="damaged, or holds other weights"):
            inception_with_classifier(data)


@pytest.mark.parametrize(
    "command", ["sample run --classes", "train pocket-lgq --data x --out y --quantizer-options a="]
)
def test_a_word_of_thousands_of_characters_is_refused(command, capsys):
    with pytest.raises(SystemExit) as end:
        main((command + " " * (command[-1] != "=") + "[" * 5_000).split())
    assert end.value.code == 2
