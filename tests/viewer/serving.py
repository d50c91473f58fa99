"""A real server with small tokenizers of random weights, and one request at a time to it."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fuzz.seeds import encoded
from PIL import Image

from lgq.models.autoencoder import Backbone
from lgq.tokenizer import Tokenizer
from lgq.viewer.api import api_of
from lgq.viewer.guard import Limits
from lgq.viewer.packets import unpack
from lgq.viewer.server import listening
from lgq.viewer.studio import Studio

SMALL = Backbone(widths=(4, 8, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)


LOCAL = replace(SMALL, norm="layer")
"""A change of one token does not reach all pixels."""


def small_tokenizer(
    quantizer: str = "lgq",
    *,
    stages: int = 1,
    scales: tuple[int, ...] = (),
    seed: int = 0,
    backbone: Backbone = SMALL,
    **options: Any,
) -> Tokenizer:
    torch.manual_seed(seed)
    levels = {"stages": stages, "scales": scales}
    return Tokenizer(backbone, quantizer, 32, **levels, quantizer_options=options).eval()


def gradient(width: int, height: int, seed: int = 0) -> Image.Image:
    """A colourful picture with details."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def png(width: int, height: int, seed: int = 0) -> bytes:
    return encoded(gradient(width, height, seed), "PNG")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        assert self.status == 200, self.body[:300]
        return unpack(self.body)[1]

    @property
    def error(self) -> str:
        assert self.status != 200
        return str(self.json["error"])


@dataclass
class Served:
    studio: Studio
    port: int

    def ask(self, path: str, *, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        result = Answer(answer.status, named, answer.read())
        connection.close()
        return result

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask(path, method="POST", body=data, **headers)


def serve(studio: Studio, limits: Limits | None = None) -> Iterator[Served]:
    with listening(api_of(studio, limits), limits) as port:
        yield Served(studio, port)
