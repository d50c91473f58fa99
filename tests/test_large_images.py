"""Large images are encoded and decoded in tiles, with the result of the whole image and bounded features."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lgq.data.images import DataError, to_rgb
from lgq.inference.encode import encode
from lgq.inference.reconstruct import reconstruct
from lgq.models.autoencoder import Backbone
from lgq.models.vqgan import VQGANBackbone
from lgq.tokenizer import _MOST_POSITIONS, ImageTooLargeError, Tokenizer

LOCAL = Backbone(
    patch=2, widths=(4, 8), blocks=1, groups=4, attention_heads=0, latent_channels=4, latent_groups=2,
    norm="layer",
)  # fmt: skip
BYTES = 2**13
ATTENDING = replace(LOCAL, attention_heads=2)
TOO_LARGE = (
    r"44 x 80 pixels are too many for the attention of this tokenizer: 220 positions, and at most 100 on "
    r"cpu, as 40 x 40 pixels have; give a smaller `image_size`, or take .* photo-f8 or that of a "
    r"photo-\* run\."
)


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgq.tokenizer._TILE_BYTES", BYTES)


def build(backbone: Backbone = LOCAL, stages: int = 1) -> Tokenizer:
    torch.manual_seed(0)
    return Tokenizer(backbone, codebook_size=32, stages=stages).eval()


def largest_features(tokenizer: Tokenizer) -> list[int]:
    """Record the bytes of the largest output of a layer."""
    largest = [0]

    def note(_module: object, _inputs: object, output: Tensor) -> None:
        largest[0] = max(largest[0], output.nbytes)

    for part in (tokenizer.encoder, tokenizer.decoder):
        for module in part.modules():
            if not list(module.children()):
                module.register_forward_hook(note)
    return largest


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("size", [(64, 124), (4, 400), (100, 60)])
def test_tiles_give_what_the_whole_image_gives(size, stages, monkeypatch):
    tokenizer, images = build(stages=stages), torch.rand(2, 3, *size) * 2 - 1
    tokens = tokenizer.encode(images)
    pictures = tokenizer.decode(tokens)
    monkeypatch.setattr("lgq.tokenizer._TILE_BYTES", BYTES)
    side = tokenizer._tile_side(2, size[0] // 4, size[1] // 4)
    assert side is not None
    assert side < max(size) // 4
    assert torch.equal(tokenizer.encode(images), tokens)
    torch.testing.assert_close(tokenizer.decode(tokens), pictures, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    "rectangle", [(0, 0, 1, 1), (14, 9, 15, 10), (29, 0, 30, 20), (6, 3, 9, 17), (0, 0, 30, 20)]
)
def test_a_change_of_tokens_is_decoded_where_it_reaches(rectangle, stages):
    tokenizer, (top, left, bottom, right) = build(stages=stages), rectangle
    tokens = torch.randint(0, 32, (1, 30, 20) if stages == 1 else (1, 30, 20, 2))
    image = tokenizer.decode(tokens)
    tokens[:, top:bottom, left:right] = 31 - tokens[:, top:bottom, left:right]
    part, place = tokenizer.decode_around(tokens, slice(top, bottom), slice(left, right))
    image[(..., *place)] = part
    torch.testing.assert_close(image, tokenizer.decode(tokens), rtol=0, atol=1e-5)
    reach = LOCAL.reach
    assert place[0] == slice(4 * max(0, top - reach), 4 * min(30, bottom + reach))
    assert place[1] == slice(4 * max(0, left - reach), 4 * min(20, right + reach))


def test_a_change_reaches_all_of_a_network_that_sees_the_whole_image():
    tokenizer, tokens = build(replace(LOCAL, norm="group")), torch.randint(0, 32, (1, 6, 5))
    part, place = tokenizer.decode_around(tokens, slice(2, 3), slice(4, 5))
    assert place == (slice(0, 24), slice(0, 20))
    assert torch.equal(part, tokenizer.decode(tokens))


@pytest.mark.usefixtures("_small_tiles")
def test_the_features_of_a_tile_stay_bounded_whatever_the_image():
    tokenizer = build()
    largest = largest_features(tokenizer)
    for side in (128, 512):
        tokenizer.decode(tokenizer.encode(torch.zeros(1, 3, side, side)))
    side = (BYTES / (4 * LOCAL.values_per_pixel * LOCAL.factor**2)) ** 0.5
    halo = 2 * LOCAL.reach / side
    assert 0.3 * BYTES < largest[0] <= BYTES * (1 + halo) ** 2


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("change", [{"norm": "group"}, {"attention_heads": 2}])
def test_networks_that_see_the_whole_image_are_not_cut(change):
    tokenizer = build(replace(LOCAL, **change))
    assert tokenizer._tile_side(1, 500, 500) is None
    assert tokenizer.decode(tokenizer.encode(torch.zeros(1, 3, 64, 64))).shape == (1, 3, 64, 64)


@pytest.mark.usefixtures("_small_tiles", "without_shape_checks")
def test_a_large_image_that_does_not_fit_is_refused_as_a_small_one():
    with pytest.raises(ValueError, match="multiples of 4, got 201 x 400"):
        build().encode(torch.zeros(1, 3, 201, 400))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("size", [(101, 147), (3, 2), (1, 300)])
def test_a_reconstruction_has_the_size_of_its_image(size, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (done,) = reconstruct(build(), tmp_path / "a.png", tmp_path / "out").images
    picture = np.asarray(Image.open(done.file))
    assert picture.shape == (size[0], 2 * size[1], 3)
    assert np.array_equal(picture[:, : size[1]], pixels)
    error = (picture[:, size[1] :].astype(float) - pixels) / 255
    assert done.psnr == pytest.approx(-10 * np.log10(np.square(error).mean()), abs=0.05)


@pytest.fixture
def _few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_MOST_POSITIONS, "cpu", 100)


@pytest.mark.usefixtures("_few_positions")
def test_attention_refuses_images_with_too_many_positions(tmp_path):
    tokenizer, picture = build(ATTENDING), Image.new("RGB", (45, 81))
    with pytest.raises(ImageTooLargeError, match=TOO_LARGE):
        tokenizer.encode(torch.zeros(1, 3, 80, 44))
    with pytest.raises(ImageTooLargeError, match=TOO_LARGE):
        tokenizer.decode(torch.zeros(1, 20, 11, dtype=torch.int64))
    with pytest.raises(ImageTooLargeError, match=TOO_LARGE):
        tokenizer.encode_image(picture)
    assert tokenizer.encode_image(picture, image_size=40).shape == (1, 10, 10)
    assert build().encode_image(picture).shape == (1, 20, 11)
    picture.save(tmp_path / "a.png")
    with pytest.raises(ImageTooLargeError, match="44 x 44 pixels"):
        encode(tokenizer, tmp_path / "a.png", tmp_path / "tokens", image_size=44)
    assert not (tmp_path / "tokens").exists()


def test_the_bound_of_attention_is_a_million_pixels_at_f_4_on_a_cpu_and_more_elsewhere():
    tokenizer = build(ATTENDING)
    assert tokenizer.resolve_image_size(1024) == 1024
    with pytest.raises(ImageTooLargeError, match="at most 65,536 on cpu, as 1,024 x 1,024 pixels have"):
        tokenizer.resolve_image_size(1028)
    assert tokenizer.to("meta").resolve_image_size(2560) == 2560


@pytest.mark.parametrize(
    ("backbone", "positions"),
    [
        (LOCAL, 0),
        (ATTENDING, 6),
        (VQGANBackbone(), 6),
        (VQGANBackbone(attention_levels=(2, 4)), 6 * 16),
        (VQGANBackbone(attention_levels=(), middle_attention=False), 0),
    ],
)
def test_the_largest_attention_layer_counts(backbone, positions):
    assert backbone.attention_per_token * 6 == positions


@pytest.mark.usefixtures("_few_positions")
def test_reconstruct_skips_what_is_too_large_and_does_the_rest(tmp_path, caplog):
    for name, size in {"a": (44, 80), "b": (40, 40)}.items():
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    large, small = tmp_path / "a.png", tmp_path / "b.png"
    calls = []
    result = reconstruct(
        build(ATTENDING), [large, small], tmp_path / "out", on_progress=lambda *call: calls.append(call)
    )
    assert [image.path for image in result.images] == [small]
    assert re.fullmatch(TOO_LARGE, result.broken[str(large)])
    assert f"{large} is skipped: 44 x 80 pixels" in caplog.text
    assert calls == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(ImageTooLargeError, match=TOO_LARGE):
        reconstruct(build(ATTENDING), large, tmp_path / "out")
    with pytest.raises(DataError, match=r"none of 2 images can be reconstructed, such as .*a\.png \(44 x 80"):
        reconstruct(build(ATTENDING), [large, large], tmp_path / "out")
    (square,) = reconstruct(build(ATTENDING), large, tmp_path / "square", image_size=16).images
    assert to_rgb(square.file).size == (32, 16)


def test_reconstruct_says_that_attention_over_a_large_image_takes_a_while(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("lgq.inference.reconstruct._MANY_POSITIONS", 99)
    monkeypatch.setitem(_MOST_POSITIONS, "cpu", 100)
    images = tmp_path / "images"
    images.mkdir()
    for name, size in {"a": (39, 40), "b": (41, 40)}.items():
        Image.new("RGB", size).save(images / f"{name}.png")
    with caplog.at_level("INFO", "lgq"):
        reconstruct(build(ATTENDING), images, tmp_path / "out")
    assert caplog.text.count("takes a while") == 1
    assert "a.png: attention over all of its 39 x 40 pixels takes a while" in caplog.text
    assert "b.png is skipped: 41 x 40 pixels are too many" in caplog.text
