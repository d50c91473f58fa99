"""The continuous autoencoder: what a tokenizer without a quantizer does, and where it is not listed."""

from dataclasses import replace

import pytest
import torch
from tiny_run import TINY, paint_photos, train

from lgq.errors import LGQError
from lgq.models.autoencoder import Backbone
from lgq.quantizers import CONTINUOUS, QUANTIZERS, build_quantizer
from lgq.tokenizer import Tokenizer
from lgq.training.journal import read_records

SMALL = Backbone(widths=(4, 8), blocks=1, groups=2, attention_heads=0, latent_channels=8, latent_groups=2)


@pytest.mark.parametrize("training", [True, False])
def test_latents_pass_unchanged_with_their_gradient_and_no_loss(training):
    quantizer = build_quantizer(CONTINUOUS, 8, 1, channel_dim=1).train(training)
    z = torch.randn(2, 8, 3, 4, requires_grad=True)
    out = quantizer(z)
    assert torch.equal(out.quantized, z)
    assert (out.indices.shape, out.loss.item(), out.terms) == ((2, 3, 4), 0, {})
    (gradient,) = torch.autograd.grad(out.quantized.sum(), z)
    assert torch.equal(gradient, torch.ones_like(z))
    assert torch.equal(quantizer.encode(z), out.indices)
    with pytest.raises(LGQError, match="no codes to decode"):
        quantizer.decode(out.indices)


def test_masked_latents_are_zero_and_have_no_index():
    quantizer, z = build_quantizer(CONTINUOUS, 8, 1, channel_dim=1), torch.randn(2, 8, 3)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    out = quantizer(z, mask)
    assert torch.equal(out.indices, quantizer.encode(z, mask))
    assert out.indices.tolist() == [[0, -1, 0], [0, 0, 0]]
    assert torch.equal(out.quantized, torch.where(mask[:, None], z, 0))


def test_a_tokenizer_without_a_quantizer_is_saved_and_loaded_and_is_no_method(tmp_path):
    tokenizer = Tokenizer(SMALL, CONTINUOUS, 1)
    tokenizer.save_pretrained(tmp_path)
    images = torch.rand(1, 3, 8, 8) * 2 - 1
    again = Tokenizer.from_pretrained(tmp_path)
    assert torch.equal(again(images).reconstruction, tokenizer(images).reconstruction)
    assert again.fingerprint() == tokenizer.fingerprint()
    assert tokenizer.parameter_counts()["quantizer"] == 0
    assert CONTINUOUS in QUANTIZERS
    assert CONTINUOUS not in list(QUANTIZERS)


def test_training_without_a_quantizer_says_nothing_about_the_use_of_codes(tmp_path, capfd):
    photos, run = paint_photos(tmp_path / "photos"), replace(TINY, quantizer=CONTINUOUS, codebook_size=1)
    train(run, photos, tmp_path / "run")
    validations = [line["values"] for line in read_records(tmp_path / "run") if line["split"] == "validation"]
    assert all("psnr" in values and "utilization" not in values for values in validations)
    said = capfd.readouterr().err
    assert "dB" in said
    assert "used" not in said
