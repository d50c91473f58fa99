"""The parsers of files: how each is fed, and what must hold for anything that it accepts.

A parser that trusts a hash is fed twice: with the hash of the valid file, and sealed, with the hash of the
hostile one, as an attacker would do.
"""

import gzip
import json
import os
import pickle
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import lgq
from fuzz import seeds
from lgq import weights
from lgq.cli import parse
from lgq.cli.console import printable
from lgq.config import from_json, to_json
from lgq.data.images import PIXEL_LIMIT, StoredImage, decode
from lgq.data.shards import ShardDataset, expand_braces
from lgq.data.token_format import HEADER, read_note, shard_name
from lgq.data.tokens import TokenDataset
from lgq.data.transforms import RandomCrop, random_crop, render
from lgq.errors import LGQError
from lgq.files import MANIFEST, Fingerprint, json_bytes, sealed_json
from lgq.hub import CONFIG, TOKENIZER, WEIGHTS, model_kind, run_settings
from lgq.maskgit import MaskGIT
from lgq.metrics.features import FeatureSet
from lgq.metrics.fid import Gaussian
from lgq.reporting.page import report_page
from lgq.reporting.result_set import read_result_set
from lgq.results import RESULTS, read_results
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import Checkpoints, read_manifest
from lgq.training.journal import METRICS, open_journal, read_records
from lgq.training.settings import GeneratorRun, TokenizerRun
from lgq.weights.cache import cache_path, store
from lgq.weights.convert import inception_features, inception_with_classifier, lpips
from lgq.weights.download import read_member
from lgq.weights.registry import SETS

LONGEST_MESSAGE = 2_000


class Prepared(NamedTuple):
    """A folder with valid files, of which one is replaced and read."""

    seeds: list[bytes]
    """Valid content of the file."""
    read: Callable[[bytes], object]
    """Raises LGQError, or what it reads is sound: it returns False or raises anything else if not."""

    def outcome(self, data: bytes) -> str:
        """`accepted` or `refused`; any other text describes an undocumented outcome."""
        try:
            return "unsound content" if self.read(data) is False else "accepted"
        except LGQError as error:
            message, name = str(error), type(error).__name__
            if not message or len(message) > LONGEST_MESSAGE:
                return f"{name} with a message of {len(message):,} characters: {message[:200]!r}"
            lines = printable(message).splitlines()
            return "refused" if len(lines) == 1 else f"{name} with {len(lines)} lines"
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return f"{type(error).__name__}: {printable(str(error))[:300]}"


class Parser(NamedTuple):
    kind: str
    """Kind of mutations, as `mutate` takes it."""
    prepare: Callable[[Path], Prepared]
    cost: int = 1
    """Factor by which a slow parser gets fewer cases."""


PARSERS: dict[str, Parser] = {}


def parser(name: str, kind: str, /, cost: int = 1, **arguments: Any) -> Callable[[Any], Any]:
    """Register a function that prepares a folder, called with these arguments."""

    def register(prepare: Callable[..., Prepared]) -> Callable[..., Prepared]:
        PARSERS[name] = Parser(kind, partial(prepare, **arguments), cost)
        return prepare

    return register


def replacing(file: Path, read: Callable[[], object], *, sealed: bool = False) -> Callable[[bytes], object]:
    """A function that replaces a file, sealed where it is JSON, and reads."""

    def replace(data: bytes) -> object:
        file.write_bytes(resealed(data) if sealed and file.suffix == ".json" else data)
        return read()

    return replace


def resealed(data: bytes) -> bytes:
    """JSON with a checksum that fits, if it can have one."""
    try:
        content = json.loads(data)
        content.pop("checksum", None)
        return sealed_json(content)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


@parser("image", "image", cost=2)
def image(folder: Path) -> Prepared:
    def read(data: bytes) -> None:
        pixels = decode(data, "a.png")
        assert pixels.dtype == np.uint8
        assert 0 < pixels.shape[0] * pixels.shape[1] <= PIXEL_LIMIT
        stored = StoredImage(data, "a.png")
        assert stored.size == (pixels.shape[1], pixels.shape[0])
        crop = random_crop(stored.size, RandomCrop(), side=8, seed=0, epoch=0, index=0)
        assert render(stored, crop, 8).abs().max() <= 1

    return Prepared(seeds.images(), read)


