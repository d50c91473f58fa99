"""Pictures show the pixels that they were given, and nothing that they were not."""

import numpy as np
import pytest
import torch
from PIL import ImageColor, ImageFont
from png_pixels import count, levels, noise, opened, place
from torch import Tensor

from lgq.plots import canvas
from lgq.plots.pictures import (
    Panel,
    atlas_sheet,
    codebook_grid,
    inpainting_strip,
    mean_patches,
    progression,
    reconstruction_grid,
    sample_grid,
    shortened,
    side_by_side,
    token_mosaic,
)


def test_panels_are_side_by_side_each_at_its_own_scale_with_its_caption():
    small, large = noise(3, 4, 6), noise(3, 12, 9)
    picture = opened(side_by_side([Panel("small", small, 3), Panel("large", large)]))
    assert count(canvas.INK, picture) > 0 == count(canvas.INK, opened(side_by_side([Panel("", small)])))
    top, left = place(levels(small, 3), picture)
    assert place(levels(large), picture) == (top, left + 18 + canvas.MARGIN)


def test_every_image_of_a_grid_is_above_its_reconstruction():
    images, reconstructions = noise(5, 3, 4, 6), noise(5, 3, 4, 6)
    picture = opened(reconstruction_grid(images, reconstructions, caption="", columns=3, scale=2))
    above = [place(levels(image, 2), picture) for image in images]
    below = [place(levels(image, 2), picture) for image in reconstructions]
    assert [x for _, x in above] == [x for _, x in below]
    assert all(0 < low - high - 8 < 4 for (high, _), (low, _) in zip(above, below, strict=True))
    assert [y for y, _ in above] == [above[0][0]] * 3 + [above[3][0]] * 2
    assert above[3][1] == above[0][1]


