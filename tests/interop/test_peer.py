"""Modules of vector-quantize-pytorch convert with their weights, and every argument has a row in the docs."""

import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch
import vector_quantize_pytorch as peer
from torch import nn

import lgq
from lgq import BSQ, FSQ, LFQ, LGQ, VQ, Grouped, MultiScale, Residual
from lgq.errors import LGQError, LGQWarning
from lgq.interop import from_vector_quantize_pytorch
from lgq.quantizers import Quantizer, peer_names

pytestmark = pytest.mark.filterwarnings(
    "ignore:quant_grad_frac=0",
    "ignore:stage-wise gradient",
    "ignore:noise of directional_reparam",
    "ignore:codebook_scale of LFQ",
)
PAGE = Path(__file__).parents[2] / "docs" / "from-vector-quantize-pytorch.md"
DIM, SIZE = 8, 32
LAST, FIRST = (2, 20, DIM), (2, DIM, 4, 5)

MODULES = {
    "vq": (lambda: peer.VectorQuantize(DIM, SIZE), LAST),
    "vq straight-through": (lambda: peer.VectorQuantize(DIM, SIZE, rotation_trick=False), LAST),
    "vq cosine": (lambda: peer.VectorQuantize(DIM, SIZE, use_cosine_sim=True), LAST),
    "vq low-dimensional": (lambda: peer.VectorQuantize(DIM, SIZE, codebook_dim=3), LAST),
    "vq low-dimensional cosine": (
        lambda: peer.VectorQuantize(DIM, SIZE, codebook_dim=3, use_cosine_sim=True),
        LAST,
    ),
    "vq k-means and revival": (
        lambda: peer.VectorQuantize(DIM, SIZE, kmeans_init=True, threshold_ema_dead_code=2),
        LAST,
    ),
    "vq images": (lambda: peer.VectorQuantize(DIM, SIZE, accept_image_fmap=True), FIRST),
    "vq channels first": (lambda: peer.VectorQuantize(DIM, SIZE, channel_last=False), (2, DIM, 20)),
    "vq learnable": (
        lambda: peer.VectorQuantize(DIM, SIZE, learnable_codebook=True, ema_update=False),
        LAST,
    ),
    "vq diveq": (
        lambda: peer.VectorQuantize(DIM, SIZE, directional_reparam=True, threshold_ema_dead_code=2),
        LAST,
    ),
    "residual": (lambda: peer.ResidualVQ(dim=DIM, codebook_size=SIZE, num_quantizers=3), LAST),
    "residual shared": (
        lambda: peer.ResidualVQ(dim=DIM, codebook_size=SIZE, num_quantizers=3, shared_codebook=True),
        LAST,
    ),
    "residual channels first": (
        lambda: peer.ResidualVQ(dim=DIM, codebook_size=SIZE, num_quantizers=3, channel_last=False),
        (2, DIM, DIM),
    ),
    "residual low-dimensional": (
        lambda: peer.ResidualVQ(dim=DIM, codebook_size=SIZE, num_quantizers=3, codebook_dim=3),
        LAST,
    ),
    "residual fsq": (lambda: peer.ResidualFSQ(dim=DIM, levels=[8, 5, 3], num_quantizers=4), LAST),
    "residual fsq of two levels": (
        lambda: peer.ResidualFSQ(dim=DIM, levels=[2, 2, 4], num_quantizers=3),
        LAST,
    ),
    "fsq channels first": (lambda: peer.FSQ([8, 6, 5], dim=DIM, channel_first=True), (2, DIM, DIM)),
    "lfq": (lambda: peer.LFQ(codebook_size=SIZE, channel_first=False), (2, 20, 5)),
    "lfq channels first": (lambda: peer.LFQ(codebook_size=SIZE, dim=DIM, channel_first=True), (2, DIM, 20)),
    "lfq projected": (
        lambda: peer.LFQ(codebook_size=SIZE, dim=DIM, codebook_scale=0.5, channel_first=False),
        LAST,
    ),
    "lfq spherical": (
        lambda: peer.LFQ(codebook_size=SIZE, dim=DIM, spherical=True, channel_first=False),
        LAST,
    ),
    "simvq": (lambda: peer.SimVQ(DIM, SIZE, rotation_trick=False), LAST),
    "simvq other rows": (lambda: peer.SimVQ(DIM, SIZE, frozen_codebook_dim=5, rotation_trick=False), LAST),
    "simvq mlp": (
        lambda: peer.SimVQ(
            DIM,
            SIZE,
            codebook_transform=nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, DIM)),
            rotation_trick=False,
        ),
        LAST,
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_converted_modules_give_the_same_indices_and_values(name):
    make, shape = MODULES[name]
    module = make()
    for _ in range(3):  # so that running means have moved
        module(torch.randn(shape))
    assert_same_codes(from_vector_quantize_pytorch(module.eval()), module, shape)