@parser("tar shard", "tar", name="a.tar")
@parser("classes.json", "json", name="classes.json")
def shard(folder: Path, name: str) -> Prepared:
    (folder / "a.tar").write_bytes(seeds.shards()[0])

    def read() -> None:
        data = ShardDataset([folder / "a.tar"])
        assert all(isinstance(label, str) for label in data.classes)
        for item in data:
            assert item.label is None or item.label in range(len(data.classes))
            assert not {"", ".", ".."} & {*item.name.split("/")}, item.name

    valid = seeds.shards() if name == "a.tar" else [b'["cat", "dog", "eel"]\n']
    return Prepared(valid, replacing(folder / name, read))


@parser("shard pattern", "text")
def pattern(folder: Path) -> Prepared:
    valid = [b"train-{000..005}.tar", b"{a,b}-{0..3}.tar", b"a-*.tar", b"{9..1}{1..9}{a,b}.tar"]
    return Prepared(valid, lambda data: expand_braces(os.fsdecode(data)))


@parser("tokens.json", "json", sealed=False)
@parser("tokens.json, sealed", "json", sealed=True)
def tokens_header(folder: Path, sealed: bool) -> Prepared:
    header = seeds.tokens(folder) / HEADER
    return Prepared([header.read_bytes()], replacing(header, partial(read_tokens, folder), sealed=sealed))


@parser("token shard", "safetensors", sealed=False)
@parser("token shard, sealed", "safetensors", sealed=True)
def tokens_shard(folder: Path, sealed: bool) -> Prepared:
    shard = seeds.tokens(folder) / shard_name(0)
    header = json.loads((folder / HEADER).read_bytes())

    def read(data: bytes) -> None:
        shard.write_bytes(data)
        read_note(shard)
        if sealed:
            header["shards"][0]["sha256"] = Fingerprint.of(data).sha256
            (folder / HEADER).write_bytes(resealed(json.dumps(header).encode()))
        read_tokens(folder)

    return Prepared([shard.read_bytes()], read)


def read_tokens(folder: Path) -> None:
    data = TokenDataset(folder)
    encoding = data.encoding
    for i in range(min(len(data), 20)):
        tokens, label, name = data[i]
        assert tokens.shape == encoding.token_shape
        assert tokens.dtype == torch.int64
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < encoding.codebook_size
        assert label is None or label >= 0
        assert not encoding.classes or label is None or label < len(encoding.classes)
        assert isinstance(name, str)
        if encoding.flips:
            assert data.flipped(i).shape == encoding.token_shape


@parser("checkpoint manifest", "json", name=MANIFEST, sealed=False)
@parser("checkpoint manifest, sealed", "json", name=MANIFEST, sealed=True)
@parser("checkpoint state, sealed", "json", name="state.json", sealed=True)
@parser("checkpoint tensors", "safetensors", name="state.safetensors", sealed=False)
@parser("checkpoint tensors, sealed", "safetensors", name="state.safetensors", sealed=True)
def checkpoint(folder: Path, name: str, sealed: bool) -> Prepared:
    checkpoints = Checkpoints(folder)
    path = checkpoints.save(3, seeds.state())
    manifest = asdict(read_manifest(path))

    def read(data: bytes) -> None:
        (path / name).write_bytes(resealed(data) if sealed and name == MANIFEST else data)
        if sealed and name != MANIFEST:
            files = manifest["files"] | {name: asdict(Fingerprint.of(data))}
            (path / MANIFEST).write_bytes(sealed_json(manifest | {"files": files}))
        checkpoints.latest()
        checkpoints.load(path)

    return Prepared([(path / name).read_bytes()], read)


