"""BSQ, DiVeQ, VQGAN-LC, Wasserstein VQ and the options that methods share, by independent writings."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from torch import nn

from lgq import (
    BSQ,
    FSQ,
    IBQ,
    LGQ,
    VQ,
    DiVeQ,
    Grouped,
    MultiScale,
    ProjectedVQ,
    Residual,
    SimVQ,
    WassersteinVQ,
)
from lgq.errors import LGQError, LGQWarning
from lgq.ops.numerics import gaussian_distance
from lgq.ops.search import nearest_codes, sample_codes

DIM, SIZE = 6, 16


def latents(n: int = 40, dim: int = DIM, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, dim, dtype=dtype)


# --- BSQ -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_bsq_is_signs_on_the_sphere_with_entropies_over_all_corners(groups):
    q = BSQ(DIM, SIZE, groups=groups, inverse_temperature=3.0, entropy_weight=0.2, commitment_weight=0.5)
    q, z = q.double(), latents()
    out = q(z)
    v = (z @ q.project_in.weight.T + q.project_in.bias).detach().numpy()
    u = v / np.linalg.norm(v, axis=1, keepdims=True)
    codes = np.where(u > 0, 0.5, -0.5)  # 1 / sqrt(4 bits)
    assert np.array_equal(out.indices.numpy(), ((u > 0) * 2 ** np.arange(4)).sum(1))
    expected = torch.from_numpy(codes) @ q.project_out.weight.T + q.project_out.bias
    torch.testing.assert_close(out.quantized, expected)
    vector, batch = 0.0, 0.0
    bits = 4 // groups
    for part in np.split(u, groups, axis=1):
        corners = np.array(list(itertools.product([-0.5, 0.5], repeat=bits)))
        p = np.exp(3.0 * 2 * part @ corners.T)
        p /= p.sum(1, keepdims=True)
        vector += -(p * np.log(p)).sum(1).mean()
        batch += -(p.mean(0) * np.log(p.mean(0))).sum()
    assert out.terms["vector_entropy"].item() == pytest.approx(vector, abs=1e-10)
    assert out.terms["batch_entropy"].item() == pytest.approx(batch, abs=1e-10)
    commitment = ((u - codes) ** 2).sum(1).mean()
    assert out.loss.item() == pytest.approx(0.5 * commitment + 0.2 * (vector - batch) / 3.0, abs=1e-10)


def test_bsq_starts_with_the_settings_of_the_released_models():
    q = BSQ(DIM, SIZE)
    assert (q.entropy_weight, q.commitment_weight, q.inverse_temperature) == (0.1, 0.0, 1.0)


def test_bsq_takes_more_codes_than_a_table_could_hold():
    q = BSQ(DIM, 2**36, groups=4)
    out = q(torch.randn(5, DIM))
    assert torch.isfinite(out.loss)
    torch.testing.assert_close(q.decode(out.indices), out.quantized)


# --- DiVeQ, gradients of codes, matching ---------------------------------------------------------------


def test_diveq_moves_vectors_and_codes_by_the_step_between_them():
    q, z = DiVeQ(DIM, SIZE, noise_variance=0.01, seed=0).double(), latents().requires_grad_()
    upstream = latents()
    torch.manual_seed(3)
    out = q(z)
    assert torch.equal(out.quantized, q.codebook[out.indices]), "the value is the code"
    assert out.loss == 0
    ours = torch.autograd.grad((out.quantized * upstream).sum(), [z, q.codebook])
    torch.manual_seed(3)
    step = q.codebook[out.indices] - z
    noisy = step + torch.randn_like(step) * 0.1
    direction = (noisy / noisy.norm(dim=1, keepdim=True)).detach()
    published = z + direction * step.norm(dim=1, keepdim=True)
    theirs = torch.autograd.grad((published * upstream).sum(), [z, q.codebook])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_codes_learn_by_gradient_where_asked():
    q = VQ(DIM, SIZE, learning="gradient", commitment_weight=0.25, codebook_weight=2.0, seed=0).double()
    z = latents().requires_grad_()
    out = q(z)
    codes = q.codebook[out.indices]
    loss = 2 * F.mse_loss(codes, z.detach()) + 0.25 * F.mse_loss(z, codes.detach())
    torch.testing.assert_close(out.loss, loss)
    for ours, theirs in zip(
        torch.autograd.grad(out.loss, [z, q.codebook]),
        torch.autograd.grad(loss, [z, q.codebook]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    before = q.codebook.detach().clone()
    q(z)
    assert torch.equal(q.codebook, before), "no running mean moves them"


@pytest.mark.filterwarnings("ignore:the latents of")  # of latents that the test chose
def test_seldom_codes_that_learn_by_gradient_are_revived_in_the_next_batch():
    q = DiVeQ(DIM, SIZE, restart_below=0.9, decay=0.5, seed=0)
    z = torch.randn(64, DIM) * 0.01 + 5
    out = q(z)
    torch.testing.assert_close(q.decode(out.indices), out.quantized)
    before = q.codebook.detach().clone()
    q(z)
    moved = (q.codebook != before).any(1)
    assert moved.sum() >= SIZE - 2
    assert (torch.cdist(q.codebook[moved], z).amin(1) < 0.01).all()


@pytest.mark.parametrize("vectors", [50, 4])
def test_the_distance_of_gaussians_is_the_closed_form(vectors):
    a, b = latents(vectors), latents(80) * 0.5 + 1
    means = a.mean(0).numpy(), b.mean(0).numpy()
    covariances = np.cov(a.numpy().T), np.cov(b.numpy().T)
    root = scipy.linalg.sqrtm(covariances[0])
    cross = np.trace(scipy.linalg.sqrtm(root @ covariances[1] @ root)).real
    squared = (
        ((means[0] - means[1]) ** 2).sum() + np.trace(covariances[0]) + np.trace(covariances[1]) - 2 * cross
    )
    assert gaussian_distance(a, b).item() == pytest.approx(squared**0.5, abs=1e-6)
    assert gaussian_distance(a, a).item() < 1e-3
    for few in (a[:1], a[:0]):
        distance = gaussian_distance(few, b.requires_grad_())
        (gradient,) = torch.autograd.grad(distance, b)
        assert distance == 0
        assert not gradient.any()


@pytest.mark.filterwarnings("ignore:the latents of")  # of latents that the test chose
def test_matching_moves_codes_that_no_vector_chose():
    q = VQ(DIM, SIZE, learning="gradient", matching_weight=1.0, codebook_weight=0.0, seed=0)
    z = torch.randn(64, DIM) * 0.1 + 3
    out = q(z)
    torch.testing.assert_close(out.terms["matching"], gaussian_distance(z, q.codebook).detach())
    still = VQ(DIM, SIZE, learning="gradient", commitment_weight=0.0, matching_weight=1.0, seed=0)
    (pulled,) = torch.autograd.grad(still(z.requires_grad_()).loss, z)
    assert not pulled.any()  # as published, latents are constants in the distance
    (gradient,) = torch.autograd.grad(out.loss, q.codebook)
    assert (gradient.abs().sum(1) > 0).all()


@pytest.mark.filterwarnings("ignore:the latents of")  # of latents that the test chose
def test_wasserstein_vq_brings_the_codes_to_latents_that_are_far_away():
    z, used = torch.randn(512, DIM) * 0.5 + 4, {}
    for make in (WassersteinVQ, partial(VQ, learning="gradient", commitment_weight=0.1)):
        q = make(DIM, SIZE, seed=0)
        optimizer = torch.optim.AdamW(q.parameters(), lr=0.02)
        for _ in range(200):
            optimizer.zero_grad()
            q(z).loss.backward()
            optimizer.step()
        used[make] = q(z).indices.unique().numel()
    assert used[WassersteinVQ] >= SIZE - 2
    assert min(used.values()) == 1


# --- VQGAN-LC ------------------------------------------------------------------------------------------


def test_projected_codes_are_a_linear_map_of_frozen_features():
    features = torch.randn(SIZE, 9)
    q = ProjectedVQ(features, DIM, seed=0)
    z = torch.randn(30, DIM, requires_grad=True)
    out = q(z)
    codes = features @ q.transform.weight.T + q.transform.bias
    indices = torch.cdist(z, codes).argmin(1)
    assert torch.equal(out.indices, indices)
    torch.testing.assert_close(out.quantized, codes[indices])
    torch.testing.assert_close(out.loss, 1.25 * F.mse_loss(codes[indices], z))
    assert [name for name, _ in q.named_parameters()] == ["transform.weight", "transform.bias"]
    assert torch.equal(q.features, features)


# --- Options -------------------------------------------------------------------------------------------

COSINE = [
    lambda **o: VQ(DIM, SIZE, score="cosine", seed=0, **o),
    lambda **o: VQ(DIM, SIZE, score="cosine", learning="gradient", seed=0, **o),
    lambda **o: LGQ(DIM, SIZE, score="cosine", seed=0, **o),
    lambda **o: IBQ(DIM, SIZE, score="cosine", seed=0, **o),
    lambda **o: SimVQ(DIM, SIZE, score="cosine", seed=0, **o),
]


@pytest.mark.parametrize("make", COSINE)
def test_cosine_compares_angles_and_returns_unit_codes(make):
    q = make()
    z = torch.randn(50, DIM)
    out = q(z)
    units = F.normalize(q.codebook, dim=1)
    assert torch.equal(out.indices, (F.normalize(z, dim=1) @ units.T).argmax(1))
    torch.testing.assert_close(out.quantized.norm(dim=1), torch.ones(50))
    longer = make()(z * torch.rand(50, 1) * 9)
    assert torch.equal(longer.indices, out.indices)
    torch.testing.assert_close(longer.loss, out.loss)
    for _ in range(2):
        q(z)
    torch.testing.assert_close(q.decode(out.indices).norm(dim=1), torch.ones(50))


LOW = [
    lambda dim, **o: VQ(dim, SIZE, seed=0, **o),
    lambda dim, **o: LGQ(dim, SIZE, seed=0, **o),
    lambda dim, **o: IBQ(dim, SIZE, seed=0, **o),
    lambda dim, **o: SimVQ(dim, SIZE, seed=0, **o),
]


@pytest.mark.parametrize("make", LOW)
@pytest.mark.filterwarnings("ignore:the latents of")  # of latents that the test chose
def test_low_dimensional_codes_lie_between_two_projections(make):
    outer, inner = make(DIM, codebook_dim=2), make(2)
    z = torch.randn(30, DIM)
    out, expected = outer(z), inner(outer.project_in(z))
    assert outer.codebook.shape == (SIZE, 2)
    assert torch.equal(out.indices, expected.indices)
    torch.testing.assert_close(out.quantized, outer.project_out(expected.quantized))
    torch.testing.assert_close(out.loss, expected.loss)
    assert torch.equal(outer.eval().encode(z), inner.eval().encode(outer.project_in(z)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: VQ(DIM, SIZE, restart_below=0.5, init="kmeans"),
        lambda: LGQ(DIM, SIZE, scale="data", init="data"),
        lambda: DiVeQ(DIM, SIZE),
        lambda: Residual.of(lambda: VQ(DIM, SIZE), 2),
        lambda: Grouped.of(lambda: IBQ(DIM // 2, SIZE), 2),
    ],
)
@pytest.mark.filterwarnings("ignore:the codes of .* are still random numbers")
def test_frozen_quantizers_stay_as_they_are_and_still_move_latents(make):
    q = make().freeze()
    before = copy.deepcopy(q.state_dict())
    z = torch.randn(50, DIM, requires_grad=True)
    for _ in range(2):
        out = q(z)
    (out.loss + out.quantized.sum()).backward()
    assert all(torch.equal(value, before[name]) for name, value in q.state_dict().items())
    assert all(parameter.grad is None for parameter in q.parameters())
    assert z.grad.abs().sum() > 0
    q.unfreeze()
    assert all(parameter.requires_grad for parameter in q.parameters())
    for _ in range(2):
        out = q(z)
    (out.loss + out.quantized.square().sum()).backward()
    learned = any(parameter.grad is not None for parameter in q.parameters())
    assert learned or any(not torch.equal(value, before[name]) for name, value in q.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: VQ(DIM, SIZE, codebook_dim=3, restart_below=0.5, init="kmeans"),
        lambda: LGQ(DIM, SIZE, codebook_dim=3),
        lambda: SimVQ(DIM, SIZE, codebook_dim=3),
        lambda: FSQ(DIM, SIZE),
        lambda: Residual.of(lambda: VQ(3, SIZE, learning="gradient"), 2, dim=DIM),
        lambda: MultiScale(VQ(DIM, SIZE), (5, 10), axes=1),
    ],
)
@pytest.mark.filterwarnings("ignore:the codes of .* are still random numbers")
def test_quantizers_whose_codes_alone_are_frozen_learn_their_maps(make):
    q = make().freeze().freeze(codes_only=True)
    before = copy.deepcopy(q.state_dict())
    z = torch.randn(5, 10, DIM)
    q(z)
    out = q(z)
    (out.loss + out.quantized.square().sum()).backward()
    learned = {name for name, parameter in q.named_parameters() if parameter.grad is not None}
    assert learned
    assert learned == {name for name in dict(q.named_parameters()) if name.startswith(("project", "smooth"))}
    assert all(torch.equal(value, before[name]) for name, value in q.state_dict().items())
    assert all(parameter.requires_grad for parameter in q.unfreeze().parameters())


def test_codes_are_drawn_with_the_probabilities_of_the_softmax():
    codes, z = torch.randn(5, DIM), torch.randn(1, DIM)
    drawn = sample_codes(z.expand(20_000, DIM), codes, 2.0).indices.bincount(minlength=5) / 20_000
    expected = (-(z - codes).square().sum(1) / 2.0).softmax(0)
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0.02)
    many, vectors = torch.randn(9_000, 3), torch.randn(20, 3)
    assert torch.equal(sample_codes(vectors, many, 1e-9).indices, nearest_codes(vectors, many).indices)
    spread = sample_codes(vectors[:1].expand(2_000, 3), many, 1e9).indices
    assert spread.max() > 8_000
    assert spread.min() < 1_000


@pytest.mark.parametrize("make", LOW)
def test_training_draws_codes_where_asked_and_eval_mode_does_not(make):
    q, z = make(DIM, sample_temperature=5.0), torch.randn(300, DIM, requires_grad=True)
    nearest = make(DIM).eval().encode(z)
    out = q(z)
    assert (out.indices != nearest).float().mean() > 0.3
    torch.testing.assert_close(q.decode(out.indices), out.quantized)
    (out.quantized.sum() + out.loss).backward()
    assert torch.isfinite(z.grad).all()
    assert torch.equal(make(DIM, sample_temperature=5.0).eval()(z).indices, nearest)


@pytest.mark.parametrize("make", [LGQ, IBQ, VQ, DiVeQ, SimVQ])
@pytest.mark.parametrize("init", ["data", "kmeans"])
def test_every_learned_codebook_can_start_at_the_latents(make, init):
    q = make(DIM, SIZE, init=init, seed=0)
    z = torch.randn(64, DIM) + 2
    q(z)
    assert (torch.cdist(q.codebook.detach(), z).amin(1) < (0.02 if init == "data" else 3)).all()
    other = make(DIM, SIZE, init=init, seed=0)
    other.load_state_dict(q.state_dict())
    other(torch.randn(64, DIM))
    torch.testing.assert_close(other.codebook.detach().mean(), q.codebook.detach().mean(), rtol=0.2, atol=0)


# --- The scale of the latents --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"init": "data"},
        {"init": "kmeans", "latent_weight": 1.0},
        {"score": "dot"},
        {"score": "cosine"},
        {"codebook_dim": 3},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_with_the_scale_of_the_data_an_offset_and_a_factor_change_only_those_of_the_output(options):
    plain, moved = (LGQ(DIM, SIZE, scale="data", seed=0, **options).double() for _ in range(2))
    offset, factor = 1000 * torch.randn(DIM).double(), 256
    if "codebook_dim" in options:  # what is measured lies behind the projection
        offset, factor = torch.zeros(DIM).double(), 1
        with torch.no_grad():
            moved.project_in.weight *= 64
            moved.project_in.bias.mul_(64).add_(500)
            moved.project_out.weight /= 64
            moved.project_out.bias -= moved.project_out.weight.sum(1) * 500
    for step in range(12):
        z = (latents() * (1 + step) + step).requires_grad_()
        y = (z.detach() * factor + offset).requires_grad_()
        outs = plain(z), moved(y)
        assert torch.equal(outs[0].indices, outs[1].indices)
        torch.testing.assert_close(outs[0].loss, outs[1].loss)
        torch.testing.assert_close(outs[0].quantized * factor + offset, outs[1].quantized)
        torch.testing.assert_close(plain.eval()(z).quantized * factor + offset, moved.eval()(y).quantized)
        target = torch.randn_like(z)
        gradients = [
            torch.autograd.grad(out.loss + (out.quantized * target).mean() / size, (x, q.codebook))
            for out, q, x, size in ((outs[0], plain, z, 1), (outs[1], moved, y, factor))
        ]
        torch.testing.assert_close(gradients[0][0], gradients[1][0] * factor)
        if "codebook_dim" not in options:
            torch.testing.assert_close(gradients[0][1], gradients[1][1])
        plain.train(), moved.train()


def test_the_mean_and_the_spread_are_running_ones_and_resume():
    q = LGQ(DIM, SIZE, scale="data")
    batches = [torch.randn(30, DIM) * (i + 1) + 5 * i for i in range(15)]
    for batch in batches:
        q(batch)
    together = torch.cat(batches)  # batches of equal size count alike in the beginning
    torch.testing.assert_close(q.latent_mean, together.mean(0))
    torch.testing.assert_close(q.latent_spread, together.std(0, correction=0).square().mean().sqrt())
    resumed = LGQ(DIM, SIZE, scale="data")
    resumed.load_state_dict(q.state_dict())
    for quantizer in (q, resumed):
        quantizer(batches[3])
    torch.testing.assert_close(resumed.state_dict(), q.state_dict(), rtol=0, atol=0)
    assert int(q.measured_batches) == 16
    assert "latent_mean" not in LGQ(DIM, SIZE).state_dict()


def test_the_measures_follow_latents_that_drift(monkeypatch):
    monkeypatch.setattr("lgq.quantizers.lgq._MEASURE_DECAY", 0.5)
    q = LGQ(DIM, SIZE, scale="data")
    q(torch.randn(300, DIM))
    for _ in range(30):
        q(100 + 50 * torch.randn(300, DIM))
    assert float(q.latent_spread) == pytest.approx(50, rel=0.05)
    assert float(q.latent_mean.mean()) == pytest.approx(100, rel=0.05)


def test_measures_are_taken_in_training_alone_and_once_per_batch():
    q = LGQ(DIM, SIZE, scale="data")
    q.eval()(torch.randn(30, DIM) * 7)
    assert int(q.measured_batches) == 0
    shared = Residual.of(lambda: q, 3, shared=True).train()
    z = torch.randn(30, DIM) + 3
    out = shared(z)
    assert int(q.measured_batches) == 1
    torch.testing.assert_close(shared.decode(out.indices), out.quantized)
    q(torch.zeros(0, DIM))
    assert int(q.measured_batches) == 1, "an empty batch has no mean"


@pytest.mark.parametrize("value", [0.0, 3.7])
def test_latents_that_are_all_equal_give_finite_gradients(value):
    q = LGQ(DIM, SIZE, scale="data", seed=0)
    for _ in range(2):
        z = torch.full((30, DIM), value, requires_grad=True)
        out = q(z)
        (out.loss + out.quantized.square().sum()).backward()
        assert torch.isfinite(z.grad).all()
        assert torch.isfinite(out.quantized).all()
    q(torch.randn(30, DIM))
    assert len(q(torch.randn(30, DIM)).indices.unique()) > 5


def test_given_codes_are_in_units_of_the_latents_whatever_the_scale():
    q, z = LGQ(DIM, SIZE, scale="data"), 3 * torch.randn(200, DIM) + 10
    codes = z[:SIZE].clone()
    with pytest.raises(LGQError, match=r"measured no latents yet.*after one training batch"):
        q.set_codebook(codes)
    q(z)
    q.set_codebook(codes)
    torch.testing.assert_close(q.decode(torch.arange(SIZE)), codes)
    assert torch.equal(q.eval().encode(codes), torch.arange(SIZE))


def test_another_batch_may_be_measured_before_the_backward_pass():
    q, z = LGQ(DIM, SIZE, scale="data").double(), latents().requires_grad_()
    twin = copy.deepcopy(q)
    (expected,) = torch.autograd.grad(q(z).quantized.sum(), z)
    out = twin(z)
    twin(10 * latents() + 3)
    (gradient,) = torch.autograd.grad(out.quantized.sum(), z)
    assert torch.equal(gradient, expected)


def test_a_state_from_before_the_mean_was_measured_gives_the_same_codes_and_stays():
    q = LGQ(DIM, SIZE, scale="data", seed=0)
    old = {name: value for name, value in q.state_dict().items() if not name.startswith("latent_")}
    old |= {"latent_rms": torch.tensor(4.0), "measured_batches": torch.tensor(10.0)}
    nested = {f"quantizer.{name}": value for name, value in old.items()}
    nn.ModuleDict({"quantizer": q}).load_state_dict(nested)
    z = 4 * torch.randn(30, DIM)
    expected = LGQ(DIM, SIZE, seed=0).eval()(z / 4)
    for mode in (True, False):
        out = q.train(mode)(z)
        assert torch.equal(out.indices, expected.indices)
        torch.testing.assert_close(out.quantized, expected.quantized * 4)


def test_the_unit_scale_warns_and_names_the_way_out():
    with pytest.warns(LGQWarning, match=r'standard deviation of.*set scale="data"'):
        LGQ(DIM, SIZE)(torch.randn(30, DIM) * 100)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BSQ(4, 12),
            "BSQ codes are bit strings, so `codebook_size` must be.*got 12: try 8",
        ),
        (lambda: BSQ(4, 16, groups=3), "`groups` must divide the 4 bits of 16 codes, got 3"),
        (
            lambda: VQ(4, 8, matching_weight=1.0),
            "`matching_weight` needs codes that have gradients: set learn",
        ),
        (
            lambda: VQ(4, 8, gradient="step"),
            '`gradient` "step" needs codes that have gradients: set learn',
        ),
        (lambda: VQ(4, 8, learning="adam"), "`learning` must be 'ema' or 'gradient', got 'adam'"),
        (lambda: VQ(4, 8, score="dot"), "`score` must be 'l2' or 'cosine', got 'dot'"),
        (lambda: IBQ(4, 8, score="l2"), "`score` must be 'dot' or 'cosine', got 'l2'"),
        (lambda: LGQ(4, 8, scale="auto"), "`scale` must be 'unit' or 'data', got 'auto'"),
        (lambda: LGQ(4, 8, codebook_dim=0), "`codebook_dim` must be at least 1, got 0"),
        (lambda: SimVQ(4, 8, sample_temperature=-1.0), "`sample_temperature` must be at least 0, got -1.0"),
        (lambda: LGQ(4, 8, init="zeros"), "`init` must be 'normal' or 'data' or 'kmeans', got 'zeros'"),
        (
            lambda: ProjectedVQ(torch.zeros(3), 4),
            r"a float matrix with one row per code, got \(3,\)",
        ),
        (lambda: ProjectedVQ([[1.0]], 4), "features must be a float matrix with one row per code, got list"),
        (lambda: ProjectedVQ(torch.full((2, 2), float("nan")), 4), "contain NaN or infinity: leave out"),
    ],
)
def test_bad_options_raise_an_error(make, message):
    with pytest.raises(LGQError, match=message):
        make()


def test_fixed_grids_can_be_frozen_too():
    assert not any(parameter.requires_grad for parameter in FSQ(4, 8).freeze().parameters())
