"""A tokenizer over scales (VAR): its tokens, a training from the command line, use per scale, token files."""

import json

import pytest
import torch
from PIL import Image

import lgq
from lgq import MaskGIT, MultiScale, Tokenizer
from lgq.cli import main
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError
from lgq.models.autoencoder import Backbone

TINY = Backbone(widths=(8, 16), blocks=1, groups=4, attention_heads=2, latent_channels=8, latent_groups=2)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for i in range(6):
        Image.radial_gradient("L").rotate(9 * i).resize((40, 36)).convert("RGB").save(folder / f"{i}.png")
    return str(folder)


def tokenizer(**options) -> Tokenizer:
    return Tokenizer(TINY, "lgq", 32, **{"scales": (1, 2, 4)} | options).eval()


def test_tokens_of_scales_are_one_sequence_and_decode_from_any_prefix():
    model = tokenizer()
    images = torch.rand(2, 3, 8, 8) * 2 - 1
    tokens = model.encode(images)
    assert isinstance(model.quantizer, MultiScale)
    assert tokens.shape == (2, 1 + 4 + 16) == (2, *model.token_shape(8))
    assert [level.shape[1:] for level in model.by_level(tokens)] == [(1, 1), (2, 2), (4, 4)]
    torch.testing.assert_close(model.decode(tokens), model(images).reconstruction.clamp(-1, 1))
    assert model.decode(tokens[:, :5]).shape == images.shape
    wide = torch.rand(1, 3, 8, 12) * 2 - 1
    assert model.decode(model.encode(wide), grid=(4, 6)).shape == wide.shape
    assert model.decode_image(tokens[0]).size == (8, 8)


def test_scales_are_saved_and_part_of_the_fingerprint(tmp_path):
    plain, scaled = tokenizer(scales=()), tokenizer()
    scaled.save_pretrained(tmp_path / "saved")
    loaded = Tokenizer.from_pretrained(tmp_path / "saved")
    assert loaded.scales == (1, 2, 4)
    assert loaded.fingerprint() == scaled.fingerprint()
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert settings["scales"] == [1, 2, 4]
    assert plain.fingerprint() != scaled.fingerprint()


def test_a_run_over_scales_trains_evaluates_and_writes_tokens(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "no-weights"))
    run = str(tmp_path / "run")
    main(["train", "smoke-lgq", "--data", photos, "--out", run, "--steps", "2", "--scales", "1", "2", "4"])
    model = lgq.load_tokenizer(run)
    assert model.scales == (1, 2, 4)
    metrics = lgq.evaluate(run, data=photos).metrics
    assert {f"utilization/{i}" for i in range(3)} | {f"perplexity/{i}" for i in range(3)} <= metrics.keys()
    lgq.encode(run, data=photos, out=tmp_path / "tokens")
    tokens = TokenDataset(tmp_path / "tokens")
    assert tokens.encoding.scales == (1, 2, 4)
    assert tokens[0].tokens.shape == model.token_shape(model.image_size)
    assert lgq.decode(run, tmp_path / "tokens", tmp_path / "decoded") == 6
    with pytest.raises(LGQError, match=r"MaskGIT predicts tokens of one grid, not of `scales`"):
        MaskGIT(model, image_size=model.image_size, classes=("all",))


def test_bad_scales_of_a_tokenizer_raise_an_error():
    with pytest.raises(LGQError, match="`stages` or `scales`, got 2 stages"):
        tokenizer(stages=2)
    with pytest.raises(LGQError, match=r"whole numbers that grow.*got \(4, 2\)"):
        tokenizer(scales=(4, 2))
    with pytest.raises(
        LGQError, match=r"tokens must have shape \(b, tokens of all scales\), got \(1, 4, 4\)"
    ):
        tokenizer().decode(torch.zeros(1, 4, 4, dtype=torch.int64))
    with pytest.raises(LGQError, match="a run has `stages` or `scales`"):
        lgq.run("smoke-lgq", stages=2, scales=(1, 2))
