"""VQ's moving averages beyond the formulas of test_baselines.py, and errors of Residual."""

import pytest
import torch

from lgq.quantizers import VQ, Residual


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moving_averages_keep_their_precision_in_half(dtype):
    half, full = VQ(4, 8).to(dtype), VQ(4, 8).to(dtype).float()
    for seed in range(3):
        z = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
        half(z), full(z.float())
    assert half.counts.dtype == half.sums.dtype == torch.float32
    torch.testing.assert_close(half.counts, full.counts, rtol=0.02, atol=1.0)
    assert float(half.counts.sum()) == pytest.approx(float(full.counts.sum()), rel=1e-4)


@pytest.mark.parametrize("threshold", [0.5, 2.0])
def test_a_revived_code_lives_until_the_next_batch(threshold):
    q = VQ(2, 16, restart_below=threshold, decay=0.9)
    z = torch.randn(200, 2)
    for _ in range(50):
        q(z)
    assert (q.counts >= threshold).all()
    settled = q.sums / q.counts[:, None]
    q(z)
    moved = (q.sums / q.counts[:, None] - settled).abs().amax(1)
    assert (moved < 0.5).float().mean() > 0.8, "most codes follow their means instead of jumping"


def test_each_latent_revives_at_most_one_code():
    q = VQ(2, 16, restart_below=0.999, decay=0.5)
    start = q.codebook.clone()
    for _ in range(8):
        z = torch.randn(5, 2)
        q(z)
        codes = q.sums / q.counts[:, None]
        assert len(codes.unique(dim=0)) == 16, "no two codes at one place"
        assert 1 <= (torch.cdist(codes, z).amin(1) < 1e-6).sum() <= 5
    assert (codes != start).any(1).all(), "every dead code gets its turn"


def test_an_error_says_where_the_codebooks_of_a_residual_quantizer_are():
    q = Residual([VQ(2, 4), VQ(2, 4)])
    with pytest.raises(NotImplementedError, match=r"stages\[i\].codebook"):
        _ = q.codebook


@pytest.mark.usefixtures("without_shape_checks")
def test_a_single_quantizer_is_not_a_list_of_stages():
    with pytest.raises(ValueError, match="must be a list of quantizers"):
        Residual(VQ(2, 4))


def test_stages_can_be_built_on_the_meta_device():
    with torch.device("meta"):
        q = Residual([VQ(2, 4), VQ(2, 4)])
    assert q.stages[0].codebook.is_meta
