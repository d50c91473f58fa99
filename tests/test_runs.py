"""Named runs: one per scale and quantizer, alike except for the quantizer, and changed by option names."""

import json
import re
from dataclasses import replace

import pytest
import torch

from lgq.config import from_json, to_json
from lgq.errors import LGQError
from lgq.files import json_bytes
from lgq.models.sampling import Sampling
from lgq.models.transformer import MaskedTransformer
from lgq.quantizers import QUANTIZERS
from lgq.runs import (
    GENERATORS,
    SCALES,
    imagenet256,
    named_generator,
    named_generators,
    named_run,
    named_tokenizers,
    pocket,
    run,
    tokenizer_names,
    with_file,
    without_quantizer,
)
from lgq.tokenizer import Tokenizer
from lgq.training.losses import LossWeights
from lgq.training.networks import take_tokenizer
from lgq.training.settings import GeneratorRun, TokenizerRun


def parameters(tokenizer_run: TokenizerRun) -> dict[str, int]:
    settings = (tokenizer_run.backbone, tokenizer_run.quantizer, tokenizer_run.codebook_size)
    with torch.device("meta"):
        return Tokenizer(*settings).parameter_counts()


def generator_parameters(generator_run: GeneratorRun, codes: int, tokens: int, classes: int) -> int:
    with torch.device("meta"):
        network = MaskedTransformer(codes, tokens, classes, generator_run.transformer)
    return sum(parameter.numel() for parameter in network.parameters())


def test_every_scale_has_every_quantizer_and_all_but_photo_a_generator():
    assert set(tokenizer_names()) == {f"{scale}-{name}" for scale in SCALES for name in QUANTIZERS}
    assert set(SCALES) - {"photo"} == set(GENERATORS) == {"smoke", "pocket", "imagenet256"}


@pytest.mark.parametrize("name", [*tokenizer_names(), *GENERATORS])
def test_a_run_survives_json_and_no_changes(name):
    assert from_json(type(run(name)), to_json(run(name))) == run(name)


@pytest.mark.parametrize("name", tokenizer_names())
def test_runs_of_a_scale_differ_in_the_quantizer_alone(name):
    scale, quantizer = name.split("-")
    base = named_run(f"{scale}-lgq")
    assert named_run(name).quantizer == quantizer
    same = {"quantizer": "lgq", "quantizer_options": base.quantizer_options}
    if scale == "photo" and not QUANTIZERS[quantizer].learned_codes:
        assert named_run(name).codebook_size == 16_384  # grids of bits have no 12,288
        same["codebook_size"] = base.codebook_size
    assert replace(named_run(name), **same) == base


