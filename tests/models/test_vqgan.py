"""Laws of the published VQ-GAN network, and of a tokenizer around it."""

from dataclasses import dataclass, replace

import pytest
import torch
from image_networks import gradients, kept_bytes
from torch import nn

from lgq.config import ConfigError, from_json, to_json
from lgq.models.autoencoder import Backbone
from lgq.models.vqgan import VQGANBackbone
from lgq.tokenizer import Tokenizer

TINY = VQGANBackbone(widths=(8, 16), blocks=1, attention_levels=(1,), groups=4, features=6, latent_channels=5)


@dataclass(frozen=True)
class Holder:
    backbone: Backbone | VQGANBackbone


class Autoencoder(nn.Module):
    def __init__(self, backbone: VQGANBackbone):
        super().__init__()
        self.encoder, self.decoder = backbone.networks()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(images))


def test_the_defaults_have_the_parameters_of_the_published_models():
    """72 M of LlamaGen's VQ-16 and 70 M of its VQ-8, as its authors count them."""
    coarse = VQGANBackbone(latent_channels=8)
    fine = VQGANBackbone(widths=(128, 256, 256, 512), attention_levels=(3,), latent_channels=8)
    for backbone, millions in ((coarse, 72), (fine, 70)):
        with torch.device("meta"):
            tokenizer = Tokenizer(backbone, "vq", 16_384)
        codes = tokenizer.quantizer.codebook.numel()
        assert round((sum(tokenizer.parameter_counts().values()) + codes) / 1e6) == millions


@pytest.mark.parametrize("widths", [(8,), (8, 16), (8, 16, 8)])
@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (5, 1)])
def test_every_size_that_the_factor_divides_is_rebuilt(widths, grid):
    backbone = replace(TINY, widths=widths, attention_levels=(0,))
    encoder, decoder = backbone.networks()
    images = torch.randn(2, 3, *(side * backbone.factor for side in grid))
    latents = encoder(images)
    assert latents.shape == (2, 5, *grid)
    assert decoder(latents).shape == images.shape


def test_attention_stands_where_the_settings_ask_for_it():
    def count(backbone: VQGANBackbone) -> int:
        names = Autoencoder(backbone).state_dict()
        return sum(name.endswith("query_key_value.weight") for name in names)

    assert count(TINY) == 2 + 1 + 2  # two middles, one block of the encoder and two of the decoder
    assert count(replace(TINY, attention_levels=())) == 2
    assert count(replace(TINY, attention_levels=(), middle_attention=False)) == 0
    assert count(replace(TINY, attention_levels=(0, 1), blocks=2)) == 2 + 4 + 6


def test_checkpointing_gives_identical_gradients_and_keeps_less():
    plain, recomputed = Autoencoder(TINY), Autoencoder(replace(TINY, checkpointing=True))
    recomputed.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(gradients(recomputed, images), gradients(plain, images), rtol=0, atol=0)
    assert kept_bytes(recomputed, images) < 0.7 * kept_bytes(plain, images)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_saved_tokenizer_is_the_same_model(stages, tmp_path):
    tokenizer = Tokenizer(TINY, "vq", 12, stages=stages).eval()
    tokenizer.save_pretrained(tmp_path)
    loaded = Tokenizer.from_pretrained(tmp_path)
    assert loaded.backbone == TINY
    assert loaded.fingerprint() == tokenizer.fingerprint()
    images = torch.rand(1, 3, 8, 8)
    assert torch.equal(loaded.encode(images), tokenizer.encode(images))


@pytest.mark.parametrize("backbone", [TINY, Backbone(), Backbone(widths=(8, 16), groups=4)])
def test_settings_know_which_backbone_they_describe(backbone):
    holder = from_json(Holder, {"backbone": to_json(backbone)})
    assert holder.backbone == backbone
    with pytest.raises(ConfigError, match=r"unknown field `backbone.widthz`: did you mean 'widths'"):
        from_json(Holder, {"backbone": {"widthz": [8]}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": ()}, "`widths` must be at least 1, got none"),
        ({"widths": (8,) * 17}, "`widths` must be at most 16 numbers, got 17"),
        ({"widths": (8, 18)}, "`groups` must divide `widths`, got 4 and .*18 is no multiple"),
        ({"blocks": 0}, "`blocks` must be at least 1, got 0"),
        ({"blocks": 1001}, "`blocks` must be at most 1000, got 1001"),
        ({"features": 0}, "`features` must be at least 1, got 0"),
        ({"attention_levels": (2,)}, "`attention_levels` must be places in `widths`, 0 to 1, got 2"),
    ],
)
def test_contradictory_settings_raise_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)
