"""Compositions by hand: groups of channels, shared codebooks, and nests equal what their parts do alone."""

import copy
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from lgq import FSQ, LGQ, VQ, Grouped, Residual, ResidualFSQ
from lgq.errors import LGQError, LGQWarning
from lgq.metrics.code_usage import CodeUsage


def test_each_group_is_what_its_quantizer_gives_alone():
    parts = [LGQ(4, 16, seed=0), VQ(2, 8, seed=1)]
    alone = copy.deepcopy(parts)
    z = torch.randn(30, 6, requires_grad=True)
    out = Grouped(parts)(z)
    first, second = alone[0](z[:, :4]), alone[1](z[:, 4:])
    assert torch.equal(out.indices, torch.stack([first.indices, second.indices], 1))
    assert torch.equal(out.quantized, torch.cat([first.quantized, second.quantized], 1))
    torch.testing.assert_close(out.loss, (first.loss + second.loss) / 2)
    assert torch.equal(out.terms["peak/0"], first.terms["peak"])
    assert torch.equal(out.terms["commitment/1"], second.terms["commitment"])
    upstream = torch.randn_like(z)
    (ours,) = torch.autograd.grad((out.quantized * upstream).sum(), z, retain_graph=True)
    (theirs,) = torch.autograd.grad(
        (first.quantized * upstream[:, :4]).sum() + (second.quantized * upstream[:, 4:]).sum(), z
    )
    assert torch.equal(ours, theirs)


def test_groups_that_share_a_codebook_learn_as_one_batch():
    shared = Grouped.of(lambda: VQ(3, 8, seed=0), 2, shared=True)
    single = VQ(3, 8, seed=0)
    for _ in range(3):
        z = torch.randn(20, 6)
        out, expected = shared(z), single(z.reshape(40, 3))
        assert torch.equal(out.indices, expected.indices.reshape(20, 2))
        assert torch.equal(out.quantized, expected.quantized.reshape(20, 6))
        assert torch.equal(out.loss, expected.loss)
    assert torch.equal(shared.quantizers[1].counts, single.counts)
    assert shared.shared
    assert sum(p.numel() for p in Grouped.of(lambda: LGQ(3, 8), 4, shared=True).parameters()) == 24


def test_groups_of_their_own_start_apart():
    grouped = Grouped.of(lambda: LGQ(3, 8, seed=0), 2)
    assert not torch.equal(grouped.quantizers[0].codebook, grouped.quantizers[1].codebook)
    assert not grouped.shared


def test_joint_indices_number_the_combinations():
    grouped = Grouped([FSQ(2, 4), FSQ(2, 8)])
    indices = torch.tensor([[0, 0], [3, 0], [0, 1], [3, 7], [-1, 2]])
    assert grouped.joint_indices(indices).tolist() == [0, 3, 4, 31, -1]
    usage = CodeUsage.empty(grouped.codebook_size)
    usage.update(grouped.joint_indices(grouped.encode(torch.randn(5, 4, 4))))
    assert int(usage.counts.sum()) == 20
    nest = Grouped.of(lambda: Residual.of(lambda: VQ(2, 4), 2), 2)
    assert nest.codebook_size == 4**4
    assert nest.joint_indices(torch.tensor([[[1, 2], [3, 1]]])).tolist() == [1 + 2 * 4 + 16 * (3 + 1 * 4)]
    with pytest.raises(LGQError, match=r"combinations of codes have no int64 index: count each part alone"):
        Grouped.of(lambda: VQ(1, 2**16), 4).joint_indices(torch.zeros(1, 4, dtype=torch.int64))


def test_stages_can_share_one_codebook():
    q = VQ(4, 16, seed=0)
    residual = Residual.of(lambda: q, 3, shared=True)
    assert all(stage is q for stage in residual.stages)
    z = torch.randn(50, 4)
    out = residual(z)
    rest = z
    for stage in range(3):
        assert torch.equal(out.indices[:, stage], q.encode(rest)), "the codebook stays during a batch"
        rest = rest - q.decode(out.indices[:, stage])
    counted = q.counts.clone()
    assert counted.sum() != 16, "each stage is a batch for the running means"
    before = q.codebook.clone()
    residual(z)
    assert not torch.equal(q.codebook, before)


