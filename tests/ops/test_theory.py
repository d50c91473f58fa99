"""Every proposition and corollary of the LGQ paper (Altun et al. 2026), as a property."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lgq.ops.assignment import soft_assignment
from lgq.ops.search import nearest_codes
from lgq.quantizers import LGQ

pytestmark = pytest.mark.filterwarnings("ignore:the latents of")  # the bounds hold for codes of any scale

COORDINATES = st.floats(-3, 3, allow_nan=False, width=32)


def matrices(rows: st.SearchStrategy[int], columns: int = 3) -> st.SearchStrategy[torch.Tensor]:
    shaped = rows.flatmap(lambda n: arrays(np.float64, (n, columns), elements=COORDINATES))
    return shaped.map(torch.from_numpy)


def distances(z, codes):
    return (z[:, None] - codes).square().sum(2)


def errors(z, codes, score="l2"):
    """Squared distance of each vector to the code that is selected for it."""
    return distances(z, codes).gather(1, nearest_codes(z, codes, score=score).indices[:, None])


def weights(z, codes, tau):
    """Assignment p of every vector: the usage of a batch of one vector."""
    return torch.stack([soft_assignment(row[None], codes, tau).usage for row in z])


@given(matrices(st.just(1)), matrices(st.integers(1, 8)), st.floats(0.05, 5), st.integers(0, 2**20))
def test_the_assignment_minimises_the_free_energy(z, codes, tau, seed):
    distance = distances(z, codes)[0]

    def free_energy(p):
        return float((p * distance).sum() + tau * torch.special.xlogy(p, p).sum())

    best = weights(z, codes, tau)[0]
    alternatives = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(len(codes)), size=50))
    corners = torch.eye(len(codes), dtype=torch.float64)
    mixtures = 0.999 * best + 0.001 * alternatives
    for p in (*alternatives, *corners, *mixtures):
        assert free_energy(best) <= free_energy(p) + 1e-9


@given(matrices(st.integers(1, 6)), matrices(st.integers(2, 8)))
def test_at_vanishing_temperature_the_assignment_is_the_nearest_code(z, codes):
    two_best = distances(z, codes).sort(1).values[:, :2]
    assume(float((two_best[:, 1] - two_best[:, 0]).min()) > 1e-3)
    one_hot = torch.nn.functional.one_hot(nearest_codes(z, codes).indices, len(codes)).double()
    gaps = [float((weights(z, codes, tau) - one_hot).abs().max()) for tau in (1.0, 1e-2, 1e-5)]
    assert gaps[2] <= gaps[1] <= gaps[0] + 1e-12
    assert gaps[2] < 1e-12


@given(matrices(st.just(1)), matrices(st.integers(1, 8)), st.floats(0.02, 5))
def test_the_jacobian_is_bounded_by_four_m_over_tau(z, codes, tau):
    z = z.requires_grad_()
    usage = soft_assignment(z, codes, tau).usage
    rows = [torch.autograd.grad(usage[k], z, retain_graph=True)[0] for k in range(len(codes))]
    largest_norm = max(float(z.detach().norm()), float(codes.norm(dim=1).max()))
    assert sum(float(row.norm()) for row in rows) <= 4 * largest_norm / tau * (1 + 1e-9) + 1e-12


def test_peak_vanishes_exactly_for_one_hot_assignments():
    codes = torch.eye(4, dtype=torch.float64) * 10
    assert torch.equal(soft_assignment(codes, codes, 0.01).purity, torch.ones(4, dtype=torch.float64))
    between = (codes[:1] + codes[1:2]) / 2
    torch.testing.assert_close(soft_assignment(between, codes, 0.01).purity[0].item(), 0.5)


def quantizer_of(codes, tau, **options):
    q = LGQ(codes.shape[1], len(codes), tau_start=tau, **options).double()
    q.codebook.data.copy_(codes)
    return q


@given(matrices(st.integers(1, 6)), matrices(st.integers(1, 8)), st.floats(0.01, 10))
def test_the_peak_term_is_the_mean_distance_from_one_hot(z, codes, tau):
    q = quantizer_of(codes, tau)
    p = (-distances(z, codes) / q.tau).softmax(1)
    peak = float(q(z).terms["peak"])
    assert peak == pytest.approx(float((1 - p.square().sum(1)).mean()), abs=1e-9)
    assert peak >= 0


@given(matrices(st.integers(1, 10)), matrices(st.integers(1, 12)), st.floats(0.01, 10))
def test_diversity_is_at_least_codes_over_support(z, codes, tau):
    usage = (-distances(z, codes) / tau).softmax(1).mean(0)
    support = int((usage > 1e-30).sum())
    assert float(quantizer_of(codes, tau)(z).terms["diversity"]) >= len(codes) / support - 1e-9


@given(st.integers(2, 20), st.integers(2, 30))
def test_diversity_meets_its_bound_exactly_when_usage_is_uniform_on_the_support(support, k):
    assume(support <= k)
    q = quantizer_of(torch.arange(k, dtype=torch.float64)[:, None], 1e-3)
    tokens = torch.arange(support, dtype=torch.float64)[:, None]
    assert float(q(tokens).terms["diversity"]) == pytest.approx(k / support)
    uneven = torch.cat([tokens, tokens[:1]])
    assert float(q(uneven).terms["diversity"]) > k / support * (1 + 1e-6)


@given(matrices(st.integers(1, 12)), matrices(st.integers(1, 16)))
def test_one_hot_diversity_is_at_least_codes_over_tokens(z, codes):
    usage = torch.bincount(nearest_codes(z, codes).indices, minlength=len(codes)).double() / len(z)
    assert len(codes) * float(usage.square().sum()) >= len(codes) / min(len(z), len(codes)) - 1e-9


@pytest.mark.parametrize(("tokens", "codes"), [(8, 8), (8, 64), (64, 8), (6, 4096)])
def test_token_scale_has_a_floor_of_one_for_one_hot_assignments_at_every_size(tokens, codes):
    far_apart = torch.arange(codes, dtype=torch.float64)[:, None]
    z = far_apart[torch.arange(tokens) % codes]
    for scale, floor in (("tokens", 1), ("codes", codes / min(tokens, codes))):
        q = quantizer_of(far_apart, 1e-3, diversity_scale=scale)
        assert float(q(z).terms["diversity"]) == pytest.approx(floor)


@given(matrices(st.integers(1, 10)), matrices(st.integers(2, 10)), st.integers(0, 2**20))
def test_no_other_selection_has_less_error_than_the_nearest_code(z, codes, seed):
    random_indices = torch.from_numpy(np.random.default_rng(seed).integers(len(codes), size=len(z)))
    best, at_random = errors(z, codes), distances(z, codes).gather(1, random_indices[:, None])
    assert best.mean() <= at_random.mean() + 1e-12
    assert best.mean() <= errors(z, codes, "dot").mean() + 1e-12


@given(matrices(st.integers(1, 10)), matrices(st.integers(2, 10)))
def test_excess_error_of_dot_selection_is_within_the_norm_gap(z, codes):
    excess = errors(z, codes, "dot") - errors(z, codes)
    norms = codes.square().sum(1)
    assert float(excess.max()) <= float(norms.max() - norms.min()) + 1e-9


@given(matrices(st.integers(1, 10)), matrices(st.integers(2, 10)))
def test_dot_and_distance_agree_where_all_norms_are_equal(z, codes):
    lengths = codes.norm(dim=1, keepdim=True)
    assume(float(lengths.min()) > 1e-2)
    sphere = codes / lengths
    torch.testing.assert_close(errors(z, sphere, "dot"), errors(z, sphere))
