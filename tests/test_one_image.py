"""One image in any form becomes tokens, tokens become a picture, and values of another range are refused."""

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lgq import LGQError, Tokenizer
from lgq.data import to_png, to_tensor
from lgq.data.images import FILE_LIMIT, PIXEL_LIMIT, to_rgb
from lgq.models.autoencoder import Backbone

TINY = Backbone(widths=(4, 4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)
FACTOR = 4
PIXELS = np.random.default_rng(0).integers(0, 256, (11, 18, 3), dtype=np.uint8)


@pytest.fixture(scope="module", params=[1, 2], ids=["one stage", "two stages"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(TINY, codebook_size=32, stages=request.param).eval()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "cat.png")
    return tmp_path / "cat.png"


def test_every_form_of_an_image_gives_the_same_tokens(tokenizer, file):
    forms = [
        str(file),
        file,
        file.read_bytes(),
        Image.open(file),
        Image.fromarray(PIXELS),
        PIXELS,
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        PIXELS.astype(np.uint16) * 257,
        np.dstack([PIXELS, np.full((11, 18), 255, np.uint8)]),
    ]
    tokens = [tokenizer.encode_image(form) for form in forms]
    # 11 x 18 pixels lose a row above, two below, and a column on each side.
    cut = to_tensor(Image.fromarray(PIXELS[1:9, 1:17]))
    assert tokens[0].shape[:3] == (1, 2, 4)
    assert all(torch.equal(x, tokenizer.encode(cut[None])) for x in tokens)


def test_a_grey_image_has_three_equal_channels(tokenizer):
    grey = PIXELS[..., 0]
    colours = tokenizer.encode_image(np.dstack([grey] * 3))
    for form in (grey, grey[..., None], grey / 255, Image.fromarray(grey)):
        assert torch.equal(tokenizer.encode_image(form), colours)


def test_an_image_is_turned_upright_and_stands_on_white():
    stored, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(stored, "PNG", exif=exif)
    upright = np.rot90(PIXELS, -1)
    assert np.array_equal(to_rgb(stored.getvalue()), upright)
    assert np.array_equal(to_rgb(Image.open(stored)), upright)
    clear = np.zeros((4, 4, 4), np.uint8)
    assert (np.array(to_rgb(clear)) == 255).all()
    assert (np.array(to_rgb(Image.fromarray(clear))) == 255).all()


def test_tokens_of_one_image_are_a_picture_and_of_several_a_list(tokenizer, file):
    tokens = tokenizer.encode_image(file)
    picture = tokenizer.decode_image(tokens)
    assert (picture.mode, picture.size) == ("RGB", (16, 8))
    expected = Image.open(BytesIO(to_png(tokenizer.decode(tokens)[0])))
    assert np.array_equal(picture, expected)
    assert np.array_equal(tokenizer.decode_image(tokens[0].to(torch.uint8)), picture)
    several = tokenizer.decode_image(torch.cat([tokens, tokens.flip(2)]))
    assert isinstance(several, list)
    assert np.array_equal(several[0], picture)
    assert np.array_equal(several[1], tokenizer.decode_image(tokens.flip(2)))


def large_file(folder: Path) -> Path:
    path = folder / "large.png"
    with path.open("wb") as file:
        file.truncate(FILE_LIMIT + 1)
    return path


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda folder: folder / "gone.png", "gone.png: No such file"),
        (lambda folder: folder, "Is a directory|not a readable image"),
        (large_file, "bytes is more than the"),
        (lambda _: b"no image", "the image: not a readable image"),
        (lambda _: b"", "the image: the file is empty"),
        (lambda _: np.zeros((3, 3, 3), np.uint8), "3 x 3 pixels hold no token of 4 x 4"),
        (lambda _: np.zeros((3, 8, 9), np.uint8), r"got \(3, 8, 9\): move the channels last"),
        (lambda _: np.zeros((2, 8, 8, 3), np.uint8), r"got \(2, 8, 8, 3\): give one image"),
        (lambda _: np.zeros((8, 8), np.int64), "uint8, uint16, or floats .*, got int64"),
        (lambda _: PIXELS.astype(float), r"values in \[0, 1\], got 0 to 255: divide by its white"),
        (lambda _: PIXELS / 127.5 - 1, r"values in \[0, 1\], got -1 to 1: "),
        (lambda _: np.full((8, 8), np.nan), "got nan to nan"),
        (lambda _: np.zeros((0, 8), np.uint8), "0 pixels is not between|hold no token"),
        (lambda _: Image.new("F", (8, 8)), "floating-point pixels"),
        (lambda _: torch.zeros(3, 8, 8), "got Tensor: a tensor in .* goes to `encode`"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(form, message, tmp_path):
    torch.manual_seed(0)
    with pytest.raises(LGQError, match=message) as refusal:
        Tokenizer(TINY, codebook_size=8).encode_image(form(tmp_path))
    assert "\n" not in str(refusal.value)


def test_the_number_of_pixels_is_limited(monkeypatch):
    monkeypatch.setattr("lgq.data.images.PIXEL_LIMIT", 100)
    for form in (PIXELS, Image.fromarray(PIXELS)):
        with pytest.raises(LGQError, match="18 x 11 pixels is not between 1 and 100"):
            to_rgb(form)
    assert PIXEL_LIMIT > 100


# Values of another range


def images(scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    drawn = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    drawn[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    return (drawn * 2 - 1) * scale + shift


over_calls = pytest.mark.parametrize("call", ["encode", "forward"])
over_modes = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


@over_calls
@over_modes
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (images(127.5, 127.5), "from 0 to 255"),
        (images(127.5, 127.5).half(), "from 0 to 255"),
        (images(2.4, 0.3), "from -2.1 to 2.7"),
    ],
)
def test_values_far_outside_are_refused_with_the_way_out(call, training, given, shown, tokenizer):
    tokenizer.train(training)
    tokenizer._has_trained = False
    with pytest.raises(LGQError, match=f"got values {shown}: convert bytes by images / 127.5 - 1"):
        getattr(tokenizer, call)(given)
    tokenizer.eval()


@over_calls
def test_bytes_are_refused_with_the_way_out(call, tokenizer, without_shape_checks):
    with pytest.raises(LGQError, match=r"got torch.uint8: convert them, images / 127.5 - 1"):
        getattr(tokenizer, call)(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_tokens_as_an_array_are_refused_with_the_way_out(tokenizer, without_shape_checks):
    with pytest.raises(LGQError, match=r"tokens must be a tensor, got ndarray: convert by torch.as_tensor"):
        tokenizer.decode_image(np.zeros((2, 2), np.int64))


@over_calls
def test_an_array_is_refused_with_the_way_out(call, tokenizer, without_shape_checks):
    with pytest.raises(LGQError, match=r"got numpy.ndarray: .* torch.from_numpy.* to encode_image"):
        getattr(tokenizer, call)(np.zeros((1, 3, 8, 8), np.float32))


@over_calls
@over_modes
def test_a_slight_overshoot_passes(call, training, tokenizer):
    tokenizer.train(training)
    getattr(tokenizer, call)(images(1.5))
    tokenizer.eval()


def test_of_a_training_only_the_first_batch_is_checked(monkeypatch):
    checked: list[torch.Tensor] = []
    monkeypatch.setattr("lgq.tokenizer.require_image_values", checked.append)
    tokenizer = Tokenizer(TINY, codebook_size=8).train()
    for _ in range(3):
        tokenizer(images())
    assert len(checked) == 1
    tokenizer.eval()(images())
    tokenizer.encode(images())
    assert len(checked) == 3
    tokenizer.train()(images())
    assert len(checked) == 3


@pytest.mark.usefixtures("without_shape_checks")
def test_the_check_of_values_is_no_part_of_a_graph():
    tokenizer = Tokenizer(TINY, "fsq", 8).eval()
    with torch.device("meta"):
        assert tokenizer.to("meta").encode(torch.empty(1, 3, 8, 8)).shape == (1, 2, 2)
    tokenizer = Tokenizer(TINY, "fsq", 8).eval()
    exported = torch.export.export(tokenizer.encoder, (images(),))
    assert torch.equal(exported.module()(images()), tokenizer.encoder(images()))
    compiled = torch.compile(tokenizer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images()).reconstruction, tokenizer(images()).reconstruction)


def test_an_image_is_encoded_without_the_compiler_of_torch():
    code = (
        "import sys, torch; from lgq import Tokenizer; from lgq.models.autoencoder import Backbone; "
        "backbone = Backbone(widths=(4, 4), blocks=1, groups=2, attention_heads=0); "
        "tokenizer = Tokenizer(backbone, codebook_size=8); "
        "tokenizer.encode(torch.zeros(1, 3, 4, 4)); sys.exit('torch._dynamo' in sys.modules)"
    )
    # The tests interpret the kernels for GPUs, which are operators.
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=plain).returncode == 0
