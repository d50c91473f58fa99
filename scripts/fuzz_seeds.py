"""Valid files, as small as they come: what the hostile ones are made of."""

import gzip
import io
import pickle
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from lgq.data.token_format import Encoding
from lgq.data.token_writer import EncodedBatch, TokenWriter
from lgq.experiments.results_directory import Plan, PlannedRow, ResultsDirectory
from lgq.files import json_bytes
from lgq.maskgit import MaskGIT
from lgq.metrics.features import FeatureSet
from lgq.metrics.fid import Gaussian
from lgq.models.autoencoder import Backbone
from lgq.models.transformer import TransformerSettings
from lgq.tokenizer import Tokenizer
from lgq.training.settings import TokenizerRun
from lgq.weights.cache import path_of, store
from lgq.weights.registry import WeightSet

RUN_ID = "lgq-s0"
BACKBONE = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)


def images() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
    picture = Image.fromarray(pixels)
    turned = Image.Exif()
    turned[0x0112] = 6
    made = [_saved(picture, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
    made += [_saved(picture, kind, exif=turned) for kind in ("JPEG", "PNG")]
    made += [_saved(picture.convert(mode), "PNG") for mode in ("P", "RGBA", "L", "1")]
    made += [_saved(Image.fromarray(pixels[..., 0].astype(np.uint16) * 200), "PNG")]
    return [*made, _saved(picture, "TIFF", compression="tiff_lzw"), _saved(picture, "JPEG", progressive=True)]


def _saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def shards() -> list[bytes]:
    return [_tar(style) for style in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)]


def _tar(style: int) -> bytes:
    buffer, picture = io.BytesIO(), images()[1]
    members = {
        "a.png": picture,
        "a.cls": b"1",
        "b/c.png": picture,
        "b/c.cls": b"2",
        "é" * 80 + ".png": picture,
    }
    with tarfile.open(fileobj=buffer, mode="w", format=style) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def tokens(folder: Path) -> Path:
    count = 5
    encoding = Encoding(
        fingerprint="0" * 64, codebook_size=6, stages=1, grid=(2, 3), image_size=4, flips=True,
        classes=("cat", "dog"), source="a folder", source_images=count, shard_size=3,
    )  # fmt: skip
    writer = TokenWriter(folder, encoding)
    for shard in range(encoding.shards):
        images_of = range(count)[shard * 3 : shard * 3 + 3]
        codes = torch.arange(len(images_of) * 6).reshape(-1, 2, 3) % 6
        batch = EncodedBatch(
            codes, codes.flip(2), torch.zeros(len(images_of)).long(), [f"{i}.png" for i in images_of]
        )
        writer.write(shard, [batch], {"broken.png": "the file is empty"})
    writer.finish()
    return folder


def state() -> dict[str, Any]:
    module = nn.Linear(3, 2)
    return {
        "step": 3,
        "nan": float("nan"),
        "pair": (1, [None, "x"]),
        "module": module.state_dict(),
        "turned": torch.ones(2, 3).T,
    }


def tokenizers() -> list[Tokenizer]:
    torch.manual_seed(0)
    quantizers = {"lgq": 8, "fsq": 8, "lfq": 8, "vq": 8, "simvq": 8}
    made = [Tokenizer(BACKBONE, name, size) for name, size in quantizers.items()]
    return [*made, Tokenizer(BACKBONE, "ibq", 8, stages=2)]


def generator() -> MaskGIT:
    transformer = TransformerSettings(layers=1, width=8, heads=2, hidden=8)
    return MaskGIT(tokenizers()[0], image_size=4, classes=("cat", "dog"), transformer=transformer)


def run() -> TokenizerRun:
    return TokenizerRun(backbone=BACKBONE, codebook_size=16, image_size=32)


def result_lines() -> list[bytes]:
    record = {"kind": "tokenizer", "command": ["lgq"], "metrics": {"psnr": 21.5, "lpips": None}, "seed": 0}
    return [json_bytes(record) * 3, json_bytes(record)[:-1]]


def journals() -> list[bytes]:
    lines = [
        {
            "step": step,
            "split": split,
            "seconds": 0.5,
            "values": {"psnr": 20.0 + step, "l1": 0.1, "utilization": 1.0},
        }
        for step in (1, 2, 3)
        for split in ("train", "validation")
    ]
    return [b"".join(map(json_bytes, lines)), b"".join(map(json_bytes, lines))[:-9]]


def results(folder: Path) -> ResultsDirectory:
    made = ResultsDirectory(folder)
    planned = PlannedRow(row="lgq", label="LGQ", group="1024", kind="tokenizer", seed=0, id=RUN_ID)
    made.write_plan(
        Plan(
            experiment="comparison",
            title="A title",
            paper="",
            about="About it.",
            scale="smoke",
            data="photos",
            validation_data="photos",
            images="0",
            shown="photos",
            protocol={"steps": 3},
            rows=(planned,),
        )
    )
    record = {
        "id": RUN_ID, "kind": "tokenizer", "command": ["lgq"], "seed": 0, "seconds": 3.5, "steps": 3,
        "config": {"quantizer": "lgq", "codebook_size": 1024, "seed": 0, "backbone": {"widths": [4, 8]}},
        "metrics": {"psnr": 21.5, "rfid": 30.0, "utilization": 0.5, "lpips": None},
        "geometry": {"live_norm_min": 1.0},
        "environment": {"torch": "2", "devices": ["a cpu"]}, "tokenizer": None, "shown_classes": ["cat"],
    }  # fmt: skip
    made.write_record(RUN_ID, record)
    made.run(RUN_ID).mkdir(parents=True)
    (made.run(RUN_ID) / "metrics.jsonl").write_bytes(journals()[0])
    made.write_pictures(RUN_ID, {"usage": images()[1], "samples": images()[1]})
    return made


def pickled_weights() -> bytes:
    kernel, head = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 1), np.float32)
    tree = {
        "VGG16_0": {"Conv_0": {"kernel": kernel, "bias": kernel[0, 0, 0]}},
        "NetLinLayer_0": {"Conv_0": {"kernel": head}},
    }
    return pickle.dumps(tree)


