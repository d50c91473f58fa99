"""The tiled operator equals the dense formulas: values, every gradient, any tile, any precision."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lgq.ops import assignment, search
from lgq.ops.assignment import SoftAssignment, soft_assignment
from lgq.ops.assignment import dense_assignment as plain_assignment
from lgq.ops.search import dense_scores, nearest_codes, squared_distances

pytestmark = pytest.mark.usefixtures("kernel")

SCORES = ("l2", "dot")
ROUTES = ("soft", "hard", "both")
OUTPUTS = ("codes", "purity", "entropy", "usage")


def problem(n, k, c=5, spread=1.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, c, generator=generator, dtype=dtype)
    codes = torch.randn(k, c, generator=generator, dtype=dtype) * spread
    return z.requires_grad_(), codes.requires_grad_()


def values_and_gradients(function, z, codes, tau, parts=OUTPUTS, **options):
    """All outputs, and the gradients of a random combination of the named ones."""
    result = function(z, codes, tau, **options)
    generator = torch.Generator().manual_seed(1)
    loss = 0.0
    for part in parts:
        output = getattr(result, part)
        loss = loss + (output * torch.randn(output.shape, generator=generator, dtype=torch.float64)).sum()
    return [output.detach() for output in result], torch.autograd.grad(loss, (z, codes))


def dense_assignment(z, codes, tau, *, score="l2", codebook_gradient="soft"):
    """`soft_assignment` with n x k matrices and autograd's gradients."""
    logits = (-squared_distances(z, codes) if score == "l2" else z @ codes.T) / tau
    p, indices = logits.softmax(1), logits.argmax(1)
    soft, chosen = p @ (codes.detach() if codebook_gradient == "hard" else codes), codes[indices]
    output = (chosen.detach() if codebook_gradient == "soft" else chosen) + soft - soft.detach()
    entropy = -(p * logits.log_softmax(1)).sum(1)
    return SoftAssignment(output, indices, p.square().sum(1), entropy, p.mean(0))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("size", [30.0, 1000.0])
def test_large_scores_keep_the_precision_of_gradients(score, size):
    """Recomputed scores of 1e6 are off by more than the differences that the weights depend on."""
    generator = torch.Generator().manual_seed(0)
    codes = size * torch.randn(60, 40, generator=generator)
    near = codes[torch.arange(90) % 60] + 0.3 * torch.randn(90, 40, generator=generator)
    results = []
    for dtype in (torch.float32, torch.float64):
        z, e = (part.detach().to(dtype).requires_grad_() for part in (near, codes))
        results.append(values_and_gradients(soft_assignment, z, e, 0.5, score=score))
    (values, (dz, de)), (exact, (exact_dz, exact_de)) = results
    torch.testing.assert_close(values, exact, rtol=1e-5, atol=1e-5, check_dtype=False)
    assert torch.dist(de.double(), exact_de) < 1e-4 * exact_de.norm()
    assert torch.dist(dz.double(), exact_dz) < 1e-4 * exact_de.norm()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("route", ROUTES)
