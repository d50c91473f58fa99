"""LGQ: its loss against the plain formula, annealing, and each option."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from lgq.quantizers import LGQ, build_quantizer

pytestmark = pytest.mark.usefixtures("kernel")  # the formulas hold with both implementations


def plain(z, codes, tau, *, score="l2", peak=0.005, diversity=0.005, scale="codes", latent=0.0, hard=False):
    """The paper's equations, written out."""
    logits = (-(z[:, None] - codes).square().sum(2) if score == "l2" else z @ codes.T) / tau
    p = logits.softmax(1)
    soft = p @ codes
    chosen = codes[p.argmax(1)]
    output = (chosen if hard else chosen.detach()) + soft - soft.detach()
    floor = len(codes) if scale == "codes" else min(len(z), len(codes))
    loss = peak * F.relu(1 - p.square().sum(1)).mean() + diversity * floor * p.mean(0).square().sum()
    return output, loss + latent * F.mse_loss(output, z)


OPTIONS = [
    ({}, {}),
    ({"score": "dot"}, {"score": "dot"}),
    ({"peak_weight": 0.3}, {"peak": 0.3}),
    ({"diversity_weight": 0.7}, {"diversity": 0.7}),
    ({"diversity_scale": "tokens"}, {"scale": "tokens"}),
    ({"latent_weight": 0.4}, {"latent": 0.4}),
    ({"hard_gradient": True}, {"hard": True}),
    ({"sync_usage": True}, {}),
]


@pytest.mark.parametrize(("options", "formula"), OPTIONS, ids=lambda value: str(value))
def test_output_loss_and_gradients_are_the_paper_s(options, formula):
    q = LGQ(5, 40, **options).double()
    q.anneal(0.6)
    z = torch.randn(30, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(z)
    out = q(z)
    output, loss = plain(z, q.codebook, float(q.tau), **formula)
    torch.testing.assert_close(out.quantized, output)
    torch.testing.assert_close(out.loss, loss)
    ours = torch.autograd.grad(out.loss + (out.quantized * weights).sum(), (z, q.codebook))
    theirs = torch.autograd.grad(loss + (output * weights).sum(), (z, q.codebook))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("shape", "half", "end"), [("linear", 0.55, 0.1), ("cosine", 0.55, 0.1), ("constant", 1.0, 1.0)]
)
def test_temperature_follows_its_shape(shape, half, end):
    q = LGQ(2, 3, tau_shape=shape)
    temperatures = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        q.anneal(progress)
        temperatures.append(float(q.tau))
    quarter = {"linear": 0.775, "cosine": 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2, "constant": 1.0}
    assert temperatures == pytest.approx([1.0, quarter[shape], half, end])


def test_the_representation_shows_the_present_temperature():
    q = LGQ(2, 3, seed=4, tau_end=0.5)
    q.anneal(0.5)
    assert repr(q) == "LGQ(dim=2, codebook_size=3, tau_end=0.5, seed=4, tau=0.75)"


