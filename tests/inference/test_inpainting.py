"""Inpainting redraws the masked part of an image of any size, and leaves all other tokens alone."""

import numpy as np
import pytest
import torch
from PIL import Image

from lgq import MaskGIT
from lgq.data import ImageLoader, LoaderSettings, open_dataset
from lgq.errors import LGQError, LGQWarning
from lgq.inference.inpaint import _box_mask, _read_mask, _token_mask, inpaint
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.tokenizer import Tokenizer

BACKBONE = Backbone(
    widths=(8, 8, 8), blocks=1, attention_heads=0, groups=4, latent_channels=8, latent_groups=2
)
SIDE = 16
QUICK = Sampling(steps=3)
RIGHT = (SIDE // 2, 0, SIDE, SIDE)


def build(stages: int = 1) -> MaskGIT:
    torch.manual_seed(0)
    tokenizer = Tokenizer(BACKBONE, "lgq", 20, stages=stages)
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32)
    return MaskGIT(tokenizer, image_size=SIDE, classes=("cat", "dog"), transformer=small).eval()


def save(pixels: np.ndarray, path):
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_a_token_is_masked_where_any_of_its_pixels_is(factor):
    pixels = torch.rand(8, 12) < 0.1
    plain = [
        [bool(pixels[y : y + factor, x : x + factor].any()) for x in range(0, 12, factor)]
        for y in range(0, 8, factor)
    ]
    assert _token_mask(pixels, factor).tolist() == plain


@pytest.mark.parametrize("stages", [1, 2])
def test_tokens_outside_the_mask_stay_to_the_last_bit(stages):
    maskgit, image = build(stages), torch.rand(3, SIDE, SIDE) * 2 - 1
    options = {"sampling": QUICK, "label": 1, "count": 3, "keep_decoded": True}
    result = inpaint(maskgit, image, mask=_box_mask(RIGHT, SIDE), **options)
    kept = maskgit.tokenizer.encode(image[None])[0]
    assert torch.equal(result.original_tokens, kept)
    assert all(torch.equal(tokens[:, :2], kept[:, :2]) for tokens in result.tokens)
    assert not torch.equal(result.tokens[0], result.tokens[1])
    assert torch.equal(result.images, maskgit.tokenizer.decode(result.tokens))
    assert torch.equal(result.mask, _box_mask(RIGHT, SIDE))
    count = len(result.images)
    assert repr(result) == f"Inpainted({count} images of {SIDE} x {SIDE} pixels, 50% redrawn)"


@pytest.mark.parametrize("where", ["box", "mask"])
def test_known_pixels_are_pasted_back_up_to_the_border_of_the_mask(where):
    maskgit, image = build(), torch.rand(3, SIDE, SIDE) * 2 - 1
    mask = _box_mask((9, 0, 16, 6), SIDE)
    part = {"box": (9, 0, 16, 6)} if where == "box" else {"mask": mask}
    options = {"sampling": QUICK, "label": "dog", "count": 2, **part}
    pasted = inpaint(maskgit, image, **options)
    plain = inpaint(maskgit, image, **options, keep_decoded=True)
    assert torch.equal(pasted.tokens, plain.tokens)
    assert torch.equal(plain.images, maskgit.tokenizer.decode(plain.tokens))
    assert torch.equal(pasted.images[..., mask], plain.images[..., mask])
    far = ~_box_mask((5, 0, 16, 10), SIDE)  # more than f = 4 pixels away
    assert torch.equal(pasted.images[..., far], image[:, far].expand(2, -1, -1))
    between = ~mask & ~far
    low, high = torch.stack([plain.images, image.expand_as(plain.images)]).aminmax(dim=0)
    border = pasted.images[..., between]
    assert (border >= low[..., between] - 1e-6).all()
    assert (border <= high[..., between] + 1e-6).all()
    share = ((pasted.images - image) / (plain.images - image)).nanmedian(1).values[0, 2]
    assert (share[5:10].diff() > 0).all(), "the decoder's share grows towards the mask"


def test_a_seed_reproduces_all_batches_and_no_two_batches_are_alike():
    maskgit, image = build(), torch.zeros(3, SIDE, SIDE)
    told: list[tuple[int, int]] = []

    def results(seed):
        return inpaint(
            maskgit, image, box=RIGHT, sampling=QUICK, label=0, count=5, seed=seed, batch_size=2,
            on_progress=lambda *done: told.append(done),
        )  # fmt: skip

    first = results(7)
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert torch.equal(first.tokens, results(7).tokens)
    assert not torch.equal(first.tokens, results(8).tokens)
    assert not torch.equal(first.tokens[:2], first.tokens[2:4])


