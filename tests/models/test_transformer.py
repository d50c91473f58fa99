"""Laws of MaskGIT's transformer, on small networks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lgq.models.transformer import MaskedTransformer, TransformerSettings

TINY = TransformerSettings(layers=2, width=16, heads=2, hidden=32)
CODES, LENGTH, CLASSES = 11, 6, 3


def transformer(settings: TransformerSettings = TINY) -> MaskedTransformer:
    torch.manual_seed(0)
    network = MaskedTransformer(CODES, LENGTH, CLASSES, settings).eval()
    torch.nn.init.normal_(network.bias)
    return network


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    where = torch.rand(4, LENGTH) < 0.5
    tokens = torch.randint(CODES, (4, LENGTH)).masked_fill(where, CODES)
    return tokens, torch.tensor([0, 1, 2, CLASSES]), where


def everywhere(network: MaskedTransformer, tokens: Tensor, classes: Tensor) -> Tensor:
    logits = network(tokens, classes, torch.ones_like(tokens, dtype=torch.bool))
    return logits.view(*tokens.shape, CODES)


def test_the_papers_network_has_its_50_8_million_parameters_within_two_percent():
    with torch.device("meta"):
        network = MaskedTransformer(16_384, 256, 1_000)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == 51_320_832
    assert abs(count / 50.8e6 - 1) < 0.02


def test_logits_come_for_the_given_positions_image_by_image():
    network, (tokens, classes, where) = transformer(), inputs()
    torch.testing.assert_close(
        network(tokens, classes, where), everywhere(network, tokens, classes)[where], rtol=1e-5, atol=1e-6
    )


def test_the_network_is_the_plain_formula():
    """One layer by hand: embeddings, pre-norm attention and MLP, norm, head, tied output, bias.

    It treats images alone, every token sees all others and the class, and no logit is the mask token's.
    """
    network = transformer(TransformerSettings(layers=1, width=16, heads=2, hidden=32))
    tokens, classes, _ = inputs()
    x = torch.cat([network.class_tokens.weight[classes][:, None], network.tokens.weight[tokens]], 1)
    x = x + network.positions
    block = network.blocks[0]
    q, k, v = block.attention.queries_keys_values(block.attention_norm(x)).chunk(3, dim=-1)
    heads = []
    for part in (slice(0, 8), slice(8, 16)):
        weights = (q[..., part] @ k[..., part].transpose(1, 2) / 8**0.5).softmax(-1)
        heads.append(weights @ v[..., part])
    x = x + block.attention.out(torch.cat(heads, -1))
    x = x + block.perceptron[2](F.gelu(block.perceptron[0](block.perceptron_norm(x))))
    features = network.head[2](F.gelu(network.head[0](network.norm(x)[:, 1:])))
    logits = features @ network.tokens.weight[:CODES].T + network.bias
    torch.testing.assert_close(everywhere(network, tokens, classes), logits, rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_only_on_attention_weights_too():
    network, given = transformer(), inputs()
    assert torch.equal(network(*given), network(*given))
    network.train()
    assert not torch.equal(network(*given), network(*given))
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert not torch.equal(network(*given), network(*given))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "`layers` must be at least 1, got 0"),
        ({"width": 10, "heads": 4}, "`heads` must divide `width`, got 4 heads and width 10"),
        ({"dropout": 1.0}, r"`dropout` must be at least 0 and below 1, got 1\.0"),
        ({"hidden": -1}, "`hidden` must be at least 1"),
    ],
)
def test_impossible_sizes_raise_an_error(settings: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        TransformerSettings(**settings)
    with pytest.raises(ValueError, match="`codebook_size` must be at least 1, got 0"):
        MaskedTransformer(0, 4, 1, TINY)