def test_annealing_between_forward_and_backward_changes_no_gradient():
    q, z = LGQ(3, 8), torch.randn(10, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(q(z).quantized.sum(), z)
    out = q(z)
    q.anneal(1.0)
    (gradient,) = torch.autograd.grad(out.quantized.sum(), z)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_temperature_keeps_its_precision_in_half(dtype):
    q = LGQ(3, 8, tau_end=1e-8).to(dtype)
    q.anneal(1.0)
    assert float(q.tau) == pytest.approx(1e-8)
    assert q.codebook.dtype == dtype


def test_evaluation_does_not_communicate(monkeypatch):
    def refuse(x):
        raise AssertionError("an evaluation on one process would wait for the others forever")

    monkeypatch.setattr("lgq.quantizers.lgq.sum_over_ranks", refuse)
    q = LGQ(3, 8, sync_usage=True).eval()
    q(torch.randn(4, 3, requires_grad=True)).quantized.sum().backward()


@pytest.mark.filterwarnings("ignore:the codes of .* are still random numbers")
def test_data_init_copies_latents_of_the_first_training_batch_once():
    q = LGQ(3, 8, init="data")
    normal = q.codebook.detach().clone()
    q.eval()(torch.randn(20, 3))
    assert torch.equal(q.codebook, normal), "an evaluation must not initialize the codebook"
    z = torch.randn(20, 3)
    q.train()(z)
    codes = q.codebook.detach().clone()
    assert (torch.cdist(codes, z).min(1).values < 1e-6).all()
    resumed = LGQ(3, 8, init="data")
    resumed.load_state_dict(q.state_dict())
    for initialized in (q, resumed):
        initialized(torch.randn(20, 3))
        assert torch.equal(initialized.codebook, codes)


def test_data_init_from_few_latents_makes_distinct_codes():
    q = LGQ(3, 50, init="data")
    q(torch.randn(7, 3))
    assert len(q.codebook.unique(dim=0)) == 50


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_start": 0.0}, "`tau_start` must be positive and finite, got 0.0"),
        ({"tau_end": -1.0}, "`tau_end` must be positive and finite, got -1.0"),
        ({"peak_weight": "a"}, "`peak_weight` must be at least 0, got 'a'"),
        ({"peak_weight": -0.1}, "`peak_weight` must be at least 0, got -0.1"),
        ({"latent_weight": float("nan")}, "`latent_weight` must be at least 0, got nan"),
        ({"score": "sine"}, "`score` must be 'l2' or 'dot' or 'cosine', got 'sine'"),
        ({"tau_shape": "step"}, "`tau_shape` must be 'linear' or 'cosine' or 'constant', got 'step'"),
        ({"diversity_scale": "k"}, "`diversity_scale` must be 'codes' or 'tokens', got 'k'"),
        ({"init": "zeros"}, "`init` must be 'normal' or 'data' or 'kmeans', got 'zeros'"),
    ],
)
def test_bad_settings_raise_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        LGQ(4, 8, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lqg", {}, "unknown quantizer 'lqg': did you mean 'lgq'?"),
        ("zzz", {}, "Registered are lgq, ibq, vq, rotvq, fsq, lfq, simvq"),
        ("lgq", {"peak_wieght": 1.0}, "unknown lgq option 'peak_wieght': did you mean 'peak_weight'?"),
        ("fsq", {"decay": 0.9}, "unknown fsq option 'decay': choose from channel_dim, levels, bound, seed"),
    ],
)  # fmt: skip
def test_errors_about_unknown_names_list_the_known_ones(name, options, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        build_quantizer(name, 4, 8, **options)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("dim", "size", "message"),
    [
        (8.0, 16, "`dim` must be a whole number, got 8.0"),
        (True, 16, "`dim` must be a whole number, got True"),
        (8, "16", "`codebook_size` must be a whole number, got '16'"),
        (-1, 8, "`dim` must be at least 1"),
        (4, 0, "`codebook_size` must be at least 1"),
    ],
)
def test_sizes_that_are_not_positive_integers_raise_an_error(dim, size, message):
    with pytest.raises(ValueError, match=message):
        LGQ(dim, size)


@pytest.mark.filterwarnings("ignore:the latents of")  # of codes that the test chose
@pytest.mark.parametrize(("tau", "tolerance"), [(0.1, 1e-5), (0.05, 1e-4)])
def test_float32_gradients_of_nearly_one_hot_rows_equal_those_of_float64(tau, tolerance, kernel):
    """Per row: in the norm of the whole matrix, a few uncertain rows would hide the others."""
    if kernel == "triton":  # whose products of gradients have 16 bits
        tolerance = max(tolerance, 2**-15)
    single = LGQ(64, 2048, tau_start=tau)
    exact = copy.deepcopy(single).double()
    codes = single.codebook.detach()[torch.randint(2048, (512,))]
    z = codes + 0.02 * torch.rand(512, 1) * F.normalize(torch.randn(512, 64))
    projection = torch.randn(512, 64)

    def gradient(q, z, projection):
        out = q(z.requires_grad_())
        return torch.autograd.grad((out.quantized * projection).sum() + out.loss, z)[0].double()

    expected = gradient(exact, z.double(), projection.double())
    errors = (gradient(single, z, projection) - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(errors.median()) <= tolerance


def test_training_with_the_default_loss_spreads_the_codes_over_clustered_data():
    """After a short training, no code is dead and the error has fallen."""
    centres = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))
    z = (centres.repeat_interleave(16, 0) + 0.05 * torch.randn(256, 4)).double()
    q = LGQ(4, 16, diversity_weight=0.05, seed=0).double()  # in float32, rounding decides where a code ends
    optimizer = torch.optim.Adam(q.parameters(), lr=0.1)
    before = (q(z).quantized - z).square().mean()
    for step in range(80):
        q.anneal(step / 79)
        out = q(z)
        optimizer.zero_grad()
        (out.loss + (out.quantized - z).square().mean()).backward()
        optimizer.step()
    assert len(q(z).indices.unique()) == 16
    assert (q(z).quantized - z).square().mean() < before / 3


def test_a_quantizer_of_one_s_own_that_returns_a_plain_tuple_is_told_what_to_return():
    class Plain(LGQ):
        def quantize_vectors(self, z):
            return tuple(super().quantize_vectors(z))

    with pytest.raises(
        ValueError, match=r"quantize_vectors of Plain returned tuple.*return Quantized\(quantized"
    ):
        Plain(3, 8)(torch.randn(4, 3))
