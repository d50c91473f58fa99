"""The tables: exactly the paper's rows, one protocol for all of them, one run for equal settings."""

import json
import shutil
from collections import Counter
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest
import torch
from tiny_experiments import SMOKE, sources_of
from token_sets import write_tokens

from lgq.errors import LGQError
from lgq.experiments.option_search import choose_options
from lgq.experiments.plan import plan_rows, run_id
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.scales import SCALES, Measuring, named_scale
from lgq.experiments.tables import EXPERIMENTS, named_experiment
from lgq.experiments.tasks import (
    AutoencoderTask,
    CostTask,
    GeneratorTask,
    TokenizerTask,
    planned_tokenizer,
    without_defaults,
)
from lgq.quantizers import BSQ, QUANTIZERS
from lgq.results import ResultsError
from lgq.runs import named_generator, named_run
from lgq.tokenizer import Tokenizer
from lgq.training.generator_trainer import build_generator
from lgq.training.tokenizer_trainer import TokenizerTrainer

PAPER, POCKET = named_scale("imagenet256"), named_scale("pocket")
OF_THE_QUANTIZER = ("quantizer", "codebook_size", "stages", "quantizer_options")


def tasks(name: str, scale=PAPER) -> list:
    return [row.task for row in EXPERIMENTS[name].rows(scale)]


def without_quantizer(run):
    return replace(run, **{name: getattr(SMOKE.tokenizer.run, name) for name in OF_THE_QUANTIZER})


def training_of(run, sources) -> TokenizerTrainer:
    return TokenizerTrainer(run, sources.data, sources.validation, Path())


def test_all_tables_are_there():
    assert list(EXPERIMENTS) == [
        "autoencoder", "comparison", "codebook-size", "logits", "geometry", "generation", "regularizers",
        "temperature", "cost", "scaling", "search", "gaussian", "latents", "modality", "variants",
        "cold",
    ]  # fmt: skip
    assert all(table.title and table.about.endswith(".") for table in EXPERIMENTS.values())
    ours = {name for name, table in EXPERIMENTS.items() if not table.paper}
    assert ours == {"autoencoder", "search", "gaussian", "latents", "modality", "variants", "cold"}
    with pytest.raises(LGQError, match="unknown experiment 'comparision': did you mean 'comparison'"):
        named_experiment("comparision")
    with pytest.raises(LGQError, match="unknown scale 'pokcet': did you mean 'pocket'"):
        named_scale("pokcet")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_of_a_table_differ_in_name_and_quantizer_alone(name, scale):
    rows = EXPERIMENTS[name].rows(named_scale(scale))
    assert len({row.row for row in rows}) == len({(row.group, row.label) for row in rows}) == len(rows)
    asked = [row.task for row in rows]
    trained = [task for task in asked if isinstance(task, AutoencoderTask | TokenizerTask | GeneratorTask)]
    runs = [task.tokenizer.run if isinstance(task, GeneratorTask) else task.run for task in trained]
    assert all(without_quantizer(run) == without_quantizer(runs[0]) for run in runs)
    generators = [task.run for task in asked if isinstance(task, GeneratorTask)]
    assert all(run == generators[0] for run in generators)
    assert len({task.images for task in asked if isinstance(task, TokenizerTask)}) <= 1


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_is_one_protocol_for_training_and_for_tables(scale):
    tables, run = named_scale(scale), named_run(f"{scale}-lgq")
    for task in (tables.tokenizer, tables.ablation, tables.search):
        assert replace(task.run, loop=run.loop, codebook_size=run.codebook_size) == run
        start = task.start
        if start is not None:
            assert start == tables.start
            same = ("quantizer", "codebook_size", "loop")
            assert replace(start.run, **{name: getattr(run, name) for name in same}) == run
    assert tables.generator == named_generator(scale)


def test_initial_networks_and_sample_streams_are_the_same_over_quantizers(images):
    seen = []
    for task in tasks("comparison", SMOKE) + tasks("variants", SMOKE):
        training = training_of(task.run, sources_of(images))
        parts = (training.tokenizer.encoder, training.tokenizer.decoder)
        start = torch.cat([p.detach().flatten().clone() for part in parts for p in part.parameters()])
        batches = []
        for step in range(4):
            training.train_step(step)
            batches += training.batch_names
        # After training, in which quantizers may draw any number of random numbers.
        seen.append((start, batches, training._next_images()))
    assert len(seen) == 17
    for start, batches, crops in seen[1:]:
        assert torch.equal(start, seen[0][0])
        assert batches == seen[0][1]
        assert torch.equal(crops, seen[0][2])


