"""Valid files, as small as possible, from which the hostile ones are made."""

import io
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from result_sets import FakeRow, write_results
from token_sets import write_tokens
from torch import nn

from lgq.experiments.results_directory import ResultsDirectory
from lgq.files import json_bytes
from lgq.maskgit import MaskGIT
from lgq.metrics.features import FeatureSet
from lgq.models.autoencoder import Backbone
from lgq.models.transformer import TransformerSettings
from lgq.tokenizer import Tokenizer

BACKBONE = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)
RUN_ID = "comparison-LGQ-s0"


class Trap:
    """Unpickling a trap creates a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def images() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
    picture, rotated = Image.fromarray(pixels), Image.Exif()
    rotated[0x0112] = 6
    return [
        *(encoded(picture, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")),
        *(encoded(picture, kind, exif=rotated) for kind in ("JPEG", "PNG")),
        *(encoded(picture.convert(mode), "PNG") for mode in ("P", "RGBA", "L", "1")),
        encoded(Image.fromarray(pixels[..., 0].astype(np.uint16) * 200), "PNG"),
        encoded(picture, "TIFF", compression="tiff_lzw"),
        encoded(picture, "JPEG", progressive=True),
    ]


def tar(members: dict[str, bytes], style: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=style) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            # A fixed date: the same seeds give the same mutants.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def shards() -> list[bytes]:
    picture = images()[1]
    members = {"a.png": picture, "a.cls": b"1", "b/c.png": picture, "b/c.cls": b"2"}
    members["é" * 80 + ".png"] = picture  # needs an extended header
    return [tar(members, style) for style in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)]


def tokens(folder: Path) -> Path:
    codes, broken = torch.arange(30).reshape(5, 2, 3) % 6, {"broken.png": "the file is empty"}
    labels = {"labels": [0] * 5, "classes": ("cat", "dog"), "broken": broken}
    write_tokens(folder, codes, flipped=codes.flip(2), shard_size=3, **labels)
    return folder


def state() -> dict[str, Any]:
    """State of a training, with values of every kind that a checkpoint can hold."""
    values = {"step": 3, "nan": float("nan"), "pair": (1, [None, "x"])}
    return values | {"module": nn.Linear(3, 2).state_dict(), "turned": torch.ones(2, 3).T}


def scripted_network() -> tuple[nn.Module, bytes]:
    """A network with names of the published FID network and attributes that are not tensors, and its file."""
    network, file = nn.Module(), io.BytesIO()
    network.padding, network.stride = [1, 2], 3
    network.net = nn.Module()
    network.net.layers = nn.Sequential()
    network.net.layers.add_module("mixed_9", nn.Sequential())
    network.net.layers.mixed_9.add_module("tower_1_mixed_conv_1", nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(network), file)
    return network, file.getvalue()


def tokenizers() -> list[Tokenizer]:
    torch.manual_seed(0)
    single = [Tokenizer(BACKBONE, name, 8) for name in ("lgq", "fsq", "lfq", "vq", "simvq")]
    return [*single, Tokenizer(BACKBONE, "ibq", 8, stages=2)]


def generator() -> MaskGIT:
    transformer = TransformerSettings(layers=1, width=8, heads=2, hidden=8)
    return MaskGIT(tokenizers()[0], image_size=4, classes=("cat", "dog"), transformer=transformer)


def journals() -> list[bytes]:
    values = {"psnr": 20.0, "l1": 0.1, "utilization": 1.0}
    lines = b"".join(
        json_bytes({"step": step, "split": split, "seconds": 0.5, "values": values})
        for step in (1, 2, 3)
        for split in ("train", "validation")
    )
    return [lines, lines[:-9]]


def results(folder: Path) -> ResultsDirectory:
    config = {"quantizer": "lgq", "codebook_size": 1024, "backbone": {"widths": [4, 8]}}
    values = {"psnr": 21.5, "rfid": 30.0, "utilization": 0.5, "lpips": None, "geometry.live_norm_min": 1.0}
    extra = {"seconds": 3.5, "steps": 3, "shown_classes": ["cat"]}
    row = FakeRow("LGQ", config, [values], extra=extra)
    directory = write_results(folder, {"comparison": [row]})
    (directory.run(RUN_ID) / "metrics.jsonl").write_bytes(journals()[0])
    directory.write_pictures(RUN_ID, {"usage": images()[1], "samples": images()[1]})
    return directory


def feature_set() -> FeatureSet:
    features = FeatureSet.empty(3, sample=4)
    features.update(torch.rand(6, 3), torch.arange(6))
    return features
