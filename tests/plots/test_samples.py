"""Pictures of samples show each image under its class, and drawing in batches is reproducible."""

import numpy as np
import pytest
import torch
from PIL import ImageFont
from png_pixels import levels, noise, opened, place
from torch import Tensor, nn

from lgq.errors import LGQError
from lgq.maskgit import MaskGIT
from lgq.metrics.generation import batch_seed
from lgq.models.sampling import Sampling
from lgq.plots import canvas
from lgq.plots.pictures import draw_samples, inpainting_strip, sample_grid, shortened


class Stub(MaskGIT):
    """A generator without networks: images whose pixels tell their class."""

    classes = ("cat", "dog", "eel")

    def __init__(self):
        nn.Module.__init__(self)
        self.asked: list[tuple[list[int], int]] = []

    def generate(self, classes: Tensor, sampling: Sampling, *, seed: int) -> Tensor:
        self.asked.append((classes.tolist(), seed))
        return (classes / 3).view(-1, 1, 1, 1).expand(-1, 3, 4, 4)


def test_images_of_a_class_stand_together_below_its_name():
    images, classes = noise(7, 3, 5, 5), [2, 0, 2, 0, 2, 2, 2]
    picture = opened(sample_grid(images, classes, ("a", "b", "c"), caption="", columns=3, scale=2))
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


def test_each_name_is_written_above_its_images():
    images = noise(2, 3, 60, 60)

    def drawn(*names: str) -> np.ndarray:
        return opened(sample_grid(images, [0, 1], names, caption="", scale=1))

    silent = drawn("", "")
    tops = [place(levels(image), silent)[0] for image in images]
    for number, names in enumerate((("words", ""), ("", "words"))):
        rows = np.nonzero((drawn(*names) != silent).any((1, 2)))[0]
        assert tops[number] - canvas.LINE <= rows.min()
        assert rows.max() < tops[number]


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
    picture = opened(inpainting_strip(original, mask, results, name="dog", scale=2))
    places = [place(levels(image, 2), picture) for image in (original, hidden, *results)]
    top, left = places[0]
    assert places == [(top, left + n * (60 + canvas.MARGIN)) for n in range(4)]


def test_images_are_drawn_in_batches_each_with_a_seed_of_its_own():
    stub, told = Stub(), []
    classes = [0, 0, 1, 1, 2]
    images = torch.cat(
        list(
            draw_samples(
                stub, classes, Sampling(), seed=3, batch_size=2, on_progress=lambda *done: told.append(done)
            )
        )
    )
    assert torch.equal(images[:, 0, 0, 0], torch.tensor(classes) / 3)
    assert stub.asked == [([0, 0], batch_seed(3, 0)), ([1, 1], batch_seed(3, 2)), ([2], batch_seed(3, 4))]
    assert told == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_class_that_is_unknown_is_refused_before_anything_is_drawn(wrong):
    stub = Stub()
    with pytest.raises(LGQError, match=f"class {wrong} is not among 0..2"):
        next(draw_samples(stub, [0, 1, wrong], Sampling(), batch_size=1))
    assert stub.asked == []


@pytest.mark.parametrize("settings", [{"columns": 0}, {"scale": -1}])
def test_mistakes_are_named(settings):
    with pytest.raises(ValueError, match="must be at least 1"):
        sample_grid(noise(1, 3, 4, 4), [0], ("",), caption="", **settings)


def test_a_class_that_has_only_a_number_is_called_a_class():
    images = torch.zeros(1, 3, 8, 8)
    by_number, by_name = (sample_grid(images, [0], names, caption="one") for names in (("7",), ("class 7",)))
    assert by_number == by_name