def test_each_column_of_a_grid_has_its_remark():
    images = noise(2, 3, 16, 16)
    with pytest.raises(ValueError, match="shorter"):
        reconstruction_grid(images, images, caption="", remarks=["only one"])
    said = opened(reconstruction_grid(images, images, caption="", remarks=["", "20 dB"], scale=4))
    assert count(canvas.FAINT, said[:, : said.shape[1] // 2]) == 0
    assert count(canvas.FAINT, said[:, said.shape[1] // 2 :]) > 0


def test_rows_of_a_progression_hold_the_same_images_beside_their_names():
    images, coarse = noise(3, 3, 4, 6), noise(3, 3, 4, 6)
    picture = opened(progression({"images": images, "+ 2 x 2: 14.09 dB": coarse}, caption="", scale=3))
    above = [place(levels(image, 3), picture) for image in images]
    below = [place(levels(image, 3), picture) for image in coarse]
    assert [x for _, x in above] == [x for _, x in below]
    assert {low - high for (high, _), (low, _) in zip(above, below, strict=True)} == {12 + canvas.GAP}
    left = above[0][1]
    for top in (above[0][0], below[0][0]):
        assert count(canvas.INK, picture[top : top + 12, :left]) > 0


def test_a_mosaic_shows_the_colour_and_the_index_of_every_token():
    colours, tokens = noise(300, 3), torch.randint(300, (3, 4))
    mosaic = levels(token_mosaic(tokens, colours, cell=24))
    assert mosaic.shape == (72, 96, 3)
    for (row, column), token in np.ndenumerate(tokens.numpy()):
        cell = mosaic[row * 24 : row * 24 + 24, column * 24 : column * 24 + 24]
        colour = levels(colours[token][:, None, None])[0, 0]
        assert (cell[[0, 0, -1, -1], [0, -1, 0, -1]] == colour).all()
        assert (cell != colour).any()


def test_indices_are_dark_on_bright_fields_and_bright_on_dark_ones():
    colours = torch.tensor([[-0.9, -0.9, -0.9], [0.9, 0.9, 0.9]])
    mosaic = token_mosaic(torch.tensor([[0, 1]]), colours, cell=32)
    assert mosaic[:, :, :32].max() == 1
    assert mosaic[:, :, 32:].min() < -0.5


def test_a_codebook_shows_every_code_once_the_unused_ones_last():
    patches, counts = noise(10, 3, 4, 4), torch.tensor([3, 0, 1, 1, 0, 9, 2, 2, 5, 1])
    used = (counts > 0).nonzero().flatten().tolist()
    picture = opened(codebook_grid(patches, counts, caption="", columns=4, scale=3))
    places = [place(levels(patches[code], 3), picture) for code in used]
    assert len(set(places)) == 8
    assert len({y for y, _ in places}) == 2
    alarms = np.argwhere((picture == ImageColor.getrgb(canvas.ALARM)).all(2))
    assert alarms[:, 0].min() >= max(y for y, _ in places) + 12
    assert count(canvas.ALARM, opened(codebook_grid(patches, counts + 1, caption=""))) == 0


def test_a_codebook_goes_from_dark_to_bright():
    greys = torch.linspace(-0.9, 0.9, 12)[torch.randperm(12)]
    patches = greys[:, None, None, None].expand(-1, 3, 4, 4)
    picture = opened(
        codebook_grid(patches, torch.ones(12, dtype=torch.int64), caption="", columns=1, scale=1)
    )
    tops = [place(levels(patch), picture)[0] for patch in patches]
    assert torch.tensor(tops).argsort().tolist() == greys.argsort().tolist()


def test_mean_patches_are_the_means_over_the_places_of_a_code():
    images, tokens = noise(2, 3, 6, 9), torch.randint(4, (2, 2, 3))
    places: dict[int, list[Tensor]] = {code: [] for code in range(6)}
    for (b, row, column), code in np.ndenumerate(tokens.numpy()):
        patch = images[b, :, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
        places[code].append(patch)
    means = [torch.stack(patches).mean(0) if patches else torch.zeros(3, 3, 3) for patches in places.values()]
    torch.testing.assert_close(mean_patches(images, tokens, 6), torch.stack(means))


def test_images_of_a_class_are_together_below_its_name():
    images, classes = noise(7, 3, 5, 5), [2, 0, 2, 0, 2, 2, 2]

    def drawn(*names: str) -> np.ndarray:
        return opened(sample_grid(images, classes, names, caption="", columns=3, scale=2))

    picture = drawn("", "", "")
    places = [place(levels(image, 2), picture) for image in images]
    step = 2 * 5 + canvas.GAP
    (top, left), (below, _) = places[0], places[1]
    eels, cats = [0, 2, 4, 5, 6], [1, 3]
    assert [places[i] for i in eels] == [
        (top + step * (n // 3), left + step * (n % 3)) for n in range(len(eels))
    ]
    assert [places[i] for i in cats] == [(below, left + step * n) for n in range(len(cats))]
    assert below >= top + 2 * step + canvas.LINE
    assert picture.shape[0] >= below + 10
    assert picture.shape[1] >= left + 3 * step - canvas.GAP
    for first_image, names in ((below, ("a", "", "")), (top, ("", "", "c"))):
        rows = np.nonzero((drawn(*names) != picture).any((1, 2)))[0]
        assert first_image - canvas.LINE <= rows.min() <= rows.max() < first_image


@pytest.mark.parametrize(("side", "shown"), [(32, 128), (64, 128), (100, 100), (256, 256)])
def test_small_images_are_enlarged(side, shown):
    image = torch.full((1, 3, side, side), -1.0)
    picture = opened(sample_grid(image, [0], ("",), caption=""))
    assert (picture == 0).all(2).sum() == shown**2


@pytest.mark.parametrize("name", ["two\nlines", "\udcff bytes", "", "名前", "word " * 50])
def test_any_name_of_a_directory_can_be_drawn(name):
    picture = opened(sample_grid(noise(1, 3, 8, 8), [0], (name,), caption="a caption"))
    assert picture.shape[1] < 300


def test_names_are_shortened_to_the_room_that_they_have():
    font = ImageFont.load_default(canvas.TEXT)
    name = "tench, Tinca tinca, a fish of quiet waters"
    for width in (60, 120, 200):
        short = shortened(name, width)
        assert short.endswith("...")
        assert name.startswith(short.removesuffix("..."))
        assert font.getlength(short) <= width
    assert shortened(name, 1000) == name


def test_a_strip_shows_the_image_what_is_hidden_and_the_results():
    original, results = noise(3, 30, 30), noise(2, 3, 30, 30)
    mask = torch.zeros(30, 30, dtype=torch.bool)
    mask[:, 12:] = True
    hidden = torch.where(mask, torch.zeros(()), original)
    picture = opened(inpainting_strip(original, mask, results, name="dog"))
    places = [place(levels(image, 4), picture) for image in (original, hidden, *results)]
    top, left = places[0]
    assert places == [(top, left + n * (120 + canvas.MARGIN)) for n in range(4)]


def test_an_atlas_shows_patches_as_they_are_beside_their_code():
    patches = {code: torch.randint(256, (4, 3, 3, 3), dtype=torch.uint8) for code in (7, 3, 9, 0)}
    picture = opened(atlas_sheet(patches, torch.arange(12), caption="LGQ"))
    pixels = [patch.permute(1, 2, 0).numpy() for shown in patches.values() for patch in shown]
    corners = [place(patch.repeat(16, 0).repeat(16, 1), picture) for patch in pixels]
    tops, lefts = np.array(corners).reshape(len(patches), 4, 2).transpose(2, 0, 1)
    assert (tops == tops[:, :1]).all()
    assert tops[0, 0] == tops[2, 0] < tops[1, 0] == tops[3, 0]
    assert (np.diff(lefts) > 0).all()
    fewer = opened(atlas_sheet({7: patches[7]}, torch.arange(12), caption="LGQ"))
    assert fewer.shape[0] < picture.shape[0]


def test_empty_pictures_and_wrong_sizes_are_refused():
    nothing, image = torch.empty(0, 3, 4, 4), noise(1, 3, 4, 4)
    for draw, name in (
        (lambda: side_by_side([]), "panels"),
        (lambda: reconstruction_grid(nothing, nothing, caption=""), "images"),
        (lambda: progression({"": nothing}, caption="", scale=1), "images"),
        (lambda: progression({}, caption=""), "rows"),
        (lambda: codebook_grid(nothing, torch.empty(0, dtype=torch.int64), caption=""), "codes"),
        (lambda: atlas_sheet({}, torch.ones(12).long(), caption=""), "codes"),
        (lambda: sample_grid(image, [0], ("",), caption="", columns=0), "columns"),
        (lambda: sample_grid(image, [0], ("",), caption="", scale=-1), "scale"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1"):
            draw()


def test_a_class_that_has_only_a_number_is_called_a_class():
    images = torch.zeros(1, 3, 8, 8)
    by_number, by_name = (sample_grid(images, [0], names, caption="one") for names in (("7",), ("class 7",)))
    assert by_number == by_name