def torchscript_weights() -> bytes:
    network = nn.Module()
    network.net = nn.Module()
    network.net.layers = nn.Sequential()
    network.net.layers.add_module("conv_1", nn.Linear(3, 2))
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(network), file)
    return file.getvalue()


def state_dict_weights() -> bytes:
    file = io.BytesIO()
    names = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    layer = {f"Conv2d_1a_3x3.{name}": torch.ones(2) for name in names}
    torch.save(
        layer
        | {f"Mixed_7b.branch3x3dbl_3b.{name}": torch.ones(2) for name in names}
        | {"fc.weight": torch.ones(2)},
        file,
    )
    return file.getvalue()


def archives(member: str, content: bytes) -> list[bytes]:
    zipped, packed = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        # With a fixed date: the same seeds give the same mutants.
        archive.writestr(zipfile.ZipInfo(member), content, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo("setup.py"), b"raise SystemExit")
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return [zipped.getvalue(), gzip.compress(packed.getvalue(), mtime=0), packed.getvalue()]


def cached_weights(weights: WeightSet, work: Path) -> bytes:
    path_of(weights).parent.mkdir(parents=True)
    store(weights, {"a": torch.ones(2, 3), "b": torch.zeros(4)}, work)
    return path_of(weights).read_bytes()


def gaussian() -> Gaussian:
    return Gaussian(torch.zeros(3).double(), torch.eye(3).double(), 10)


def feature_set() -> FeatureSet:
    made = FeatureSet.of(3, sample=4)
    made.update(torch.rand(6, 3), torch.arange(6))
    return made
