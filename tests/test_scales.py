"""A tokenizer over scales (VAR): its tokens, a training from the command line, use per scale, token files."""

import json

import pytest
import torch
from PIL import Image

import lgq
from lgq import MaskGIT, MultiScale, Tokenizer
from lgq.cli import main
from lgq.data import ImageLoader, LoaderSettings, open_dataset
from lgq.data.tokens import TokenDataset
from lgq.errors import LGQError
from lgq.metrics.reconstruction import psnr
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
    with Image.open(tmp_path / "run" / "evaluation" / "progression.png") as picture:
        assert picture.height > picture.width * 4 / 8  # four rows of six images
    capsys.readouterr()
    main(["evaluate", run, "--data", photos, "--images", "3"])
    printed = capsys.readouterr().out.split("by scale")[1].splitlines()
    rows = [row for row in map(str.split, printed) if len(row) == 4 and "." in row[1]]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    lgq.encode(run, data=photos, out=tmp_path / "tokens")
    tokens = TokenDataset(tmp_path / "tokens")
    assert tokens.encoding.scales == (1, 2, 4)
    assert tokens[0].tokens.shape == model.token_shape(model.image_size)
    assert lgq.decode(run, tmp_path / "tokens", tmp_path / "decoded") == 6
    with pytest.raises(LGQError, match=r"MaskGIT predicts tokens of one grid, not of `scales`"):
        MaskGIT(model, image_size=model.image_size, classes=("all",))


@pytest.mark.parametrize("levels", [{"scales": (1, 2, 4)}, {"scales": (), "stages": 3}])
def test_psnr_of_a_level_is_that_of_images_from_the_levels_so_far(photos, levels, tmp_path, monkeypatch):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "no-weights"))
    model = tokenizer(**levels)
    metrics = lgq.evaluate(model, data=photos, image_size=8, workers=0).metrics
    loader = ImageLoader(open_dataset(photos), LoaderSettings(image_size=8, batch_size=6))
    images = next(loader.one_pass()).images
    tokens = model.encode(images)
    for i in range(3):
        first = tokens[:, : sum((1, 4, 16)[: i + 1])] if model.scales else tokens[..., : i + 1]
        assert torch.equal(model.first_levels(tokens, i + 1), first)
        expected = psnr(images, model.decode(first)).mean().item()
        assert metrics[f"psnr/{i}"] == pytest.approx(expected, abs=1e-4)
    assert metrics["psnr/2"] == pytest.approx(metrics["psnr"], abs=1e-9)
    for count, rule in ((0, "at least 1"), (4, "at most 3")):
        with pytest.raises(LGQError, match=rf"`levels` must be {rule}, got {count}"):
            model.first_levels(tokens, count)


def test_images_that_are_not_square_are_reconstructed_over_scales(photos, tmp_path):
    wide = Image.radial_gradient("L").resize((12, 8)).convert("RGB")
    wide.save(tmp_path / "wide.png")
    model = tokenizer()
    done = lgq.reconstruct(model, tmp_path / "wide.png", tmp_path / "out")
    with Image.open(done.images[0].file) as picture:
        assert picture.size[1] == 8
    assert model.decode_image(model.encode_image(wide), grid=(4, 6)).size == (12, 8)


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