def assert_same_codes(q: Quantizer, module: nn.Module, shape: tuple[int, ...]) -> None:
    assert not q.training
    z = torch.randn(shape)
    with torch.no_grad():
        quantized, indices = module(z)[:2]
    out = q(z)
    assert torch.equal(out.indices, indices.long())
    torch.testing.assert_close(out.quantized, quantized, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q.decode(out.indices), quantized, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [lambda: peer.FSQ([8, 6, 5], dim=DIM), lambda: peer.LFQ(codebook_size=SIZE, dim=DIM)],
    ids=["fsq", "lfq"],
)
def test_an_axis_of_the_channels_that_depends_on_the_input_must_be_given(make):
    module = make().eval()
    with pytest.raises(LGQError, match=r"without `channel_first`.*axis 1.*pass channel_dim=1 for images"):
        from_vector_quantize_pytorch(module)
    # As wide as there are channels: neither axis is wrong by its length.
    assert_same_codes(from_vector_quantize_pytorch(module, channel_dim=1), module, (2, DIM, DIM, DIM))
    assert_same_codes(from_vector_quantize_pytorch(module, channel_dim=1), module, (2, DIM, 2, DIM, DIM))
    assert_same_codes(from_vector_quantize_pytorch(module, channel_dim=-1), module, LAST)


@pytest.mark.parametrize("name", MODULES)
def test_what_learns_there_learns_here_and_nothing_else(name):
    module = MODULES[name][0]().eval()
    there = sum(part.numel() for part in module.parameters() if part.requires_grad)
    q = from_vector_quantize_pytorch(module)
    assert sum(part.numel() for part in q.parameters() if part.requires_grad) == there


def test_an_fsq_without_projections_has_identities():
    module = peer.FSQ([8, 5, 5]).eval()
    assert_same_codes(from_vector_quantize_pytorch(module, channel_dim=-1), module, (2, 20, 3))


def test_grids_of_grids_convert_with_and_without_projections_groups_and_axes():
    plain = peer.ResidualFSQ(levels=[8, 5, 5], num_quantizers=3).eval()
    assert_same_codes(from_vector_quantize_pytorch(plain), plain, (2, 20, 3))
    first = peer.ResidualFSQ(dim=DIM, levels=[8, 5], num_quantizers=3, is_channel_first=True).eval()
    z = torch.randn(FIRST)
    out = from_vector_quantize_pytorch(first)(z)
    quantized, indices = first(z)
    assert torch.equal(out.indices, indices.permute(0, 2, 3, 1).long())
    torch.testing.assert_close(out.quantized, quantized, rtol=1e-5, atol=1e-5)
    grouped = peer.GroupedResidualFSQ(dim=DIM, groups=2, levels=[8, 5], num_quantizers=3).eval()
    z = torch.randn(LAST)
    out = from_vector_quantize_pytorch(grouped)(z)
    quantized, indices = grouped(z)
    assert torch.equal(out.indices, indices.permute(1, 2, 0, 3).long())
    torch.testing.assert_close(out.quantized, quantized, rtol=1e-5, atol=1e-5)


