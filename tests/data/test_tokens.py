"""Tokens come back from disk as they went in, or not at all."""

import errno
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import lgq.data.tokens as tokens_module
from lgq.data import DataError
from lgq.data.token_format import HEADER, EncodedBatch, Encoding, TokenError, TokenWriter, shard_name
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError
from lgq.files import sealed_json

NAMES = ["a.png", "犬/柴 1.jpg", "é\n\t\"'.webp", "\udcff-not-utf8.png", "\ud83d\ude00.png", "", "x" * 300]
ENCODING = Encoding(
    fingerprint="f" * 64,
    codebook_size=300,
    stages=1,
    grid=(2, 3),
    image_size=24,
    flips=True,
    classes=("Katze", "犬"),
    source="FolderDataset('photos')",
    source_images=7,
    shard_size=3,
)


def batch(encoding: Encoding, start: int, count: int) -> EncodedBatch:
    generator = torch.Generator().manual_seed(start)
    shape = (count, *encoding.token_shape)
    draw = [torch.randint(encoding.codebook_size, shape, generator=generator) for _ in range(2)]
    labels = torch.tensor([(i % 3) - 1 for i in range(start, start + count)])
    return EncodedBatch(draw[0], draw[1] if encoding.flips else None, labels, NAMES[start : start + count])


def batches_of(encoding: Encoding, shard: int) -> list[EncodedBatch]:
    first = shard * encoding.shard_size
    last = min(first + encoding.shard_size, encoding.source_images)
    return [batch(encoding, first, 1), batch(encoding, first + 1, last - first - 1)]


def write(folder: Path, encoding: Encoding = ENCODING) -> TokenDataset:
    writer = TokenWriter(folder, encoding)
    for shard in range(encoding.shards):
        if shard not in writer.written:
            writer.write(shard, batches_of(encoding, shard), {f"broken-{shard}.png": "the file is empty"})
    writer.finish()
    return TokenDataset(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "tokens")
    return tmp_path / "tokens"


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("flips", [False, True])
def test_items_are_what_was_written(tmp_path, stages, flips):
    encoding = replace(ENCODING, stages=stages, flips=flips)
    dataset = write(tmp_path, encoding)
    expected = [part for shard in range(encoding.shards) for part in batches_of(encoding, shard)]
    tokens, labels = torch.cat([part.tokens for part in expected]), torch.cat([p.labels for p in expected])
    assert len(dataset) == 7
    assert torch.equal(torch.stack([item.tokens for item in dataset]), tokens)
    assert [item.label for item in dataset] == [None if label < 0 else label for label in labels.tolist()]
    assert [item.name for item in dataset] == NAMES
    assert torch.equal(dataset[-1].tokens, dataset[6].tokens)
    for outside in (7, -8):
        with pytest.raises(IndexError):
            dataset[outside]
    if flips:
        mirrored = torch.cat([part.flipped for part in expected])
        assert torch.equal(torch.stack([dataset.flipped(i) for i in range(7)]), mirrored)


def test_the_header_says_what_was_encoded(folder):
    dataset = TokenDataset(folder)
    assert dataset.encoding == ENCODING
    assert dataset.classes == ("Katze", "犬")
    assert dataset.broken == {f"broken-{shard}.png": "the file is empty" for shard in range(3)}
    header = json.loads((folder / HEADER).read_text("utf-8"))
    assert (header["format"], header["images"]) == (1, 7)
    shards = [(shard["file"], shard["images"]) for shard in header["shards"]]
    assert shards == [(f"tokens-0000{i}.safetensors", images) for i, images in enumerate((3, 3, 1))]


@pytest.mark.parametrize(
    ("codes", "dtype"),
    [(2, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (2**33, "int64")],
)
def test_tokens_are_stored_in_the_narrowest_type_and_read_as_int64(tmp_path, codes, dtype):
    encoding = replace(ENCODING, codebook_size=codes, source_images=2, flips=False)
    largest = batch(encoding, 0, 2)._replace(tokens=torch.full((2, 2, 3), codes - 1))
    writer = TokenWriter(tmp_path, encoding)
    writer.write(0, [largest], {})
    writer.finish()
    with safe_open(tmp_path / shard_name(0), "np") as file:
        assert file.get_tensor("tokens").dtype == dtype
    assert TokenDataset(tmp_path)[1].tokens.dtype == torch.int64
    assert torch.equal(TokenDataset(tmp_path)[1].tokens, largest.tokens[1])


@pytest.mark.parametrize("wrong", [-1, 300])
def test_tokens_outside_of_the_codebook_never_wrap_around(tmp_path, wrong):
    bad = batch(ENCODING, 0, 3)
    bad.tokens[1, 0, 0] = wrong
    with pytest.raises(AssertionError, match="codebook of 300"):
        TokenWriter(tmp_path, ENCODING).write(0, [bad], {})


def test_a_shard_without_images_is_passed_over(tmp_path):
    writer = TokenWriter(tmp_path, ENCODING)
    for shard in range(3):
        writer.write(shard, [] if shard == 1 else batches_of(ENCODING, shard), {})
    writer.finish()
    dataset = TokenDataset(tmp_path)
    assert [item.name for item in dataset] == NAMES[:3] + NAMES[6:]
    assert torch.equal(dataset.flipped(3), batch(ENCODING, 6, 1).flipped[0])


def test_tokens_of_no_readable_image_are_an_error(tmp_path):
    writer = TokenWriter(tmp_path, ENCODING)
    for shard in range(3):
        writer.write(shard, [], {"a.png": "the file is empty"})
    with pytest.raises(DataError, match=r"none of 7 images can be read in FolderDataset.*a\.png \(the file"):
        writer.finish()
    assert not (tmp_path / HEADER).exists()


def test_opening_reads_the_header_alone_and_each_shard_is_hashed_once(folder, monkeypatch):
    hashed = []
    real = tokens_module.sha256_of
    monkeypatch.setattr(tokens_module, "sha256_of", lambda path: hashed.append(path.name) or real(path))
    dataset = TokenDataset(folder)
    assert hashed == []
    for index in (4, 3, 4, 0):
        dataset[index]
    assert hashed == [shard_name(1), shard_name(0)]
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[4].tokens, dataset[4].tokens)
    assert len(hashed) == 2
    list(dataset)
    assert hashed[2:] == [shard_name(2)]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the list of maps is Linux's")
