"""A training that will probably fail says so once per cause, with the options to turn, and in its records."""

import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cheap_inception import CheapInception
from identity import assert_identical
from leftovers import timeless_records
from tiny_run import EVERYTHING, TINY, before_step, left_by, terminate, train

from lgq.cli.console import log_to_the_console
from lgq.errors import LGQWarning
from lgq.models.inception import InceptionV3
from lgq.ops import numerics
from lgq.quantizers import QUANTIZERS
from lgq.runs import named_run, scale_options
from lgq.tokenizer import Tokenizer
from lgq.training.journal import read_records
from lgq.training.losses import LossWeights
from lgq.training.settings import LoopSettings, TokenizerRun
from lgq.training.watch import (
    _REMEDIES,
    WARNING,
    CodeUse,
    Finding,
    Watch,
    idle_discriminator,
    is_collapsed,
    quantizer_remedies,
    slow_precision,
    unreliable_rfid,
)

POCKET = replace(named_run("pocket-lgq"), codebook_size=1_024)
"""1,024 codes, 2,048 tokens per batch, judged from step 1,000 of 10,000."""
OPTIONS = {"diversity_weight": 0.005, "latent_weight": 0.0}
COLLAPSING = replace(
    TINY,
    codebook_size=64,
    learning_rate=0.03,
    quantizer_options={"diversity_weight": 0.0, "peak_weight": 1.0},
    loop=LoopSettings(steps=8, log_every=1, validate_every=1, checkpoint_every=2),
)
"""Uses 2 codes from the fifth step on."""


def watch(run: TokenizerRun = POCKET, images: int = 1_000) -> Watch:
    return Watch(use=CodeUse(run, OPTIONS, images))


def causes(watch: Watch, *records: tuple[int, str, Mapping[str, float | None]]) -> list[str]:
    return [finding.cause for record in records for finding in watch.look(*record)]


def validations(*shares: float, first: int = 1_000) -> Iterator[tuple[int, str, dict[str, float | None]]]:
    return ((first + 500 * i, "validation", {"utilization": share}) for i, share in enumerate(shares))


def batches(*shares: float, first: int = 1_000) -> Iterator[tuple[int, str, dict[str, float | None]]]:
    return ((first + 50 * i, "train", {"batch_utilization": share}) for i, share in enumerate(shares))


def test_few_codes_are_named_once_with_their_number_the_causes_and_the_options():
    watched = watch()
    (finding,) = (found for record in validations(0.002, 0.002, 0.001) for found in watched.look(*record))
    assert finding.cause == "few_codes"
    for words in ("use 2 of 1,024 codes (0.2%) after step 1,000", "`learning_rate`, now 0.001"):
        assert words in finding.message
    for words in ("`quantizer_options`: raise diversity_weight, now 0.005", "`codebook_size`, now 1,024"):
        assert words in finding.message
    assert "latent_weight" not in finding.message, "it is off already"
    assert "\n" not in finding.message


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.9, 0.95, 0.96), []),
        ((0.06, 0.06), []),
        ((0.9, 0.46, 0.9), []),
        ((0.9, 0.44, 0.3), ["falling_use"]),
        ((0.9, 0.44, 0.01), ["falling_use", "few_codes"]),
        ((0.9, 0.01, 0.4), ["few_codes", "falling_use"]),
    ],
)
def test_use_below_five_per_cent_and_a_fall_by_half_are_found_each_once(shares, expected):
    assert causes(watch(), *validations(*shares)) == expected


def test_a_run_that_ends_with_most_codes_unused_says_so_and_names_its_length():
    last = POCKET.loop.steps
    assert causes(watch(), (last - 500, "validation", {"utilization": 0.4})) == []
    assert causes(watch(), (last, "validation", {"utilization": 0.51})) == []
    (finding,) = watch().look(last, "validation", {"utilization": 0.4})
    assert finding.cause == "unused_codes"
    assert f"raise `steps`, now {last:,}" in finding.message


def test_use_counts_among_the_codes_that_so_few_tokens_can_reach():
    few_tokens = watch(images=1)  # 64 tokens of 1,024 codes: 6% of the codes at most
    assert causes(few_tokens, *validations(60 / 1_024, 32 / 1_024)) == []
    assert causes(few_tokens, *validations(3 / 1_024)) == ["few_codes"]


def test_one_code_of_several_is_few_however_small_the_codebook():
    assert is_collapsed(1 / 4, reachable=4)
    assert not is_collapsed(2 / 4, reachable=4)
    assert not is_collapsed(1.0, reachable=1)


def test_the_start_of_a_run_is_not_judged():
    assert causes(watch(), *validations(0.001, first=500)) == []
    short = replace(POCKET, loop=LoopSettings(steps=90))
    assert causes(watch(short), (90, "validation", {"utilization": 0.001})) == []
    long = replace(POCKET, loop=LoopSettings(steps=2_000_000))
    assert causes(watch(long), (1_000, "validation", {"utilization": 0.001})) == ["few_codes"]


