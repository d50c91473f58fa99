"""Crops stay inside of their image, cover what they should, and belong to (seed, epoch, index)."""

from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lgq.data.images import StoredImage
from lgq.data.transforms import (
    Crop,
    RandomCrop,
    centre_crop,
    padded_to_multiple,
    random_crop,
    render,
    to_png,
    to_tensor,
)

DEFAULT = RandomCrop()


def store(pixels, kind="PNG", **options):
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return StoredImage(buffer.getvalue(), "a")


def noise(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def crops(size=(80, 60), count=400, settings=DEFAULT, seed=0, epoch=0):
    return [random_crop(size, settings, side=16, seed=seed, epoch=epoch, index=i) for i in range(count)]


@given(
    st.tuples(st.integers(1, 500), st.integers(1, 500)),
    st.floats(0.01, 1),
    st.floats(1, 3),
    st.integers(0, 10**6),
)
@settings(max_examples=200, deadline=None)
def test_a_crop_lies_inside_of_its_image(size, area, aspect, index):
    chosen = RandomCrop(smallest_area=area, widest_aspect=aspect)
    crop = random_crop(size, chosen, side=16, seed=0, epoch=0, index=index)
    assert 0 <= crop.left < crop.left + crop.width <= size[0]
    assert 0 <= crop.top < crop.top + crop.height <= size[1]


def test_crops_keep_to_the_settings():
    chosen = crops(size=(400, 400), settings=RandomCrop(smallest_area=0.25, widest_aspect=1.5))
    areas = np.array([c.width * c.height / 400**2 for c in chosen])
    aspects = np.array([c.width / c.height for c in chosen])
    assert 0.245 < areas.min() < 0.3
    assert 0.9 < areas.max() <= 1
    assert 1 / 1.52 < aspects.min() < 0.72
    assert 1.4 < aspects.max() < 1.52
    assert abs(np.log(aspects).mean()) < 0.05


@given(st.tuples(st.integers(1, 60), st.integers(1, 60)), st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_crop_at_the_images_own_resolution_is_a_square_of_the_output_inside_of_it(size, side, index):
    chosen = RandomCrop(own_resolution=True)
    crop = random_crop(size, chosen, side=side, seed=0, epoch=0, index=index)
    assert crop.width == crop.height == min(*size, side)
    assert 0 <= crop.left <= size[0] - crop.width
    assert 0 <= crop.top <= size[1] - crop.height


def test_crops_at_the_images_own_resolution_reach_every_place():
    chosen = crops(size=(18, 17), settings=RandomCrop(own_resolution=True))
    assert {crop.left for crop in chosen} == {0, 1, 2}
    assert {crop.top for crop in chosen} == {0, 1}
    assert {crop.flip for crop in chosen} == {False, True}


def test_crops_are_mirrored_and_red_and_blue_exchanged_as_often_as_asked():
    assert 150 < sum(c.flip for c in crops()) < 250
    assert not any(c.flip for c in crops(settings=RandomCrop(flip=0)))
    assert all(c.flip for c in crops(settings=RandomCrop(flip=1)))
    exchanged = crops(count=4000, settings=RandomCrop(exchange=0.25))
    assert abs(sum(crop.exchange for crop in exchanged) / 4000 - 0.25) < 0.03
    assert [crop._replace(exchange=False) for crop in exchanged[:100]] == crops(count=100)


def test_seed_epoch_and_index_each_change_the_crop():
    base = crops(count=50)
    assert base == crops(count=50)
    for changed in (crops(count=50, seed=1), crops(count=50, epoch=1), crops(count=51)[1:]):
        assert sum(a == b for a, b in zip(base, changed, strict=True)) < 5


@pytest.mark.parametrize(
    ("size", "expected"), [((90, 30), (40, 30)), ((30, 90), (30, 40)), ((1, 500), (1, 1))]
)
def test_images_too_long_for_any_crop_are_cut_in_the_middle(size, expected):
    crop = random_crop(size, RandomCrop(smallest_area=1), side=16, seed=0, epoch=0, index=0)
    assert (crop.width, crop.height) == expected
    assert crop.left == (size[0] - crop.width) // 2
    assert crop.top == (size[1] - crop.height) // 2


@pytest.mark.parametrize(
    ("size", "box"), [((9, 5), (2, 0, 5, 5)), ((4, 11), (0, 3, 4, 4)), ((7, 7), (0, 0, 7, 7))]
)
def test_a_centre_crop_is_the_largest_square_in_the_middle(size, box):
    assert centre_crop(size) == Crop(*box, flip=False)


def test_a_centre_crop_may_be_bounded():
    assert centre_crop((9, 5), most=3) == Crop(3, 1, 3, 3)
    assert centre_crop((9, 5), most=6) == centre_crop((9, 5))


def test_padding_repeats_the_last_row_and_column_up_to_a_multiple():
    images = torch.randn(1, 3, 5, 8)
    padded = padded_to_multiple(images, 4)
    assert padded.shape == (1, 3, 8, 8)
    assert torch.equal(padded[:, :, :5], images)
    assert torch.equal(padded[:, :, 5:], images[:, :, 4:].expand(-1, -1, 3, -1))
    assert padded_to_multiple(padded, 4) is padded


def test_images_stand_side_by_side_in_one_picture():
    left, right = torch.rand(3, 4, 5) * 2 - 1, torch.rand(3, 4, 2) * 2 - 1
    both = np.asarray(Image.open(BytesIO(to_png(left, right))))
    assert np.array_equal(both[:, :5], Image.open(BytesIO(to_png(left))))
    assert np.array_equal(both[:, 5:], Image.open(BytesIO(to_png(right))))


def test_a_crop_of_the_final_size_keeps_its_pixels():
    pixels = noise(20, 30)
    crop = Crop(5, 3, 16, 16)
    image = render(store(pixels), crop, 16)
    assert torch.equal(image, to_tensor(Image.fromarray(pixels[3:19, 5:21])))
    assert torch.equal(render(store(pixels), crop._replace(flip=True), 16), image.flip(-1))
    assert torch.equal(render(store(pixels), crop._replace(exchange=True), 16), image.flip(0))


def test_pixels_map_exactly_to_minus_one_and_one():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    image = render(store(levels), Crop(0, 0, 16, 16), 16)
    assert image.dtype == torch.float32
    assert image.is_contiguous()
    assert (image.min(), image.max()) == (-1, 1)
    assert torch.equal(
        ((image + 1) * 127.5).round().to(torch.uint8), torch.from_numpy(levels).permute(2, 0, 1)
    )


def test_reducing_averages_instead_of_skipping():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    assert render(store(stripes), centre_crop((64, 64)), 8).abs().max() < 0.05


def test_draft_decoding_barely_changes_a_crop():
    x, y = np.meshgrid(np.linspace(0, 9, 700), np.linspace(0, 7, 500))
    smooth = (127 + 120 * np.stack([np.sin(x), np.sin(y), np.sin(x + y)], -1)).astype(np.uint8)
    crop = Crop(130, 50, 400, 300)
    lossless, lossy = (render(store(smooth, *options), crop, 32) for options in (("PNG",), ("JPEG",)))
    assert (lossless - lossy).abs().max() < 0.06


@pytest.mark.parametrize(
    "wrong", [{"smallest_area": 0}, {"smallest_area": 1.1}, {"widest_aspect": 0.5}, {"flip": 2}]
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RandomCrop(**wrong)


def test_a_png_holds_every_level_of_an_image():
    pixels = np.arange(768, dtype=np.uint16).astype(np.uint8).reshape(16, 16, 3)
    with Image.open(BytesIO(to_png(to_tensor(Image.fromarray(pixels))))) as image:
        assert np.array_equal(np.asarray(image), pixels)
    with Image.open(BytesIO(to_png(torch.tensor([-3.0, 0.0, 7.0]).view(3, 1, 1)))) as clamped:
        assert clamped.getpixel((0, 0)) == (0, 128, 255)
