"""Laws of the encoder and the decoder, on small networks."""

from dataclasses import replace

import pytest
import torch
from image_networks import TINY, Autoencoder, gradients, kept_bytes
from torch.nn.attention import SDPBackend, sdpa_kernel

from lgq.models.autoencoder import Backbone, Decoder, Encoder, SelfAttention


def parameters(backbone: Backbone) -> tuple[int, int]:
    with torch.device("meta"):
        networks = Encoder(backbone), Decoder(backbone)
    encoder, decoder = (sum(p.numel() for p in network.parameters()) for network in networks)
    return encoder, decoder


def test_default_backbone_has_the_papers_parameters():
    assert parameters(Backbone()) == (13_995_712, 13_995_523)
    assert parameters(Backbone(attention_heads=0)) == (13_995_712 - 263_680, 13_995_523 - 263_680)
    assert Backbone().factor == 16


@pytest.mark.parametrize("widths", [(8,), (8, 16), (8, 16, 24), (8, 8, 16, 16)])
@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (5, 1)])
def test_every_size_that_the_factor_divides_is_rebuilt(widths, grid):
    backbone = replace(TINY, widths=widths)
    size = [side * backbone.factor for side in grid]
    images = torch.randn(2, 3, *size)
    latents = Encoder(backbone)(images)
    assert latents.shape == (2, 8, *grid)
    assert Decoder(backbone)(latents).shape == images.shape


def test_each_image_is_encoded_and_decoded_independently():
    model, images = Autoencoder(TINY), torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]))
    assert model(images[:0]).shape == (0, 3, 8, 8)


def test_latents_start_normalised_within_each_group():
    groups = Encoder(TINY)(7 * torch.randn(2, 3, 32, 32) + 3).unflatten(1, (2, 4)).flatten(2)
    torch.testing.assert_close(groups.mean(-1), torch.zeros(2, 2), atol=1e-4, rtol=0)
    torch.testing.assert_close(groups.std(-1, correction=0), torch.ones(2, 2), atol=1e-3, rtol=0)


def test_attention_equals_the_plain_formula():
    attention, x = SelfAttention(16, heads=2, groups=4), torch.randn(2, 16, 3, 5)
    tokens = attention.norm(x).reshape(2, 16, 15).transpose(1, 2)
    query, key, value = attention.query_key_value(tokens).chunk(3, dim=-1)
    mixed = []
    for head in (slice(0, 8), slice(8, 16)):
        weights = (query[..., head] @ key[..., head].transpose(1, 2) / 8**0.5).softmax(-1)
        mixed.append(weights @ value[..., head])
    expected = attention.out(torch.cat(mixed, -1)).transpose(1, 2).reshape(2, 16, 3, 5)
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(attention(x), expected)


def test_checkpointing_gives_identical_gradients_and_keeps_less_in_training_only():
    plain, recomputed = Autoencoder(TINY), Autoencoder(replace(TINY, checkpointing=True))
    recomputed.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(gradients(recomputed, images), gradients(plain, images), rtol=0, atol=0)
    assert kept_bytes(recomputed, images) < 0.6 * kept_bytes(plain, images)
    assert kept_bytes(recomputed.eval(), images) == kept_bytes(plain, images)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": ()}, "`widths` must be at least 1, got none"),
        ({"widths": (8, -16)}, "`widths` must be at least 1, got 8, -16"),
        ({"widths": (8, 18)}, "`groups` must divide `widths`, got 4 and .*18 is no multiple"),
        ({"groups": 0}, "`groups` must be at least 1, got 0"),
        ({"blocks": 0}, "`blocks` must be at least 1, got 0"),
        (
            {"attention_heads": 3},
            r"`attention_heads` \(0 for none\) must divide the last of `widths`, got 3 and .*16",
        ),
        ({"attention_heads": -1}, r"`attention_heads` \(0 for none\) must be at least 1, got -1"),
        ({"latent_channels": 7}, "`latent_groups` must divide `latent_channels`, got 2 and .*7"),
    ],
)
def test_contradictory_settings_raise_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 8, 8), r"\(b, 3, h, w\), got shape \(3, 8, 8\)"),
        (torch.zeros(1, 4, 8, 8), r"RGB .* got shape \(1, 4, 8, 8\)"),
        (torch.zeros(1, 3, 0, 8), r"RGB .* got shape \(1, 3, 0, 8\)"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), r"float in \[-1, 1\], got torch.uint8"),
        (torch.zeros(1, 3, 8, 10), "multiples of 4, got 8 x 10"),
        (torch.zeros(1, 3, 3, 8), "multiples of 4, got 3 x 8"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_images_and_latents_of_a_wrong_shape_raise_an_error(images, message):
    with pytest.raises(ValueError, match=message):
        Encoder(TINY)(images)
    with pytest.raises(ValueError, match=r"\(b, 8, h, w\), got \(1, 2, 2, 8\)"):
        Decoder(TINY)(torch.zeros(1, 2, 2, 8))
