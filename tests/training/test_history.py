"""Going on with a run, and starting from one: more steps, other settings, and trained weights."""

import json
import logging
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_generator
import tiny_run
import torch
from hypothesis import given
from hypothesis import strategies as st
from identity import assert_identical
from leftovers import NO_TENSORBOARD
from tiny_run import EVERYTHING, TINY, before_step, left_by, terminate

from lgq.data import FolderDataset
from lgq.errors import LGQError, LGQWarning
from lgq.maskgit import load_generator
from lgq.quantizers import QUANTIZERS
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.training.footprint import tokenizer_footprint
from lgq.training.history import Extension, History
from lgq.training.journal import read_records
from lgq.training.loop import Outcome
from lgq.training.settings import Schedule, TokenizerRun, TrainingRun
from lgq.training.tokenizer_trainer import TokenizerTrainer, train

pytestmark = pytest.mark.usefixtures("_no_tensorboard", "_small_discriminator")

Trains = Callable[..., Outcome]
"""Trains a run into a directory."""
COSINE = replace(TINY, schedule=Schedule(kind="cosine", warmup_steps=1), average_decay=0.9)
RUNS = {"lgq": COSINE, "discriminator": EVERYTHING, "generator": tiny_generator.TINY}


@pytest.fixture(scope="module")
def trains(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Trains:
    tokens = tiny_generator.draw_tokens(tmp_path_factory.mktemp("tokens"))

    def call(run: TrainingRun, out: Path, **options: Any) -> Outcome:
        if isinstance(run, TokenizerRun):
            return tiny_run.train(run, photos, out, **options)
        return tiny_generator.train(run, tokens, out, **options)

    return call


def of_length(run: Any, steps: int, **changes: Any) -> Any:
    return replace(run, loop=replace(run.loop, steps=steps, **changes))


def config(out: Path) -> dict[str, Any]:
    return json.loads((out / "config.json").read_text())


def everything(out: Path) -> dict[str, Any]:
    return left_by(out) | {"config": config(out)}


class Killed(BaseException):
    pass


def kill(_: Any) -> None:
    raise Killed


def stopped(action: Callable[[Any], None], step: int, call: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        before_step(step, action, patch)
        with suppress(Killed):
            call()


# Length.


@pytest.mark.parametrize(
    ("name", "done"), [("lgq", 4), ("lgq", 6), ("discriminator", 6), ("generator", 4), ("generator", 6)]
)
def test_an_extended_run_ends_the_same_whatever_stops_it(name, done, trains, quick_path):
    run, longer, start = RUNS[name], of_length(RUNS[name], 10), quick_path / "start"
    stopped(terminate, done - 1, lambda: trains(run, start))
    unbroken, broken = (shutil.copytree(start, quick_path / place) for place in ("unbroken", "broken"))
    assert trains(longer, unbroken).step == 10
    stopped(kill, done, lambda: trains(longer, broken))
    stopped(terminate, done, lambda: trains(longer, broken))
    stopped(kill, 9, lambda: trains(longer, broken))
    assert trains(longer, broken).reason == "finished"
    assert_identical(everything(broken), everything(unbroken))
    extension = {"step": done, "planned": 6, "steps": 10}
    assert config(broken)["extensions"] == [extension]
    noted = [record for record in read_records(broken) if record["split"] == "history"]
    assert [(record["step"], record["extension"]) for record in noted] == [(done, extension)]


def logged(out: Path, name: str) -> dict[int, float]:
    return {r["step"]: r["values"][name] for r in read_records(out) if r["split"] == "train"}


def test_learning_rate_and_temperature_follow_the_new_length_but_no_temperature_goes_up(trains, quick_path):
    for done, place in ((6, "finished"), (3, "interrupted")):
        out = quick_path / place
        stopped(terminate, done - 1, lambda out=out: trains(COSINE, out))
        trains(of_length(COSINE, 12), out)
        rates, taus = logged(out, "learning_rate"), logged(out, "tau")
        longer = of_length(COSINE, 12)
        for step, rate in rates.items():
            run = COSINE if step <= done else longer
            assert rate == pytest.approx(run.learning_rate_at(step - 1)), (place, step)
        reached = (done - 1) / 5
        expected = [1 - 0.9 * (s / 5 if s < done else max(reached, s / 11)) for s in range(12)]
        assert list(taus.values()) == pytest.approx(expected), place
        assert taus[12] == pytest.approx(0.1)


def test_a_first_try_shorter_than_the_warm_up_is_extended_like_any_other(trains, quick_path):
    run = replace(COSINE, schedule=replace(COSINE.schedule, warmup_steps=100))
    for steps in (2, 4):
        trains(replace(run, loop=replace(run.loop, steps=steps)), quick_path)
    assert [r["step"] for r in read_records(quick_path) if r["split"] == "train"][-1] == 4


def test_a_run_can_become_shorter_than_planned_but_not_than_it_is(trains, quick_path, caplog):
    stopped(terminate, 2, lambda: trains(COSINE, quick_path))
    before = files(quick_path)
    for steps in (2, 3):
        words = rf"done 3 of its 6 steps, and `steps` {steps} asks for no more: choose more than 3, or"
        with pytest.raises(LGQError, match=words):
            trains(of_length(COSINE, steps), quick_path)
    assert files(quick_path) == before
    with caplog.at_level(logging.INFO, "lgq"):
        assert trains(of_length(COSINE, 5), quick_path).step == 5
    assert "5 steps instead of 6: from step 3 on, learning rate and temperature" in caplog.text
    assert logged(quick_path, "tau")[5] == pytest.approx(0.1)
    assert read_records(quick_path)[-1]["split"] == "validation", "the last step is validated"


def files(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}


def test_the_best_weights_and_the_patience_carry_over(trains, quick_path, monkeypatch):
    scores = {3: 0.5, 6: 0.7, 9: 0.6, 12: 0.4}
    monkeypatch.setattr(TokenizerTrainer, "validate", lambda self, step: {"l1": scores[step]})
    patient = of_length(TINY, 6, patience=2)
    first = trains(patient, quick_path)
    assert (first.best, first.best_step, first.best_by) == (0.5, 3, "l1")
    best = (quick_path / "best/model.safetensors").read_bytes()
    ended = trains(of_length(patient, 12), quick_path)
    assert (ended.reason, ended.step, ended.best_step) == ("no_improvement", 9, 3)
    assert (quick_path / "best/model.safetensors").read_bytes() == best
    ended = trains(of_length(patient, 12, patience=None), quick_path)
    assert (ended.reason, ended.best_step) == ("finished", 12)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), max_size=4), st.integers(1, 100))