def test_the_codes_of_each_stage_sum_up_to_every_prefix():
    residual = Residual.of(lambda: LGQ(4, 16), 3, channel_dim=1)
    indices = residual.encode(torch.randn(2, 4, 5))
    codes = residual.stage_codes(indices)
    assert codes.shape == (3, 2, 4, 5)
    for stages in (1, 2, 3):
        torch.testing.assert_close(codes.cumsum(0)[stages - 1], residual.decode(indices[..., :stages]))
    assert torch.equal(residual.stage_codes(indices[..., :2]), codes[:2])


def test_stages_of_few_channels_lie_between_two_maps():
    q = Residual.of(lambda: VQ(3, 16), 4, dim=8)
    inner = copy.deepcopy(Residual(list(q.stages)))
    z = torch.randn(20, 8)
    out, inside = q(z), inner(q.project_in(z))
    assert torch.equal(out.indices, inside.indices)
    torch.testing.assert_close(out.quantized, q.project_out(inside.quantized))
    torch.testing.assert_close(out.loss, inside.loss)
    codes = q.stage_codes(out.indices)
    for stages in range(1, 5):
        torch.testing.assert_close(codes.cumsum(0)[stages - 1], q.decode(out.indices[:, :stages]))
    mask = torch.arange(20) < 15
    out = q(z, mask)
    assert (out.quantized[15:] == 0).all()
    assert (q.decode(out.indices)[15:] == 0).all()
    assert (q.stage_codes(out.indices)[:, 15:] == 0).all()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("composition", [Residual, Grouped])
def test_a_quantizer_in_place_of_a_function_is_told_the_function(composition):
    for shared in (False, True):
        with pytest.raises(LGQError, match=r"makes a quantizer, got VQ\(8, 64\): pass lambda: VQ\(8, 64\)"):
            composition.of(VQ(8, 64), 2, shared=shared)
    with pytest.raises(LGQError, match=r"got list: pass lambda: VQ\(8, 64\)"):
        composition.of([VQ(8, 64)], 2)


def test_maps_of_a_residual_start_from_its_seed_and_freeze():
    q = Residual([VQ(3, 16, seed=5), VQ(3, 16, seed=6)], dim=8)
    again = Residual([VQ(3, 16, seed=1), VQ(3, 16, seed=2)], dim=8)
    assert not torch.equal(q.project_in.weight, again.project_in.weight)
    again.reset_parameters(5)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in q.state_dict().items())
    assert not any(parameter.requires_grad for parameter in q.freeze().parameters())


def test_the_scale_of_the_latents_is_measured_behind_the_map():
    q = Residual.of(lambda: VQ(3, 16), 2, dim=8)
    with torch.no_grad():
        q.project_in.weight.mul_(100)
    with pytest.warns(LGQWarning, match="a standard deviation of"):
        q(torch.randn(50, 8))