def test_imagenet256_is_the_run_of_the_paper():
    paper = imagenet256("lgq")
    counts, loss = parameters(paper), paper.loss
    assert counts["encoder"] + counts["decoder"] == 27_991_235
    assert (paper.image_size, paper.backbone.factor, paper.codebook_size) == (256, 16, 16_384)
    assert (paper.batch_size, paper.learning_rate) == (8, 3e-4)
    assert (paper.schedule.kind, paper.schedule.warmup_steps) == ("constant", 0)
    assert (loss.l1, loss.lpips, loss.gan, loss.discriminator_start) == (1.0, 1.0, 0.1, 10_000)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_pocket_is_small_and_gives_the_quantizer_as_many_tokens_as_the_paper(quantizer):
    small = pocket(quantizer)
    counts = parameters(small)
    assert 300_000 <= counts["encoder"] + counts["decoder"] <= 600_000
    assert (small.image_size, small.backbone.factor, small.codebook_size) == (32, 4, 16_384)
    assert small.backbone.latent_channels == 64
    assert small.batch_size * (small.image_size // small.backbone.factor) ** 2 == 2_048
    assert (small.loss.lpips, small.loss.lpips_images, small.loss.gan) == (1, 8, 0)
    assert (small.schedule.kind, small.clip, small.precision) == ("cosine", 1.0, "bf16")


def test_a_continuous_autoencoder_has_the_settings_of_the_run_whatever_its_quantizer():
    start, other = (without_quantizer(pocket(name, budget="table"), steps=9) for name in ("lgq", "fsq"))
    assert start == other
    assert (start.quantizer, start.codebook_size, start.loop.steps) == ("none", 1, 9)
    same = ("backbone", "loss", "batch_size", "learning_rate", "schedule", "clip", "precision", "image_size")
    assert all(getattr(start, name) == getattr(pocket("lgq"), name) for name in same)


def test_photo_is_local_takes_crops_as_they_are_and_fits_into_eight_megabytes_of_bf16():
    local = named_run("photo-lgq")
    assert (local.backbone.factor, local.codebook_size) == (8, 12_288)
    assert local.backbone.reach is not None
    assert local.crop.own_resolution
    assert (local.loss.l1, local.loss.lpips, local.loss.gan) == (1.0, 1.0, 0.0)
    assert (local.backbone.patch, local.backbone.refinement) == (4, 32)
    assert 3_000_000 < sum(parameters(local).values()) < 4_000_000


def test_photo_lgq_takes_all_weights_of_photo_f8():
    photo_lgq = named_run("photo-lgq")
    tokenizer = Tokenizer(photo_lgq.backbone, photo_lgq.quantizer, photo_lgq.codebook_size)
    assert take_tokenizer(tokenizer, "photo-f8").parts == ("encoder", "decoder", "quantizer")


def test_the_generator_of_imagenet256_is_the_papers():
    paper = named_generator("imagenet256")
    assert generator_parameters(paper, 16_384, 256, 1_000) == pytest.approx(50.8e6, rel=0.02)
    assert (paper.transformer.layers, paper.transformer.width) == (12, 512)
    assert (paper.batch_size, paper.accumulate, paper.learning_rate) == (32, 4, 1e-4)
    assert (paper.label_smoothing, paper.label_dropout) == (0.1, 0.1)
    assert (paper.loop.patience, paper.sampling.steps, paper.sampling.schedule) == (10, 11, "cosine")


def test_the_pocket_generator_is_small_and_otherwise_the_same():
    small, paper = named_generator("pocket"), named_generator("imagenet256")
    assert generator_parameters(small, 1_024, 64, 200) == 1_685_824
    assert (small.transformer.layers, small.transformer.width, small.accumulate) == (3, 192, 1)
    assert (small.precision, small.loop.steps, small.loop.validate_every) == ("float32", 9_000, 1_000)
    same = ("label_smoothing", "label_dropout", "betas", "weight_decay", "flips", "sampling", "sample_images")
    assert all(getattr(small, name) == getattr(paper, name) for name in same)


def test_every_named_run_is_described_from_its_settings():
    tokenizers, generators = named_tokenizers(), named_generators()
    assert [described.name for described in tokenizers] == list(tokenizer_names())
    assert [described.name for described in generators] == list(GENERATORS)
    assert tokenizers[0] == ("pocket-lgq", "LGQ", 32, 8, 16_384, 10_000, tokenizers[0].purpose)
    assert generators[1][1:6] == ("MaskGIT", 256, 16, 16_384, 1_000_000)
    for described in (*tokenizers, *generators):
        assert re.search(
            r"\bfor (two CPU cores|one CPU core|(one|four) GPUs?|any machine)$", described.purpose
        ), described


@pytest.mark.parametrize("name", ["pocket-simvq", "smoke-lgq", "pocket"])
def test_a_run_can_be_read_from_its_settings_in_a_file(name, tmp_path):
    file = tmp_path / "run.json"
    file.write_bytes(json_bytes(to_json(run(name))))
    assert run(config=file) == run(name)
    assert run(config=str(file), steps=700, learning_rate=1.0) == run(name, steps=700, learning_rate=1.0)


def test_a_part_of_the_settings_is_on_top_of_a_named_run(tmp_path):
    values = {"loss": {"l1": 10.0}, "loop": {"steps": 30}, "quantizer_options": {"tau_end": 0.2}, "clip": 2.0}
    expected = run("pocket-lgq", loss={"l1": 10.0}, steps=30, quantizer_options={"tau_end": 0.2}, clip=2.0)
    (tmp_path / "part.json").write_text(json.dumps(values))
    text = "clip = 2.0\n[loss]\nl1 = 10.0\n[loop]\nsteps = 30\n[quantizer_options]\ntau_end = 0.2\n"
    (tmp_path / "part.toml").write_text(text)
    for name in ("part.json", "part.toml"):
        assert run("pocket-lgq", config=tmp_path / name) == expected
        with pytest.raises(LGQError, match=rf"{name} leaves out batch_size, .* more: give the name of a run"):
            run(config=tmp_path / name)
    options = {"quantizer_options": {"score": "dot"}}
    (tmp_path / "options.json").write_text(json.dumps(options))
    base = replace(run("pocket-lgq"), quantizer_options={"tau_end": 0.2})
    assert with_file(base, tmp_path / "options.json", {}).quantizer_options == {"score": "dot"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("flat.json", '{"steps": 30, "loss.l1": 10.0, "loop": {"keep": 2}, "clip": 2.0}'),
        ("flat.toml", "steps = 30\nclip = 2.0\n[loop]\nkeep = 2\n[loss]\nl1 = 10.0\n"),
    ],
)
def test_a_settings_file_may_name_settings_as_options_do(file, text, tmp_path):
    (tmp_path / file).write_text(text)
    expected = run("pocket-lgq", steps=30, keep=2, clip=2.0, loss={"l1": 10.0})
    assert run("pocket-lgq", config=tmp_path / file) == expected
    (tmp_path / "twice.json").write_text('{"steps": 30, "loop": {"steps": 30}}')
    with pytest.raises(LGQError, match=r"twice.json sets loop.steps twice, once as steps"):
        run("pocket-lgq", config=tmp_path / "twice.json")


