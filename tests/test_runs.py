"""Named runs: one for each scale and quantizer, alike but for the quantizer."""

from dataclasses import replace

import pytest
import torch

from lgq.config import from_json, to_json
from lgq.models.transformer import MaskedTransformer
from lgq.quantizers import QUANTIZERS
from lgq.runs import GENERATORS, RUNS, imagenet256, named_generator, named_run, pocket
from lgq.tokenizer import Tokenizer
from lgq.training.settings import GeneratorRun
from lgq.training.tokenizer_trainer import TokenizerRun


def parameters(run: TokenizerRun) -> dict[str, int]:
    with torch.device("meta"):
        return Tokenizer(run.backbone, run.quantizer, run.codebook_size).parameter_counts()


def test_every_scale_has_every_quantizer():
    assert set(RUNS) == {f"{scale}-{name}" for scale in ("pocket", "imagenet256") for name in QUANTIZERS}
    assert len(RUNS) == 14


@pytest.mark.parametrize("name", RUNS)
def test_a_run_differs_from_its_neighbours_in_the_quantizer_alone(name):
    run = named_run(name)
    scale, quantizer = name.split("-")
    assert run.quantizer == quantizer
    assert replace(run, quantizer="lgq") == named_run(f"{scale}-lgq")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_survives_json(name):
    assert from_json(TokenizerRun, to_json(named_run(name))) == named_run(name)


def test_imagenet256_is_the_run_of_the_paper():
    run = imagenet256("lgq")
    counts = parameters(run)
    assert counts["encoder"] + counts["decoder"] == 27_991_235
    assert (run.image_size, run.backbone.factor, run.codebook_size, run.batch_size) == (256, 16, 16_384, 8)
    assert (run.learning_rate, run.schedule.kind, run.schedule.warmup_steps) == (3e-4, "constant", 0)
    loss = run.loss
    assert (loss.l1, loss.lpips, loss.gan, loss.discriminator_start) == (1.0, 1.0, 0.1, 10_000)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_pocket_is_small_and_gives_the_quantizer_as_many_tokens_as_the_paper(quantizer):
    run = pocket(quantizer)
    assert 1_000_000 <= sum(parameters(run).values()) <= 3_000_000
    assert (run.image_size, run.backbone.factor, run.codebook_size) == (64, 8, 1_024)
    assert run.batch_size * (run.image_size // run.backbone.factor) ** 2 == 2_048
    assert (run.loss.lpips, run.loss.gan) == (0, 0)


def test_an_unknown_run_names_its_nearest_neighbour():
    with pytest.raises(ValueError, match="unknown run 'poket-lgq': did you mean 'pocket-lgq'"):
        named_run("poket-lgq")


def test_a_name_like_no_other_lists_all():
    with pytest.raises(ValueError, match=r"choose from pocket-lgq, .*imagenet256-simvq"):
        named_run("zzz")


def generator_parameters(run: GeneratorRun, codes: int, tokens: int, classes: int) -> int:
    with torch.device("meta"):
        network = MaskedTransformer(codes, tokens, classes, run.transformer)
    return sum(parameter.numel() for parameter in network.parameters())


def test_every_scale_has_a_generator():
    assert set(GENERATORS) == {"pocket", "imagenet256"}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_survives_json(name):
    assert from_json(GeneratorRun, to_json(named_generator(name))) == named_generator(name)


def test_the_generator_of_imagenet256_is_the_papers():
    run = named_generator("imagenet256")
    assert generator_parameters(run, 16_384, 256, 1_000) == pytest.approx(50.8e6, rel=0.02)
    assert (run.transformer.layers, run.transformer.width) == (12, 512)
    assert (run.batch_size, run.accumulate, run.learning_rate) == (32, 4, 1e-4)
    assert (run.label_smoothing, run.label_dropout) == (0.1, 0.1)
    assert (run.loop.patience, run.sampling.steps, run.sampling.schedule) == (10, 11, "cosine")


def test_the_pocket_generator_is_small_and_otherwise_the_same():
    run = named_generator("pocket")
    assert generator_parameters(run, 1_024, 64, 200) == 1_685_824
    assert (run.transformer.layers, run.transformer.width, run.accumulate) == (3, 192, 1)
    assert (run.precision, run.loop.steps, run.loop.validate_every) == ("float32", 9_000, 1_000)
    same = ("label_smoothing", "label_dropout", "betas", "weight_decay", "flips", "sampling", "sample_images")
    paper = named_generator("imagenet256")
    assert all(getattr(run, name) == getattr(paper, name) for name in same)


def test_an_unknown_generator_names_its_nearest_neighbour():
    with pytest.raises(ValueError, match="unknown generator 'pockt': did you mean 'pocket'"):
        named_generator("pockt")