def test_running_means_go_on_as_there():
    module = peer.VectorQuantize(DIM, SIZE)
    module(torch.randn(LAST))
    q = from_vector_quantize_pytorch(module)
    for _ in range(3):
        z = torch.randn(LAST)
        ours, theirs = q(z), module(z)
        assert torch.equal(ours.indices, theirs[1])
        torch.testing.assert_close(ours.quantized, theirs[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.loss, theirs[2].squeeze(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"codebook_dim": 3}, {"learnable_codebook": True, "ema_update": False, "codebook_dim": 3}],
    ids=["means", "projected", "learnable"],
)
def test_frozen_codes_stay_frozen_and_their_projections_learn(options):
    module = peer.VectorQuantize(DIM, SIZE, freeze_codebook=True, **options)
    q = from_vector_quantize_pytorch(module)
    before, z = q.codebook.clone(), torch.randn(LAST, requires_grad=True)
    for _ in range(3):
        out = q(z)
        assert torch.equal(out.indices, module(z)[1])
    (out.loss + out.quantized.square().sum()).backward()
    assert torch.equal(q.codebook, before)
    learned = {name for name, parameter in q.named_parameters() if parameter.grad is not None}
    projections = {"project_in.weight", "project_in.bias", "project_out.weight", "project_out.bias"}
    assert learned == (projections if "codebook_dim" in options else set())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "module",
    [
        peer.VectorQuantize(DIM, SIZE),
        peer.VectorQuantize(DIM, SIZE, heads=2, codebook_dim=DIM // 2),
        peer.ResidualVQ(dim=DIM, codebook_size=SIZE, num_quantizers=2, quant_grad_frac=1.0),
        peer.GroupedResidualVQ(dim=DIM, groups=2, codebook_size=SIZE, num_quantizers=2, quant_grad_frac=1.0),
        peer.FSQ([8, 4], dim=DIM, channel_first=None),
        peer.LFQ(dim=DIM, codebook_size=SIZE, channel_first=False),
        peer.SimVQ(DIM, SIZE, rotation_trick=False),
    ],
    ids=lambda module: type(module).__name__,
)
def test_converted_codes_have_found_their_latents_of_whatever_scale(module):
    z = 0.01 * torch.randn(LAST)
    module(z)
    from_vector_quantize_pytorch(module)(z)


@pytest.mark.parametrize("shared_codebook", [False, True])
def test_losses_of_groups_and_stages_add_up_to_those_of_the_peer(shared_codebook):
    options = {"dim": DIM, "codebook_size": SIZE, "num_quantizers": 3, "shared_codebook": shared_codebook}
    for module in (peer.ResidualVQ(**options), peer.GroupedResidualVQ(groups=2, **options)):
        q, z = from_vector_quantize_pytorch(module), torch.randn(LAST)
        torch.testing.assert_close(q(z).loss, module(z)[2].sum(), rtol=1e-4, atol=1e-6)


