"""Training a generator: it learns what is hidden, and whatever stops it, it ends where it would have."""

import json
import re
import shutil
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from identity import assert_identical
from leftovers import NO_TENSORBOARD, last_state
from PIL import Image
from process_groups import exit_codes
from tiny_generator import CODES, TINY, draw_tokens, tokenizer, train
from tiny_run import before_step, left_by, terminate
from token_sets import write_tokens
from torch import Tensor

from lgq.config import ConfigError
from lgq.data.token_format import TokenError
from lgq.data.tokens import TokenDataset
from lgq.data.transforms import image_grid
from lgq.distributed import rank
from lgq.errors import LGQError
from lgq.hub import PretrainedError, model_kind
from lgq.maskgit import MaskGIT, load_generator
from lgq.models.sampling import Sampling
from lgq.models.transformer import TransformerSettings
from lgq.random import batch_seed
from lgq.tokenizer import load_tokenizer
from lgq.training import generator_trainer as generator
from lgq.training import trainer as base
from lgq.training.footprint import generator_footprint
from lgq.training.generator_trainer import GeneratorTrainer, open_tokens, train_generator
from lgq.training.journal import read_records
from lgq.training.settings import GeneratorRun, LoopSettings, Schedule

pytestmark = pytest.mark.usefixtures("_no_tensorboard")