def test_the_formulas_of_exported_programs_equal_the_operator(score, route):
    z, codes = problem(37, 300)
    options = {"score": score, "codebook_gradient": route}

    def exported(*arguments, **options):
        return SoftAssignment(*plain_assignment(*arguments, **options))

    (tiled, gradients), (plain, plain_gradients) = (
        values_and_gradients(function, z, codes, 0.3, **options) for function in (soft_assignment, exported)
    )
    for ours, theirs in zip((*tiled, *gradients), (*plain, *plain_gradients), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert torch.equal(plain[0], codes.detach()[plain[1]]), "the value is the code to the last bit"
    far = 100 + 1e-3 * torch.randn(50, 5), 100 + 1e-3 * torch.randn(40, 5)
    exact = squared_distances(*(part.double() for part in far)).argmin(1)
    assert torch.equal(dense_scores(*far, "l2").argmax(1), exact), "far from the origin, too"


def assert_equal_to_dense(z, codes, tau, *, tile, parts=OUTPUTS, **options):
    tiled, tiled_gradients = values_and_gradients(soft_assignment, z, codes, tau, parts, tile=tile, **options)
    plain, plain_gradients = values_and_gradients(dense_assignment, z, codes, tau, parts, **options)
    largest_score = float(torch.cdist(z.detach(), codes.detach()).square().max()) / tau
    tolerance = max(1.0, largest_score / 1000)
    for ours, theirs in zip((*tiled, *tiled_gradients), (*plain, *plain_gradients), strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10 * scale * tolerance)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tau", [1e-3, 1e-2, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(("n", "k", "tile"), [(1, 1, 1), (1, 7, 64), (19, 1, 4), (37, 300, 8), (64, 129, 64)])
def test_tiled_assignment_matches_dense(score, route, tau, n, k, tile):
    z, codes = problem(n, k)
    assert_equal_to_dense(z, codes, tau, tile=tile, score=score, codebook_gradient=route)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("parts", [parts for size in (1, 2, 3) for parts in combinations(OUTPUTS, size)])
def test_each_set_of_outputs_has_its_gradient(score, route, parts):
    z, codes = problem(11, 30)
    assert_equal_to_dense(z, codes, 0.5, tile=4, score=score, codebook_gradient=route, parts=parts)


@given(
    n=st.integers(1, 40), k=st.integers(1, 400), c=st.integers(1, 9), tile=st.integers(1, 50),
    tau=st.floats(1e-3, 10), spread=st.floats(1e-3, 1e3), score=st.sampled_from(SCORES),
    route=st.sampled_from(ROUTES), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_any_problem_matches_dense(n, k, c, tile, tau, spread, score, route, seed):
    z, codes = problem(n, k, c, spread, seed=seed)
    assert_equal_to_dense(z, codes, tau, tile=tile, score=score, codebook_gradient=route)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_pass_gradcheck(score):
    z, codes = problem(4, 6, 3)

    def smooth_outputs(z, codes):
        result = soft_assignment(z, codes, 0.7, score=score, tile=3)
        return result.purity, result.entropy, result.usage

    assert torch.autograd.gradcheck(smooth_outputs, (z, codes))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("n", "k"), [(33, k) for k in (1, 2, 127, 128, 129, 1000, 4096, 4097)] + [(3000, 5000)]
)
def test_nearest_codes_are_the_dense_argmax(score, n, k):
    z, codes = problem(n, k)
    distances = torch.cdist(z, codes).square()
    expected = distances.argmin(1) if score == "l2" else (z @ codes.T).argmax(1)
    assert torch.equal(nearest_codes(z, codes, score=score).indices, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_chooses_what_float32_of_its_values_does(dtype):
    z, codes = (x.detach() for x in problem(200, 300, dtype=torch.float32))
    half = z.to(dtype)
    assert torch.equal(nearest_codes(half, codes).indices, nearest_codes(half.float(), codes).indices)
    result = soft_assignment(half.requires_grad_(), codes, 0.5)
    reference = soft_assignment(half.float(), codes, 0.5)
    assert result.codes.dtype == dtype
    assert result.purity.dtype == torch.float32
    assert torch.equal(result.indices, reference.indices)
    torch.testing.assert_close(result.usage, reference.usage)
    result.codes.sum().backward()
    assert half.grad.dtype == dtype


def test_second_derivatives_raise_an_error():
    z, codes = problem(5, 6)
    (gradient,) = torch.autograd.grad(soft_assignment(z, codes, 1.0).purity.sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_a_frozen_codebook_gets_no_gradient():
    z, codes = problem(12, 20)
    result = soft_assignment(z, codes.detach(), 0.5, tile=5)
    (ours,) = torch.autograd.grad(result.usage.square().sum() + result.codes.sum(), z)
    reference = dense_assignment(z, codes.detach(), 0.5)
    (theirs,) = torch.autograd.grad(reference.usage.square().sum() + reference.codes.sum(), z)
    torch.testing.assert_close(ours, theirs)


def test_no_weight_is_denormal_however_far_the_codes():
    # Scores of -80 to -110: a plain softmax has weights between the smallest denormal and normal number.
    codes = torch.cat([torch.zeros(1), torch.linspace(80, 110, 300).sqrt()])[:, None]
    z = torch.zeros(1, 1)
    tiny = torch.finfo(torch.float32).tiny
    plain = dense_assignment(z, codes, 1.0).usage
    assert ((plain > 0) & (plain < tiny)).any(), "the case must reach the denormal numbers"
    weights = soft_assignment(z, codes, 1.0).usage
    assert (weights >= tiny).all()
    torch.testing.assert_close(weights, plain, rtol=0, atol=1e-18)


@pytest.mark.parametrize("k", [2, 3, 130])
def test_gradients_of_one_vector_on_its_code_have_full_precision(k):
    """The gradient is of the order of the other weights, here exp(-40); padding columns add nothing."""
    z = torch.zeros(1, 3, requires_grad=True)
    codes = torch.cat([torch.zeros(1, 3), torch.nn.functional.normalize(torch.randn(k - 1, 3)) * 2])
    single = torch.autograd.grad(soft_assignment(z, codes, 0.1).codes.sum(), z)[0]
    double = z.detach().double().requires_grad_()
    exact = torch.autograd.grad(soft_assignment(double, codes.double(), 0.1).codes.sum(), double)[0]
    assert (single.double() - exact).norm() <= 1e-4 * exact.norm()


@pytest.mark.parametrize("offset", [10.0, 100.0, 1000.0])
def test_vectors_far_from_the_origin_get_the_right_codes(offset):
    z, codes = (x.detach() for x in problem(200, 1000, 64, dtype=torch.float32))
    z, codes = z + offset, codes + offset
    exact = soft_assignment(z.double(), codes.double(), 5.0)
    result = soft_assignment(z, codes, 5.0)
    assert torch.equal(result.indices, exact.indices)
    assert torch.equal(nearest_codes(z, codes).indices, exact.indices)
    torch.testing.assert_close(result.purity.double(), exact.purity, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tau", [0.307, 1.0, 3.3])
def test_both_operators_break_ties_equally(score, tau):
    grid = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
    z = torch.randint(0, 16, (500, 2)) / 2
    assert torch.equal(
        soft_assignment(z, grid, tau, score=score).indices, nearest_codes(z, grid, score=score).indices
    )


@pytest.mark.parametrize("score", SCORES)
def test_operators_keep_the_contract_of_torch_and_inputs_need_not_be_contiguous(score):
    z, codes = problem(9, 14)
    transposed = [x.detach().T.contiguous().T.requires_grad_() for x in (z, codes)]
    tau = torch.tensor(0.4, dtype=torch.float64)
    for inputs in ((z, codes), transposed):
        torch.library.opcheck(assignment._soft_assignment, (*inputs, tau, score, "both", 4))
    torch.library.opcheck(search._nearest_codes, (z.detach(), codes.detach(), score))
    plain = values_and_gradients(soft_assignment, z, codes, 0.4, score=score)
    strided = values_and_gradients(soft_assignment, *transposed, 0.4, score=score)
    torch.testing.assert_close(strided, plain)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, e: soft_assignment(z, e, 0.0), "`tau` must be positive and finite, got 0.0"),
        (lambda z, e: soft_assignment(z, e, -1.0), "`tau` must be positive and finite, got -1.0"),
        (lambda z, e: soft_assignment(z, e, float("nan")), "`tau` must be positive and finite, got nan"),
        (lambda z, e: soft_assignment(z, e, torch.tensor(1.0, requires_grad=True)), "without a gradient"),
        (lambda z, e: soft_assignment(z, e, torch.ones(2)), r"single number .* got shape \(2,\)"),
        (lambda z, e: soft_assignment(z, e, 1.0, tile=0), "`tile` must be at least 1 vector, got 0"),
        (lambda z, e: nearest_codes(z, e[:0]).indices, "at least one code"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_bad_settings_raise_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call(*problem(3, 4))
