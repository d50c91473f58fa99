"""A tokenizer of speech: it learns, starts alike for all quantizers, and is measured on other recordings."""

from dataclasses import replace

import pytest
import torch
from tiny_experiments import Tones, run_tiny, sources_of

from lgq.errors import LGQError
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.speech import (
    SpeechSettings,
    measure_speech,
    spectral_distance,
    speech_tokenizer,
    train_speech,
)
from lgq.quantizers import QUANTIZERS

SETTINGS = SpeechSettings(codebook_size=16, start_steps=1, steps=1, batch_size=2)


def tones(count: int) -> torch.Tensor:
    return Tones(count).clips


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_every_quantizer_can_hold_speech(quantizer):
    tokenizer, curve = train_speech(replace(SETTINGS, quantizer=quantizer), tones(4), seed=0)
    metrics = measure_speech(tokenizer, tones(3))
    assert curve[-1]["step"] == 1
    assert 0 < metrics["utilization"] <= 1
    assert metrics["spectral_distance"] > 0


def test_training_improves_the_reconstruction_of_recordings():
    settings = replace(SETTINGS, steps=40, batch_size=4)
    before, after = (
        measure_speech(train_speech(chosen, tones(6), seed=0)[0], tones(6)) for chosen in (SETTINGS, settings)
    )
    assert after["spectral_distance"] < before["spectral_distance"]


def test_all_quantizers_of_a_seed_start_from_one_autoencoder():
    settings = replace(SETTINGS, start_steps=2, steps=0)

    def start(quantizer: str, seed: int) -> torch.Tensor:
        tokenizer, _ = train_speech(replace(settings, quantizer=quantizer), tones(4), seed=seed)
        return torch.cat([p.detach().flatten() for p in tokenizer.encoder.parameters()])

    first = start("lgq", 0)
    torch.randn(3)
    assert torch.equal(start("fsq", 0), first)
    assert not torch.equal(start("lgq", 1), first)


def test_measures_follow_their_formulas_whatever_the_batches():
    tokenizer, clips = speech_tokenizer(SETTINGS), tones(70)
    metrics = measure_speech(tokenizer, clips)
    with torch.no_grad():
        parts = [tokenizer(clip[None])[0] for clip in clips]
    error = torch.cat(parts) - clips
    ratios = 10 * torch.log10(clips.square().sum(1) / error.square().sum(1))
    assert metrics["snr"] == pytest.approx(float(ratios.mean()), abs=1e-3)
    assert torch.equal(spectral_distance(clips, clips), torch.zeros(70))
    louder = spectral_distance(clips * torch.e, clips)
    assert ((louder > 0) & (louder < 1)).all()  # silence between the tones is as silent


def test_modality_measures_recordings_that_were_not_trained_on(images, tmp_path):
    outcome = run_tiny("modality", images, tmp_path / "out", only=["lgq", "fsq"])
    assert outcome.new_rows == 2
    assert not outcome.failed
    results = ResultsDirectory(tmp_path / "out")
    records = [results.record(row.id) for row in results.plan("modality").rows]
    done = [record for record in records if record]
    assert [record["recordings"] for record in done] == [2, 2]
    assert all(record["config"]["recordings"] == "tones" for record in done)
    assert {"snr", "spectral_distance", "utilization", "perplexity"} <= done[0]["metrics"].keys()


def test_modality_without_recordings_names_the_option(images, tmp_path):
    with pytest.raises(LGQError, match=r"name a folder or a \.tar of WAV files with `recordings`"):
        run_tiny("modality", replace(sources_of(images), recordings=None), tmp_path / "out")
