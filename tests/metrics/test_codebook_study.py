"""A codebook study equals its parts, applied to the tokens and latents of all images at once."""

import itertools
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image, ImageColor
from torch import Tensor

from lgq.data import DataError, FolderDataset, to_tensor
from lgq.metrics import codebook_study
from lgq.metrics.code_usage import CodeUsage
from lgq.metrics.codebook_study import CodeAtlas, CodebookStudy, draw_study, study_codebook
from lgq.metrics.geometry import CoOccurrence, PositionPairs
from lgq.models.autoencoder import Backbone
from lgq.plots.palette import colour_of
from lgq.quantizers import QUANTIZERS
from lgq.tokenizer import Tokenizer

TINY = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=4, latent_groups=2)
IMAGES, SIDE, GRID, CODES = 7, 8, (4, 4), 64
TOKENS = IMAGES * GRID[0] * GRID[1]


def tokenizer_of(quantizer: str = "lgq", codes: int = CODES, stages: int = 1) -> Tokenizer:
    torch.manual_seed(1)
    return Tokenizer(TINY, quantizer, codes, stages=stages).eval()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of the studied size, so that a centre crop is the image itself."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(IMAGES):
        Image.fromarray(random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def pixels(photos: Path) -> Tensor:
    return torch.stack([to_tensor(Image.open(path)) for path in sorted(photos.iterdir())])


def study(photos: Path, tokenizer: Tokenizer, **options: int) -> CodebookStudy:
    return study_codebook(tokenizer, FolderDataset(photos), image_size=SIDE, **{"batch_size": 3, **options})


def assert_same(a: CodebookStudy, b: CodebookStudy) -> None:
    assert a.record() == b.record()
    for x, y in [
        (a.usage.counts, b.usage.counts),
        (a.atlas.places, b.atlas.places),
        (a.atlas.patches, b.atlas.patches),
        (a.codebook, b.codebook),
    ]:
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    # Convolutions of other batch sizes round differently.
    torch.testing.assert_close(a.latents, b.latents, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_metrics_are_those_of_all_tokens_and_of_learned_codes(photos, quantizer):
    tokenizer = tokenizer_of(quantizer)
    result, parts = study(photos, tokenizer), (CodeUsage, CoOccurrence)
    usage, pairs, positions = *(part.empty(CODES) for part in parts), PositionPairs.empty(GRID[0] * GRID[1])
    for part in (usage, pairs, positions):
        part.update(tokenizer.encode(pixels(photos)))
    expected = usage.summary() | positions.summary() | {"cooccurrence_density": pairs.density}
    if tokenizer.quantizer.learned_codes:
        expected |= usage.norm_summary(tokenizer.quantizer.codebook)
        assert result.absent == {}
    else:
        assert result.absent.keys() == {"norm_correlation", "overlay"}
        assert all("fixed grid" in reason for reason in result.absent.values())
        assert result.codebook is result.latents is None
    assert result.metrics == pytest.approx(expected)
    assert (result.quantizer, result.images, result.stage, result.stages) == (quantizer, IMAGES, 0, 1)


def test_the_atlas_holds_the_patches_of_the_tokens(photos):
    tokenizer, images = tokenizer_of(), pixels(photos)
    result, tokens = study(photos, tokenizer), tokenizer.encode(images)
    code = int(result.usage.counts.argmax())
    places = (tokens == code).nonzero().tolist()
    assert (int(result.usage.counts[code]), result.usage.tokens) == (len(places), TOKENS)
    patches = [images[i, :, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2] for i, y, x in places[:8]]
    assert torch.equal(result.atlas.patches_of(code), ((torch.stack(patches) + 1) * 127.5).round().byte())


@pytest.mark.parametrize("batch_size", [1, 2, IMAGES])
def test_batches_change_nothing(photos, monkeypatch, batch_size):
    monkeypatch.setattr(codebook_study, "_LATENTS", 20)
    whole = study(photos, tokenizer_of())
    assert len(whole.latents) == 20
    assert_same(study(photos, tokenizer_of(), batch_size=batch_size), whole)


def test_train_mode_changes_nothing_and_the_tokenizer_stays_as_it_is(photos):
    tokenizer = tokenizer_of("vq").train()
    before = {name: tensor.clone() for name, tensor in tokenizer.state_dict().items()}
    assert_same(study(photos, tokenizer), study(photos, tokenizer_of("vq")))
    assert tokenizer.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in tokenizer.state_dict().items())


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_is_studied_on_what_the_earlier_stages_left_over(photos, stage):
    tokenizer = tokenizer_of(stages=3)
    result, images = study(photos, tokenizer, stage=stage), pixels(photos)
    left, tokens = tokenizer.encoder(images).detach(), tokenizer.encode(images)
    for earlier in range(stage):
        left = left - tokenizer.quantizer.stages[earlier].decode(tokens[..., earlier]).detach()
    assert (result.stage, result.stages) == (stage, 3)
    assert torch.equal(result.usage.counts, torch.bincount(tokens[..., stage].flatten(), minlength=CODES))
    assert torch.equal(result.codebook, tokenizer.quantizer.stages[stage].codebook.detach())
    torch.testing.assert_close(result.latents, left.movedim(1, -1).reshape(TOKENS, -1), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_counted_is_absent_with_the_reason(photos, monkeypatch):
    single = study_codebook(tokenizer_of(), FolderDataset(photos), image_size=2)
    assert single.absent.keys() == {"mutual_information"}
    assert single.usage.tokens == single.images == IMAGES
    monkeypatch.setattr(codebook_study, "MAX_PAIRED_CODES", CODES - 1)
    many = study(photos, tokenizer_of())
    assert many.absent.keys() == {"cooccurrence_density"}
    assert "counted up to 63 codes" in many.absent["cooccurrence_density"]


def test_progress_counts_images_broken_ones_are_left_out_and_bad_settings_refused(photos, tmp_path):
    (tmp_path / "3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="none of 1 images can be read"):
        study(tmp_path, tokenizer_of())
    for path in set(photos.iterdir()) - {photos / "3.png"}:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    counts: list[tuple[int, int]] = []
    result = study(tmp_path, tokenizer_of(), on_progress=lambda *count: counts.append(count))
    assert counts == [(3, IMAGES), (6, IMAGES), (IMAGES, IMAGES)]
    assert result.images == IMAGES - 1
    with pytest.raises(ValueError, match=r"must be multiples of 2, got 7 x 7"):
        study_codebook(tokenizer_of(), FolderDataset(photos), image_size=7)
    with pytest.raises(ValueError, match=r"`stage` must lie in 0\.\.0.*got 1"):
        study(photos, tokenizer_of(), stage=1)


@pytest.mark.parametrize(
    ("quantizer", "stages", "pictures"),
    [("rotvq", 2, {"usage", "atlas", "norms", "overlay"}), ("fsq", 1, {"usage", "atlas"})],
)
def test_a_study_is_drawn_with_the_label_and_in_the_colour_of_its_quantizer(
    photos, monkeypatch, quantizer, stages, pictures
):
    titles: list[str] = []
    original = Axes.set_title
    monkeypatch.setattr(
        Axes, "set_title", lambda axes, text, **kw: (titles.append(text), original(axes, text, **kw))
    )
    options = {"stage": 1} if stages > 1 else {}
    drawn = draw_study(study(photos, tokenizer_of(quantizer, stages=stages), **options), method="pca")
    assert drawn.keys() == pictures
    caption = "RotVQ, stage 2 of 2: " if stages > 1 else "FSQ: "
    assert any(title.startswith(caption) for title in titles)
    usage = np.asarray(Image.open(BytesIO(drawn["usage"])).convert("RGB"))
    assert (usage == ImageColor.getrgb(colour_of(quantizer))).all(2).any()


@pytest.mark.parametrize("batch", [1, 4, 12])
def test_an_atlas_keeps_the_first_patches_of_each_code_in_any_order_of_images(batch):
    codes, patch, keep = 6, 2, 4
    images, tokens = torch.randint(0, 256, (12, 3, 4, 6)).float() / 127.5 - 1, torch.randint(0, 5, (12, 2, 3))
    tokens[:, 0, 0], tokens[3, 1, 2] = 0, 5
    images[0, :, :2, :2] *= 9  # beyond the visible range
    atlas = CodeAtlas.empty(codes, factor=patch, patches=keep)
    for chosen in torch.randperm(12).split(batch):
        atlas.update(images[chosen], tokens[chosen], chosen)
    patches: dict[int, list[Tensor]] = {code: [] for code in range(codes)}
    for image, image_codes in zip(images.clamp(-1, 1), tokens.flatten(1).tolist(), strict=True):
        for (i, j), code in zip(itertools.product(range(2), range(3)), image_codes, strict=True):
            cut = image[:, i * patch : (i + 1) * patch, j * patch : (j + 1) * patch]
            patches[code].append(((cut + 1) * 127.5).round().to(torch.uint8))
    for code, first in patches.items():
        assert [x.tolist() for x in atlas.patches_of(code)] == [x.tolist() for x in first[:keep]]
    assert len(atlas.patches_of(5)) == 1
    with pytest.raises(ValueError, match=r"index 9 is outside 0\.\.5"):
        atlas.update(images, torch.full_like(tokens, 9), torch.arange(12))