@parser("tokenizer config.json", "json", cost=6, name=CONFIG)
@parser("tokenizer weights", "safetensors", cost=6, name=WEIGHTS)
def tokenizer(folder: Path, name: str) -> Prepared:
    valid = []
    for i, saved in enumerate(seeds.tokenizers()):
        saved.save_pretrained(folder / str(i))
        valid.append((folder / str(i) / name).read_bytes())

    def read() -> None:
        loaded = Tokenizer.from_pretrained(folder / "0")
        side = loaded.factor
        if side <= 64:
            assert loaded.encode(torch.zeros(1, 3, side, side)).shape[:3] == (1, 1, 1)

    return Prepared(valid, replacing(folder / "0" / name, read))


@parser("generator config.json", "json", cost=6, name=CONFIG)
@parser("generator weights", "safetensors", cost=6, name=WEIGHTS)
@parser("generator's tokenizer", "json", cost=6, name=f"{TOKENIZER}/{CONFIG}")
def generator(folder: Path, name: str) -> Prepared:
    seeds.generator().save_pretrained(folder)

    def read() -> bool:
        maskgit = MaskGIT.from_pretrained(folder)
        return maskgit.tokenizer.fingerprint() == maskgit.settings["fingerprint"]

    return Prepared([(folder / name).read_bytes()], replacing(folder / name, read))


SMALL_RUN = TokenizerRun(backbone=seeds.BACKBONE, codebook_size=16, image_size=32)


@parser("run config.json", "json")
def run_directory(folder: Path) -> Prepared:
    (folder / "environment.json").write_text("{}")

    def read() -> None:
        if model_kind(folder) == "tokenizer":
            run_settings(folder)

    return Prepared([json_bytes(to_json(SMALL_RUN))], replacing(folder / CONFIG, read))


@parser("settings", "json")
def settings(folder: Path) -> Prepared:
    def read() -> None:
        run = lgq.run(config=folder / "run.json")
        assert from_json(type(run), to_json(run)) == run or "nan" in repr(run)

    runs = (TokenizerRun(), SMALL_RUN, GeneratorRun())
    return Prepared([json_bytes(to_json(run)) for run in runs], replacing(folder / "run.json", read))


@parser("command line", "words", cost=6)
def command_line(folder: Path) -> Prepared:
    valid = [
        "train pocket-lgq --data sample --out run --backbone.widths 8 8 --quantizer-options tau_end=0.05",
        "train-generator pocket --tokens t --out run --transformer.layers 2 --sampling.steps 3 --steps 9",
        "evaluate run --data sample:held-out --image-size 32",
        "sample run --classes 0 7 --count 2 --seed 3",
        "encode run --data train-{000..005}.tar --out tokens",
        "train --config run.json --data sample --out run",
    ]

    def read(data: bytes) -> None:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            try:
                parse([os.fsdecode(word) for word in data.split(b"\0")])
            except (SystemExit, LGQError) as end:
                if isinstance(end, SystemExit) and end.code:
                    raise
                # The message repeats words of the user, however long they are.
                raise LGQError("help, or a mistake") from end

    return Prepared([line.encode().replace(b" ", b"\0") for line in valid], read)


@parser("results.jsonl", "lines")
def results(folder: Path) -> Prepared:
    record = {"kind": "tokenizer", "command": ["lgq"], "metrics": {"psnr": 21.5, "lpips": None}, "seed": 0}
    valid = [json_bytes(record) * 3, json_bytes(record)[:-1]]
    file = folder / RESULTS
    return Prepared(
        valid, replacing(file, lambda: all(isinstance(read, dict) for read in read_results(file)))
    )


@parser("metrics.jsonl", "lines", cost=4)
def journal(folder: Path) -> Prepared:
    def read() -> None:
        read_records(folder)
        with open_journal(folder, step=2):
            pass
        assert all(record["step"] <= 2 for record in read_records(folder))

    return Prepared(seeds.journals(), replacing(folder / METRICS, read))


ROW, PLAN = f"rows/{seeds.RUN_ID}.json", "experiments/comparison.json"