def test_progress_never_goes_back_and_ends_at_the_end(changes, steps):
    history, step, planned, shares = History(), 0, 50, []
    for done, length in [*changes, (100, steps)]:
        end = min(step + done, planned)
        shares += [history.progress(now, planned) for now in range(step, end)]
        step = end
        if length + step != planned:
            history = history.continued(Path("run"), step=step, planned=planned, steps=length + step)
            planned = length + step
    shares += [history.progress(now, planned) for now in range(step, planned)]
    assert shares == sorted(shares)
    assert planned == 1 or shares[-1] == 1
    assert shares[0] == 0


def test_a_run_of_one_length_anneals_by_the_plain_formula():
    for steps in (1, 2, 7):
        shares = [History().progress(step, steps) for step in range(steps)]
        assert shares == [step / max(1, steps - 1) for step in range(steps)]


# Settings.


def test_how_often_a_run_validates_logs_and_saves_does_not_change_its_weights(trains, quick_path):
    trains(EVERYTHING, quick_path / "unbroken")
    stopped(terminate, 3, lambda: trains(EVERYTHING, quick_path / "run"))
    other = of_length(EVERYTHING, 6, validate_every=1, log_every=2, checkpoint_every=1, keep=1)
    trains(other, quick_path / "run")
    state, unbroken = (left_by(quick_path / name)["state"]["trainer"] for name in ("run", "unbroken"))
    assert_identical(state, unbroken)


def test_what_is_validated_may_change_until_there_is_a_score(trains, quick_path):
    stopped(terminate, 1, lambda: trains(TINY, quick_path))
    fewer = replace(TINY, validation_images=2)
    stopped(terminate, 3, lambda: trains(fewer, quick_path))
    assert config(quick_path)["validation_images"] == 2
    with pytest.raises(LGQError, match=r"`validation_images` \(was 2, now 3\)"):
        trains(TINY, quick_path)


