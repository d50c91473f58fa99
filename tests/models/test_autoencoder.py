"""Laws of the encoder and the decoder, on small networks."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from image_networks import TINY, Autoencoder, gradients, kept_bytes
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lgq.models.autoencoder import Backbone, ChannelNorm, Decoder, Encoder, SelfAttention
from lgq.ops.numerics import attend


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


LOCAL = replace(TINY, attention_heads=0, norm="layer")
LOCAL_BACKBONES = [
    LOCAL,
    replace(LOCAL, patch=2, widths=(8, 16)),
    replace(LOCAL, patch=3, widths=(8,)),
    replace(LOCAL, patch=4, widths=(8, 16), blocks=2),
    replace(LOCAL, patch=2, widths=(8, 16), refinement=4),
    replace(LOCAL, patch=4, widths=(8, 16), refinement=8),
]


def test_a_patch_joins_pixels_at_the_first_layer_and_parts_them_at_the_last():
    backbone = replace(TINY, patch=3)
    assert backbone.factor == 12
    network, images = Autoencoder(backbone), torch.randn(2, 3, 24, 36)
    seen = []
    network.encoder.stem.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    assert network(images).shape == images.shape
    assert torch.equal(seen[0], F.pixel_unshuffle(images, 3))
    assert network.encoder(images).shape == (2, 8, 2, 3)


@pytest.mark.parametrize("patch", [2, 4, 6])
@torch.no_grad()
def test_a_refinement_starts_with_the_images_of_a_decoder_without_one(patch):
    plain = Decoder(replace(LOCAL, patch=patch))
    refined = Decoder(replace(LOCAL, patch=patch, refinement=32))
    latents = torch.randn(2, 8, 3, 5)
    refined.take(plain.state_dict())
    torch.testing.assert_close(refined(latents), plain(latents))
    assert any(parameter.any() for parameter in refined.refine.block.parameters())
    again = Decoder(replace(LOCAL, patch=patch, refinement=32))
    again.take(refined.state_dict())
    assert torch.equal(again(latents), refined(latents))


def test_a_refinement_works_at_twice_the_resolution_of_the_patches_and_learns():
    backbone = replace(LOCAL, patch=4, widths=(8, 16), refinement=8)
    network, seen = Autoencoder(backbone), []
    network.decoder.refine.block.register_forward_hook(lambda _, __, output: seen.append(output.shape))
    image = torch.randn(1, 3, 16, 24)
    network(image).square().mean().backward()
    assert seen == [(1, 8, 8, 12)]
    assert all(parameter.grad.any() for parameter in network.decoder.refine.parameters())
    assert network.encoder(image).shape[1:] == (8, 2, 3)


def test_layer_normalization_is_over_the_channels_of_each_position():
    norm, x = ChannelNorm(6), torch.randn(2, 6, 3, 5) * 4 + 1
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
    expected = (x - mean) / (variance + norm.eps).sqrt() * norm.weight[:, None, None]
    torch.testing.assert_close(norm(x), expected + norm.bias[:, None, None])
    assert norm(x).is_contiguous()
    last = x.contiguous(memory_format=torch.channels_last)
    assert norm(last).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(norm(last), norm(x))
    modules = Autoencoder(LOCAL).modules()
    assert not any(isinstance(module, nn.GroupNorm) for module in modules)


@pytest.mark.parametrize("backbone", LOCAL_BACKBONES)
@torch.no_grad()
def test_local_networks_see_as_far_as_their_reach_and_no_farther(backbone):
    network, f, reach = Autoencoder(backbone).eval(), backbone.factor, backbone.reach
    assert reach is not None
    side, place = 2 * reach + 5, reach + 2  # so that a change would show beyond the reach
    codes = torch.randn(1, 8, side, side)
    changed = codes.clone()
    changed[:, :, place, place] += 1
    difference = (network.decoder(codes) - network.decoder(changed)).abs().amax((0, 1))
    rows = difference.amax(1).nonzero().flatten()
    assert place - reach <= rows.min() // f < place - reach + 1
    assert place + reach - 1 < rows.max() // f <= place + reach
    images = torch.randn(1, 3, side * f, side * f)
    changed = images.clone()
    changed[:, :, place * f : (place + 1) * f, place * f : (place + 1) * f] += 1
    difference = (network.encoder(images) - network.encoder(changed)).abs().amax((0, 1))
    columns = difference.amax(0).nonzero().flatten()
    reach = replace(backbone, refinement=0).reach  # the encoder has none
    assert (columns.min(), columns.max()) == (place - reach, place + reach)


@pytest.mark.parametrize("change", [{"norm": "group"}, {"attention_heads": 2}])
def test_networks_that_see_the_whole_image_have_no_reach(change):
    assert replace(LOCAL, **change).reach is None


def test_the_features_of_a_pixel_are_counted_where_they_are_most():
    assert replace(LOCAL, widths=(8, 16, 16)).values_per_pixel == 8
    assert replace(LOCAL, patch=2, widths=(8, 64)).values_per_pixel == 4
    assert replace(LOCAL, patch=4, widths=(8, 16)).values_per_pixel == 3
    assert replace(LOCAL, patch=4, widths=(8, 16), refinement=32).values_per_pixel == 8


def test_attention_equals_the_plain_formula():
    attention, x = SelfAttention(16, heads=2, norm=nn.GroupNorm(4, 16)), torch.randn(2, 16, 3, 5)
    tokens = attention.norm(x).reshape(2, 16, 15).transpose(1, 2)
    query, key, value = attention.query_key_value(tokens).chunk(3, dim=-1)
    mixed = []
    for head in (slice(0, 8), slice(8, 16)):
        weights = (query[..., head] @ key[..., head].transpose(1, 2) / 8**0.5).softmax(-1)
        mixed.append(weights @ value[..., head])
    expected = attention.out(torch.cat(mixed, -1)).transpose(1, 2).reshape(2, 16, 3, 5)
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(attention(x), expected)


def test_attention_on_a_cpu_is_computed_in_float32_under_autocast_too():
    parts = [torch.randn(2, 3, 5, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    exact = [part.detach().float().requires_grad_() for part in parts]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attend(*parts)
    expected = F.scaled_dot_product_attention(*exact)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed, expected.bfloat16(), rtol=0, atol=0)
    gradient = torch.randn(2, 3, 5, 8).bfloat16()
    mixed.backward(gradient)
    expected.backward(gradient.float())
    for part, own in zip(parts, exact, strict=True):
        torch.testing.assert_close(part.grad, own.grad.bfloat16(), rtol=0, atol=0)


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
        ({"patch": 0}, "`patch` must be at least 1, got 0"),
        ({"patch": 65}, "`patch` must be at most 64, got 65"),
        ({"refinement": -1}, "`refinement` must be at least 0, got -1"),
        ({"refinement": 8, "patch": 3}, "`refinement` needs a `patch` that 2 divides, got 3"),
        ({"refinement": 7, "patch": 2}, "`groups` must divide `refinement`"),
        ({"norm": "batch"}, "`norm` must be 'group' or 'layer', got 'batch'"),
        (
            {"attention_heads": 3},
            r"`attention_heads` \(0 for none\) must divide the last of `widths`, got 3 and .*16",
        ),
        ({"attention_heads": -1}, r"`attention_heads` \(0 for none\) must be at least 1, got -1"),
        ({"latent_channels": 7}, "`latent_groups` must divide `latent_channels`, got 2 and .*7"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
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
