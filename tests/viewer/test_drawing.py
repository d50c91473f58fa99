"""The generator on the page: steps as they come, the same tokens as without anyone watching."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from serving import Served, serve, small_tokenizer

from lgq.data import FolderDataset, to_tensor
from lgq.inference.inpaint import paste_back
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.viewer.guard import Limits
from lgq.viewer.packets import unpack
from lgq.viewer.studio import Studio, open_studio, to_rgba

TINY = TransformerSettings(layers=1, width=8, heads=1, hidden=8)


def small_generator(stages: int = 1) -> MaskGIT:
    torch.manual_seed(3)
    tokenizer = small_tokenizer(stages=stages)
    return MaskGIT(tokenizer, image_size=32, classes=["cat", "dog"], transformer=TINY).eval()


@pytest.fixture(scope="module")
def drawing(photos):
    studio = Studio([], FolderDataset(photos), small_generator())
    yield from serve(studio, Limits(requests_per_second=10_000, burst=10_000))


def steps_of(body: bytes) -> list[tuple[dict, dict]]:
    steps = []
    while body:
        length = int.from_bytes(body[:4], "little")
        steps.append(unpack(body[4 : 4 + length]))
        body = body[4 + length :]
    return steps


def ask(drawing: Served, **changes) -> list[tuple[dict, dict]]:
    asked = {"label": "dog", "seed": 5, "steps": 4, "order": "confidence", "guidance": 2.0} | changes
    answer = drawing.post("/api/generate", asked)
    assert answer.status == 200, answer.body
    return steps_of(answer.body)


@pytest.mark.parametrize("order", ["confidence", "halton", "random"])
def test_the_last_step_is_what_the_generator_draws_unwatched(drawing: Served, order: str):
    steps = ask(drawing, order=order)
    generator, sampling = drawing.studio.generator, Sampling(steps=4, order=order, guidance=2.0)
    tokens = generator.sample(["dog"], sampling, seed=5)
    assert [meta["step"] for meta, _ in steps] == [1, 2, 3, 4]
    assert np.array_equal(steps[-1][1]["tokens"][..., 0], tokens[0].numpy())
    assert np.array_equal(steps[-1][1]["pixels"], to_rgba(generator.tokenizer.decode(tokens)))


def test_a_step_sets_tokens_with_their_probability_and_keeps_the_others(drawing: Served):
    before = np.full((8, 8, 1), -1)
    for _, arrays in ask(drawing):
        tokens, likely = arrays["tokens"], arrays["probabilities"]
        fresh = likely > 0
        assert (likely <= 1).all()
        assert (before[fresh] == -1).all()
        assert (tokens[fresh] >= 0).all()
        assert np.array_equal(tokens[~fresh], before[~fresh])
        before = tokens
    assert (before >= 0).all()


def test_only_painted_tokens_are_redrawn(drawing: Served):
    mask = np.zeros((8, 8), dtype=int)
    mask[2:5, 3:6] = 1
    steps = ask(drawing, picture=0, mask=mask.tolist())
    square = drawing.ask("/api/square?picture=0").arrays["tokens"].reshape(8, 8, 1)
    last = steps[-1][1]["tokens"]
    assert np.array_equal(last[mask == 0], square[mask == 0])
    expected = drawing.studio.generator.inpaint(
        torch.from_numpy(square[None, ..., 0].astype(np.int64)),
        torch.from_numpy(mask[None] == 1),
        ["dog"],
        Sampling(steps=4, guidance=2.0),
        seed=5,
    )
    assert np.array_equal(last[..., 0], expected[0].numpy())


def test_a_redrawn_picture_keeps_its_own_pixels_as_inpaint_does(drawing: Served):
    mask = np.zeros((8, 8), dtype=int)
    mask[2:5, 3:6] = 1
    shown = ask(drawing, picture=0, mask=mask.tolist())[-1][1]["pixels"]
    square = to_tensor(Image.fromarray(drawing.ask("/api/square?picture=0").arrays["original"][..., :3]))
    pixels = torch.from_numpy(mask == 1).repeat_interleave(4, 0).repeat_interleave(4, 1)
    generator, sampling = drawing.studio.generator, Sampling(steps=4, guidance=2.0)
    tokens = generator.inpaint(
        generator.tokenizer.encode(square[None]), torch.from_numpy(mask[None] == 1), ["dog"], sampling, seed=5
    )
    expected = to_rgba(paste_back(square, generator.tokenizer.decode(tokens), pixels, 4))
    assert np.array_equal(shown, expected)
    assert np.array_equal(shown[:4, :4], to_rgba(square[None])[:4, :4])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": "horse"}, "knows no class 'horse'"),
        ({"picture": 0, "mask": [[0] * 8] * 8}, "nothing is painted"),
        ({"picture": 0, "mask": [[1] * 7] * 8}, "must have 8 x 8 places"),
        ({"picture": 99, "mask": [[1] * 8] * 8}, "no picture 99"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_words(drawing: Served, change: dict, words: str):
    ((meta, _),) = ask(drawing, **change)
    assert words in meta["error"]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 10**9},
        {"steps": 2.5},
        {"steps": True},
        {"order": "best"},
        {"guidance": "high"},
        {"temperature": -1},
        {"seed": -1},
        {"seed": None},
        {"mask": [[2]], "picture": 0},
        {"mask": "all", "picture": 0},
        {"mask": [[1], [1, 0]], "picture": 0},
    ],
)
def test_wrong_settings_are_refused(drawing: Served, change: dict):
    answer = drawing.post("/api/generate", {"label": "cat", "seed": 0} | change)
    assert answer.status == 422, answer.body
    assert len(answer.error.splitlines()) == 1


def test_a_drawing_that_fails_says_so(drawing: Served, monkeypatch, caplog):
    monkeypatch.setattr(drawing.studio, "draw", lambda *a, **k: 1 / 0)
    ((meta, _),) = ask(drawing)
    assert "terminal" in meta["error"]


def test_stages_of_a_residual_tokenizer_are_drawn_too(photos):
    studio, seen = Studio([], FolderDataset(photos), small_generator(stages=2)), []
    studio.draw("cat", Sampling(steps=3), 0, seen.append)
    assert [tuple(step.tokens.shape) for step in seen] == [(8, 8, 2)] * 3


def test_a_generator_alone_shows_its_tokenizer(tmp_path):
    small_generator().save_pretrained(tmp_path / "generator")
    studio = open_studio(generator=tmp_path / "generator")
    state = json.loads(json.dumps(studio.describe()))
    assert state["generator"]["classes"] == ["cat", "dog"]
    assert (len(state["models"]), state["generator"]["model"]) == (1, 0)


def test_without_a_generator_there_is_nothing_to_draw(served: Served):
    answer = served.ask("/api/square?picture=0")
    assert (answer.status, "no generator" in answer.error) == (404, True)
    assert served.ask("/api/state").json["generator"] is None