def test_a_changed_result_is_refused_by_the_options_that_change_it_with_ways_out(trains, quick_path):
    stopped(terminate, 1, lambda: trains(TINY, quick_path))
    other = replace(
        TINY, learning_rate=1.0, loss=replace(TINY.loss, l1=10.0), quantizer_options={"tau_end": 0.2}
    )
    with pytest.raises(LGQError) as refusal:
        trains(other, quick_path)
    options = "`learning_rate` (was 0.01, now 1.0), `loss.l1` (was 1.0, now 10.0), "
    options += "`quantizer_options.tau_end` (was 0.1, now 0.2); "
    assert options in str(refusal.value)
    for way_out in ("go on with its settings", "another `out`", f"`start_from` {quick_path})."):
        assert way_out in str(refusal.value)


# Weights to start from.


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose average, and so its published weights, differ from its last ones."""
    out = tmp_path_factory.mktemp("runs") / "trained"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)
        tiny_run.train(COSINE, photos, out)
    return out


def begin(run: TokenizerRun, photos: Path, out: Path, source: Any) -> TokenizerTrainer:
    data = FolderDataset(photos)
    return TokenizerTrainer(run, data, data, out, start_from=source)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_run_starts_from_the_whole_tokenizer_or_from_encoder_and_decoder(
    quantizer, photos, trained, quick_path, caplog
):
    run = replace(TINY, quantizer=quantizer, average_decay=0.9, seed=5)
    with caplog.at_level(logging.INFO, "lgq"):
        trainer = begin(run, photos, quick_path, trained)
    source, fresh = load_tokenizer(trained), begin(run, photos, quick_path, None).tokenizer
    weights, taken = trainer.tokenizer.state_dict(), {"encoder", "decoder"}
    taken |= {"quantizer"} if quantizer == "lgq" else set()
    for name, weight in weights.items():
        expected = source if name.split(".")[0] in taken else fresh
        assert torch.equal(weight, expected.state_dict()[name]), name
    averages = trainer.state()["average"]
    assert all(torch.equal(averages[f"weights.{name}"], p) for name, p in trainer.model.named_parameters())
    begun = trainer.history.start_from
    assert (begun.source, begun.fingerprint) == (str(trained), source.fingerprint())
    assert set(begun.parts) == taken
    assert f"starting from {trained} (sha256 {source.fingerprint()[:12]}): encoder, decoder" in caplog.text
    assert (f"it is {quantizer} of 16 codes here and lgq of 16" in caplog.text) == (quantizer != "lgq")


@pytest.mark.parametrize("changes", [{"codebook_size": 8}, {"stages": 2}])
@pytest.mark.filterwarnings("ignore:the trained codebook of")
def test_another_number_of_codes_begins_anew(changes, photos, trained, quick_path):
    trainer = begin(replace(TINY, **changes), photos, quick_path, trained)
    assert trainer.history.start_from.parts == ("encoder", "decoder")


def test_a_codebook_that_is_dropped_for_its_size_is_a_warning_with_the_way_to_keep_it(
    photos, trained, quick_path
):
    words = "is dropped, as it has 16 codes and this run 8: `codebook_size` 16 keeps it."
    with pytest.warns(LGQWarning, match=words):
        begin(replace(TINY, codebook_size=8), photos, quick_path, trained)
    grid = begin(replace(TINY, quantizer="fsq"), photos, quick_path, None).tokenizer
    begin(replace(TINY, quantizer="fsq", codebook_size=8), photos, quick_path, grid)  # nothing to keep


@pytest.mark.parametrize("quantizer", ["lgq", "ibq", "vq"])
def test_a_larger_codebook_begins_with_the_codes_and_copies_near_them(quantizer, photos, trained, quick_path):
    few = begin(replace(TINY, quantizer=quantizer), photos, quick_path, None).tokenizer
    more = begin(replace(TINY, quantizer=quantizer, codebook_size=40), photos, quick_path, few)
    codes, grown = few.quantizer.codebook, more.tokenizer.quantizer.codebook
    assert torch.equal(grown[:16], codes)
    copies = grown[16:] - codes.repeat(2, 1)[:24]
    assert 0.1 * codes.std() < copies.std() < 0.4 * codes.std()
    assert len(grown.unique(dim=0)) == 40
    assert more.history.start_from.parts == ("encoder", "decoder", "codes")


def test_sources_are_all_that_load_tokenizer_takes(photos, trained, quick_path):
    for source in (str(trained), trained / "last", load_tokenizer(trained)):
        begun = begin(TINY, photos, quick_path, source).history.start_from
        assert begun.fingerprint == load_tokenizer(source).fingerprint()
        assert begun.source == ("a model in memory" if isinstance(source, Tokenizer) else str(source))


def test_frozen_tokens_stay_those_of_the_source_while_the_decoder_learns(photos, trained, quick_path):
    run = replace(TINY, frozen_tokens=True, average_decay=0.9)
    data = FolderDataset(photos)
    train(run, data, quick_path / "run", start_from=trained)
    before, after = load_tokenizer(trained), load_tokenizer(quick_path / "run", "last")
    for (name, weight), (_, source) in zip(after.named_parameters(), before.named_parameters(), strict=True):
        assert torch.equal(weight, source) != name.startswith("decoder."), name


@pytest.mark.parametrize("changes", [{}, {"codebook_size": 8}])
@pytest.mark.filterwarnings("ignore:the trained codebook of")
def test_frozen_tokens_need_a_trained_quantizer_also_in_a_dry_run(changes, photos, trained, quick_path):
    run, source = replace(TINY, frozen_tokens=True, **changes), trained if changes else None
    words = r"`frozen_tokens` keeps encoder and quantizer .* as `start_from`"
    with pytest.raises(LGQError, match=words):
        begin(run, photos, quick_path, source)
    with pytest.raises(LGQError, match=words):
        tokenizer_footprint(run, FolderDataset(photos), start_from=source, out=quick_path)


def test_a_dry_run_of_a_run_that_would_continue_needs_no_source(photos, trained, quick_path):
    run = replace(TINY, frozen_tokens=True)
    train(run, FolderDataset(photos), quick_path / "run", start_from=trained)
    tokenizer_footprint(run, FolderDataset(photos), out=quick_path / "run")
    tokenizer_footprint(run, FolderDataset(photos), out=quick_path / "run", start_from="gone")


@torch.no_grad()
def test_a_decoder_may_gain_a_refinement_and_not_lose_it(photos, quick_path):
    plain = replace(TINY, backbone=replace(TINY.backbone, patch=2, widths=(4,)))
    grown = replace(plain, backbone=replace(plain.backbone, refinement=16))
    source = begin(plain, photos, quick_path, None).tokenizer.eval()
    trainer = begin(grown, photos, quick_path, source)
    tokens = source.encode(torch.rand(1, 3, 16, 16))
    torch.testing.assert_close(trainer.tokenizer.eval().decode(tokens), source.decode(tokens))
    assert trainer.history.start_from.parts == ("encoder", "decoder", "quantizer")
    with pytest.raises(LGQError, match=r"its backbone has other refinement \(there 16, here 0\)"):
        begin(plain, photos, quick_path, trainer.tokenizer)


def test_another_backbone_is_refused_with_its_settings(photos, trained, quick_path):
    other = replace(TINY, backbone=replace(TINY.backbone, widths=(4, 4), blocks=2, checkpointing=True))
    words = r"its backbone has other widths \(there \[4, 8\], here \[4, 4\]\), blocks \(there 1, here 2\): "
    words += r"train with `backbone.widths` 4 8 `backbone.blocks` 1, or start from weights of this backbone"
    with pytest.raises(LGQError, match=words):
        train(other, FolderDataset(photos), quick_path / "run", start_from=trained)
    assert not (quick_path / "run").exists()
    begin(replace(TINY, backbone=replace(TINY.backbone, checkpointing=True)), photos, quick_path, trained)


@pytest.mark.parametrize("again", ["the source", "nothing", "the model"])
def test_a_resumed_run_needs_no_source_and_ends_the_same(again, trains, trained, quick_path):
    source, model = shutil.copytree(trained, quick_path / "source"), load_tokenizer(trained)
    trains(COSINE, quick_path / "unbroken", start_from=source)
    stopped(kill, 1, lambda: trains(COSINE, quick_path / "broken", start_from=source))
    stopped(terminate, 3, lambda: trains(COSINE, quick_path / "broken", start_from=source))
    shutil.rmtree(source)
    given = {"the source": {"start_from": source}, "nothing": {}, "the model": {"start_from": model}}
    trains(COSINE, quick_path / "broken", **given[again])
    assert_identical(everything(quick_path / "broken"), everything(quick_path / "unbroken"))
    begun = {"source": str(source), "fingerprint": model.fingerprint()}
    begun["parts"] = ["encoder", "decoder", "quantizer"]
    assert config(quick_path / "broken")["start_from"] == begun
    first = read_records(quick_path / "broken")[0]
    assert (first["step"], first["split"], first["start_from"]) == (0, "history", begun)


def test_a_run_does_not_change_what_it_began_with(trains, trained, quick_path):
    stopped(terminate, 1, lambda: trains(COSINE, quick_path / "plain"))
    with pytest.raises(LGQError, match=r"`start_from` \(was random weights, now .*trained\); leave"):
        trains(COSINE, quick_path / "plain", start_from=trained)
    stopped(terminate, 1, lambda: trains(COSINE, quick_path / "run", start_from=trained))
    with pytest.raises(LGQError, match=r"`start_from` \(was .*trained, now .*/last\); leave"):
        trains(COSINE, quick_path / "run", start_from=trained / "last")


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", NO_TENSORBOARD)
        tiny_generator.train(
            tiny_generator.TINY, tiny_generator.draw_tokens(folder / "tokens"), folder / "run"
        )
    return folder / "run"


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        ({}, {"layers", "codes", "positions", "classes"}),
        ({"classes": ("cat", "eel")}, {"layers", "codes", "positions"}),
        ({"classes": ("cat", "dog", "eel")}, {"layers", "codes", "positions"}),
        ({"side": 3}, {"layers", "codes", "classes"}),
        ({"another": True}, {"layers", "positions", "classes"}),
    ],
    ids=["the same", "other classes", "more classes", "larger images", "another tokenizer"],
)
def test_a_generator_starts_from_what_means_the_same(tokens, parts, generator, quick_path, caplog):
    another = tiny_generator.tokenizer(seed=1) if tokens.pop("another", False) else tiny_generator.tokenizer()
    options = {"fingerprint": another.fingerprint()} | tokens
    dataset = tiny_generator.draw_tokens(quick_path / "tokens", **options)
    run = of_length(replace(tiny_generator.TINY, learning_rate=1e-30, seed=7, weight_decay=0.0), 3)
    with caplog.at_level(logging.INFO, "lgq"):
        outcome = tiny_generator.train_generator(
            run, dataset, quick_path / "run", tokenizer=another, start_from=generator
        )
    assert outcome.reason == "finished"
    assert set(config(quick_path / "run")["start_from"]["parts"]) == parts
    source, begun = (load_generator(out).transformer.state_dict() for out in (generator, quick_path / "run"))
    about = {"tokens.weight": {"codes"}, "class_tokens.weight": {"classes"}, "positions": {"positions"}}
    about |= {"bias": {"codes", "positions"}}
    for name, weight in begun.items():
        same = source[name].shape == weight.shape and torch.allclose(source[name], weight, atol=1e-6)
        # The bias of a code starts at 0, which it may have been in training, too.
        assert same == (about.get(name, set()) <= parts), name
    assert ("start untrained" in caplog.text) == (len(parts) < 4)


def test_a_transformer_of_another_size_is_refused_with_its_settings(generator, quick_path):
    tokens = tiny_generator.draw_tokens(quick_path / "tokens")
    run = replace(tiny_generator.TINY, transformer=replace(tiny_generator.TINY.transformer, layers=2))
    words = r"its transformer has other layers \(there 1, here 2\): train with `transformer.layers` 1, or"
    with pytest.raises(LGQError, match=words):
        tiny_generator.train(run, tokens, quick_path / "run", start_from=generator)
    assert not (quick_path / "run").exists()


def test_history_survives_json():
    extension = Extension(step=3, planned=6, steps=9)
    history = History(extensions=(extension, replace(extension, planned=9, steps=12)))
    assert History.of(json.loads(json.dumps(history.described())) | {"seed": 0}) == history
    assert History().described() == {}
