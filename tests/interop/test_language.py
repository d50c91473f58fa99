"""Image tokens as ids and words of a language model: the way there and back, and what is refused."""

import numpy as np
import pytest
import torch

from lgq.errors import LGQError
from lgq.interop.language import ImageVocabulary
from lgq.models.autoencoder import Backbone
from lgq.tokenizer import Tokenizer

TINY = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)


def drawn(*shape: int, codebook_size: int = 10) -> torch.Tensor:
    return torch.randint(codebook_size, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("fixed", [False, True], ids=["marked rows", "fixed grid"])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("grid", [(1, 1), (1, 5), (4, 1), (3, 7), (16, 16)])
def test_ids_and_text_give_back_the_same_tokens(grid, stages, fixed):
    vocabulary = ImageVocabulary(codebook_size=10, stages=stages, offset=32_000, grid=grid if fixed else None)
    tokens = drawn(*grid, *[stages] * (stages > 1))
    ids, text = vocabulary.to_ids(tokens), vocabulary.to_text(tokens)
    forms = (ids, tuple(ids), np.array(ids), torch.tensor(ids), text, text.replace("><", ">\n <"))
    for form in forms:
        back = vocabulary.to_tokens(form)
        assert torch.equal(back, tokens)
        assert back.dtype == torch.int64
    assert len(ids) == grid[0] * grid[1] * stages + 2 + (0 if fixed else grid[0] - 1)


def test_ids_are_those_that_a_text_vocabulary_gives_to_the_words():
    vocabulary = ImageVocabulary(codebook_size=3, stages=2, offset=100)
    assert vocabulary.words == [*(f"<img_{i}>" for i in range(6)), "<img_begin>", "<img_row>", "<img_end>"]
    assert len(vocabulary) == len(vocabulary.words) == 9
    given = {word: 100 + i for i, word in enumerate(vocabulary.words)}
    tokens = torch.tensor([[[0, 0]], [[2, 1]]], dtype=torch.uint8)
    text = vocabulary.to_text(tokens.numpy())
    assert text == "<img_begin><img_0><img_3><img_row><img_2><img_4><img_end>"
    assert vocabulary.to_ids(tokens) == [given[f"{word}>"] for word in text.split(">")[:-1]]


def test_images_are_found_among_text():
    vocabulary = ImageVocabulary(codebook_size=10, offset=50)
    first, second = drawn(2, 3), drawn(4, 4)
    ids = [7, 8, *vocabulary.to_ids(first), 9, *vocabulary.to_ids(second), 49, 64]
    text = f"a cat {vocabulary.to_text(first)} and <img_3> a dog {vocabulary.to_text(second)}."
    for form in (ids, text):
        images = vocabulary.images_in(form)
        assert len(images) == 2
        assert torch.equal(images[0], first)
        assert torch.equal(images[1], second)
    assert vocabulary.images_in("no picture") == vocabulary.images_in([]) == []


def test_a_tokenizer_names_its_own_vocabulary():
    tokenizer = Tokenizer(TINY, "vq", 16, stages=2).eval()
    vocabulary = ImageVocabulary.of(tokenizer, offset=5)
    tokens = tokenizer.encode(torch.rand(1, 3, 8, 12) * 2 - 1)
    assert torch.equal(vocabulary.to_tokens(vocabulary.to_ids(tokens[0])), tokens[0])
    assert len(vocabulary) == 35


def test_the_tokens_of_all_scales_are_one_row():
    tokenizer = Tokenizer(TINY, "vq", 16, scales=(1, 2, 4)).eval()
    (tokens,) = tokenizer.encode(torch.rand(1, 3, 8, 8) * 2 - 1)
    vocabulary = ImageVocabulary.of(tokenizer)
    assert torch.equal(vocabulary.to_tokens(vocabulary.to_ids(tokens[None]))[0], tokens)
    with pytest.raises(LGQError, match=r"tokens\[None\]"):
        vocabulary.to_ids(tokens)


PLAIN = ImageVocabulary(codebook_size=10, offset=100)
STAGED = ImageVocabulary(codebook_size=10, stages=2)
FIXED = ImageVocabulary(codebook_size=10, grid=(2, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: PLAIN.to_tokens("<img_begin><img_1><img_2><img_row><img_3><img_end>"),
            "row 1 .* has 1 tokens",
        ),
        (lambda: PLAIN.to_tokens("<img_begin><img_end>"), "row 0 of an image has 0 tokens"),
        (lambda: PLAIN.to_tokens("<img_begin><img_10><img_end>"), "<img_10> inside an image is none of its"),
        (lambda: PLAIN.to_tokens("<img_begin><img_1>cat<img_end>"), "'cat' inside an image"),
        (lambda: PLAIN.to_tokens([110, 99, 112]), "id 99 inside an image .* begin at id 100"),
        (lambda: PLAIN.to_tokens([110, 113, 112]), "id 113 inside an image"),
        (
            lambda: PLAIN.to_tokens([110, 101]),
            r"from <img_begin> to <img_end>, got 2 .* to <img_1>: `images_in`",
        ),
        (lambda: PLAIN.to_tokens(PLAIN.to_ids(drawn(1, 1)) * 2), "got 6 tokens"),
        (lambda: PLAIN.to_tokens(""), "got nothing"),
        (lambda: PLAIN.to_tokens([110, 110, 112]), "<img_begin> inside an image"),
        (lambda: PLAIN.images_in([5, 110, 101]), "place 1 has no <img_end>"),
        (
            lambda: STAGED.to_tokens("<img_begin><img_1><img_2><img_end>"),
            "<img_2> at row 0, column 0 .* stage 0",
        ),
        (lambda: STAGED.to_tokens("<img_begin><img_1><img_11><img_3><img_end>"), "has 2 tokens, got 3"),
        (lambda: FIXED.to_tokens("<img_begin><img_1><img_end>"), "2 x 2 has 4 tokens, got 1"),
        (lambda: FIXED.to_tokens("<img_begin><img_1><img_row><img_end>"), "<img_row> inside an image"),
        (lambda: FIXED.to_ids(drawn(2, 3)), "must be 2 x 2, .* got 2 x 3: leave `grid` out"),
        (lambda: PLAIN.to_ids(drawn(1, 2, 2)), r"shape \(h, w\), got \(1, 2, 2\)"),
        (lambda: PLAIN.to_ids(drawn(0, 2)), r"got \(0, 2\)"),
        (lambda: STAGED.to_ids(drawn(2, 2, 3)), r"\(h, w, 2\), got \(2, 2, 3\)"),
        (lambda: PLAIN.to_ids(torch.full((1, 1), 10)), "index 10 is outside 0..9"),
        (lambda: ImageVocabulary(codebook_size=0), "codebook_size"),
        (lambda: ImageVocabulary(codebook_size=1, offset=-1), "offset"),
        (lambda: ImageVocabulary(codebook_size=1, grid=(0, 3)), "grid"),
    ],
)
def test_what_is_no_image_is_refused_in_one_sentence(call, message):
    with pytest.raises(LGQError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)