def test_gradients_that_differ_are_named():
    residual = {"dim": DIM, "codebook_size": SIZE, "num_quantizers": 2}
    with pytest.warns(LGQWarning, match="=0 of ResidualVQ, its default, passes.*decoding are the same"):
        from_vector_quantize_pytorch(peer.ResidualVQ(**residual))
    with pytest.warns(LGQWarning, match="stage-wise gradient of ResidualFSQ stays behind"):
        from_vector_quantize_pytorch(peer.ResidualFSQ(levels=[4, 4], num_quantizers=2))
    module = peer.ResidualVQ(**residual, quant_grad_frac=1.0, rotation_trick=False)
    q, z, upstream = from_vector_quantize_pytorch(module), torch.randn(LAST), torch.randn(LAST)
    gradients = []
    for quantizer in (q, module):
        latents = z.clone().requires_grad_()
        (quantizer(latents)[0] * upstream).sum().backward()
        gradients.append(latents.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("spherical", [False, True])
def test_losses_of_bits_are_those_of_the_peer(spherical):
    module = peer.LFQ(codebook_size=SIZE, dim=DIM, commitment_loss_weight=0.3, spherical=spherical)
    q, z = from_vector_quantize_pytorch(module, channel_dim=-1), 0.01 * torch.randn(LAST)
    # It takes the logarithm of no less than 1e-5.
    torch.testing.assert_close(q(z).loss, module(z).entropy_aux_loss, rtol=1e-3, atol=1e-3)


def test_heads_and_groups_become_groups():
    shared = peer.VectorQuantize(DIM, SIZE, heads=2, codebook_dim=DIM // 2).eval()
    assert_same_codes(from_vector_quantize_pytorch(shared), shared, LAST)
    module = peer.VectorQuantize(DIM, SIZE, heads=2, codebook_dim=4, separate_codebook_per_head=True).eval()
    q = from_vector_quantize_pytorch(module)
    assert isinstance(q, Grouped)
    z = torch.randn(LAST)
    assert torch.equal(q(z).indices, module(z)[1])
    grouped = peer.GroupedResidualVQ(dim=DIM, groups=2, codebook_size=SIZE, num_quantizers=3).eval()
    q = from_vector_quantize_pytorch(grouped)
    quantized, indices, *_ = grouped(z)
    assert torch.equal(q(z).indices, indices.permute(1, 2, 0, 3))
    torch.testing.assert_close(q(z).quantized, quantized, rtol=1e-5, atol=1e-5)


def test_dropout_of_stages_and_spheres_convert():
    module = peer.ResidualVQ(dim=DIM, codebook_size=SIZE, num_quantizers=4, quantize_dropout=True)
    q = from_vector_quantize_pytorch(module)
    assert isinstance(q, Residual)
    assert q.dropout == 0.75
    grids = peer.ResidualFSQ(dim=DIM, levels=[8, 5], num_quantizers=5, quantize_dropout=True)
    assert from_vector_quantize_pytorch(grids).dropout == 0.8
    spherical = peer.LFQ(codebook_size=8, spherical=True)
    assert isinstance(from_vector_quantize_pytorch(spherical, channel_dim=-1), BSQ)


@pytest.mark.filterwarnings("ignore:rotation_trick of SimVQ")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(2, 2), "Linear has no counterpart: these have, VectorQuantize, ResidualVQ"),
        (
            lambda: peer.VectorQuantize(DIM, SIZE, affine_param=True),
            "`affine_param` of VectorQuantize has no",
        ),
        (
            lambda: peer.VectorQuantize(DIM, SIZE, codebook_dim=4, layernorm_after_project_in=True),
            "`layernorm_after_project_in` of VectorQuantize has no counterpart.*keep the module",
        ),
        (
            lambda: peer.VectorQuantize(dim=16, codebook_size=SIZE, heads=2),
            "with 2 heads of 16 channels projects its 16 channels.*train with codebook_dim = dim / heads = 8",
        ),
        (
            lambda: peer.VectorQuantize(DIM, SIZE, freeze_codebook=True, kmeans_init=True),
            "frozen codes and `kmeans_init` has no codes yet: give it one training batch",
        ),
        (lambda: peer.FSQ([8, 5], preserve_symmetry=True), "`preserve_symmetry` of FSQ has no counterpart"),
        (
            lambda: peer.LFQ(codebook_size=8, num_codebooks=2),
            "`num_codebooks` of LFQ has no counterpart.*train a Grouped of one",
        ),
        (
            lambda: peer.ResidualFSQ(dim=DIM, levels=[8, 5], num_quantizers=2, bound_hard_clamp=False),
            "`bound_hard_clamp=False` of ResidualFSQ has no counterpart",
        ),
        (
            lambda: peer.ResidualFSQ(levels=[4, 4], num_quantizers=2, orthogonal_rotation=True),
            "`orthogonal_rotation` of ResidualFSQ has no counterpart",
        ),
        (
            lambda: peer.SimVQ(DIM, SIZE, codebook_transform=nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())),
            "`codebook_transform` of SimVQ has a counterpart if it is a Linear",
        ),
    ],
)
def test_what_would_give_other_codes_is_an_error(make, message):
    with pytest.raises(LGQError, match=message):
        from_vector_quantize_pytorch(make(), channel_dim=-1)


