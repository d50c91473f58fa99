"""Each baseline against a second, plain implementation of its published formulas.

Expected values come from loops and dense matrices in float64.
n = vectors, k = codes, c = channels.
"""

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lgq.errors import LGQError
from lgq.quantizers import BSQ, FSQ, IBQ, LFQ, LGQ, VQ, Residual, ResidualFSQ, SimVQ, build_quantizer

Array = NDArray[np.float64]
LOSS_FACTOR = 1.7  # weight of the loss beside the output, so that neither hides an error in the other


# --- tools ---------------------------------------------------------------------------------------------


def numbers(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape) * scale


def tensor(x: object, *, grad: bool = False) -> Tensor:
    return torch.tensor(np.array(x, dtype=np.float64), requires_grad=grad)


def array(x: Tensor) -> Array:
    return x.detach().numpy().copy()


def assert_close(actual: Tensor | Array, expected: object, tolerance: float = 1e-10) -> None:
    actual = array(actual) if isinstance(actual, Tensor) else actual
    np.testing.assert_allclose(actual, np.array(expected), rtol=tolerance, atol=tolerance)


def mse(a: Array, b: Array) -> float:
    return float(np.mean((a - b) ** 2))


def mse_t(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).pow(2).sum() / a.numel()


def entropy(p: Array) -> float:
    return -sum(float(x) * math.log(x) for x in p.flatten() if x > 0)


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def nearest(z: Array, codes: Array) -> list[int]:
    return [min(range(len(codes)), key=lambda k: sum((row - codes[k]) ** 2)) for row in z]


def fill(module: nn.Module, seed: int, scale: float = 0.5) -> dict[str, Array]:
    """Set every parameter to fixed numbers, and return them by name."""
    values = {}
    with torch.no_grad():
        for i, (name, parameter) in enumerate(module.named_parameters()):
            values[name] = numbers(seed + i, *parameter.shape, scale=scale)
            parameter.copy_(torch.from_numpy(values[name]))
    return values


def gradients(module: nn.Module, z: Array, upstream: Array) -> dict[str, Tensor | None]:
    """d(<upstream, output> + LOSS_FACTOR loss) for the input and each parameter."""
    leaf = tensor(z, grad=True)
    out = module(leaf)
    ((out.quantized * tensor(upstream)).sum() + LOSS_FACTOR * out.loss).backward()
    return {"z": leaf.grad} | {name: p.grad for name, p in module.named_parameters()}


Formula = Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor]]


def assert_same_values_and_gradients(
    module: nn.Module, formula: Formula, z: Array, parameters: dict[str, Array], upstream: Array
) -> None:
    """Compare with a formula (z, parameters) -> (output, loss) with stop-gradients written as detach."""
    leaf = tensor(z, grad=True)
    leaves = {name: tensor(value, grad=True) for name, value in parameters.items()}
    output, loss = formula(leaf, leaves)
    ((output * tensor(upstream)).sum() + LOSS_FACTOR * loss).backward()
    out = module(tensor(z))
    assert_close(out.quantized, array(output))
    assert_close(out.loss, array(loss))
    actual = gradients(module, z, upstream)
    assert actual.keys() == {"z", *leaves}
    for name, expected in ({"z": leaf} | leaves).items():
        assert expected.grad.abs().max() > 1e-6, f"the gradient of {name} is too small to compare"
        assert_close(actual[name], array(expected.grad))


def set_codes(q: VQ, codes: object) -> VQ:
    """Start a VQ from these codes: n = 1 and m = the codes."""
    for buffer in (q.codebook, q.sums):
        buffer.copy_(tensor(codes))
    return q


# --- VQ ------------------------------------------------------------------------------------------------


class MovingCodes:
    """The EMA codebook: n <- g n + (1-g) count, m <- g m + (1-g) sum z, code = m / smoothed n."""

    def __init__(self, codes: Array, g: float):
        self.g, self.codes = g, codes.copy()
        self.n, self.m = [1.0] * len(codes), codes.copy()

    def batch(self, z: Array) -> list[int]:
        total = sum(self.n)
        for k in range(len(self.codes)):
            smoothed = (self.n[k] + 1e-5) / (total + len(self.codes) * 1e-5) * total
            self.codes[k] = self.m[k] / smoothed
        indices = nearest(z, self.codes)
        for k in range(len(self.codes)):
            assigned = [row for row, index in zip(z, indices, strict=True) if index == k]
            self.n[k] = self.g * self.n[k] + (1 - self.g) * len(assigned)
            self.m[k] = self.g * self.m[k] + (1 - self.g) * sum(assigned, np.zeros(z.shape[1]))
        return indices


@pytest.mark.parametrize(("options", "beta"), [({}, 0.25), ({"commitment_weight": 0.7}, 0.7)])
def test_vq_gives_the_nearest_code_and_the_weighted_commitment(options, beta):
    codes, z, upstream = numbers(1, 8, 3), numbers(2, 20, 3), numbers(3, 20, 3)
    out = set_codes(VQ(3, 8, **options).double(), codes)(tensor(z))
    expected = nearest(z, codes)
    assert len(set(expected)) > 4
    assert out.indices.tolist() == expected
    assert_close(out.quantized, codes[expected])
    assert out.terms.keys() == {"commitment"}
    assert_close(out.terms["commitment"], mse(z, codes[expected]))
    assert_close(out.loss, beta * mse(z, codes[expected]))
    actual = gradients(set_codes(VQ(3, 8, **options).double(), codes), z, upstream)
    assert actual.keys() == {"z"}, "the codes move by their moving averages alone"
    assert_close(actual["z"], upstream + LOSS_FACTOR * beta * 2 * (z - codes[expected]) / z.size)