def test_an_image_is_cut_as_an_evaluation_cuts_it(tmp_path):
    save(np.random.default_rng(0).integers(0, 256, (23, 40, 3)), tmp_path / "wide.png")
    loader = ImageLoader(open_dataset(tmp_path), LoaderSettings(image_size=SIDE, batch_size=1))
    evaluated = next(loader.one_pass()).images[0]
    maskgit = build()
    result = inpaint(maskgit, tmp_path / "wide.png", box=RIGHT, label=0, count=1, sampling=QUICK)
    assert torch.equal(result.original_tokens, maskgit.tokenizer.encode(evaluated[None])[0])


def test_an_enlarged_image_is_told(tmp_path):
    small = save(np.zeros((9, 40)), tmp_path / "small.png")
    with pytest.warns(LGQWarning, match=r"small\.png has 40 x 9 pixels, and its .* was enlarged to 16 x 16"):
        inpaint(build(), small, box=RIGHT, label=1, count=1, sampling=QUICK)


def test_a_mask_is_cut_like_its_image_and_bright_pixels_count(tmp_path):
    image = save(np.zeros((16, 32)), tmp_path / "image.png")
    painted = np.zeros((16, 32))
    painted[:, 7], painted[:, 24], painted[2, 9], painted[3, 9] = 255, 255, 128, 127
    mask = _read_mask(save(painted, tmp_path / "mask.png"), image, SIDE)
    assert mask.nonzero().tolist() == [[2, 1]]


@pytest.mark.parametrize("size", [5, 16, 17, 31, 64, 101])
def test_no_bright_pixel_is_lost_however_large_the_image(size, tmp_path):
    rng = np.random.default_rng(size)
    image = save(np.zeros((size, size)), tmp_path / "image.png")
    for y, x in rng.integers(0, size, (5, 2)):
        painted = np.zeros((size, size))
        painted[y, x] = 255
        mask = _read_mask(save(painted, tmp_path / "mask.png"), image, SIDE)
        assert mask[y * SIDE // size, x * SIDE // size]
        away = mask.nonzero() * size / SIDE - torch.tensor([y, x])
        assert away.abs().max() < 1 + size / SIDE


def test_a_box_is_its_pixels_and_lies_in_the_image():
    mask = _box_mask((1, 2, 4, 6), 8)
    assert mask.sum() == 3 * 4
    assert mask[2:6, 1:4].all()
    for box in ((-1, 0, 4, 4), (0, 0, 9, 4), (0, 0, 4, 9), (4, 0, 4, 4), (0, 5, 4, 4)):
        with pytest.raises(LGQError, match="within the generator's images of 8 x 8 pixels"):
            _box_mask(box, 8)


@pytest.mark.usefixtures("without_shape_checks")
def test_mistakes_are_named(tmp_path):
    dark, small = save(np.zeros((16, 20)), tmp_path / "dark.png"), save(np.zeros((9, 8)), tmp_path / "o.png")
    with pytest.raises(LGQError, match=r"8 x 9 pixels, and the image .* has 20 x 16 pixels"):
        _read_mask(small, dark, SIDE)
    with pytest.raises(LGQError, match="no bright pixel"):
        _read_mask(dark, dark, SIDE)
    with pytest.raises(ValueError, match=r"gone\.png: No such file"):
        inpaint(build(), tmp_path / "gone.png", box=RIGHT, label=0)
    maskgit, image = build(), torch.zeros(3, SIDE, SIDE)
    for height, width in ((18, 18), (16, 12)):
        wrong = torch.ones(height, width, dtype=torch.bool)
        with pytest.raises(LGQError, match=f"mask has {height} x {width} pixels, and the image 16 x 16"):
            inpaint(maskgit, image, mask=wrong, label=0)
    with pytest.raises(LGQError, match="the mask is empty"):
        inpaint(maskgit, image, mask=torch.zeros(SIDE, SIDE, dtype=torch.bool), label=0)
    with pytest.raises(LGQError, match=r"class 2 is not among 0\.\.1"):
        inpaint(maskgit, image, box=RIGHT, label=2)
    with pytest.raises(LGQError, match="no class 'dgo': did you mean 'dog'"):
        inpaint(maskgit, image, box=RIGHT, label="dgo")
    with pytest.raises(LGQError, match="knows 2 classes: give `label`: cat, dog, or a number from 0 to 1"):
        inpaint(maskgit, image, box=RIGHT)
    with pytest.raises(ValueError, match="`count` must be at least 1, got 0"):
        inpaint(maskgit, image, box=RIGHT, label=0, count=0)