def test_what_changes_only_the_training_is_a_warning():
    module = peer.VectorQuantize(DIM, SIZE, codebook_diversity_loss_weight=0.1)
    with pytest.warns(LGQWarning, match="codebook_diversity_loss_weight of VectorQuantize stays behind"):
        from_vector_quantize_pytorch(module)
    module = peer.VectorQuantize(DIM, SIZE, codebook_diversity_loss_weight=0.1, orthogonal_reg_weight=0.1)
    grids = peer.ResidualFSQ(levels=[4, 4], num_quantizers=2, noise_dropout=0.5)
    with pytest.warns(LGQWarning, match="noise_dropout, stage-wise gradient of ResidualFSQ stay behind"):
        from_vector_quantize_pytorch(grids)
    two = "orthogonal_reg_weight, codebook_diversity_loss_weight of VectorQuantize stay behind"
    with pytest.warns(LGQWarning, match=two):
        from_vector_quantize_pytorch(module)


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (
            lambda: peer.VectorQuantize(DIM, SIZE, route_gradients_to_input=False),
            "route_gradients_to_input=False",
        ),
        (lambda: peer.VectorQuantize(DIM, SIZE, manual_ema_update=True), "manual_ema_update"),
        (lambda: peer.VectorQuantize(DIM, SIZE, eps=0.1), "eps=0.1"),
        (
            lambda: peer.VectorQuantize(
                DIM,
                SIZE,
                learnable_codebook=True,
                ema_update=False,
                in_place_codebook_optimizer=torch.optim.Adam,
            ),
            "in_place_codebook_optimizer",
        ),
        (
            lambda: peer.LFQ(codebook_size=SIZE, frac_per_sample_entropy=0.5, channel_first=False),
            "frac_per_sample",
        ),
        (lambda: peer.LFQ(codebook_size=SIZE, codebook_scale=0.5, channel_first=False), "codebook_scale"),
        *(
            (
                lambda option=option: peer.ResidualVQ(
                    dim=DIM, codebook_size=SIZE, num_quantizers=4, quantize_dropout=True, **option
                ),
                next(iter(option)),
            )
            for option in ({"quantize_dropout_cutoff_index": 1}, {"quantize_dropout_multiple_of": 2})
        ),
    ],
)
def test_every_option_that_only_the_training_of_the_peer_has_is_named(make, left):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(LGQWarning, match=left):
            from_vector_quantize_pytorch(make())


def test_codes_that_learn_in_no_way_there_stay_as_they_are_here():
    module = peer.VectorQuantize(DIM, SIZE, ema_update=False).train()
    q, codes = from_vector_quantize_pytorch(module), module.codebook.clone()
    for _ in range(3):
        z = torch.randn(LAST)
        assert torch.equal(q(z).indices, module(z)[1])
    assert torch.equal(q.codebook, codes)


def rows_of_the_page() -> dict[str, set[str]]:
    """Return the arguments that each section of the page has rows for, by class."""
    sections = re.split(r"^## `(\w+)`", PAGE.read_text(), flags=re.MULTILINE)
    arguments = [
        set(re.findall(r"`(\w+)`", cell)) for text in sections[2::2] for cell in [_first_cells(text)]
    ]
    return dict(zip(sections[1::2], arguments, strict=True))


def _first_cells(text: str) -> str:
    return "\n".join(re.findall(r"^\| ([^|]*) \|", text, flags=re.MULTILINE))


