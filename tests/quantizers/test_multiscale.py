"""Multi-scale quantization against an independent writing of VAR's formulas, and its tokens by scale."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from quantizer_family import DIM, SIZE
from torch._dynamo.testing import CompileCounter

from lgq import FSQ, LGQ, VQ, Grouped, MultiScale, Residual
from lgq.errors import LGQError
from lgq.quantizers.compositions.multiscale import _along, _bicubic, _cell_means

SIZES = (1, 2, 3, 5)


def multiscale(axes: int = 2, quantizer=None, **options) -> MultiScale:
    quantizer = VQ(DIM, SIZE, seed=0) if quantizer is None else quantizer
    return MultiScale(quantizer, SIZES, axes=axes, **{"channel_dim": 1} | options)


def var(z: torch.Tensor, q: MultiScale) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the sum of VAR's scales and the grid of indices of each (images only)."""
    rest, total, indices = z.clone(), torch.zeros_like(z), []
    ticks = torch.linspace(1 / 12, 1 - 1 / 12, 4)
    for i, side in enumerate(q.sizes):
        cells = F.interpolate(rest, size=(side, side), mode="area")
        vectors = cells.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        chosen = torch.cdist(vectors, q.quantizer.codebook.to(z.dtype)).argmin(1)
        indices.append(chosen.reshape(len(z), side, side))
        codes = q.quantizer.codebook[chosen].reshape(len(z), side, side, -1).permute(0, 3, 1, 2)
        big = F.interpolate(codes, size=z.shape[2:], mode="bicubic")
        phi = q.smooth[int((ticks - i / (len(q.sizes) - 1)).abs().argmin())]
        big = 0.5 * big + 0.5 * F.conv2d(big, phi.weight, phi.bias, padding=1)
        total, rest = total + big, rest - big
    return total, indices


def test_images_have_the_tokens_and_values_of_var():
    q = multiscale().double().eval()
    z = torch.randn(3, DIM, 5, 5, dtype=torch.float64)
    total, indices = var(z, q)
    with torch.no_grad():
        out = q(z)
    assert torch.equal(out.indices, torch.cat([grid.flatten(1) for grid in indices], 1))
    torch.testing.assert_close(out.quantized, total, rtol=0, atol=1e-10)
    for ours, theirs in zip(q.grids(out.indices), indices, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("source", "target"), [*itertools.product((1, 2, 5, 7), (1, 2, 3, 7, 8))])
def test_interpolation_is_that_of_torch(source, target):
    x = torch.randn(2, 3, source, source, dtype=torch.float64)
    for make, mode in ((_cell_means, "area"), (_bicubic, "bicubic")):
        ours = x
        for axis in (2, 3):
            ours = _along(ours, axis, make(source, target, x))
        theirs = F.interpolate(x, size=(target, target), mode=mode)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_prefix_of_scales_decodes_and_all_of_them_to_the_output(axes):
    q = multiscale(axes, LGQ(DIM, SIZE, seed=0)).eval()
    z = torch.randn(2, DIM, *(5,) * axes)
    tokens = q.encode(z)
    lengths = q.lengths()
    assert lengths == [side**axes for side in SIZES]
    assert tokens.shape == (2, sum(lengths))
    torch.testing.assert_close(q.decode(tokens), q(z).quantized)
    for scales in range(1, len(SIZES) + 1):
        prefix = tokens[:, : sum(lengths[:scales])]
        assert [grid.shape[1:] for grid in q.grids(prefix)] == [(side,) * axes for side in SIZES[:scales]]
        assert q.decode(prefix).shape == z.shape
    only_first = q.decode(tokens[:, :1])
    expected = q._enlarge(q.quantizer.decode(tokens[:, 0]), 0, (1,) * axes, (5,) * axes)
    torch.testing.assert_close(only_first, expected)


def test_other_inputs_have_grids_in_proportion():
    q = multiscale().eval()
    z = torch.randn(1, DIM, 10, 7)
    assert q.grid_sizes((10, 7)) == [(2, 1), (4, 3), (6, 4), (10, 7)]
    tokens = q.encode(z)
    assert tokens.shape == (1, 2 + 12 + 24 + 70)
    torch.testing.assert_close(q.decode(tokens, size=(10, 7)), q(z).quantized)
    assert q.decode(tokens[:, :14], size=(10, 7)).shape == z.shape
    large = torch.randn(1, DIM, 10, 10)
    torch.testing.assert_close(q.decode(q.encode(large)), q(large).quantized)


def test_the_codebook_stays_during_a_batch_and_learns_from_all_scales():
    q = multiscale(quantizer=VQ(DIM, SIZE, init="data", seed=0))
    z = torch.randn(4, DIM, 5, 5)
    q(z)
    before = q.quantizer.codebook.clone()
    out = q(z)
    torch.testing.assert_close(q.decode(out.indices), out.quantized)
    assert not torch.equal(before, q.quantizer.codebook)


