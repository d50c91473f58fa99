"""Laws of MaskGIT's masks and loss; each test fails on a mistake that is often copied."""

import math

import pytest
import torch
import torch.nn.functional as F

from lgq.models.masking import fixed_masks, mask_ratio, masked_loss, random_masks
from lgq.models.transformer import MaskedTransformer, TransformerSettings


def test_the_ratio_is_the_cosine_and_not_its_complement() -> None:
    u = torch.linspace(0, 1, 11, dtype=torch.float64)
    expected = [math.cos(math.pi / 2 * value) for value in u.tolist()]
    assert mask_ratio(u).tolist() == pytest.approx(expected)
    assert mask_ratio(torch.tensor([0.0])).item() == 1.0


def test_each_image_masks_its_share_of_tokens_and_at_least_one() -> None:
    u = torch.tensor([0.0, 1 / 3, 0.5, 0.999, 1.0])
    counts = random_masks(u, torch.rand(5, 100)).sum(1)
    assert counts.tolist() == [100, round(100 * math.cos(math.pi / 6)), 71, 1, 1]


def test_the_tokens_with_the_lowest_scores_are_masked() -> None:
    scores = torch.tensor([[0.4, 0.1, 0.3, 0.2]])
    masks = random_masks(torch.tensor([2 / 3]), scores)  # cos(pi / 3) = 1 / 2
    assert masks.tolist() == [[False, True, False, True]]


def test_fixed_masks_depend_on_the_number_and_the_seed_alone() -> None:
    numbers = torch.tensor([5, 0, 17])
    masks = fixed_masks(numbers, 32)
    assert torch.equal(fixed_masks(torch.arange(20), 32)[numbers], masks)
    assert not torch.equal(fixed_masks(numbers, 32, seed=1), masks)


@pytest.mark.parametrize("stride", [1, 7, 144, 1597])
def test_fixed_masks_have_the_right_distribution_on_any_evenly_spaced_subset(stride: int) -> None:
    state = torch.get_rng_state()
    shares = fixed_masks(stride * torch.arange(1_000), 64).double().mean(1)
    assert torch.equal(torch.get_rng_state(), state), "a validation draws no random numbers"
    # cos(pi u / 2) of a uniform u has this mean, and a deviation of 0.31: a standard error of 0.01.
    assert shares.mean().item() == pytest.approx(2 / math.pi, abs=0.04)
    quarters = torch.quantile(shares, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    expected = mask_ratio(torch.tensor([0.75, 0.5, 0.25], dtype=torch.float64))
    assert (quarters - expected).abs().max() < 0.06


def test_the_loss_is_the_mean_cross_entropy_with_smoothed_targets() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(7, 5), torch.randint(5, (7,))
    log_p = logits.log_softmax(1)
    hard = -log_p[torch.arange(7), targets].mean()
    assert masked_loss(logits, targets).item() == pytest.approx(hard.item(), rel=1e-6)
    smooth = 0.9 * hard - 0.1 * log_p.mean()
    assert masked_loss(logits, targets, smoothing=0.1).item() == pytest.approx(smooth.item(), rel=1e-6)


def test_unmasked_tokens_do_not_enter_the_loss() -> None:
    """The loss has no gradient at the logits of unmasked tokens."""
    torch.manual_seed(0)
    network = MaskedTransformer(9, 8, 2, TransformerSettings(layers=1, width=8, heads=1, hidden=8)).eval()
    tokens, classes = torch.randint(9, (3, 8)), torch.tensor([0, 1, 2])
    masks = random_masks(torch.tensor([0.2, 0.5, 0.9]), torch.rand(3, 8))
    hidden = tokens.masked_fill(masks, network.mask_token)
    logits = network(hidden, classes, torch.ones_like(masks)).view(3, 8, 9)
    logits.retain_grad()
    masked_loss(logits[masks], tokens[masks]).backward()
    assert logits.grad is not None
    assert (logits.grad[~masks] == 0).all()
    assert (logits.grad[masks] != 0).all()
    # Training computes the logits at masked positions only.
    alone = masked_loss(network(hidden, classes, masks), tokens[masks])
    assert alone.item() == pytest.approx(F.cross_entropy(logits[masks], tokens[masks]).item(), rel=1e-6)