@parser("row", "json", name=ROW, sealed=False)
@parser("row, sealed", "json", name=ROW)
@parser("plan", "json", name=PLAN, sealed=False)
@parser("plan, sealed", "json", name=PLAN)
@parser("report of a row", "json", cost=20, name=ROW, report=True)
@parser("report of a plan", "json", cost=20, name=PLAN, report=True)
@parser("report of a journal", "lines", cost=20, name=f"runs/{seeds.RUN_ID}/metrics.jsonl", report=True)
@parser("report of a picture", "image", cost=20, name=f"pictures/{seeds.RUN_ID}/usage.png", report=True)
def results_directory(folder: Path, name: str, sealed: bool = True, report: bool = False) -> Prepared:
    directory = seeds.results(folder)

    def read() -> None:
        if report:
            assert "<script" not in report_page(read_result_set(folder))
        else:
            assert all(isinstance(record, dict) for record in directory.records().values())
            directory.plans()

    return Prepared([(folder / name).read_bytes()], replacing(folder / name, read, sealed=sealed))


@parser("weights archive", "zip")
def archive(folder: Path) -> Prepared:
    content = b"weights" * 500
    packed = seeds.tar({"a/b": content})
    zipped = seeds.zipped({"a/b": content, "setup.py": b"raise SystemExit"})
    expected = Fingerprint.of(content)
    valid = [zipped, gzip.compress(packed, mtime=0), packed]
    return Prepared(valid, lambda data: read_member(data, "a/b", expected) == content)


def contiguous(convert: Callable[[bytes], dict[str, torch.Tensor]], data: bytes) -> bool:
    return all(tensor.is_contiguous() for tensor in convert(data).values())


@parser("weights, pickled", "pickle")
def pickled_weights(folder: Path) -> Prepared:
    kernel, head = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 1), np.float32)
    vgg = {"Conv_0": {"kernel": kernel, "bias": kernel[0, 0, 0]}}
    valid = pickle.dumps({"VGG16_0": vgg, "NetLinLayer_0": {"Conv_0": {"kernel": head}}})
    return Prepared([valid], partial(contiguous, partial(lpips, network="VGG16")))


@parser("weights, TorchScript", "zip")
def torchscript_weights(folder: Path) -> Prepared:
    return Prepared([seeds.scripted_network()[1]], partial(contiguous, inception_features))


@parser("weights, state_dict", "zip")
def state_dict_weights(folder: Path) -> Prepared:
    file, layers = BytesIO(), ("Conv2d_1a_3x3", "Mixed_7b.branch3x3dbl_3b")
    names = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    tensors = {f"{layer}.{name}": torch.ones(2) for layer in layers for name in names}
    torch.save(tensors | {"fc.weight": torch.ones(2)}, file)
    return Prepared([file.getvalue()], partial(contiguous, inception_with_classifier))


@parser("weights cache", "safetensors")
def weights_cache(folder: Path) -> Prepared:
    os.environ[weights.CACHE_VARIABLE] = str(folder)
    name, expected = "lpips-vgg16", {"a": torch.ones(2, 3), "b": torch.zeros(4)}
    file = cache_path(SETS[name])
    file.parent.mkdir(parents=True)
    store(SETS[name], expected, folder)
    same = partial(torch.testing.assert_close, expected, rtol=0, atol=0)
    return Prepared([file.read_bytes()], replacing(file, lambda: same(weights.load(name))))


@parser("FID statistics", "zip")
def statistics(folder: Path) -> Prepared:
    file = folder / "a.npz"
    Gaussian(torch.zeros(3).double(), torch.eye(3).double(), 10).save(file)
    is_finite = replacing(file, lambda: bool(Gaussian.load(file).covariance.isfinite().all()))
    return Prepared([file.read_bytes()], is_finite)


@parser("features, sealed", "safetensors")
def features(folder: Path) -> Prepared:
    file = folder / "a.features"
    seeds.feature_set().save(file)

    def read(data: bytes) -> None:
        file.write_bytes(bytes.fromhex(Fingerprint.of(data).sha256) + data)
        FeatureSet.load(file)

    return Prepared([file.read_bytes()[32:]], read)