def test_more_scales_come_closer_to_the_latents():
    torch.manual_seed(0)
    q = multiscale(quantizer=VQ(DIM, 256, init="kmeans", decay=0.5, seed=0), smoothing=0.0)
    z = torch.randn(64, DIM, 5, 5)
    for _ in range(20):
        q(z)
    tokens = q.eval().encode(z)
    errors = [
        float((q.decode(tokens[:, : sum(q.lengths()[:scales])]) - z).square().mean())
        for scales in range(1, len(SIZES) + 1)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.7 * errors[0]


def test_the_latent_term_is_the_mean_over_the_sums_so_far():
    q = multiscale(quantizer=VQ(DIM, SIZE, seed=0, commitment_weight=0.0), latent_weight=2.0).double()
    z = torch.randn(2, DIM, 5, 5, dtype=torch.float64)
    frozen = copy.deepcopy(q).eval()
    tokens = frozen.encode(z)
    ends = list(itertools.accumulate(q.lengths()))
    expected = sum((frozen.decode(tokens[:, :end]) - z).square().mean() for end in ends) / len(ends)
    out = q(z)
    torch.testing.assert_close(out.terms["latent"], 1.25 * expected)
    torch.testing.assert_close(out.loss, 2.5 * expected)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiScale(VQ(2, 4), ()), r"whole numbers that grow, such as \(1, 2, 4, 8\).*got \(\)"),
        (lambda: MultiScale(VQ(2, 4), (2, 1)), r"that grow.*got \(2, 1\)"),
        (lambda: MultiScale(VQ(2, 4), (1.5,)), r"whole numbers that grow.*got \(1.5,\)"),
        (lambda: MultiScale([VQ(2, 4)], (1, 2)), "quantizer must be one of lgq, got list"),
        (lambda: MultiScale(Residual([VQ(2, 4)]), (1, 2)), "one index, and Residual gives several"),
        (lambda: MultiScale(VQ(2, 4), (1, 2), axes=4), "`axes` must be '1' or '2' or '3', got '4'"),
        (lambda: MultiScale(VQ(2, 4), (1, 2), smoothing=2), r"`smoothing` must lie in 0..1, got 2"),
        (
            lambda: Grouped([MultiScale(FSQ(2, 4), (1, 2))]),
            "quantizers must quantize single vectors, and Multi",
        ),
        (lambda: Residual([MultiScale(FSQ(2, 4), (1, 2))]), "stages must quantize single vectors, and Multi"),
        (lambda: MultiScale(FSQ(2, 4), (1, 2)).quantize(torch.randn(3, 2)), "grids, not single vectors"),
        (
            lambda: multiscale()(torch.randn(2, DIM)),
            r"expected 2 spatial axes, got shape \(2, 6\): set `axes`",
        ),
        (
            lambda: multiscale()(torch.randn(4, DIM, 9)),
            r"expected a batch of inputs with 2 spatial axes, got shape \(4, 6, 9\): for sequences pass "
            r"axes=1, for a single input z\[None\]",
        ),
        (lambda: multiscale(channel_dim=-1).encode(torch.randn(4, 9, DIM)), "for sequences pass axes=1"),
        (lambda: multiscale(3)(torch.randn(4, DIM, 5, 5)), "3 spatial axes.*for images pass axes=2"),
        (lambda: multiscale(1)(torch.randn(4, DIM)), r"1 spatial axes.*: for a single input z\[None"),
        (lambda: multiscale()(torch.randn(2, DIM, 0, 5)), "each spatial axis needs a length of at least 1"),
        (
            lambda: multiscale()(torch.randn(2, DIM, 5, 5), torch.ones(2, 5, 5, dtype=torch.bool)),
            "averages over neighbours, so it takes no `mask`: crop or pad",
        ),
        (
            lambda: multiscale().decode(torch.zeros(1, 8, dtype=torch.int64)),
            "size 5 x 5 has 1 or 5 or 14 or 39 tokens in its first scales, got 8: give `size`",
        ),
        (lambda: multiscale().lengths((5,)), r"`size` must be 2 lengths of at least 1, got \(5,\)"),
    ],
)
def test_bad_scales_raise_an_error(make, message):
    with pytest.raises(LGQError, match=message):
        make()


@pytest.mark.usefixtures("without_shape_checks")
def test_a_compiled_graph_takes_any_batch_of_grids_of_one_size():
    torch.compiler.reset()
    q, graphs = MultiScale(LGQ(DIM, SIZE, seed=0), (2, 4), axes=1), CompileCounter()
    run = torch.compile(q, fullgraph=True, dynamic=True, backend=graphs)
    for batch, side, known in ((3, 4, 1), (7, 4, 1), (3, 5, 2)):
        z = torch.randn(batch, side, DIM)
        assert torch.equal(run(z).indices, q(z).indices)
        # Inductor has no order for layouts whose sides it does not know.
        assert graphs.frame_count == known