PLAIN = replace(
    TINY,
    transformer=replace(TINY.transformer, dropout=0.0),
    accumulate=1,
    average_decay=None,
    clip=None,
    label_dropout=0.0,
)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return draw_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def trained(tokens: TokenDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Must not be written to."""
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)
        assert train(TINY, tokens, out).reason == "finished"
    return out


def begin(run: GeneratorRun, tokens: TokenDataset, out: Path) -> GeneratorTrainer:
    return GeneratorTrainer(run, tokens, tokens, tokenizer(), out)


def record_calls(trainer: GeneratorTrainer) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Tokens, classes and places that the transformer will be asked about."""
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    trainer.transformer.register_forward_pre_hook(lambda _, arguments: calls.append(arguments))
    return calls


def last_batch(trainer: GeneratorTrainer, tokens: TokenDataset) -> Tensor:
    return torch.stack([tokens[int(name[:-4])].tokens.flatten() for name in trainer.batch_names])


def seen_by(trainer: GeneratorTrainer, steps: int = 1) -> list[tuple[Tensor, Tensor, Tensor]]:
    calls = record_calls(trainer)
    for step in range(steps):
        trainer.train_step(step)
    return calls


def test_a_resumed_run_equals_an_unbroken_run_bit_for_bit(tokens, trained, tmp_path):
    for step in (0, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            before_step(step, terminate, patch)
            assert train(TINY, tokens, tmp_path).reason == "interrupted"
    assert train(TINY, tokens, tmp_path, resume="must").reason == "finished"
    assert_identical(left_by(tmp_path), left_by(trained))


@pytest.mark.parametrize(
    "options",
    [
        {"flipped": torch.zeros(9, 2, 2, dtype=torch.int64)},
        {"labels": [1] * 9},
        {"classes": ("cat",), "labels": [0] * 9},
        {"flipped": None},
    ],
    ids=["tokens", "labels", "classes", "flips"],
)
def test_a_run_goes_on_with_its_own_tokens_alone_wherever_they_are(tokens, trained, tmp_path, options):
    shutil.copytree(trained, tmp_path / "run")
    shutil.copytree(tokens.path, tmp_path / "moved")
    assert train(TINY, TokenDataset(tmp_path / "moved"), tmp_path / "run", resume="must").reason == "finished"
    others = draw_tokens(tmp_path / "others", **options)
    for training, validation, name in ((others, others, "tokens"), (tokens, others, "val_tokens")):
        message = f"these are other `{name}` than those of {tmp_path / 'run'}: choose another `out`."
        with pytest.raises(LGQError, match=f"^{re.escape(message)}$"):
            train_generator(TINY, training, tmp_path / "run", val_tokens=validation, tokenizer=tokenizer())


def test_the_loss_is_of_hidden_tokens_alone(tmp_path):
    tokens = draw_tokens(tmp_path / "tokens", flipped=None)
    trainer = begin(replace(PLAIN, batch_size=5), tokens, tmp_path)
    start = deepcopy(trainer.transformer).eval()
    calls = record_calls(trainer)
    loss = trainer.train_step(0)["loss"]
    ((seen, classes, hidden),) = calls
    truth = last_batch(trainer, tokens)
    assert torch.equal(seen, truth.masked_fill(hidden, CODES)), "what is hidden cannot be seen"
    logits = start(seen, classes, torch.ones_like(hidden)).view(5, 4, CODES)
    targets = 0.9 * F.one_hot(truth, CODES) + 0.1 / CODES
    losses = -(targets * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(loss, losses[hidden].mean().detach())
    assert not torch.isclose(loss, losses.mean())


def test_ranks_draw_masks_of_their_own(tokens, tmp_path, monkeypatch):
    masks = []
    for number in (0, 1, 2, 0):
        monkeypatch.setattr(base, "rank", lambda: number)  # noqa: B023
        masks.append(seen_by(begin(replace(PLAIN, batch_size=50), tokens, tmp_path))[0][2])
    assert torch.equal(masks[0], masks[3])
    assert not any(torch.equal(a, b) for a, b in combinations(masks[:3], 2))


@pytest.mark.parametrize("flips", [False, True])
def test_mirrored_images_are_seen_where_the_run_wants_them_alone(tokens, tmp_path, flips):
    trainer = begin(replace(PLAIN, batch_size=50, flips=flips), tokens, tmp_path)
    ((seen, _, hidden),) = seen_by(trainer)
    assert torch.equal(seen, last_batch(trainer, tokens).masked_fill(hidden, CODES)) is not flips


@pytest.mark.parametrize(
    ("dropout", "options", "expected"),
    [(0.0, {}, {0, 1, 2}), (1.0, {}, {2}), (0.0, {"labels": None, "classes": ()}, {0})],
    ids=["missing labels are the null class", "and dropped ones", "without any, images are one class"],
)
def test_classes_that_are_shown(tmp_path, dropout, options, expected):
    trainer = begin(replace(PLAIN, label_dropout=dropout), draw_tokens(tmp_path / "t", **options), tmp_path)
    assert trainer.maskgit.classes == (("image",) if options else ("cat", "dog"))
    assert {int(c) for _, classes, _ in seen_by(trainer, steps=5) for c in classes} == expected


def test_a_validation_is_the_same_at_any_time_and_draws_no_random_numbers(tokens, tmp_path):
    trainer = begin(TINY, tokens, tmp_path)
    before = torch.get_rng_state()
    first = trainer.validate(1), (tmp_path / "images/step-000001.png").read_bytes()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert first == (trainer.validate(2), (tmp_path / "images/step-000002.png").read_bytes())
    assert first[0].keys() == {"nll", "accuracy", "masked_tokens"}


def test_samples_of_classes_from_all_over_are_drawn_at_each_validation(trained, tokens, tmp_path):
    names = sorted(path.name for path in (trained / "images").iterdir())
    assert names == ["step-000003.png", "step-000006.png"]
    with Image.open(trained / "images/step-000006.png") as grid:
        assert grid.size == (3 * 4, 4)
    train(replace(TINY, sample_images=0, loop=LoopSettings(steps=3)), tokens, tmp_path / "none")
    assert not (tmp_path / "none/images").exists()


def test_samples_are_drawn_batch_by_batch_each_with_a_seed_of_its_own(tokens, tmp_path, monkeypatch):
    trainer = begin(replace(PLAIN, sample_images=10, batch_size=4, seed=3), tokens, tmp_path)
    expected = [
        trainer.maskgit.generate(torch.tensor(classes), PLAIN.sampling, seed=batch_seed(3, first))
        for first, classes in ((0, [0] * 4), (4, [0, 1, 1, 1]), (8, [1, 1]))
    ]
    pictures: list[Tensor] = []
    monkeypatch.setattr(trainer, "_save_picture", lambda step, images: pictures.append(images))
    trainer.validate(1)
    assert torch.equal(pictures[0], torch.cat(expected))


def test_a_grid_holds_its_images_row_by_row():
    images = torch.arange(10.0).view(10, 1, 1, 1).expand(10, 3, 2, 2)
    grid = image_grid(images)
    assert grid.shape == (3, 4, 16)
    assert grid[0, ::2, ::2].tolist() == [list(map(float, range(8))), [8, 9, -1, -1, -1, -1, -1, -1]]


def test_best_and_last_are_generators_of_the_averaged_weights(trained):
    state = last_state(trained)["trainer"]
    for name in ("best", "last"):
        maskgit = MaskGIT.from_pretrained(trained / name)
        assert maskgit.classes == ("cat", "dog")
        assert maskgit.generate(torch.tensor([1]), Sampling(steps=1)).shape == (1, 3, 4, 4)
    saved = MaskGIT.from_pretrained(trained / "last").transformer.positions
    assert torch.equal(saved, state["average"]["weights.positions"])
    assert not torch.equal(saved, state["model"]["positions"])
    assert not any("tokenizer" in name for name in state["model"])


def test_config_tells_the_kind_the_tokens_and_the_tokenizer(trained, tokens):
    config = json.loads((trained / "config.json").read_text())
    assert (config["kind"], config["image_size"]) == ("generator", 4)
    assert config["tokenizer"] == tokenizer().fingerprint()
    expected = {"source": repr(tokens), "images": 9, "checksum": tokens.checksum, "classes": 2, "flips": True}
    assert config["tokens"] == config["validation_tokens"] == expected
    assert config["transformer"]["width"] == 16


def test_bf16_trains(tokens, tmp_path):
    run = replace(TINY, precision="bf16", loop=LoopSettings(steps=3, log_every=1))
    assert train(run, tokens, tmp_path).reason == "finished"


# torch's own, which it hides where warnings are no errors: the graph breaks where hidden tokens are chosen.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("without_shape_checks")
def test_a_compiled_run_is_the_same_run_within_rounding(tokens, tmp_path, monkeypatch):
    # Traced and differentiated as ever, but left to torch's own kernels: to build others takes a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    ends = []
    for compiled in (False, True):
        trainer = begin(replace(PLAIN, compile=compiled), tokens, tmp_path)
        terms = [trainer.train_step(step) for step in range(2)]
        ends.append({"terms": terms, "weights": dict(trainer.transformer.state_dict())})
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=1e-4)


UNLABELLED = {"labels": None, "classes": ()}
CLASS_CALLED_IMAGE = {"labels": [0] * 9, "classes": ("image",)}


@pytest.mark.parametrize(
    ("options", "others", "message"),
    [
        ({}, {"fingerprint": "another"}, "holds tokens of tokenizer another"),
        ({}, {"classes": ("cat", "dog", "eel")}, "it has 3 classes, and .* has 2 classes; encode images of"),
        ({}, {"classes": ("cat", "eel")}, "its class 1 is 'eel', not 'dog'"),
        ({}, UNLABELLED, "it has no classes, and .* has 2 classes; encode"),
        (CLASS_CALLED_IMAGE, UNLABELLED, "it has no classes, and .* has 1 class;"),
        (UNLABELLED, CLASS_CALLED_IMAGE, "it has 1 class, and .* has no classes;"),
        ({}, {"codebook_size": 7}, "its codebook_size is 7, not 6"),
        ({}, {"side": 3}, "its grid is 3 x 3, not 2 x 2; encode images of 4 x 4 pixels"),
    ],
    ids=str,
)
def test_validation_tokens_of_another_kind_are_refused(tmp_path, options, others, message):
    tokens, val_tokens = draw_tokens(tmp_path / "a", **options), draw_tokens(tmp_path / "b", **others)
    with pytest.raises(TokenError, match=message):
        open_tokens(tokens, val_tokens, tokenizer())


def test_validation_tokens_may_lack_the_last_classes(tokens, tmp_path):
    cats = draw_tokens(tmp_path / "cats", labels=[0] * 9, classes=("cat",))
    assert open_tokens(tokens, cats, tokenizer())[1] is cats


def test_tokens_of_another_tokenizer_are_refused_and_nothing_is_written(tokens, tmp_path):
    with pytest.raises(TokenError, match="use the one that encoded it"):
        train_generator(TINY, tokens, tmp_path / "run", tokenizer=tokenizer(seed=1))
    assert not (tmp_path / "run").exists()


def test_a_run_is_loaded_as_what_it_trains_alone(trained, tmp_path):
    assert model_kind(trained) == model_kind(trained / "best") == "generator"
    assert load_generator(trained).classes == load_generator(trained / "best").classes == ("cat", "dog")
    tokenizer = load_tokenizer(trained / "best/tokenizer")
    assert tokenizer.encode(torch.zeros(1, 3, 4, 4)).shape == (1, 2, 2)
    for part in ("", "best"):
        with pytest.raises(PretrainedError, match=r"is a generator, and this needs a tokenizer: "):
            load_tokenizer(trained / part)
    with pytest.raises(PretrainedError, match=r"is a tokenizer, and this needs a generator"):
        load_generator(trained / "best/tokenizer")
    with pytest.raises(PretrainedError, match="there is no directory"):
        model_kind(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        model_kind(tmp_path)


def test_a_footprint_counts_the_parameters_and_grows_with_the_batch(tokens):
    runs = [replace(TINY, batch_size=size) for size in (1, 8)]
    small, large = (generator_footprint(run, tokens, tokenizer=tokenizer()) for run in runs)
    transformer = generator.build_generator(TINY, tokens, tokenizer()).transformer
    parameters = sum(parameter.numel() for parameter in transformer.parameters())
    assert small.parameters == {"transformer": parameters}
    assert small.bytes["gradients"] == small.bytes["average"] == 4 * parameters
    assert small.bytes["optimizer"] == 8 * parameters
    assert large.bytes["activations"] == 8 * small.bytes["activations"] > 0


def mask_all(u: Tensor, scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


def rank_task(run: GeneratorRun, path: Path, out: Path, stop: bool) -> None:
    """Train as one of two processes with every token masked; the second may get a signal."""
    sys.modules["torch.utils.tensorboard"] = NO_TENSORBOARD  # type: ignore[assignment]
    generator.random_masks = mask_all
    if stop and rank() == 1:
        before_step(1, terminate, pytest.MonkeyPatch())
    sys.exit(train(run, TokenDataset(path), out).exit_code)


def on_two_processes(run: GeneratorRun, tokens: TokenDataset, out: Path, *, stop: bool = False) -> list[Any]:
    return exit_codes(2, rank_task, run, tokens.path, out, stop)


def test_two_processes_learn_what_one_learns_from_both_their_batches(tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "random_masks", mask_all)
    assert on_two_processes(PLAIN, tokens, tmp_path / "two") == [0, 0]
    train(replace(PLAIN, batch_size=2 * PLAIN.batch_size), tokens, tmp_path / "one")
    two, one = (_but_key_biases(tmp_path / name / "last") for name in ("two", "one"))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    two, one = (read_records(tmp_path / name)[-1]["values"]["nll"] for name in ("two", "one"))
    assert two == pytest.approx(one, rel=1e-4)


def _but_key_biases(folder: Path) -> dict[str, Tensor]:
    """The weights without those that no attention depends on: their gradients are rounding, and Adam makes
    steps of full length of any."""
    weights = dict(MaskGIT.from_pretrained(folder).transformer.state_dict())
    for name, weight in weights.items():
        if name.endswith("queries_keys_values.bias"):
            weight.view(3, -1)[1].zero_()
    return weights


def test_two_processes_that_are_stopped_end_as_two_that_were_not(tokens, tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert on_two_processes(TINY, tokens, unbroken) == [0, 0]
    assert on_two_processes(TINY, tokens, broken, stop=True) == [75, 75]
    assert on_two_processes(TINY, tokens, broken) == [0, 0]
    assert_identical(left_by(broken), left_by(unbroken))
    assert_identical(last_state(broken, rank=1), last_state(unbroken, rank=1))


def toy_joint(label: int) -> Tensor:
    """Chances of all images of four tokens: a as its class has it, b = a, c = a + 1 + class or, one time in
    four, a; and d by itself."""
    weights = torch.tensor([[6.0, 5, 4, 3, 2, 1], [1.0, 1, 1, 5, 5, 5]])[label]
    chances = weights / weights.sum()
    joint = torch.zeros(CODES, CODES, CODES, CODES)
    for a in range(CODES):
        joint[a, a, a] = 0.25 * chances[a] * chances.flip(0)
        joint[a, a, (a + 1 + label) % CODES] = 0.75 * chances[a] * chances.flip(0)
    return joint


def distance(samples: Tensor, truth: Tensor) -> float:
    """Total variation between numbers that were drawn and the chances of each."""
    frequencies = torch.bincount(samples, minlength=truth.numel()) / len(samples)
    return float((frequencies - truth.flatten()).abs().sum() / 2)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_generator_recovers_a_known_distribution_and_its_classes(tmp_path):
    joints = [toy_joint(label) for label in range(2)]
    random = torch.Generator().manual_seed(0)
    drawn = torch.cat([joint.flatten().multinomial(4_000, True, generator=random) for joint in joints])
    places = torch.tensor([CODES**3, CODES**2, CODES, 1])
    images = (drawn[:, None] // places % CODES).view(-1, 2, 2)
    settings = {"classes": ("cat", "dog"), "fingerprint": tokenizer().fingerprint()}
    data = write_tokens(tmp_path / "toy", images, labels=[0] * 4_000 + [1] * 4_000, **settings)
    run = replace(
        PLAIN,
        transformer=TransformerSettings(layers=1, width=64, heads=4, hidden=128, dropout=0.0),
        batch_size=128,
        learning_rate=2e-3,
        label_smoothing=0.0,
        label_dropout=0.1,
        sample_images=0,
        schedule=Schedule(kind="cosine", warmup_steps=20),
        loop=LoopSettings(steps=500, validate_every=500, checkpoint_every=500),
    )
    train(run, data, tmp_path / "run")
    maskgit = load_generator(tmp_path / "run")
    # One token a step, in an order that does not look at them: exactly the network's own distribution.
    sampling = Sampling(steps=4, order="random", schedule="linear")
    for label, joint in enumerate(joints):
        sampled = maskgit.sample(torch.full((4_000,), label), sampling, seed=label).flatten(1)
        for place in range(4):
            marginal = joint.sum([axis for axis in range(4) if axis != place])
            assert distance(sampled[:, place], marginal) < 0.06, f"token {place} of class {label}"
        whole = (sampled * places).sum(1)
        assert distance(whole, joint) < 0.13
        assert distance(whole, joints[1 - label]) > 0.5
        independent = sampled.clone()
        for place in range(4):
            independent[:, place] = sampled[torch.randperm(4_000), place]
        assert distance((independent * places).sum(1), joint) > 0.5, "marginals alone would not do"