def test_generators_begin_alike_whatever_the_tokenizer(tmp_path):
    starts = []
    for task in tasks("generation", SMOKE):
        run = task.tokenizer.run
        tokenizer = Tokenizer(run.backbone, run.quantizer, run.codebook_size)
        zeros = torch.zeros(2, 4, 4, dtype=torch.int64)
        tokens = write_tokens(tmp_path / run.quantizer, zeros, codebook_size=32, factor=4)
        start = build_generator(task.run, tokens, tokenizer).transformer.state_dict()
        starts.append(torch.cat([tensor.flatten() for tensor in start.values()]))
    assert all(torch.equal(start, starts[0]) for start in starts)


def test_the_comparison_and_the_sweep_are_of_every_quantizer():
    sizes = (4_096, 8_192, 16_384, 32_768, 65_536)
    for name, expected in (("comparison", (16_384,)), ("codebook-size", sizes)):
        pairs = [(task.run.quantizer, task.run.codebook_size) for task in tasks(name)]
        assert sorted(pairs) == sorted(product(QUANTIZERS, expected))
        assert all(task.run.quantizer_options == {} for task in tasks(name))


@pytest.mark.parametrize("scale", SCALES)
def test_every_quantizer_has_as_many_settings_in_the_search_and_the_published_ones_first(scale):
    scale, table = named_scale(scale), EXPERIMENTS["search"]
    rows = table.rows(scale)
    counts = Counter((row.task.run.quantizer, row.task.run.codebook_size) for row in rows)
    assert counts == dict.fromkeys(product(QUANTIZERS, (scale.sizes[0], scale.sizes[-1])), 4)
    assert all(row.task.searching for row in rows)
    assert len({run_id(row.task, scale, "images") for row in rows}) == len(rows)
    for row in rows[::4]:
        assert row.task.run.quantizer_options == {}
        assert row.group.endswith("as published")
    for row in rows:
        planned_tokenizer(row.task.run)  # its options exist


def write_best(monkeypatch, tmp_path, **options) -> None:
    file = tmp_path / "best_options.json"
    entries = {
        name: [{"codebook_size": size, "options": values} for size, values in by_size.items()]
        for name, by_size in options.items()
    }
    file.write_text(json.dumps({"pocket": entries}))
    monkeypatch.setattr("lgq.runs.BEST_OPTIONS", file)


def test_tables_have_a_second_row_where_the_search_found_better_options(monkeypatch, tmp_path):
    before = {row.row: run_id(row.task, POCKET, "images") for row in EXPERIMENTS["comparison"].rows(POCKET)}
    strong, weak = {"peak_weight": 0.05, "diversity_weight": 0.05}, {"peak_weight": 0.015}
    write_best(monkeypatch, tmp_path, lgq={1_024: weak, 16_384: strong}, fsq={1_024: {}, 16_384: {}})
    scale = named_scale("pocket")
    rows = {row.row: row for row in EXPERIMENTS["comparison"].rows(scale)}
    assert rows.keys() == {*QUANTIZERS, "lgq-best"}
    assert rows["lgq-best"].label == "LGQ, best of the search"
    assert rows["lgq-best"].task.run.quantizer_options == strong
    # Rows as published, and what they start from, are the same runs as before.
    assert {name: run_id(rows[name].task, scale, "images") for name in before} == before
    sizes = {row.row: row.task.run for row in EXPERIMENTS["codebook-size"].rows(scale)}
    assert sizes["lgq-k1024-best"].quantizer_options == weak
    assert sizes["lgq-k4096-best"].quantizer_options == strong
    assert named_run("pocket-lgq").quantizer_options == strong
    assert named_run("pocket-fsq").quantizer_options == {}