@pytest.mark.parametrize(
    ("name", "options", "g"), [("vq", {}, 0.99), ("vq", {"decay": 0.5}, 0.5), ("rotvq", {}, 0.8)]
)
def test_ema_codes_follow_their_vectors_over_three_batches(name, options, g):
    codes = numbers(1, 6, 2)
    q = build_quantizer(name, 2, 6, **options).double()
    assert isinstance(q, VQ)
    set_codes(q, codes)
    reference = MovingCodes(codes, g)
    for seed in (11, 12, 13):
        z = numbers(seed, 16, 2) + 0.5
        out = q(tensor(z))
        indices = reference.batch(z)
        assert out.indices.tolist() == indices
        assert_close(out.quantized, reference.codes[indices])
        assert_close(q.codebook, reference.codes)
        assert_close(q.counts, reference.n)
        assert_close(q.sums, reference.m)
    assert np.abs(reference.codes - codes).max() > 0.01


def test_eval_mode_neither_moves_the_codes_nor_applies_a_pending_update():
    codes, z = numbers(1, 6, 2), numbers(2, 16, 2) + 0.5
    q = set_codes(VQ(2, 6, decay=0.5).double(), codes)
    q(tensor(z))
    before = {name: value.clone() for name, value in q.state_dict().items()}
    out = q.eval()(tensor(z, grad=True))
    with torch.no_grad():
        q(tensor(z))
    q.encode(tensor(z))
    assert all(torch.equal(value, before[name]) for name, value in q.state_dict().items())
    assert_close(out.quantized, codes[nearest(z, codes)])
    assert out.loss.item() == 0
    reference = MovingCodes(codes, 0.5)
    reference.batch(z)
    q.train()(tensor(z))
    reference.batch(z)
    assert_close(q.codebook, reference.codes)


