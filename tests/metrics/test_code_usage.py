import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lgq.errors import LGQError
from lgq.metrics.code_usage import CodeUsage, batch_utilization, usage_bars
from lgq.quantizers import FSQ, VQ, Grouped, MultiScale, Residual

TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=60)


def usage_of(*batches: list[int], size: int = 10) -> CodeUsage:
    usage = CodeUsage.empty(size)
    for batch in batches:
        usage.update(torch.tensor(batch))
    return usage


@given(TOKENS)
def test_numbers_equal_the_plain_formulas(tokens):
    usage = usage_of(tokens)
    counts = np.array([tokens.count(code) for code in range(10)])
    p = counts[counts > 0] / len(tokens)
    entropy = -(p * np.log(p)).sum()
    assert usage.tokens == len(tokens)
    assert usage.utilization == pytest.approx(len(set(tokens)) / 10)
    assert usage.perplexity == pytest.approx(np.exp(entropy))
    assert usage.normalized_entropy == pytest.approx(entropy / np.log(10))
    assert usage.top_percent_mass == pytest.approx(counts.max() / len(tokens))
    assert set(usage.dead_codes.tolist()) == set(range(10)) - set(tokens)


@given(TOKENS, TOKENS, TOKENS)
def test_batches_change_nothing(a, b, c):
    usage = usage_of(c, a)
    usage.update(torch.tensor([[b]], dtype=torch.uint8))
    assert usage.summary() == usage_of(a + b + c).summary()


def test_top_percent_is_one_in_a_hundred_rounded_up():
    usage = CodeUsage(torch.arange(250))
    expected = (249 + 248 + 247) / sum(range(250))
    assert usage.top_percent_mass == pytest.approx(expected)


def test_no_tokens_give_zeros_not_nan_and_no_norms_that_do_not_exist():
    summary = CodeUsage.empty(8).summary()
    assert summary["utilization"] == summary["perplexity"] == summary["top_percent_mass"] == 0
    assert summary["dead_codes"] == 8
    assert CodeUsage.empty(1).normalized_entropy == 1
    assert set(CodeUsage.empty(2).norm_summary(torch.eye(2))) == {"dead_norm_min", "dead_norm_max"}
    live = CodeUsage(torch.tensor([1, 2])).norm_summary(torch.ones(2, 3))
    assert set(live) == {"live_norm_min", "live_norm_max"}
    with pytest.raises(ValueError, match=r"index 10 is outside -1\.\.9"):
        usage_of([10])


def test_norms_are_summarized_for_dead_and_live_codes():
    counts, codebook = torch.randint(0, 5, (40,)), torch.randn(40, 6)
    norms = codebook.norm(dim=1).numpy()
    dead, live = norms[counts == 0], norms[counts > 0]
    assert CodeUsage(counts).norm_summary(codebook) == pytest.approx(
        {
            "dead_norm_min": dead.min(),
            "dead_norm_max": dead.max(),
            "live_norm_min": live.min(),
            "live_norm_max": live.max(),
            "norm_correlation": np.corrcoef(norms, np.log1p(counts.numpy()))[0, 1],
        },
        abs=1e-6,
    )


def test_stages_have_usages_of_their_own():
    first, second = CodeUsage(torch.tensor([2, 0, 1, 1])).by_stage(2)
    assert (first.counts.tolist(), second.counts.tolist()) == ([2, 0], [1, 1])
    assert (first.utilization, second.utilization) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: VQ(4, 8), (8,)),
        (lambda: Residual([VQ(4, 8), FSQ(4, 16)]), (8, 16)),
        (lambda: Residual.of(lambda: VQ(4, 2**16), 5), (2**16,) * 5),
        (lambda: Grouped.of(lambda: Residual.of(lambda: VQ(2, 8), 3), 2), (8,) * 6),
        (lambda: MultiScale(VQ(4, 8), (1, 2), axes=1), (8,)),
    ],
)
def test_the_usage_of_any_quantizer_counts_the_codes_of_each_of_its_parts(make, sizes):
    q = make()
    tokens = q.encode(torch.randn(3, 2, 4))
    usage = CodeUsage.of(q)
    for batch in (tokens[:2], tokens[2:]):
        usage.update(batch)
    columns = tokens.reshape(-1, len(sizes)).T
    expected = [column.bincount(minlength=size) for column, size in zip(columns, sizes, strict=True)]
    for stage, counts in zip(usage.over_ranks().by_stage(), expected, strict=True):
        assert torch.equal(stage.counts, counts)


@pytest.mark.usefixtures("without_shape_checks")
def test_indices_that_are_not_those_of_the_quantizer_are_refused_with_the_way_out():
    q = Residual([VQ(4, 8), VQ(4, 16)])
    usage = CodeUsage.of(q)
    with pytest.raises(LGQError, match=r"must end with axes of shape \(2,\).*got \(5,\): pass what `encode`"):
        usage.update(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(LGQError, match=r"index 9 is outside -1\.\.7"):
        usage.update(torch.tensor([[9, 0]]))
    usage.update(torch.tensor([[-1, 15], [7, -1]]))
    assert [stage.tokens for stage in usage.by_stage()] == [1, 1]
    with pytest.raises(LGQError, match=r"pass out\.indices"):
        usage.update(q(torch.randn(3, 4)))
    with pytest.raises(LGQError, match=r"CodeUsage\.of needs a quantizer, got int"):
        CodeUsage.of(8)
    with pytest.raises(LGQError, match=r"do not fit into memory.*CodeUsage\.of\(q\)"):
        CodeUsage.empty(Residual.of(lambda: VQ(4, 1024), 4).codebook_size)


def test_a_batch_uses_a_share_of_the_codes_within_reach():
    tokens = torch.tensor([[[0, 1], [1, 3]], [[0, 0], [0, 0]]])
    assert batch_utilization(tokens, 4) == 3 / 4
    assert batch_utilization(tokens, 100) == 3 / 8


def test_bars_show_the_frequencies_of_codes_in_falling_order():
    image = usage_bars([CodeUsage(torch.tensor([0, 4, 2, 2]))], width=4, height=8)
    assert image.shape == (3, 8, 4)
    heights = (image[0] < 0).sum(0)  # bars are blue, the paper is white, the line of the uniform is orange
    assert heights.tolist() == [8 - 1, 4, 4, 0], "the line lies over the first bar, and on the next two"
    stages = usage_bars([CodeUsage(torch.tensor([1, 1]))] * 3, width=4, height=8)
    assert stages.shape == (3, 3 * 8, 4)
    assert usage_bars([CodeUsage(torch.zeros(5, dtype=torch.int64))]).isfinite().all(), "no tokens at all"


def test_stages_that_were_dropped_are_not_counted():
    usage = usage_of([3, -1, 3, -1])
    assert (usage.tokens, usage.counts[3]) == (2, 2)
