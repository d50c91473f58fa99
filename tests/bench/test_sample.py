"""The benchmark of sampling measures what it claims to."""

import pytest
import torch

from lgq import MaskGIT, Tokenizer
from lgq.bench import sample
from lgq.bench.sample import SampleBenchmark, random_generator
from lgq.bench.tables import sample_table
from lgq.models.autoencoder import Backbone
from lgq.models.sampling import Sampling, reveal_counts
from lgq.models.transformer import TransformerSettings

CLASSES = torch.tensor([0, 1, 1])
SMALL = SampleBenchmark(batch_size=2, steps=2, rounds=1)


def build() -> MaskGIT:
    torch.manual_seed(0)
    backbone = Backbone(
        widths=(8, 8), blocks=1, attention_heads=0, groups=4, latent_channels=8, latent_groups=2
    )
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32)
    tokenizer = Tokenizer(backbone, "lgq", 20)
    return MaskGIT(tokenizer, image_size=8, classes=("cat", "dog"), transformer=small).eval()


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(sample, "random_generator", lambda name: build())
    monkeypatch.setattr(sample, "_CLASSES", 2)


def test_every_row_of_the_plan_is_measured(tiny):
    rows = list(sample.run(SMALL))
    assert [row.sampling for row in rows] == list(sample.plan(SMALL))
    for row in rows:
        assert all(value > 0 for value in vars(row).values() if not isinstance(value, str))
    assert sample_table(rows).row_count == len(rows)


@pytest.mark.parametrize(("guidance", "images"), [(0.0, 3), (1.0, 3), (2.0, 6)])
def test_each_forward_pass_is_followed_by_one_that_predicts_every_position(monkeypatch, guidance, images):
    maskgit, passes = build(), []
    forward = maskgit.transformer.forward

    def recorded(tokens, classes, where):
        passes.append((len(tokens), int(where[0].sum())))
        return forward(tokens, classes, where)

    monkeypatch.setattr(maskgit.transformer, "forward", recorded)
    sample.measure(maskgit, CLASSES, Sampling(steps=4, guidance=guidance))
    set_before = reveal_counts(torch.tensor([16]), 4, "cosine")[:, 0].cumsum(0)
    masked = [16, *(16 - set_before[:-1]).tolist()]
    assert passes == [(images, positions) for own in masked for positions in (own, 16)]


def test_every_time_counts_once(monkeypatch):
    clock, times = iter([0.0, 1.0, 0.0, 2.0]), iter([10.0, 20.0, 3400.0, 5000.0])

    def next_time(call, device):
        call()
        return next(times)

    monkeypatch.setattr(sample, "now", lambda device: next(clock))
    monkeypatch.setattr(sample, "milliseconds", next_time)
    measured = sample.measure(build(), CLASSES, Sampling(steps=2))
    rate, *milliseconds, over_full_forwards, overhead = measured.values()
    assert milliseconds == [3000.0, 3400.0 - 3030.0, 5000.0]
    assert rate == pytest.approx(3 / 8.37)
    assert (over_full_forwards, overhead) == (3370 / 30, 370 / 8000)


def test_a_named_generator_has_the_tokenizer_of_its_scale():
    maskgit = random_generator("pocket")
    assert (maskgit.token_shape, maskgit.image_size, maskgit.tokenizer.codebook_size) == ((8, 8), 32, 16_384)
    assert not maskgit.training
