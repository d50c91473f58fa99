"""The parsers of files: how each is fed, what it may answer, and what must hold of what it accepts.

    parser = PARSERS["tokens.json"]
    prepared = parser.prepare(folder)        # valid files in a folder, and a way to replace one of them
    prepared.read(data)                      # an error of `parser.refuses`, or what was read is sound

A parser that trusts a hash is fed twice: with the hash of the valid file, and sealed, with the hash of
the hostile one, as somebody would do who means it.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import fuzz_seeds as seeds
import numpy as np
import torch
from torch import Tensor

from lgq import weights
from lgq.cli import parse
from lgq.cli.console import printable
from lgq.config import ConfigError, from_json, to_json
from lgq.data.images import PIXEL_LIMIT, DataError, EncodedImage, StoredImage, decode
from lgq.data.shards import ShardDataset, expand_braces
from lgq.data.token_format import HEADER, read_note, shard_name
from lgq.data.tokens import TokenDataset
from lgq.data.transforms import RandomCrop, random_crop, render
from lgq.errors import LGQError
from lgq.files import MANIFEST, Fingerprint, sealed_json
from lgq.hub import CONFIG, TOKENIZER, WEIGHTS, model_kind, run_settings
from lgq.maskgit import MaskGIT
from lgq.metrics.features import FeatureSet
from lgq.metrics.fid import Gaussian, StatisticsError
from lgq.report.page import report_page
from lgq.report.result_set import read_result_set
from lgq.results import RESULTS, ResultsError, read_results
from lgq.tokenizer import Tokenizer
from lgq.training.checkpoint import Checkpoints, read_manifest
from lgq.training.journal import METRICS, open_journal, read_records
from lgq.training.run_directory import RunError
from lgq.training.settings import GeneratorRun, TokenizerRun
from lgq.weights.cache import path_of
from lgq.weights.convert import WeightsError, inception_features, inception_with_classifier, lpips
from lgq.weights.download import read_member
from lgq.weights.registry import SETS

LONGEST_MESSAGE = 2_000


class Prepared(NamedTuple):
    seeds: list[bytes]
    """Valid content."""
    read: Callable[[bytes], object]


@dataclass(frozen=True)
class Parser:
    kind: str
    """Of mutations, as `fuzz_mutations` calls it."""
    refuses: tuple[type[BaseException], ...]
    """The documented errors."""
    prepare: Callable[[Path], Prepared]
    cost: int = 1
    """Fewer cases by this factor, where one takes long."""


def outcome(parser: Parser, prepared: Prepared, data: bytes) -> str:
    """`accepted` or `refused`; whatever else happens is an undocumented outcome, in words."""
    try:
        prepared.read(data)
    except parser.refuses as error:
        return _fault_of_message(error) or "refused"
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return f"{type(error).__name__}: {printable(str(error))[:300]}"
    return "accepted"


def _fault_of_message(error: BaseException) -> str:
    message = str(error)
    if isinstance(error, SystemExit):
        return "" if error.code in (0, 2) else f"exit code {error.code}"
    if not message or len(message) > LONGEST_MESSAGE:
        return f"{type(error).__name__} with a message of {len(message):,} characters: {message[:200]!r}"
    lines = printable(message).splitlines()
    return "" if len(lines) == 1 else f"{type(error).__name__} with {len(lines)} lines"


def _replacing(file: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
    def replaced(data: bytes) -> object:
        file.write_bytes(data)
        return read()

    return replaced


def _image(folder: Path) -> Prepared:
    def read(data: bytes) -> None:
        pixels = decode(data, "a.png")
        assert pixels.dtype == np.uint8
        assert 0 < pixels.shape[0] * pixels.shape[1] <= PIXEL_LIMIT
        stored = StoredImage(data, "a.png")
        assert stored.size == (pixels.shape[1], pixels.shape[0])
        crop = random_crop(stored.size, RandomCrop(), seed=0, epoch=0, index=0)
        assert render(stored, crop, 8).abs().max() <= 1

    return Prepared(seeds.images(), read)


def _shard(folder: Path) -> Prepared:
    def read() -> None:
        data = ShardDataset([folder / "a.tar"])
        for i in range(len(data)):
            _require_safe_item(data[i], len(data.classes))

    return Prepared(seeds.shards(), _replacing(folder / "a.tar", read))


def _require_safe_item(item: EncodedImage, classes: int) -> None:
    assert item.label is None or item.label in range(classes)
    assert not {"", ".", ".."} & {*item.name.split("/")}, item.name


def _class_names(folder: Path) -> Prepared:
    (folder / "a.tar").write_bytes(seeds.shards()[0])

    def read() -> None:
        classes = ShardDataset([folder / "a.tar"]).classes
        assert all(isinstance(name, str) for name in classes)

    return Prepared([b'["cat", "dog", "eel"]\n'], _replacing(folder / "classes.json", read))


def _pattern(folder: Path) -> Prepared:
    valid = [b"train-{000..005}.tar", b"{a,b}-{0..3}.tar", b"a-*.tar", b"{9..1}{1..9}{a,b}.tar"]
    return Prepared(valid, lambda data: expand_braces(os.fsdecode(data)))


def _tokens_header(folder: Path, *, sealed: bool) -> Prepared:
    data = seeds.tokens(folder)

    def read(content: bytes) -> None:
        (folder / HEADER).write_bytes(_resealed(content) if sealed else content)
        _require_sound_tokens(TokenDataset(folder))

    return Prepared([(data / HEADER).read_bytes()], read)


def _tokens_shard(folder: Path, *, sealed: bool) -> Prepared:
    seeds.tokens(folder)
    header, valid = (json.loads((folder / HEADER).read_bytes()), (folder / shard_name(0)).read_bytes())

    def read(data: bytes) -> None:
        (folder / shard_name(0)).write_bytes(data)
        read_note(folder / shard_name(0))
        if sealed:
            header["shards"][0]["sha256"] = Fingerprint.of(data).sha256
            (folder / HEADER).write_bytes(_resealed(json.dumps(header).encode()))
        _require_sound_tokens(TokenDataset(folder))

    return Prepared([valid], read)


def _require_sound_tokens(data: TokenDataset) -> None:
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


def _resealed(data: bytes) -> bytes:
    """With a checksum that fits, where there can be one."""
    try:
        content = json.loads(data)
        content.pop("checksum", None)
        return sealed_json(content)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def _checkpoint(folder: Path, name: str, *, sealed: bool) -> Prepared:
    checkpoints = Checkpoints(folder)
    path = checkpoints.save(3, seeds.state())
    manifest = read_manifest(path)

    def read(data: bytes) -> None:
        (path / name).write_bytes(_resealed(data) if sealed and name == MANIFEST else data)
        if sealed and name != MANIFEST:
            files = {**manifest.files, name: Fingerprint.of(data)}
            (path / MANIFEST).write_bytes(sealed_json(asdict(manifest) | {"files": _plain(files)}))
        checkpoints.latest()
        checkpoints.load(path)

    return Prepared([(path / name).read_bytes()], read)


def _plain(files: Mapping[str, Fingerprint]) -> dict[str, object]:
    return {name: asdict(fingerprint) for name, fingerprint in files.items()}


def _tokenizer(folder: Path, name: str) -> Prepared:
    valid = []
    for i, tokenizer in enumerate(seeds.tokenizers()):
        tokenizer.save_pretrained(folder / str(i))
        valid.append((folder / str(i) / name).read_bytes())

    def read(data: bytes) -> None:
        (folder / "0" / name).write_bytes(data)
        tokenizer = Tokenizer.from_pretrained(folder / "0")
        side = tokenizer.factor
        if side <= 64:
            assert tokenizer.encode(torch.zeros(1, 3, side, side)).shape[:3] == (1, 1, 1)

    return Prepared(valid, read)


def _generator(folder: Path, name: str) -> Prepared:
    seeds.generator().save_pretrained(folder)

    def read() -> None:
        maskgit = MaskGIT.from_pretrained(folder)
        assert maskgit.tokenizer.fingerprint() == maskgit.settings["fingerprint"]

    return Prepared([(folder / name).read_bytes()], _replacing(folder / name, read))


def _run_settings(folder: Path) -> Prepared:
    (folder / "environment.json").write_text("{}")
    valid = json.dumps(to_json(seeds.run()), indent=2).encode()

    def read() -> None:
        if model_kind(folder) == "tokenizer":
            run_settings(folder)

    return Prepared([valid], _replacing(folder / CONFIG, read))


def _settings(folder: Path) -> Prepared:
    valid = [json.dumps(to_json(run)).encode() for run in (TokenizerRun(), seeds.run(), GeneratorRun())]

    def read(data: bytes) -> None:
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError("no JSON") from error
        kind = GeneratorRun if isinstance(content, dict) and "transformer" in content else TokenizerRun
        settings = from_json(kind, content)
        assert from_json(kind, to_json(settings)) == settings or "nan" in repr(settings)

    return Prepared(valid, read)


def _command_line(folder: Path) -> Prepared:
    valid = [
        "train pocket-lgq --data sample --out run --backbone.widths 8 8 --quantizer-options tau_end=0.05",
        "train-generator pocket --tokens t --out run --transformer.layers 2 --sampling.steps 3 --steps 9",
        "evaluate run --data sample:held-out --image-size 32",
        "sample run --classes 0 7 --count 2 --seed 3",
        "encode run --data train-{000..005}.tar --out tokens",
    ]

    def read(data: bytes) -> None:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            parse([os.fsdecode(word) for word in data.split(b"\0")])

    return Prepared([line.encode().replace(b" ", b"\0") for line in valid], read)


def _results(folder: Path) -> Prepared:
    def read() -> None:
        assert all(isinstance(record, dict) for record in read_results(folder / RESULTS))

    return Prepared(seeds.result_lines(), _replacing(folder / RESULTS, read))


def _journal(folder: Path) -> Prepared:
    def read() -> None:
        read_records(folder)
        with open_journal(folder, step=2):
            pass
        assert all(record["step"] <= 2 for record in read_records(folder))

    return Prepared(seeds.journals(), _replacing(folder / METRICS, read))


def _report(folder: Path, name: str) -> Prepared:
    results = seeds.results(folder)

    def read() -> None:
        assert "<script" not in report_page(read_result_set(results.root))

    return _result(folder, name, read, sealed=True)


def _rows(folder: Path, name: str, *, sealed: bool) -> Prepared:
    results = seeds.results(folder)

    def read() -> None:
        assert all(isinstance(record, dict) for record in results.records().values())
        results.plans()

    return _result(folder, name, read, sealed=sealed)


def _result(folder: Path, name: str, read: Callable[[], object], *, sealed: bool) -> Prepared:
    """name: of the file that is replaced; only JSON can be sealed."""
    file = folder / name.format(id=seeds.RUN_ID)

    def replaced(data: bytes) -> object:
        file.write_bytes(_resealed(data) if sealed and file.suffix == ".json" else data)
        return read()

    return Prepared([file.read_bytes()], replaced)


def _weights(convert: Callable[[bytes], dict[str, Tensor]], valid: Callable[[], bytes]) -> Parser:
    def read(data: bytes) -> None:
        assert all(tensor.is_contiguous() for tensor in convert(data).values())

    return Parser(
        "pickle" if valid is seeds.pickled_weights else "zip",
        (WeightsError,),
        lambda _: Prepared([valid()], read),
    )


def _archive(folder: Path) -> Prepared:
    content = b"weights" * 500
    expected = Fingerprint.of(content)

    def read(data: bytes) -> None:
        assert read_member(data, "a/b", expected) == content

    return Prepared(seeds.archives("a/b", content), read)


def _weights_cache(folder: Path) -> Prepared:
    os.environ[weights.CACHE_VARIABLE] = str(folder)
    name = "lpips-vgg16"
    valid = seeds.cached_weights(SETS[name], folder)
    file = path_of(SETS[name])
    # Copies: the tensors lie in the file, which is about to be overwritten.
    expected = {each: tensor.clone() for each, tensor in weights.load(name).items()}

    def read() -> None:
        found = weights.load(name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[each], expected[each]) for each in found)

    return Prepared([valid], _replacing(file, read))


def _statistics(folder: Path) -> Prepared:
    seeds.gaussian().save(folder / "a.npz")
    valid = (folder / "a.npz").read_bytes()

    def read() -> None:
        gaussian = Gaussian.load(folder / "a.npz")
        assert gaussian.covariance.isfinite().all()

    return Prepared([valid], _replacing(folder / "a.npz", read))


def _features(folder: Path) -> Prepared:
    seeds.feature_set().save(folder / "a.features")
    valid = (folder / "a.features").read_bytes()[32:]

    def read(data: bytes) -> None:
        (folder / "a.features").write_bytes(bytes.fromhex(Fingerprint.of(data).sha256) + data)
        FeatureSet.load(folder / "a.features")

    return Prepared([valid], read)


_PRETRAINED = (LGQError,)
_CHECKPOINTS = (LGQError,)
_REPORT = (ResultsError,)
_ROW, _PLAN = "rows/{id}.json", "experiments/comparison.json"

PARSERS: dict[str, Parser] = {
    "image": Parser("image", (DataError,), _image, 2),
    "tar shard": Parser("tar", (DataError,), _shard),
    "classes.json": Parser("json", (DataError,), _class_names),
    "shard pattern": Parser("text", (DataError,), _pattern),
    "tokens.json": Parser("json", (DataError,), lambda f: _tokens_header(f, sealed=False)),
    "tokens.json, sealed": Parser("json", (DataError,), lambda f: _tokens_header(f, sealed=True)),
    "token shard": Parser("safetensors", (DataError,), lambda f: _tokens_shard(f, sealed=False)),
    "token shard, sealed": Parser("safetensors", (DataError,), lambda f: _tokens_shard(f, sealed=True)),
    "checkpoint manifest": Parser("json", _CHECKPOINTS, lambda f: _checkpoint(f, MANIFEST, sealed=False)),
    "checkpoint manifest, sealed": Parser(
        "json", _CHECKPOINTS, lambda f: _checkpoint(f, MANIFEST, sealed=True)
    ),
    "checkpoint state, sealed": Parser(
        "json", _CHECKPOINTS, lambda f: _checkpoint(f, "state.json", sealed=True)
    ),
    "checkpoint tensors": Parser(
        "safetensors", _CHECKPOINTS, lambda f: _checkpoint(f, "state.safetensors", sealed=False)
    ),
    "checkpoint tensors, sealed": Parser(
        "safetensors", _CHECKPOINTS, lambda f: _checkpoint(f, "state.safetensors", sealed=True)
    ),
    "tokenizer config.json": Parser("json", _PRETRAINED, lambda f: _tokenizer(f, CONFIG), 6),
    "tokenizer weights": Parser("safetensors", _PRETRAINED, lambda f: _tokenizer(f, WEIGHTS), 6),
    "generator config.json": Parser("json", (*_PRETRAINED, ConfigError), lambda f: _generator(f, CONFIG), 6),
    "generator weights": Parser("safetensors", _PRETRAINED, lambda f: _generator(f, WEIGHTS), 6),
    "generator's tokenizer": Parser("json", _PRETRAINED, lambda f: _generator(f, f"{TOKENIZER}/{CONFIG}"), 6),
    "run config.json": Parser("json", (LGQError,), _run_settings),
    "settings": Parser("json", (ConfigError,), _settings),
    "command line": Parser("words", (SystemExit, ValueError), _command_line, 40),
    "results.jsonl": Parser("lines", (ResultsError,), _results),
    "metrics.jsonl": Parser("lines", (RunError,), _journal, 4),
    "row": Parser("json", (ResultsError,), lambda f: _rows(f, _ROW, sealed=False)),
    "row, sealed": Parser("json", (ResultsError,), lambda f: _rows(f, _ROW, sealed=True)),
    "plan": Parser("json", (ResultsError,), lambda f: _rows(f, _PLAN, sealed=False)),
    "plan, sealed": Parser("json", (ResultsError,), lambda f: _rows(f, _PLAN, sealed=True)),
    "report of a row": Parser("json", _REPORT, lambda f: _report(f, _ROW), 20),
    "report of a plan": Parser("json", _REPORT, lambda f: _report(f, _PLAN), 20),
    "report of a journal": Parser("lines", _REPORT, lambda f: _report(f, "runs/{id}/metrics.jsonl"), 20),
    "report of a picture": Parser("image", _REPORT, lambda f: _report(f, "pictures/{id}/usage.png"), 20),
    "weights archive": Parser("zip", (WeightsError,), _archive),
    "weights, pickled": _weights(lambda data: lpips(data, network="VGG16"), seeds.pickled_weights),
    "weights, TorchScript": _weights(inception_features, seeds.torchscript_weights),
    "weights, state_dict": _weights(inception_with_classifier, seeds.state_dict_weights),
    "weights cache": Parser("safetensors", (WeightsError,), _weights_cache),
    "FID statistics": Parser("zip", (StatisticsError,), _statistics),
    "features, sealed": Parser("safetensors", (StatisticsError,), _features),
}
"""By name."""