def test_batches_are_judged_by_ten_of_them():
    assert causes(watch(), *batches(*9 * [0.01])) == []
    assert causes(watch(), *batches(*10 * [0.01])) == ["few_codes"]
    assert causes(watch(), *batches(*[0.01, 0.2] * 20)) == [], "a batch alone may be plain"
    assert causes(watch(), *batches(*10 * [0.9], *10 * [0.2])) == ["falling_use"]
    assert causes(watch(), *batches(*10 * [0.01]), *validations(0.01, first=2_000)) == ["few_codes"]


def test_stages_are_judged_one_by_one():
    run = replace(POCKET, stages=3)
    values = {"utilization": 0.04, "utilization/0": 0.9, "utilization/1": 0.001, "utilization/2": 0.02}
    found = list(watch(run).look(1_000, "validation", values))
    assert [finding.cause for finding in found] == ["few_codes/1", "few_codes/2"]
    assert "in stage 2 of 3, the validation images use 1 of 1,024 codes" in found[0].message


def test_values_that_are_no_numbers_in_a_record_are_left_out():
    assert causes(watch(), (1_000, "validation", {"utilization": None}), (1_050, "train", {})) == []


def test_the_discriminator_is_a_likely_cause_once_it_has_joined():
    run = replace(POCKET, loss=LossWeights(gan=0.5, discriminator_start=1_200))
    before, after = (
        next(iter(watch(run).look(step, "validation", {"utilization": 0.01}))).message
        for step in (1_000, 1_500)
    )
    assert "`loss.gan`" not in before
    assert "lower `loss.gan`, now 0.5" in after


@pytest.mark.parametrize("name", _REMEDIES)
def test_every_remedy_is_an_option_of_some_quantizer(name):
    options = [
        Tokenizer(TINY.backbone, quantizer, 16).settings["quantizer_options"] for quantizer in QUANTIZERS
    ]
    assert any(name in known for known in options)


def test_remedies_name_the_present_value_and_nothing_that_the_quantizer_lacks():
    assert quantizer_remedies({"restart_below": None, "decay": 0.99}) == "set restart_below, now None"
    assert quantizer_remedies({"diversity_weight": 0.1, "latent_weight": 1.0}) == (
        "raise diversity_weight, now 0.1; lower latent_weight, now 1.0"
    )
    assert quantizer_remedies(scale_options("pocket", "fsq")) == ""
    (finding,) = CodeUse(POCKET, {}, 1_000).look(1_000, "validation", {"utilization": 0.0})
    assert "`quantizer_options`" not in finding.message


@pytest.mark.parametrize(("gan", "start", "found"), [(0.1, 10, True), (0.1, 9, False), (0.0, 10, False)])
def test_a_discriminator_that_would_join_after_the_last_step_is_found(gan, start, found):
    run = replace(POCKET, loss=LossWeights(gan=gan, discriminator_start=start), loop=LoopSettings(steps=10))
    finding = idle_discriminator(run)
    assert (finding is not None) == found
    if finding:
        for words in (
            "joins at step 10 (`loss.discriminator_start`)",
            "after 10 steps (`steps`",
            "`loss.gan` 0",
        ):
            assert words in finding.message


@pytest.mark.parametrize(
    ("precision", "lpips", "flags", "found"),
    [
        ("bf16", 0.0, "fpu avx512f", True),
        ("bf16", 0.0, "fpu avx512f avx512_bf16", False),
        ("bf16", 0.0, "fp asimd bf16", False),  # ARM
        ("float32", 1.0, "fpu avx512f", True),
        ("float32", 0.0, "fpu avx512f", False),
    ],
)
def test_bf16_on_a_processor_without_its_instructions_is_found(
    precision, lpips, flags, found, tmp_path, monkeypatch
):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr(numerics, "_PROCESSOR", tmp_path / "cpuinfo")
    run = replace(POCKET, precision=precision, loss=LossWeights(lpips=lpips, lpips_precision="bf16"))
    finding = slow_precision(run, torch.device("cpu"))
    assert (finding is not None) == found
    if finding:
        assert "`precision` float32 and `loss.lpips_precision` float32" in finding.message
    assert slow_precision(run, torch.device("meta")) is None


@pytest.mark.parametrize(("images", "found"), [(2_047, True), (2_048, False), (0, False)])
def test_an_rfid_of_fewer_images_than_features_is_found(images, found):
    finding = unreliable_rfid(images, 2_048)
    assert (finding is not None) == found
    if finding:
        assert "rFID of 2,047 images" in finding.message
        assert "`validation_images`" in finding.message


