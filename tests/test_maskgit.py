"""Laws of the generator: what it draws, what it leaves alone, and its files; on networks of a blink."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from lgq import MaskGIT
from lgq.errors import LGQError
from lgq.hub import PretrainedError
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.tokenizer import Tokenizer

BACKBONE = Backbone(
    widths=(8, 8, 8), blocks=1, attention_heads=0, groups=4, latent_channels=8, latent_groups=2
)
SMALL = TransformerSettings(layers=1, width=16, heads=2, hidden=32)
QUICK = Sampling(steps=3)
CODES, SIDE = 20, 16

over_stages = pytest.mark.parametrize("stages", [1, 2])


def build(stages: int = 1, classes: Sequence[str] = ("cat", "dog")) -> MaskGIT:
    torch.manual_seed(0)
    tokenizer = Tokenizer(BACKBONE, "lgq", CODES, stages=stages)
    return MaskGIT(tokenizer, image_size=SIDE, classes=classes, transformer=SMALL).eval()


CLASSES = torch.tensor([0, 1])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    build().save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


@over_stages
def test_samples_are_tokens_of_the_tokenizer_and_images_are_their_decoding(stages: int) -> None:
    maskgit = build(stages)
    tokens = maskgit.sample(CLASSES, QUICK, seed=3)
    assert tokens.shape == ((2, 4, 4) if stages == 1 else (2, 4, 4, stages))
    assert set(tokens.unique().tolist()) <= set(range(CODES))
    images = maskgit.generate(CLASSES, QUICK, seed=3)
    assert torch.equal(images, maskgit.tokenizer.decode(tokens))
    assert images.shape == (2, 3, SIDE, SIDE)


def test_a_seed_gives_the_same_tokens_and_another_one_others() -> None:
    maskgit = build()
    torch.manual_seed(5)
    first = maskgit.sample(CLASSES, QUICK, seed=1)
    state = torch.get_rng_state()
    assert torch.equal(maskgit.sample(CLASSES, QUICK, seed=1), first)
    assert torch.equal(torch.get_rng_state(), state), "sampling must not draw from torch's own generator"
    assert not torch.equal(maskgit.sample(CLASSES, QUICK, seed=2), first)


def test_inpainting_nothing_changes_nothing_and_inpainting_all_is_sampling() -> None:
    maskgit = build()
    tokens = maskgit.tokenizer.encode(torch.rand(2, 3, SIDE, SIDE) * 2 - 1)
    nothing = torch.zeros(2, 4, 4, dtype=torch.bool)
    assert torch.equal(maskgit.inpaint(tokens, nothing, CLASSES, QUICK), tokens)
    everything = maskgit.inpaint(tokens, ~nothing, CLASSES, QUICK, seed=4)
    assert torch.equal(everything, maskgit.sample(CLASSES, QUICK, seed=4))


def test_the_tokenizer_is_frozen_and_stays_in_eval_mode() -> None:
    maskgit = build().train()
    assert maskgit.transformer.training
    assert not maskgit.tokenizer.training
    assert not any(parameter.requires_grad for parameter in maskgit.tokenizer.parameters())
    assert all(parameter.requires_grad for parameter in maskgit.transformer.parameters())


def test_sampling_has_no_dropout_even_in_training() -> None:
    maskgit = build()
    calm = maskgit.sample(CLASSES, QUICK, seed=1)
    assert torch.equal(maskgit.train().sample(CLASSES, QUICK, seed=1), calm)
    assert maskgit.transformer.training


@over_stages
def test_a_saved_generator_comes_back_whole_with_its_tokenizer(stages: int, tmp_path: Path) -> None:
    maskgit = build(stages)
    maskgit.save_pretrained(tmp_path / "mine")
    torch.manual_seed(9)
    state = torch.get_rng_state()
    again = MaskGIT.from_pretrained(tmp_path / "mine")
    assert torch.equal(torch.get_rng_state(), state)
    assert not again.training
    assert (again.image_size, again.classes) == (SIDE, ("cat", "dog"))
    assert again.tokenizer.fingerprint() == maskgit.tokenizer.fingerprint()
    assert torch.equal(again.generate(CLASSES, QUICK, seed=3), maskgit.generate(CLASSES, QUICK, seed=3))


def test_the_directory_holds_what_the_contract_says(saved: Path) -> None:
    files = sorted(str(file.relative_to(saved)) for file in saved.rglob("*") if file.is_file())
    names = ["README.md", "config.json", "model.safetensors"]
    assert files == [*names, *(f"tokenizer/{name}" for name in names)]
    card = ModelCard.load(saved / "README.md")
    assert "16 x 16 pixels" in card.text
    assert "2 class(es) as 4 x 4 tokens" in card.text


def test_files_that_do_not_belong_together_are_named(saved: Path) -> None:
    config = saved / "config.json"
    settings = json.loads(config.read_text())
    for change, message in (
        ({"heads": 3}, r"config\.json describes no model .* unknown field 'heads'"),
        ({"classes": ["cat"]}, r"does not fit config\.json beside it: of class_tokens\.weight"),
    ):
        config.write_text(json.dumps(settings | change))
        with pytest.raises(PretrainedError, match=message):
            MaskGIT.from_pretrained(saved)
    config.write_text(json.dumps(settings))
    torch.manual_seed(1)
    Tokenizer(BACKBONE, "lgq", CODES).save_pretrained(saved / "tokenizer")
    with pytest.raises(PretrainedError, match=r"tokens of tokenizer \w{12}, and its tokenizer/ holds"):
        MaskGIT.from_pretrained(saved)
    shutil.rmtree(saved / "tokenizer")
    with pytest.raises(PretrainedError, match=r"mine has no tokenizer/model\.safetensors"):
        MaskGIT.from_pretrained(saved)


def test_classes_have_names_and_numbers() -> None:
    maskgit = build()
    first, second = maskgit.classes
    numbered = maskgit.sample(torch.tensor([1, 0, 1]), QUICK)
    for classes in ([1, 0, 1], (second, first, second), [second, 0, "1"]):
        assert torch.equal(maskgit.sample(classes, QUICK), numbered)
    assert torch.equal(maskgit.generate(second, QUICK), maskgit.generate([1], QUICK))
    assert maskgit.class_numbers([]) == []


def test_a_word_is_a_name_before_it_is_a_number() -> None:
    maskgit = build(classes=("0", "1", "10", "2"))
    assert maskgit.class_numbers(["10", "2", "3", 2]) == [2, 3, 3, 2]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("gold", "did you mean 'goldfish' or 'marigold'?"),
        ("GoldFish", "did you mean 'goldfish'"),
        ("goldfihs", "did you mean 'goldfish'"),
        ("xyzzy", "the names are 'cat', 'goldfish', 'marigold'."),
        ("", "the names are 'cat', 'goldfish', 'marigold'."),
        ("1.5", "the names are"),
        ("9" * 5_000, "the names are"),
    ],
)
def test_a_class_that_is_misspelled_gets_the_closest_ones(word: str, hint: str) -> None:
    maskgit = build(classes=("cat", "goldfish", "marigold"))
    with pytest.raises(LGQError, match="knows no class") as refusal:
        maskgit.generate([word])
    assert hint in str(refusal.value)
    with pytest.raises(LGQError, match=r"\.\.\. \(20 in all\)"):
        build(classes=[f"kind {i}" for i in range(20)]).class_numbers(["zebra"])


def test_wrong_classes_tokens_and_masks_are_named() -> None:
    maskgit, tokens = build(), torch.zeros(2, 4, 4, dtype=torch.int64)
    for wrong in (2, -1):
        with pytest.raises(LGQError, match=rf"class {wrong} is not among 0\.\.1"):
            maskgit.sample(torch.tensor([0, wrong]), QUICK)
    with pytest.raises(LGQError, match=r"mask must have .* 2 x 4 x 4 tokens, got shape 2 x 4 x 3"):
        maskgit.inpaint(tokens, torch.zeros(2, 4, 3, dtype=torch.bool), CLASSES)
    with pytest.raises(LGQError, match="tokens must have shape 4 x 4 per image, got 5 x 4"):
        maskgit.inpaint(tokens.new_zeros(2, 5, 4), torch.zeros(2, 5, 4, dtype=torch.bool), CLASSES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 18}, "`image_size` must be a multiple of 4, the tokenizer's factor, got 18"),
        ({"classes": ()}, "`classes` must be at least 1, got 0"),
        ({"classes": "cat"}, r"one string: write \('cat',\)"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskGIT(build().tokenizer, **({"image_size": SIDE, "classes": ("one",)} | settings))  # type: ignore[arg-type]


def test_saving_spares_what_is_in_the_place_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer/checkpoints").mkdir(parents=True)
    (tmp_path / "tokenizer/config.json").write_text("{}")
    with pytest.raises(PretrainedError, match="tokenizer holds something else"):
        build().save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer/config.json").read_text() == "{}"
    assert (tmp_path / "tokenizer/checkpoints").is_dir()
    assert not (tmp_path / "model.safetensors").exists()


def test_saving_again_replaces_the_generator_and_keeps_the_tokenizer(tmp_path: Path) -> None:
    maskgit = build()
    maskgit.save_pretrained(tmp_path)
    copy = (tmp_path / "tokenizer/model.safetensors").stat()
    torch.nn.init.ones_(maskgit.transformer.bias)
    maskgit.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer/model.safetensors").stat().st_mtime_ns == copy.st_mtime_ns
    assert (MaskGIT.from_pretrained(tmp_path).transformer.bias == 1).all()