def test_shards_are_mapped_into_memory_when_first_used(folder):
    dataset = TokenDataset(folder)
    assert str(folder / shard_name(1)) not in Path("/proc/self/maps").read_text()
    dataset[4]
    assert str(folder / shard_name(1)) in Path("/proc/self/maps").read_text()


def test_files_that_differ_in_a_bit_or_in_length_or_are_missing_are_refused(folder):
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        places = range(0, len(data), 3 if path.name == HEADER else 29)
        flips = [data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :] for i in places]
        for content in (*flips, b"", data[: len(data) // 2], data[:-1], data + b" ", None):
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.raises(TokenError, match=path.name):
                list(TokenDataset(folder))
        path.write_bytes(data)


def test_another_tokenizer_and_flips_that_were_not_stored_are_refused(tmp_path, folder):
    TokenDataset(folder).require_fingerprint("f" * 64)
    with pytest.raises(TokenError, match="of tokenizer ffffffffffff, not of 000000000000: use the one"):
        TokenDataset(folder).require_fingerprint("0" * 64)
    with pytest.raises(TokenError, match="no mirrored images"):
        write(tmp_path / "plain", replace(ENCODING, flips=False)).flipped(0)


def test_headers_of_the_future_and_of_other_fields_are_refused_even_if_the_checksum_fits(folder):
    content = json.loads((folder / HEADER).read_text("utf-8"))
    del content["checksum"]
    (folder / HEADER).write_bytes(sealed_json(content | {"format": 2}))
    with pytest.raises(TokenError, match=r"format 2, and this lgq reads up to 1: update lgq"):
        TokenDataset(folder)
    del content["encoding"]["grid"]
    (folder / HEADER).write_bytes(sealed_json(content))
    with pytest.raises(TokenError, match=HEADER):
        TokenDataset(folder)


def test_a_directory_that_is_missing_empty_a_file_or_unfinished_says_so(tmp_path, folder):
    with pytest.raises(TokenError, match="nowhere does not exist: name a directory of tokens"):
        TokenDataset(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(TokenError, match="file is a file"):
        TokenDataset(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TokenError, match=r"empty has no tokens\.json"):
        TokenDataset(tmp_path / "empty")
    (folder / HEADER).unlink()
    with pytest.raises(TokenError, match=r"unfinished, with 3 shards but no tokens\.json: encode again"):
        TokenDataset(folder)


def test_encoding_again_mends_whatever_is_damaged(folder):
    whole = contents(folder)
    (folder / shard_name(0)).write_bytes(whole[shard_name(0)][:-1])
    (folder / shard_name(1)).unlink()
    shutil.copy(folder / shard_name(2), folder / shard_name(1))
    (folder / HEADER).write_bytes(b"{")
    assert TokenWriter(folder, ENCODING).written.keys() == {2}
    write(folder)
    assert contents(folder) == whole


@pytest.mark.parametrize(
    "change",
    [{"fingerprint": "0"}, {"image_size": 8}, {"shard_size": 2}, {"source": "other"}, {"flips": False}],
    ids=str,
)
def test_shards_of_another_encoding_are_refused_and_left_alone(folder, change):
    before = contents(folder)
    with pytest.raises(TokenError, match=f"its `{next(iter(change))}` is .* another directory"):
        TokenWriter(folder, replace(ENCODING, **change))
    assert contents(folder) == before


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path, folder, monkeypatch):
    full = tmp_path / "full"
    writer = TokenWriter(full, ENCODING)
    writer.write(0, batches_of(ENCODING, 0), {"broken-0.png": "the file is empty"})

    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(LGQError, match=r"tokens-00001.*: No space left on device; free space"):
            writer.write(1, batches_of(ENCODING, 1), {})
    assert list(contents(full)) == [shard_name(0)]
    write(full)
    assert contents(full) == contents(folder)


def test_a_place_that_cannot_be_written_to_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # what a test run by root cannot arrange
    with pytest.raises(LGQError, match=r"cannot write to .*forbidden"):
        TokenWriter(tmp_path / "forbidden", ENCODING)