def test_a_watch_that_replays_records_goes_on_as_if_it_had_made_them():
    records = [*validations(0.9, 0.8, 0.3, 0.01)]
    for stop in range(len(records) + 1):
        first, second, said = watch(), watch(), []
        for step, split, values in records[:stop]:
            said.append({"step": step, "split": split, "values": values})
            said += [
                {"step": step, "split": WARNING, "values": {}, **finding._asdict()}
                for finding in first.look(step, split, values)
            ]
        second.replay(said)
        before = [record["cause"] for record in said if record["split"] == WARNING]
        assert before + causes(second, *records[stop:]) == ["falling_use", "few_codes"]


@pytest.mark.parametrize(("earlier_end", "said"), [(POCKET.loop.steps, []), (500, ["unused_codes"])])
def test_the_end_of_an_extended_run_is_judged_again(earlier_end, said):
    extended = watch()
    extended.replay([{"step": earlier_end, "split": WARNING, "values": {}, "cause": "unused_codes"}])
    assert causes(extended, (POCKET.loop.steps, "validation", {"utilization": 0.4})) == said


def test_findings_about_settings_are_said_once_over_restarts():
    found = Finding("idle_discriminator", "it never joins")
    first, second = Watch([found, None]), Watch([found])
    assert first.at_start() == [found]
    assert first.at_start() == []
    second.replay([{"step": 0, "split": WARNING, "values": {}, **found._asdict()}])
    assert second.at_start() == []


def test_records_that_the_run_did_not_write_are_left_out():
    foreign = [{}, {"split": 3}, {"split": "validation", "values": []}, {"split": "warning"}]
    foreign.append({"split": "validation", "values": {"utilization": "all"}})
    second = watch()
    second.replay({"step": 1_000} | record for record in foreign)
    assert causes(second, *validations(0.001)) == ["few_codes"]


@pytest.fixture
def _judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgq.training.watch._FIRST_STEPS", (1, 1))


def warned(run: TokenizerRun, photos: Path, out: Path, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LGQWarning)
        train(run, photos, out, **options)
    return [str(warning.message) for warning in caught if issubclass(warning.category, LGQWarning)]


def recorded(out: Path) -> list[tuple[int, str, str]]:
    records = [record for record in read_records(out) if record["split"] == WARNING]
    return [(record["step"], record["cause"], record["message"]) for record in records]


@pytest.mark.usefixtures("_judged_at_once", "_no_tensorboard")
def test_a_run_that_collapses_warns_in_its_records_too_and_not_again_when_it_resumes(
    photos, tmp_path, monkeypatch
):
    whole = warned(COLLAPSING, photos, tmp_path / "whole")
    _, causes, messages = zip(*recorded(tmp_path / "whole"), strict=True)
    assert causes.count("few_codes") == 1
    assert list(messages) == whole
    with monkeypatch.context() as patch:
        before_step(6, terminate, patch)
        first = warned(COLLAPSING, photos, tmp_path / "broken")
    assert warned(COLLAPSING, photos, tmp_path / "broken", resume="must") == []
    assert first == whole
    assert_identical(left_by(tmp_path / "broken"), left_by(tmp_path / "whole"))


@pytest.mark.usefixtures("_small_discriminator", "_no_tensorboard")
def test_a_discriminator_that_never_joins_is_named_at_the_start(photos, tmp_path):
    run = replace(EVERYTHING, loss=replace(EVERYTHING.loss, discriminator_start=6))
    (message,) = warned(run, photos, tmp_path)
    assert "joins at step 6" in message
    assert recorded(tmp_path) == [(0, "idle_discriminator", message)]
    assert warned(run, photos, tmp_path) == [], "a run that is over"


@pytest.mark.usefixtures("_no_tensorboard")
def test_an_rfid_of_few_images_is_named_at_the_start(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(InceptionV3, "pretrained", CheapInception)
    monkeypatch.setattr("lgq.metrics.quality.FEATURES", 12)
    run = replace(TINY, best_by="rfid", rfid_images=2, loop=LoopSettings(steps=1))
    (message,) = warned(run, photos, tmp_path)
    assert message.startswith("rFID of 2 images")


@pytest.mark.usefixtures("_no_tensorboard")
@pytest.mark.parametrize("stages", [1, 2])
def test_records_hold_the_use_of_each_stage(stages, photos, tmp_path):
    train(replace(TINY, stages=stages), photos, tmp_path)
    records = timeless_records(tmp_path)
    for split, name in (("train", "batch_utilization"), ("validation", "utilization")):
        names = [name] if stages == 1 else [f"{name}/{stage}" for stage in range(stages)]
        values = [record["values"] for record in records if record["split"] == split]
        assert all(0 < record[name] <= 1 for record, name in itertools.product(values, names))


def test_the_console_shows_a_warning_in_one_line_and_once(capsys):
    with log_to_the_console(str):
        for _ in range(2):
            warnings.warn("few codes\nare used", LGQWarning, stacklevel=1)
    assert capsys.readouterr().err == "lgq: warning: few codes\\nare used\n"


def test_the_console_leaves_other_warnings_alone(capsys):
    with log_to_the_console(str), pytest.warns(UserWarning, match="of others"):
        warnings.warn("of others", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == ""