def test_the_best_options_are_those_of_the_lowest_loss_of_a_finished_search(images, tmp_path):
    results = ResultsDirectory(tmp_path)
    with pytest.raises(ResultsError, match="has no search"):
        choose_options(results)
    planned = plan_rows(EXPERIMENTS["search"], POCKET, sources_of(images), tmp_path)
    results.write_plan(planned.plan)
    for number, (row, task) in enumerate(planned.rows.items()):
        if number == len(planned.rows) - 1:
            with pytest.raises(
                ResultsError, match="1 rows of the search to do, such as wasserstein-k16384-3"
            ):
                choose_options(results)
        strength = task.run.quantizer_options.get("peak_weight", 0.005)
        config = task.settings()
        metrics = {"reconstruction_loss": abs(strength - 0.05)} if number != 1 else {}
        results.write_record(row.id, {"config": config, "metrics": metrics})
    chosen = choose_options(results)["pocket"]
    for name, entries in chosen.items():
        expected = {"peak_weight": 0.05, "diversity_weight": 0.05} if name == "lgq" else {}
        assert [entry["codebook_size"] for entry in entries] == [1_024, 16_384]
        assert [entry["options"] for entry in entries] == [expected] * 2
        assert all(results.record(entry["run"]) for entry in entries)


def test_the_seed_of_the_search_is_the_seed_of_no_table():
    def seeds(name: str) -> set[int]:
        table = EXPERIMENTS[name]
        return set(range(table.first_seed, table.first_seed + table.seeds))

    for name in EXPERIMENTS.keys() - {"search"}:
        assert not seeds(name) & seeds("search")


def test_a_setting_that_is_added_later_changes_no_id():
    defaults = {"a": 1, "section": {"b": 2, "c": 3}, "options": {}}
    settings = {"a": 1, "section": {"b": 2, "c": 4}, "options": {}, "seed": 0}
    assert without_defaults(settings, defaults) == {"section": {"c": 4}, "seed": 0}
    assert without_defaults(settings | {"new": 5}, defaults | {"new": 5}) == {"section": {"c": 4}, "seed": 0}
    for task in (POCKET.row(), POCKET.generated("fsq"), POCKET.start, POCKET.timed("lgq", 64)):
        text = json.dumps(task.identity())
        assert "weight_decay" not in text, "a default"
        assert "cosine" in text or isinstance(task, CostTask)


@pytest.mark.parametrize("scale", [POCKET, PAPER], ids=["pocket", "imagenet256"])
def test_only_the_smoke_scale_limits_the_images_of_a_generator_and_others_keep_their_ids(scale, images):
    limited = replace(scale, measuring=replace(scale.measuring, encoded_images=64))
    task = scale.generated("fsq")
    assert SMOKE.measuring.encoded_images == 64
    assert scale.measuring.encoded_images is None
    assert run_id(task, limited, "images") != run_id(task, scale, "images")
    assert "encoded_images" not in without_defaults(asdict(scale.measuring), asdict(Measuring()))
    plan = plan_rows(EXPERIMENTS["generation"], scale, sources_of(images), "nowhere").plan
    assert "encoded_images" not in plan.protocol["measuring"], "a directory of before takes more rows"