def test_every_class_and_argument_of_the_peer_has_a_row():
    rows = rows_of_the_page()
    classes = {name: value for name, value in vars(peer).items() if inspect.isclass(value)}
    assert rows.keys() == classes.keys()
    for name, value in classes.items():
        assert rows[name] == set(inspect.signature(value).parameters), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: VQ(DIM, SIZE, use_cosine_sim=True),
            r'VQ has no option use_cosine_sim: score="cosine" takes',
        ),
        (lambda: LGQ(DIM, SIZE, num_quantizers=4), "LGQ has no option num_quantizers: Residual.of takes"),
        (lambda: LGQ(DIM, SIZE, tau_stat=1.0), r"did you mean tau_start\?"),
        (lambda: FSQ(DIM, SIZE, kmeans_init=True), "FSQ has no option kmeans_init: it takes dim, "),
        (lambda: Residual([VQ(DIM, SIZE)], drop=0.1), r"Residual has no option drop: did you mean dropout\?"),
    ],
)
def test_an_unknown_option_names_the_one_that_is_meant(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VQ(DIM, SIZE, ema_update=False), 'VQ has no option ema_update: learning="ema" takes its'),
        (lambda: VQ(DIM, SIZE, stochastic_sample_codes=True), "sample_codes: sample_temperature takes its"),
        (lambda: VQ(DIM, SIZE, orthogonal_reg_weight=1.0), "reg_weight: restart_below takes its place"),
        (
            lambda: MultiScale(VQ(DIM, SIZE), scales=(1, 2)),
            "MultiScale has no option scales: sizes takes its",
        ),
        (
            lambda: Residual(dim=DIM, codebook_size=SIZE, num_quantizers=4),
            r"Residual has no option codebook_size: Residual.of\(make, stages\) or Grouped.of",
        ),
        (lambda: LFQ(DIM, SIZE, channel_first=True), "channel_first: channel_dim=1 takes its place"),
        (
            lambda: FSQ(levels=[8, 5, 5, 5]),
            r"needs dim and codebook_size: write FSQ\(dim, codebook_size, levels=\[8, 5, 5, 5\]\)",
        ),
        (
            lambda: FSQ(dim=6, levels=(8, 5)),
            r"needs codebook_size: write FSQ\(dim, codebook_size, levels=\(8",
        ),
    ],
)
def test_arguments_of_the_peer_lead_to_ours(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_classes_of_the_peer_lead_to_ours():
    names = {name for name, value in vars(peer).items() if inspect.isclass(value)}
    assert names >= set(lgq._COUNTERPARTS)
    assert not set(lgq._COUNTERPARTS) & set(lgq.__all__)
    with pytest.raises(ImportError, match=r"lgq has no ResidualVQ: Residual.of\(lambda: RotVQ.*all names"):
        from lgq import ResidualVQ  # noqa: F401
    with pytest.raises(ImportError, match="lgq has no VectorQuantize: RotVQ, or VQ takes its place"):
        lgq.VectorQuantize  # noqa: B018
    assert not hasattr(lgq, "Quantize")


@pytest.mark.parametrize("name", peer_names.METHODS)
def test_methods_of_the_peer_lead_to_ours(name):
    classes = (peer.VectorQuantize, peer.ResidualVQ, peer.FSQ)
    assert any(hasattr(owner, name) for owner in classes)
    for q in (VQ(DIM, SIZE), Residual.of(lambda: VQ(DIM, SIZE), 2)):
        assert not hasattr(q, name)
        with pytest.raises(AttributeError, match=f"has no {name}: .* takes its place"):
            getattr(q, name)
    with pytest.raises(AttributeError, match="object has no attribute 'codebok'"):
        VQ(DIM, SIZE).codebok  # noqa: B018


def test_every_argument_of_the_calls_of_the_peer_and_every_method_that_leads_to_ours_has_a_row():
    _, _, below = PAGE.read_text().partition("## Methods and arguments of calls")
    named = set(re.findall(r"`(\w+)", _first_cells(below.partition("\n## ")[0])))
    classes = (peer.VectorQuantize, peer.ResidualVQ, peer.FSQ, peer.LFQ, peer.SimVQ, peer.ResidualFSQ)
    arguments = set().union(*(inspect.signature(owner.forward).parameters for owner in classes))
    assert named >= arguments - {"self", "x", "z"}
    assert named >= set(peer_names.METHODS)


def test_hints_for_the_names_of_the_peer_are_on_the_page():
    assert set.union(*rows_of_the_page().values()) >= set(peer_names.OPTIONS)


def test_the_gradient_of_stages_is_named_once_per_conversion():
    module = peer.GroupedResidualVQ(dim=DIM, groups=2, codebook_size=SIZE, num_quantizers=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_vector_quantize_pytorch(module)
    assert [str(warning.message).partition(" ")[0] for warning in caught] == ["quant_grad_frac=0"]