def test_a_dead_code_moves_to_a_latent_and_the_others_follow_their_means():
    codes = np.array([[0.0, 0.0], [4.0, 0.0], [100.0, 100.0]])
    z = np.concatenate([numbers(5, 4, 2, scale=0.3), numbers(6, 4, 2, scale=0.3) + codes[1]])
    q = set_codes(VQ(2, 3, decay=0.8, restart_below=0.9).double(), codes)
    q(tensor(z))
    assert_close(q.codebook[2], [100, 100])  # not yet
    # counts .8 + .2 * 4 = 1.6 live on; .8 + 0 is below .9
    assert_close(q.counts, [1.6, 1.6, 1.0])
    q(tensor(z))
    assert np.abs(array(q.codebook[2]) - z).max(1).min() < 1e-4  # the smoothing moves it by 1e-5
    smoothed = (1.6 + 1e-5) / (4.2 + 3e-5) * 4.2
    assert_close(q.codebook[0], 0.2 * z[:4].sum(0) / smoothed)
    assert_close(q.codebook[1], (0.8 * np.array([4, 0]) + 0.2 * z[4:].sum(0)) / smoothed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moving_averages_keep_their_precision_in_half(dtype):
    half, full = VQ(4, 8, seed=0).to(dtype), VQ(4, 8, seed=0).to(dtype).float()
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


def test_data_init_of_vq_takes_latents_of_the_first_training_batch():
    q, z = VQ(3, 8, init="data", seed=2), 40 * torch.randn(50, 3)
    q(z)
    assert (torch.cdist(q.codebook.double(), z.double()).min(1).values < 1e-3).all()
    assert len(q.codebook.unique(dim=0)) == 8
    assert not q.needs_data_init


def separated_clusters(seed: int, clusters: int) -> tuple[Array, Array]:
    """Latents in random order around the corners of a regular polygon, and the mean of each cluster."""
    angles = 2 * np.pi * np.arange(clusters) / clusters
    corners = 10 * np.stack([np.cos(angles), np.sin(angles)], 1)
    z = corners[:, None] + numbers(seed, clusters, 16, 2, scale=0.1)
    return np.random.default_rng(seed).permutation(z.reshape(-1, 2)), z.mean(1)


def test_given_codes_are_not_below_the_threshold_of_revival():
    q, codes = VQ(2, 4, restart_below=2), torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    q.set_codebook(codes)
    for _ in range(2):
        q(codes.repeat(8, 1))
    torch.testing.assert_close(q.codebook, codes)


@pytest.mark.parametrize("build", [VQ, LGQ, partial(VQ, learning="gradient")])
def test_codes_that_are_assigned_are_given_codes(build):
    q, codes = build(2, 4, init="data"), torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    kept = q.codebook
    q.codebook = codes
    for _ in range(3):
        q(codes.repeat(8, 1))
    assert q.codebook is kept
    torch.testing.assert_close(q.codebook.detach(), codes)
    with pytest.raises(LGQError, match=r"codes must have shape \(4, 2\), got \(2, 4\)"):
        q.codebook = codes.T


@pytest.mark.parametrize(
    "options", [{}, {"restart_below": 2}, {"score": "cosine"}, {"init": "kmeans"}], ids=str
)
@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_codebook_without_running_means_begins_with_means_of_its_own(options, assign):
    q, given = VQ(2, 4, **options), VQ(2, 4, **options)
    codes = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    given.set_codebook(codes)
    model = nn.ModuleDict({"q": q})
    model.load_state_dict({"q.codebook": codes.clone()}, strict=False, assign=assign)
    torch.testing.assert_close(q.state_dict(), given.state_dict(), rtol=0, atol=0)
    trained = VQ(2, 4, **options)
    trained(codes.repeat(9, 1) + 1)
    q.load_state_dict(trained.state_dict(), assign=assign)
    torch.testing.assert_close(q.state_dict(), trained.state_dict(), rtol=0, atol=0)


def test_copies_of_data_parallel_take_assigned_codes_and_leave_the_original():
    q = VQ(2, 4)
    replica, sums = q._replicate_for_data_parallel(), q.sums.clone()
    replica.codebook = torch.zeros(4, 2)
    assert torch.equal(q.sums, sums)
    assert not replica.codebook.any()


@pytest.mark.parametrize("build", [VQ, LGQ, SimVQ, partial(SimVQ, transform="linear")])
@pytest.mark.usefixtures("without_shape_checks")
def test_given_codes_replace_a_start_from_data(build):
    q, codes = build(2, 4, init="data"), torch.arange(8.0).view(4, 2)
    with pytest.raises(LGQError, match=r"codes must have shape \(4, 2\), got \(2, 4\)"):
        q.set_codebook(codes.T)
    with pytest.raises(LGQError, match="codes contain NaN or infinity"):
        q.set_codebook(codes / 0)
    q.set_codebook(codes)
    assert not q.needs_data_init
    assert torch.equal(q.codebook, codes)
    q.reset_parameters(seed=0)
    assert q.needs_data_init


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clusters", [2, 4, 6])
@pytest.mark.filterwarnings("ignore:the codes of .* are still random numbers")
def test_kmeans_init_finds_the_centres_of_separated_clusters(clusters, seed):
    z, centres = separated_clusters(seed, clusters)
    q = VQ(2, clusters, init="kmeans", seed=seed).double()
    normal = q.codebook.clone()
    q.eval()(tensor(z))
    assert torch.equal(q.codebook, normal), "only training initializes the codebook"
    q.train()(tensor(z))
    codes = array(q.codebook)
    distances = np.linalg.norm(centres[:, None] - codes, axis=2)
    assert sorted(distances.argmin(1)) == list(range(clusters)), f"centres {codes.round(1).tolist()}"
    assert distances.min(1).max() < 1e-8
    q(tensor(-0.1 * z))  # a second batch moves the codes by moving averages only
    reference = MovingCodes(codes, 0.99)
    reference.batch(z)
    reference.batch(-0.1 * z)
    assert_close(q.codebook, reference.codes, 1e-8)


# --- RotVQ ---------------------------------------------------------------------------------------------


def rotation(z: Array, q: Array) -> Array:
    """|q|/|z| R with R = I - 2 w w^T + 2 q^ e^T, as a matrix."""
    e, unit = z / np.linalg.norm(z), q / np.linalg.norm(q)
    w = (e + unit) / np.linalg.norm(e + unit)
    r = np.eye(len(z)) - 2 * np.outer(w, w) + 2 * np.outer(unit, e)
    np.testing.assert_allclose(r @ r.T, np.eye(len(z)), atol=1e-9)
    return np.linalg.norm(q) / np.linalg.norm(z) * r


def rotvq(codes: object, **options: float) -> VQ:
    q = build_quantizer("rotvq", len(codes[0]), len(codes), **options).double()  # type: ignore[index,arg-type]
    assert isinstance(q, VQ)
    return set_codes(q, codes)


@pytest.mark.parametrize(("options", "beta"), [({}, 1.0), ({"commitment_weight": 0.3}, 0.3)])
def test_rotvq_turns_the_gradient_by_the_explicit_matrix(options, beta):
    codes, z, upstream = numbers(1, 8, 3), numbers(2, 20, 3), numbers(3, 20, 3)
    expected = np.zeros_like(z)
    for i, k in enumerate(nearest(z, codes)):
        matrix = rotation(z[i], codes[k])
        np.testing.assert_allclose(matrix @ z[i], codes[k], atol=1e-12)
        expected[i] = matrix.T @ upstream[i] + LOSS_FACTOR * beta * 2 * (z[i] - codes[k]) / z.size
    assert_close(gradients(rotvq(codes, **options), z, upstream)["z"], expected)
    out = rotvq(codes, **options)(tensor(z))
    assert_close(out.loss, beta * mse(z, codes[nearest(z, codes)]))
    assert_close(out.terms["commitment"], mse(z, codes[nearest(z, codes)]))


def test_rotvq_still_rotates_almost_opposite_vectors():
    z, code = np.array([[2.0, 1e-3, 0.0]]), np.array([-1.0, 0.0, 0.0])
    actual = gradients(rotvq([code, [50, 0, 50]], commitment_weight=0.0), z, np.array([[3.0, 5.0, 7.0]]))
    assert_close(actual["z"], [rotation(z[0], code).T @ [3, 5, 7]], 1e-8)


# --- FSQ -----------------------------------------------------------------------------------------------


def bare(module: FSQ | LFQ) -> FSQ | LFQ:
    """Set the projections to identities."""
    with torch.no_grad():
        for projection in (module.project_in, module.project_out):
            projection.weight.copy_(torch.eye(len(projection.weight)))
            projection.bias.zero_()
    return module


@pytest.mark.parametrize(
    ("bits", "levels"),
    list(enumerate(
        [
            (2,), (4,), (8,), (4, 4), (8, 4), (8, 8), (8, 4, 4), (8, 8, 4), (8, 8, 8), (8, 8, 4, 4),
            (8, 8, 8, 4), (8,) * 4, (8, 8, 8, 4, 4), (8, 8, 8, 8, 4), (8,) * 5, (8, 8, 8, 8, 4, 4),
            (8, 8, 8, 8, 8, 4), (8,) * 6, (8, 8, 8, 8, 8, 4, 4), (8, 8, 8, 8, 8, 8, 4),
        ],
        start=1,
    )),
)  # fmt: skip
def test_fsq_has_the_levels_of_the_table(bits, levels):
    q = FSQ(3, 2**bits)
    assert tuple(q.levels.tolist()) == levels
    assert q.project_in.weight.shape == (len(levels), 3)
    assert q.project_out.weight.shape == (3, len(levels))


@pytest.mark.parametrize("levels", [8, "88", (8, 8.0), (8, "8"), (32, True)])
def test_fsq_has_levels_of_whole_numbers(levels, without_shape_checks):
    with pytest.raises(LGQError, match="levels must be a list of whole numbers, such as"):
        FSQ(4, 64, levels=levels)


@pytest.mark.parametrize("levels", [(8, 8, 8, 8, 4), (8, 5, 5, 5), (8, 5, 2), (3, 2), (2,), (7, 6, 4)])
def test_fsq_bounds_rounds_and_projects_as_published(levels):
    q = FSQ(4, math.prod(levels), levels=levels).double()
    p = fill(q, 20, scale=0.8)
    sizes = torch.tensor(levels)
    half, offset = (sizes - 1).double() * (1 - 1e-3) / 2, 0.5 * (sizes % 2 == 0).double()

    def bound(z: Tensor, p: dict[str, Tensor]) -> Tensor:
        x = z @ p["project_in.weight"].T + p["project_in.bias"]
        return torch.tanh(x + torch.tan(offset / half)) * half - offset

    def formula(z: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        bounded = bound(z, p)
        codes = (bounded + (bounded.round() - bounded).detach()) / (sizes // 2)
        return codes @ p["project_out.weight"].T + p["project_out.bias"], torch.zeros(()).double()

    z, upstream = numbers(2, 60, 4), numbers(3, 60, 4)
    assert_same_values_and_gradients(q, formula, z, p, upstream)
    out = q(tensor(z))
    digits = bound(tensor(z), {name: tensor(value) for name, value in p.items()}).round() + sizes // 2
    strides = [math.prod(levels[:i]) for i in range(len(levels))]
    assert out.indices.tolist() == (digits.long() * torch.tensor(strides)).sum(1).tolist()
    assert len(out.indices.unique()) > 1
    assert out.terms == {}


@pytest.mark.parametrize(
    ("latent", "level"),
    # Borders of 8 levels with tan and 1 - 1e-3: -1.42970, .15022, 1.14173. With atanh and 1 + 1e-3
    # they are -1.42295, .14989, 1.13556, and each of these latents would fall on the other side.
    [(-1.426, -3), (0.15, 0), (1.138, 2)],
)
def test_fsq_is_not_the_common_port_with_atanh(latent, level):
    q = bare(FSQ(1, 8).double())
    assert q(tensor([[latent]])).indices.tolist() == [level + 4]


def test_fsq_codebook_counts_with_the_first_dimension_fastest():
    q = FSQ(2, 6, levels=(3, 2)).double()
    assert q.codebook.tolist() == [[-1, -1], [0, -1], [1, -1], [-1, 0], [0, 0], [1, 0]]
    large = array(FSQ(2, 16_384).codebook)
    for index in (0, 1, 8, 4095, 4096, 10_000, 16_383):
        digits = [index % 8, index // 8 % 8, index // 64 % 8, index // 512 % 8, index // 4096]
        half = np.array([4, 4, 4, 4, 2])
        assert_close(large[index], (np.array(digits) - half) / half)


# --- LFQ -----------------------------------------------------------------------------------------------


def corners(bits: int) -> Array:
    """All +-1 strings; row i is i in binary, lowest bit first."""
    return np.array([word[::-1] for word in itertools.product([-1.0, 1.0], repeat=bits)])


def lfq_entropies(x: Array, inverse_temperature: float) -> tuple[float, float]:
    """Mean entropy of a vector's assignment to all corners, and the entropy of the mean assignment."""
    p = softmax(inverse_temperature * 2 * x @ corners(x.shape[1]).T)
    return sum(entropy(row) for row in p) / len(p), entropy(p.mean(0))


LFQ_SETTINGS = [
    ({}, 0.1, 0.25, 100.0),
    ({"entropy_weight": 0.7, "commitment_weight": 0.4, "inverse_temperature": 20.0}, 0.7, 0.4, 20.0),
    ({"entropy_weight": 0.0}, 0.0, 0.25, 100.0),
]


@pytest.mark.parametrize(("options", "w_entropy", "w_commitment", "inverse"), LFQ_SETTINGS)
@pytest.mark.parametrize("bits", [1, 2, 5, 8])
def test_lfq_matches_the_dense_softmax_over_all_corners(bits, options, w_entropy, w_commitment, inverse):
    q = LFQ(4, 2**bits, **options).double()
    p = fill(q, 30, scale=0.02)
    z, upstream = numbers(2, 24, 4), numbers(3, 24, 4)
    x = z @ p["project_in.weight"].T + p["project_in.bias"]
    signs = np.where(x > 0, 1.0, -1.0)
    out = q(tensor(z))
    assert out.indices.tolist() == [int(sum(2**i for i, s in enumerate(row) if s > 0)) for row in signs]
    vector_entropy, batch_entropy = lfq_entropies(x, inverse)
    assert 0.05 < vector_entropy < batch_entropy
    terms = {"commitment": mse(x, signs), "vector_entropy": vector_entropy, "batch_entropy": batch_entropy}
    assert out.terms.keys() == (terms.keys() if w_entropy else {"commitment"})
    for name, term in out.terms.items():
        assert_close(term, terms[name])

    def formula(z: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        x = z @ p["project_in.weight"].T + p["project_in.bias"]
        signs = torch.where(x > 0, 1.0, -1.0).double()
        output = (x + (signs - x).detach()) @ p["project_out.weight"].T + p["project_out.bias"]
        assignment = (inverse * 2 * x @ tensor(corners(bits)).T).softmax(1)
        vector_entropy = -(assignment * assignment.log()).sum(1).mean()
        batch_entropy = -(assignment.mean(0) * assignment.mean(0).log()).sum()
        return output, w_entropy * (vector_entropy - batch_entropy) + w_commitment * mse_t(x, signs.detach())

    assert_same_values_and_gradients(q, formula, z, p, upstream)


@pytest.mark.parametrize("quantizer", [BSQ, LFQ])
def test_groups_of_bits_have_the_entropies_of_quantizers_of_their_own(quantizer):
    q = quantizer(8, 2**4, groups=2, seed=0)
    scaled = torch.randn(20, 4)
    whole = q.entropies(scaled)
    halves = [
        quantizer(8, 2**2, inverse_temperature=q.inverse_temperature).entropies(part)
        for part in scaled.split(2, 1)
    ]
    for name, value in whole.items():
        torch.testing.assert_close(value, halves[0][name] + halves[1][name])


@pytest.mark.parametrize(
    "make",
    [
        lambda: BSQ(36, 2**36),
        lambda: BSQ(64, 2**62),
        lambda: LFQ(64, 2**40),
        lambda: FSQ(8, 2**62),
        lambda: FSQ(64, 3**39, levels=[3] * 39),
    ],
)
def test_very_many_codes_need_no_memory_in_evaluation(make):
    q = make().eval()
    z = torch.randn(20, q.dim, requires_grad=True)
    out = q(z)  # with gradients, as a frozen tokenizer within another model
    torch.testing.assert_close(q.decode(out.indices), out.quantized)
    assert out.loss == 0
    assert 2**32 < out.indices.max() < q.codebook_size
    assert (out.indices >= 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BSQ(36, 2**36),
            r"entropy of BSQ has one number per code, and 2\^36 do not fit into memory: set `groups`, so "
            r"that each has at most 28 bits, or `entropy_weight` to 0",
        ),
        (lambda: BSQ(60, 2**60, groups=2), r"2\^30 do not fit"),
        (lambda: LFQ(64, 2**40), r"entropy of LFQ has one number per code, and 2\^40 do not fit"),
    ],
)
def test_entropies_of_too_many_codes_are_refused_in_training(make, message):
    q = make()
    with pytest.raises(LGQError, match=message):
        q(torch.randn(20, q.dim))


@pytest.mark.parametrize(
    "make",
    [
        lambda: BSQ(36, 2**36, groups=9),
        lambda: LFQ(64, 2**40, groups=4),
        lambda: BSQ(36, 2**36, entropy_weight=0.0, commitment_weight=0.1),
    ],
)
def test_very_many_codes_train_in_groups_or_without_entropies(make):
    q = make()
    z = torch.randn(20, q.dim, requires_grad=True)
    out = q(z)
    (out.loss + out.quantized.sum()).backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: BSQ(64, 2**63),
        lambda: LFQ(70, 2**70),
        lambda: FSQ(8, 2**63),
        lambda: FSQ(8, 3**40, levels=[3] * 40),
        lambda: ResidualFSQ(8, 2**66, 2),
    ],
)
def test_more_codes_than_indices_can_count_are_refused(make):
    with pytest.raises(
        LGQError, match=r"`codebook_size` must be at most 2\^63 - 1, as indices are int64, got"
    ):
        make()


def test_lfq_takes_the_sign_of_zero_as_minus_one():
    q = bare(LFQ(2, 4).double())
    out = q(tensor([[0, 0], [0, 0.5], [0.3, -0.0], [0.3, 0.1]]))
    assert out.indices.tolist() == [0, 2, 1, 3]
    assert_close(out.quantized, [[-1, -1], [-1, 1], [1, -1], [1, 1]])
    assert q.encode(tensor([[0, 0]])).tolist() == [0]


def test_lfq_codebook_is_the_index_in_binary_lowest_bit_first():
    assert LFQ(3, 4).codebook.tolist() == [[-1, -1], [1, -1], [-1, 1], [1, 1]]
    assert_close(LFQ(3, 64).codebook, corners(6))


def test_lfq_entropies_are_exact_for_nearly_hard_assignments():
    q = bare(LFQ(4, 16).double())
    x = np.concatenate([numbers(2, 20, 4), [[1e-4, 2.0, -3.0, 0.0]]])
    z = tensor(x, grad=True)
    out = q(z)
    vector_entropy, batch_entropy = lfq_entropies(x, 100.0)
    assert_close(out.terms["vector_entropy"], vector_entropy)
    assert_close(out.terms["batch_entropy"], batch_entropy)
    out.loss.backward()
    assert z.grad.isfinite().all()


# --- SimVQ ---------------------------------------------------------------------------------------------


def simvq_codes(rows: Tensor, p: dict[str, Tensor]) -> Tensor:
    if p.keys() == {"transform.weight"}:
        return rows @ p["transform.weight"].T
    hidden = (rows @ p["transform.0.weight"].T + p["transform.0.bias"]).clamp_min(0)
    return hidden @ p["transform.2.weight"].T + p["transform.2.bias"]


SIMVQ_SETTINGS = [
    ({}, 10.0, 0.25),
    ({"transform": "linear", "weight": 1.0}, 1.0, 0.25),
    ({"transform": "mlp", "weight": 3.0, "commitment_weight": 0.6}, 3.0, 0.6),
]


@pytest.mark.parametrize(("options", "weight", "commitment"), SIMVQ_SETTINGS)
def test_simvq_matches_the_formula_with_its_stop_gradients(options, weight, commitment):
    q = SimVQ(3, 12, **options).double()
    p = fill(q, 40, scale=0.7)
    z, upstream = numbers(2, 20, 3), numbers(3, 20, 3)
    codes = array(simvq_codes(q.rows, {name: tensor(value) for name, value in p.items()}))
    indices = nearest(z, codes)
    assert len(set(indices)) > 3
    out = q(tensor(z))
    assert out.indices.tolist() == indices
    assert_close(q.codebook, codes)
    assert out.terms.keys() == {"distance"}
    assert_close(out.terms["distance"], mse(codes[indices], z))

    def formula(z: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        chosen = simvq_codes(q.rows, p)[indices]
        loss = weight * (mse_t(chosen, z.detach()) + commitment * mse_t(chosen.detach(), z))
        return z + (chosen - z).detach(), loss

    assert_same_values_and_gradients(q, formula, z, p, upstream)


@pytest.mark.parametrize("transform", ["mlp", "linear"])
def test_simvq_rows_never_learn(transform):
    q = SimVQ(3, 12, transform=transform)
    rows = q.rows.clone()
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    before = q.codebook.detach().clone()
    for seed in range(3):
        optimizer.zero_grad()
        quantized, _, loss = q(torch.from_numpy(numbers(seed, 16, 3)).float())
        (quantized.square().sum() + loss).backward()
        optimizer.step()
    assert torch.equal(q.rows, rows)
    assert (q.codebook - before).abs().amax(1).min() > 0, "the map moves every code"


@pytest.mark.parametrize("score", ["l2", "cosine"])
@pytest.mark.parametrize("transform", ["mlp", "linear"])
@pytest.mark.parametrize("init", ["data", "kmeans"])
def test_simvq_codes_can_start_at_latents_and_move_together(init, transform, score):
    z = 40 * torch.randn(16, 3) + 100
    q = SimVQ(3, 16, transform=transform, score=score, init=init)
    saved = copy.deepcopy(q.state_dict())
    out = q(z)
    assert sorted(out.indices.tolist()) == list(range(16)), "each latent is a code"
    torch.testing.assert_close(out.quantized, q.compared(z), rtol=1e-5, atol=1e-5)
    rows, codes = q.rows.clone(), q.codebook.detach().clone()
    optimizer = torch.optim.SGD(q.parameters(), lr=1e-5 if score == "l2" else 0.1)
    q(2 * z[:4] + 1).loss.backward()
    optimizer.step()
    assert torch.equal(q.rows, rows)
    assert (q.codebook - codes).abs().amax(1).min() > 0, "the map moves every code"
    q.load_state_dict(saved)
    assert q.needs_data_init
    assert not torch.equal(q.rows, rows)


@pytest.mark.parametrize(
    ("codes", "std"),
    [
        (lambda: LGQ(16, 4096).codebook, 0.25),
        (lambda: SimVQ(16, 4096).rows, 0.25),
        (lambda: VQ(16, 4096).codebook, 0.25),
        (lambda: IBQ(16, 4096).codebook, 1.0),
        (lambda: IBQ(16, 4096, init_std=0.3).codebook, 0.3),
    ],
    ids=["lgq", "simvq", "vq", "ibq", "ibq with init_std"],
)
def test_initial_codes_are_normal_with_the_stated_deviation(codes, std):
    initial = codes().detach()
    assert initial.std().item() == pytest.approx(std, rel=0.02)
    assert abs(initial.mean().item()) < 0.02 * std
    assert initial.abs().max() > 3.5 * std  # no uniform distribution reaches there


# --- IBQ -----------------------------------------------------------------------------------------------


IBQ_SETTINGS = [
    ({}, 0.25, 0.05, 0.01),
    ({"commitment_weight": 0.6, "entropy_weight": 0.8, "entropy_temperature": 0.3}, 0.6, 0.8, 0.3),
    ({"entropy_weight": 0.0}, 0.25, 0.0, 0.01),
]


def ibq_formula(w_codebook: float, w_entropy: float, temperature: float) -> Formula:
    def formula(z: Tensor, parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        codes = parameters["codebook"]
        scores = z @ codes.T
        p = scores.softmax(1)
        onehot = torch.zeros_like(p)
        onehot[range(len(z)), scores.argmax(1)] = 1
        q = (onehot + p - p.detach()) @ codes
        chosen = onehot @ codes
        loss = mse_t(q, z) + mse_t(chosen.detach(), z) + w_codebook * mse_t(chosen, z.detach())
        log_sharp = (scores / temperature).log_softmax(1)
        sharp = log_sharp.exp()
        vector_entropy = -(sharp * log_sharp).sum(1).mean()
        usage = sharp.mean(0)
        batch_entropy = -(usage * (usage + 1e-5).log()).sum()
        return q, loss + w_entropy * (vector_entropy - batch_entropy)

    return formula


@pytest.mark.parametrize(("options", "w_codebook", "w_entropy", "temperature"), IBQ_SETTINGS)
@pytest.mark.parametrize("scale", [0.1, 0.3, 1.0])
def test_ibq_matches_the_dense_formula_with_its_stop_gradients(
    scale, options, w_codebook, w_entropy, temperature
):
    q = IBQ(3, 10, **options).double()
    p = fill(q, 50, scale=scale)
    codes, z, upstream = p["codebook"], numbers(2, 20, 3, scale=scale), numbers(3, 20, 3)
    indices = [int(np.argmax([row @ code for code in codes])) for row in z]
    assert len(set(indices)) > 3
    assert indices != nearest(z, codes), "products are not distances"
    out = q(tensor(z))
    assert out.indices.tolist() == indices
    sharp = softmax(z @ codes.T / temperature)
    terms = {
        "latent": 2 * mse(codes[indices], z),
        "codebook": mse(codes[indices], z),
        "vector_entropy": float(np.mean([entropy(row) for row in sharp])),
        "batch_entropy": -sum(x * math.log(x + 1e-5) for x in sharp.mean(0)),
    }
    assert out.terms.keys() == (terms.keys() if w_entropy else {"latent", "codebook"})
    for name, term in out.terms.items():
        assert_close(term, terms[name])
    formula = ibq_formula(w_codebook, w_entropy, temperature)
    assert_same_values_and_gradients(q, formula, z, p, upstream)


# --- Residual ------------------------------------------------------------------------------------------


STAGE_CODES: list[Array] = [np.array([[0.0], [8.0]]), np.array([[-1.0], [1.0]]), np.array([[-0.25], [0.25]])]
LATENTS = [[6.5], [0.9]]  # leave -1.5 and .9, then -.5 and -.1
INDICES = [[1, 0, 0], [0, 1, 0]]
SUMS = {1: [[8], [0]], 2: [[7], [1]], 3: [[6.75], [0.75]]}
# mse of each stage: (2.25 + .81) / 2, (.25 + .01) / 2, (.0625 + .0225) / 2; weight .25
LOSSES = {1: 0.3825, 2: 0.415, 3: 0.425625}


def stages_by_hand(**options: float) -> Residual:
    """Three stages of two fixed codes in one dimension."""
    stages = [set_codes(VQ(1, 2, decay=1.0).double(), codes) for codes in STAGE_CODES]
    return Residual(stages, **options)


@pytest.mark.filterwarnings("ignore:the latents of")  # of codes that the test chose
def test_residual_is_the_sum_of_stages_by_hand():
    q = stages_by_hand()
    out = q(tensor(LATENTS))
    assert out.indices.tolist() == INDICES
    assert_close(out.quantized, SUMS[3])
    assert_close(out.loss, LOSSES[3])
    assert {name: round(value.item(), 10) for name, value in out.terms.items()} == {
        "commitment/0": 1.53,
        "commitment/1": 0.13,
        "commitment/2": 0.0425,
    }
    assert q.encode(tensor(LATENTS)).tolist() == INDICES
    dropping = stages_by_hand(dropout=1.0).eval()
    assert dropping(tensor(LATENTS)).indices.tolist() == INDICES, "nothing is dropped in eval mode"


def test_residual_gradient_is_that_of_the_sum_with_nothing_detached():
    codes, z, upstream = [numbers(1, 8, 3), numbers(4, 8, 3, scale=0.5)], numbers(2, 20, 3), numbers(3, 20, 3)
    first, second = (rotvq(c, commitment_weight=w) for c, w in zip(codes, (0.3, 0.6), strict=True))
    actual = gradients(Residual([first, second]), z, upstream)["z"]
    expected = np.zeros_like(z)
    for i, row in enumerate(z):
        q1 = codes[0][nearest(row[None], codes[0])[0]]
        rest = row - q1
        q2 = codes[1][nearest(rest[None], codes[1])[0]]
        j1, j2 = rotation(row, q1), rotation(rest, q2)
        left = np.eye(3) - j1  # what the second stage sees of a change in z
        expected[i] = (j1 + j2 @ left).T @ upstream[i]
        expected[i] += LOSS_FACTOR * 2 / z.size * (0.3 * (row - q1) + 0.6 * left.T @ (rest - q2))
    assert_close(actual, expected, 1e-9)


def test_residual_decodes_any_prefix_of_the_stages_and_skips_some():
    q = stages_by_hand()
    indices = torch.tensor(INDICES)
    for stages, expected in SUMS.items():
        assert_close(q.decode(indices[:, :stages]), expected)
    assert_close(q.decode(torch.tensor([[1, -1, -1], [0, 1, -1]])), [[8], [1]])
    assert_close(q.decode(torch.tensor([[1, -1, 0]])), [[7.75]])


@pytest.mark.filterwarnings("ignore:the latents of")  # of codes that the test chose
def test_residual_dropout_keeps_one_to_all_but_one_of_the_first_stages():
    q = stages_by_hand(dropout=1.0)
    lengths = set()
    for _ in range(40):
        out = q(tensor(LATENTS))
        kept = sum(index != -1 for index in out.indices[0].tolist())
        lengths.add(kept)
        assert out.indices.tolist() == [row[:kept] + [-1] * (3 - kept) for row in INDICES]
        assert_close(out.quantized, SUMS[kept])
        assert_close(out.loss, LOSSES[kept])
        assert_close(q.decode(out.indices), SUMS[kept])
    assert lengths == {1, 2}


@pytest.mark.filterwarnings("ignore:the latents of")  # of codes that the test chose
def test_residual_dropout_happens_with_its_probability():
    q = stages_by_hand(dropout=0.3)
    dropped = sum(-1 in q(tensor(LATENTS)).indices for _ in range(300))
    assert 60 < dropped < 120  # 90 expected, deviation 8


@pytest.mark.filterwarnings("ignore:the latents of")  # of codes that the test chose
def test_residual_stages_that_dropout_skips_still_learn():
    q = stages_by_hand(dropout=1.0)
    for stage in q.stages:
        stage.decay = 0.5
    assert -1 in q(tensor(LATENTS)).indices
    last = q.stages[2]
    # both residuals, -.5 and -.1, chose the first code: n = .5 + .5 * 2, m = .5 * -.25 + .5 * -.6
    assert_close(last.counts, [1.5, 0.5])
    assert_close(last.sums, [[-0.425], [0.125]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: [VQ(4, 8, seed=0), VQ(4, 8, seed=0), VQ(4, 8, seed=0)],
        lambda: [LGQ(4, 8, seed=0), LGQ(4, 8, seed=0), LGQ(4, 8, seed=0)],
        lambda: [SimVQ(4, 8, seed=0), SimVQ(4, 8, seed=0), SimVQ(4, 8, seed=0)],
        lambda: [IBQ(4, 8, seed=0), IBQ(4, 8, seed=0), IBQ(4, 8, seed=0)],
        lambda: [VQ(4, 8, seed=0), VQ(4, 8, seed=2), VQ(4, 8, seed=0)],
        lambda: [VQ(4, 8, seed=0), LGQ(4, 8, seed=0)],
        lambda: [VQ(4, 32, seed=0), VQ(4, 64, seed=0)],
    ],
    ids=["vq", "lgq", "simvq", "ibq", "vq with seeds", "kinds", "sizes"],
)
def test_residual_gives_stages_with_equal_seeds_different_ones(make):
    stages = make()
    Residual(stages)
    assert len({stage.seed for stage in stages}) == len(stages)
    codes = [tuple(code) for stage in stages for code in stage.codebook.tolist()]
    assert len(set(codes)) == len(codes), "no two stages have a code in common"
    assert torch.equal(stages[0].codebook, make()[0].codebook), "the first stage keeps its codes"
    assert all(torch.equal(stage.sums, stage.codebook) for stage in stages if isinstance(stage, VQ))
    for grids in ([FSQ(4, 8, seed=0), FSQ(4, 8, seed=0)], [LFQ(4, 8, seed=0), LFQ(4, 8, seed=0)]):
        Residual(grids)
        assert not torch.equal(grids[0].project_in.weight, grids[1].project_in.weight)
        assert not torch.equal(grids[0].project_out.weight, grids[1].project_out.weight)


def test_residual_keeps_stages_with_different_seeds_and_trained_ones():
    stages = [VQ(4, 8, seed=5), VQ(4, 8, seed=9), LGQ(4, 8, seed=3), VQ(4, 8, seed=5)]
    for batch in range(2):
        stages[-1](torch.from_numpy(numbers(batch, 16, 4)).float())
    before = [stage.codebook.detach().clone() for stage in stages]
    Residual(stages)
    assert [stage.seed for stage in stages] == [5, 9, 3, 5]
    assert all(torch.equal(stage.codebook, codes) for stage, codes in zip(stages, before, strict=True))


def test_an_error_says_where_the_codebooks_of_a_residual_quantizer_are():
    q = Residual([VQ(2, 4), VQ(2, 4)])
    with pytest.raises(AttributeError, match=r"stages\[i\].codebook"):
        _ = q.codebook


@pytest.mark.usefixtures("without_shape_checks")
def test_a_single_quantizer_is_not_a_list_of_stages():
    with pytest.raises(ValueError, match="must be a list of quantizers"):
        Residual(VQ(2, 4))


def test_stages_can_be_built_on_the_meta_device():
    with torch.device("meta"):
        q = Residual([VQ(2, 4), VQ(2, 4)])
    assert q.stages[0].codebook.is_meta