@pytest.mark.parametrize("levels", [(8, 5, 3), (2, 2), (4,)])
def test_residual_fsq_refines_bounded_channels_by_grids(levels):
    q = ResidualFSQ(6, math.prod(levels), 3, levels=levels).double()
    z = torch.randn(50, 6, dtype=torch.float64, requires_grad=True)
    out = q(z)
    number = torch.tensor(levels, dtype=torch.float64)
    edge = 1 + 1 / (number - 1)
    bounded = torch.tanh(F.linear(z, q.project_in.weight, q.project_in.bias) / edge) * edge
    rest, codes = bounded.detach(), torch.zeros_like(bounded)
    for stage in range(3):
        scale = number**-stage
        place = ((number - 1) * ((rest / scale).clamp(-1, 1) + 1) / 2 + 0.5).floor()
        code = (2 * place / (number - 1) - 1) * scale
        assert torch.equal(out.indices[:, stage], (place * q.stages[0].strides).sum(1).long())
        rest, codes = rest - code, codes + code
    assert bool((rest.abs() <= number**-2 / (number - 1) + number**-2).all())
    expected = F.linear(codes + bounded - bounded.detach(), q.project_out.weight, q.project_out.bias)
    torch.testing.assert_close(out.quantized, expected, rtol=1e-6, atol=1e-6)
    upstream = torch.randn_like(expected)
    inputs = (z, *q.parameters())
    ours = torch.autograd.grad((out.quantized * upstream).sum(), inputs)
    theirs = torch.autograd.grad((expected * upstream).sum(), inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_each_stage_of_residual_fsq_is_nearer():
    q = ResidualFSQ(8, 64, 4, levels=(4, 4, 4)).eval()
    z = torch.randn(500, 8)
    inside = q._bound(q.project_in(z))
    errors = [(q.lookup(q.encode(z)[:, : stages + 1]) - inside).abs().mean().item() for stages in range(4)]
    assert all(after < 0.5 * before for before, after in pairwise(errors))
    few = ResidualFSQ(8, 64, 3, dropout=1.0)(z).indices
    assert (few[:, 0] >= 0).all()
    assert (few[:, 2] == -1).all()
    assert torch.equal(q.stages[1].codebook[q.encode(z)[:, 1]], q.stages[1].decode(q.encode(z)[:, 1]))


def test_nests_have_an_axis_of_indices_per_level():
    z = torch.randn(2, 5, 8)
    groups = Grouped.of(lambda: Residual.of(lambda: LGQ(4, 16), 3), 2)
    assert groups.encode(z).shape == (2, 5, 2, 3)
    stages = Residual.of(lambda: Grouped.of(lambda: LGQ(4, 16), 2), 3)
    indices = stages.encode(z)
    assert indices.shape == (2, 5, 3, 2)
    assert stages.decode(indices[..., :1, :]).shape == z.shape


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grouped([]), "a grouped quantizer needs at least one quantizer, got none"),
        (
            lambda: Grouped(VQ(2, 4)),
            r"must be a list of quantizers, got one: write Grouped\(",
        ),
        (lambda: Grouped([torch.nn.Identity()]), "quantizers must be quantizers of lgq, got Identity"),
        (
            lambda: Grouped([VQ(2, 4), Residual([VQ(2, 4)])]),
            r"equal numbers of indices per vector",
        ),
        (
            lambda: Grouped([VQ(2, 4), VQ(2, 4, channel_dim=1)]),
            r"at axes \[-1, 1\]: give `channel_dim`",
        ),
        (lambda: Grouped.of(lambda: VQ(2, 4), 0), "`groups` must be at least 1, got 0"),
        (lambda: Residual.of(lambda: VQ(2, 4), 1.5), "`stages` must be a whole number, got 1.5"),
        (lambda: Residual([VQ(2, 4)], dim=0), "`dim` must be at least 1, got 0"),
        (lambda: ResidualFSQ(4, 64, 0), "`stages` must be at least 1, got 0"),
        (lambda: ResidualFSQ(4, 64, 2.0), "`stages` must be a whole number, got 2.0"),
        (lambda: ResidualFSQ(4, 64, 2, levels=(8, 4)), r"levels \(8, 4\) make 32 codes, not 64"),
        (lambda: Grouped([VQ(2, 4)] * 2)(torch.randn(3, 5)), "expected 4 channels at axis -1"),
        (
            lambda: Grouped([VQ(2, 4)] * 2).decode(torch.zeros(3, 3, dtype=torch.int64)),
            "expected 2 indices per vector, one per group, got 3",
        ),
        (
            lambda: Grouped([Residual([VQ(2, 4)])] * 2).decode(torch.zeros(2, dtype=torch.int64)),
            r"each vector has indices of shape \(2, 1\), got shape \(2,\)",
        ),
    ],
)
def test_bad_compositions_raise_an_error(make, message):
    with pytest.raises(LGQError, match=message):
        make()


def test_an_error_says_where_the_codebooks_of_groups_are():
    with pytest.raises(AttributeError, match=r"one codebook per quantizer: use quantizers\[i\].codebook"):
        _ = Grouped([VQ(2, 4)]).codebook