def test_ablations_have_the_papers_budget_and_scaled_diversity_more_codes_than_tokens_of_a_batch():
    for task in tasks("regularizers") + tasks("temperature"):
        # 50,000 images for ten epochs, 32 per step.
        assert (task.images, task.steps, task.run.codebook_size) == (50_000, 15_625, 16_384)
    assert [task.run.quantizer_options for task in tasks("logits")] == [{"score": "l2"}, {"score": "dot"}]
    runs = [task.run for task in tasks("variants", POCKET)]
    (scaled,) = (run for run in runs if "diversity_scale" in run.quantizer_options)
    assert scaled.codebook_size > scaled.batch_size * (32 // 4) ** 2


def test_scaling_generation_and_cost_have_the_papers_rows():
    pairs = [(task.run.codebook_size, task.run.quantizer) for task in tasks("scaling")]
    assert pairs == list(product((4_096, 16_384, 65_536), ("ibq", "lgq")))
    assert len({task.steps for task in tasks("scaling")}) == 1
    names = {task.tokenizer.run.quantizer for task in tasks("generation")}
    assert names == {"lgq", "ibq", "simvq", "fsq", "rotvq"}
    assert [task.tokenizer for task in tasks("generation")] == tasks("geometry")
    assert (PAPER.measuring.samples, PAPER.measuring.sampling_seeds) == (50_000, (0, 1, 2, 3))
    timed, k = {(task.quantizer, task.codebook_size) for task in tasks("cost")}, 16_384
    assert timed >= {*product(QUANTIZERS, (k, 4 * k)), ("ibq", 16 * k), ("lgq", k // 4), ("lgq", 16 * k)}
    assert {(task.tokens, task.settings()["dim"]) for task in tasks("cost")} == {(32 * 256, 64)}


def test_equal_settings_are_one_run_whichever_table_asks(images):
    sources, tables_of = sources_of(images), {}
    for name, table in EXPERIMENTS.items():
        for row in plan_rows(table, POCKET, sources, "nowhere", seeds=1).rows:
            tables_of.setdefault(row.id, set()).add(name)
    default = run_id(POCKET.row(), POCKET, sources.fingerprint)
    assert default.startswith("lgq-k16384-s0-")
    assert tables_of[default] == {"comparison", "codebook-size", "geometry", "scaling"}
    # Ablations have fewer codes, and share the run that the sweep has at their size.
    assert tables_of[run_id(POCKET.ablated(), POCKET, sources.fingerprint)] == {
        "codebook-size", "scaling", "logits", "regularizers", "temperature", "variants",
    }  # fmt: skip


def test_whatever_changes_a_record_changes_the_id_and_nothing_else_does():
    base = SMOKE.row()
    variants = [
        run_id(base, SMOKE, "images"),
        run_id(base, SMOKE, "other images"),
        run_id(base.seeded(1), SMOKE, "images"),
        run_id(replace(base, images=5), SMOKE, "images"),
        run_id(replace(base, searching=True), SMOKE, "images"),
        run_id(SMOKE.adjusted(warm_start="never").row(), SMOKE, "images"),
        run_id(
            replace(base, start=replace(base.start, run=replace(base.start.run, clip=2.0))), SMOKE, "images"
        ),
        run_id(base.start, SMOKE, "images"),
        run_id(SMOKE.row(tau_end=0.2), SMOKE, "images"),
        run_id(SMOKE.adjusted(steps=5).row(), SMOKE, "images"),
        run_id(SMOKE.adjusted(precision="bf16").row(), SMOKE, "images"),
        run_id(base, replace(SMOKE, measuring=PAPER.measuring), "images"),
    ]
    assert len(set(variants)) == len(variants)
    loop = replace(base.run.loop, keep=9, checkpoint_every=7, log_every=3)
    same = replace(base, run=replace(base.run, workers=3, loop=loop, quantizer_options={"tau_end": 0.1}))
    assert run_id(same, SMOKE, "images") == variants[0]


def test_the_fingerprint_of_images_does_not_depend_on_their_place(images, tmp_path):
    shutil.copytree(images, tmp_path / "copy")
    assert sources_of(tmp_path / "copy").fingerprint == sources_of(images).fingerprint
    next((tmp_path / "copy" / "val" / "cat").iterdir()).unlink()
    assert sources_of(tmp_path / "copy").fingerprint != sources_of(images).fingerprint


def test_steps_and_precision_are_adjusted_for_all_rows_alike():
    scale = POCKET.adjusted(steps=400, generator_steps=300, precision="float32")
    for task in (scale.tokenizer, scale.ablation, scale.search):
        loop = task.run.loop
        assert (loop.steps, loop.validate_every, task.run.precision) == (400, 40, "float32")
        assert (task.start.steps, task.start.run.precision) == (1_500, "float32")
    generator = scale.generator
    assert (generator.loop.steps, generator.schedule.warmup_steps, generator.precision) == (
        300,
        30,
        "float32",
    )
    cold = POCKET.adjusted(warm_start="never")
    assert [task.start for task in (cold.tokenizer, cold.ablation, cold.search)] == [None] * 3


def test_records_of_quantizers_alone_hold_the_defaults_that_they_were_made_with():
    for task in (
        POCKET.on_gaussian("bsq", 1024, 0.0),
        POCKET.on_latents("bsq", 1024),
        POCKET.on_speech("bsq"),
    ):
        assert task.settings()["quantizer_options"]["commitment_weight"] == BSQ(8, 16).commitment_weight
        assert "seed" not in task.settings()["quantizer_options"]
        assert task.identity()["quantizer_options"] == {}