def test_a_file_and_a_name_must_agree_about_the_quantizer_unless_the_caller_decides(tmp_path):
    file = tmp_path / "run.json"
    file.write_bytes(json_bytes(to_json(run("smoke-lgq", clip=2.0))))
    with pytest.raises(LGQError, match=r"run.json sets `quantizer` lgq, and the name .* asks for fsq: leave"):
        run("smoke-fsq", config=file)
    assert run("smoke-fsq", config=file, quantizer="fsq") == run("smoke-fsq", clip=2.0)
    assert run("smoke-fsq", config=file, quantizer="lgq") == run("smoke-lgq", clip=2.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"stpes": 3}', "run.json: unknown field 'stpes'"),
        (b'{"loss": {"l2": 3}}', "run.json: unknown field 'loss.l2'"),
        (b'{"loop": {"steps": "many"}}', "run.json: 'loop.steps' must be a whole number, got 'many'"),
        (b'{"loss": 3}', "run.json: 'loss' must be an object with named fields, got 3"),
        (b'{"batch_size": 0}', "run.json: 'batch_size' must be at least 1, got 0"),
        (b'{"transformer": {}}', "run.json has settings of a GeneratorRun: give it to `lgq train-generator`"),
        (b"[1]", r"run.json must hold an object with the fields of a run, got \[1\]"),
        (b'{"loss": ', "run.json is no JSON: Expecting value: line 1 column 10"),
        (b"\xff\xfe", "run.json is no JSON"),
    ],
)
def test_mistakes_in_a_settings_file_are_refused_by_file_and_field(content, words, tmp_path):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(LGQError, match=words):
        run("pocket-lgq", config=tmp_path / "run.json")


def test_a_settings_file_must_be_there_and_be_for_such_a_run(tmp_path):
    with pytest.raises(LGQError, match=r"cannot use .*gone.json: No such file"):
        run(config=tmp_path / "gone.json")
    (tmp_path / "bad.toml").write_text("loss = ")
    with pytest.raises(LGQError, match=r"bad.toml is no TOML"):
        run("pocket", config=tmp_path / "bad.toml")
    (tmp_path / "tokenizer.json").write_bytes(json_bytes(to_json(run("pocket-lgq"))))
    with pytest.raises(LGQError, match="has settings of a TokenizerRun: give it to `lgq train`"):
        run("pocket", config=tmp_path / "tokenizer.json")
    with pytest.raises(LGQError, match="unknown run ''"):
        run()


def test_changes_go_by_the_names_of_options():
    small = pocket("lgq")
    variant = run("pocket-lgq", codebook_size=4_096, steps=20, learning_rate=1, loss={"l1": 10.0})
    loop, loss = replace(small.loop, steps=20), replace(small.loss, l1=10.0)
    assert variant == replace(small, codebook_size=4_096, loop=loop, learning_rate=1, loss=loss)
    assert run("pocket-lgq", **{"loss.l1": 10.0, "loop.steps": 20}) == replace(small, loss=loss, loop=loop)
    assert run("pocket-lgq", loss=LossWeights(gan=0.5)).loss == LossWeights(gan=0.5)
    assert run("pocket-lgq", quantizer_options={"tau_end": 0.2}).quantizer_options["tau_end"] == 0.2
    assert run("pocket-lgq", **{"backbone.widths": (8, 16, 16, 16)}).backbone.widths == (8, 16, 16, 16)
    assert run("pocket", sampling=Sampling(steps=3), steps=500).sampling.steps == 3
    assert run("pocket", minutes=None, patience=2).loop.patience == 2


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("poket-lgq", {}, "unknown run 'poket-lgq': did you mean 'pocket-lgq'"),
        ("zzz", {}, r"choose from pocket-lgq, .*imagenet256-simvq"),
        ("pocket-lgq", {"step": 3}, "unknown setting 'step': did you mean 'steps'"),
        ("pocket-lgq", {"label_dropout": 0.1}, "unknown setting 'label_dropout'"),
        ("pocket-lgq", {"loss": {"l2": 1.0}}, r"unknown field `loss.l2`"),
        ("pocket-lgq", {"steps": "many"}, r"`steps` must be a whole number, got 'many'"),
        ("pocket", {"steps": 0}, "`steps` must be at least 1, got 0"),
        ("pocket", {"clip": {"norm": 1}}, "`clip` must be a number"),
    ],
)
def test_mistakes_are_refused_by_name(name, changes, words):
    with pytest.raises(LGQError, match=words):
        run(name, **changes)
