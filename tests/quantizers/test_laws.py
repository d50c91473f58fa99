"""Laws of every quantizer: the contract that makes them interchangeable."""

import copy
import io
from inspect import signature

import pytest
import torch
from quantizer_family import DIM
from torch._dynamo.testing import CompileCounterWithBackend

from lgq.checks import require_finite
from lgq.errors import LGQError
from lgq.quantizers import (
    FSQ,
    QUANTIZERS,
    VQ,
    MultiScale,
    ProjectedVQ,
    Quantizer,
    Residual,
    build_quantizer,
    register,
)

LAYOUTS = {-1: (3, 5, 7, DIM), 1: (3, DIM, 5, 7), 0: (DIM, 11), 2: (2, 3, DIM)}


def latents(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape or (4, 9, DIM), dtype=dtype)


def same_codes(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_indices_decode_to_the_output_they_came_with(build, training, grad):
    quantizer = build().train(training)
    for _ in range(3):  # so that moving averages have changed
        with torch.set_grad_enabled(grad):
            z = latents()
            out = quantizer(z)
            encoded = quantizer.encode(z)
        same_codes(quantizer.decode(out.indices), out.quantized)
        assert torch.equal(quantizer.decode(out.indices), quantizer.indices_to_codes(out.indices))
        assert training or torch.equal(encoded, out.indices)


@pytest.mark.parametrize("channel_dim", LAYOUTS)
def test_every_layout_gives_the_same_results_in_its_shape(build, channel_dim):
    z = latents(*LAYOUTS[channel_dim])
    reference = build()(z.movedim(channel_dim, -1))
    quantizer = build(channel_dim=channel_dim)
    out = quantizer(z)
    assert torch.equal(out.indices, reference.indices)
    same_codes(out.quantized.movedim(channel_dim, -1), reference.quantized)
    torch.testing.assert_close(out.loss, reference.loss)
    tokens = list(z.shape)
    del tokens[channel_dim]
    shape = [*tokens, *quantizer.index_shape]
    if isinstance(quantizer, MultiScale):
        shape[-1] = sum(quantizer.lengths(tokens[-1:]))
    assert list(out.indices.shape) == list(quantizer.encode(z).shape) == shape
    assert out.quantized.shape == quantizer.decode(out.indices).shape == z.shape
    assert (out.quantized.dtype, out.indices.dtype, out.loss.shape) == (z.dtype, torch.int64, ())
    quantized, indices, loss = out
    assert quantized is out.quantized
    assert indices is out.indices
    assert loss is out.loss


def test_a_single_vector_needs_no_batch_axis(build):
    quantizer = build().eval()
    z = latents(3, DIM)
    if isinstance(quantizer, MultiScale):
        z = latents(3, 4, DIM)  # whose smallest input is a grid
    assert torch.equal(quantizer.encode(z[0]), quantizer.encode(z)[0])
    assert quantizer(z[0]).quantized.shape == z[0].shape
    same_codes(quantizer.decode(quantizer.encode(z[0])), quantizer.decode(quantizer.encode(z))[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_tokens_of_any_integer_dtype_decode_equally(build, dtype):
    quantizer = build().eval()
    tokens = quantizer.encode(latents())
    assert torch.equal(quantizer.decode(tokens.to(dtype)), quantizer.decode(tokens))


def test_results_do_not_depend_on_the_order_of_the_batch(build):
    z = latents(50, 2, DIM)
    order = torch.randperm(50)
    straight, shuffled = build()(z), build()(z[order])
    assert torch.equal(shuffled.indices, straight.indices[order])
    same_codes(shuffled.quantized, straight.quantized[order])
    torch.testing.assert_close(shuffled.loss, straight.loss, rtol=1e-5, atol=1e-6)


def test_equal_seeds_give_equal_quantizers_and_different_seeds_do_not(build_single):
    torch.manual_seed(1)
    first = build_single(seed=3).state_dict()
    torch.manual_seed(2)
    repeated, reseeded = (build_single(seed=seed).state_dict() for seed in (3, 4))
    assert all(torch.equal(first[name], repeated[name]) for name in first)
    assert any(not torch.equal(first[name], reseeded[name]) for name in first)


def test_quantizers_start_apart_unless_torch_or_the_caller_fixes_the_seed(build_single):
    def states(*seeds: int | None) -> list[dict[str, torch.Tensor]]:
        torch.manual_seed(1)
        return [build_single(seed=seed).state_dict() for seed in seeds]

    def differ(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
        return any(not torch.equal(a[name], b[name]) for name in a)

    first, second = states(None, None)
    assert differ(first, second)
    assert not any(differ(*pair) for pair in zip((first, second), states(None, None), strict=True))
    quantizer = build_single(seed=None)
    assert not differ(build_single(seed=quantizer.seed).state_dict(), quantizer.state_dict())


def test_a_given_seed_takes_no_number_from_the_generator_of_torch(build_single):
    before = torch.get_rng_state()
    build_single(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.device("meta"):
        assert build_single(seed=None).seed >= 0
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_representation_shows_the_settings_that_differ_from_the_defaults(build):
    quantizer = build()
    text, children = quantizer.extra_repr(), dict(quantizer.named_children())
    for name, argument in signature(type(quantizer)).parameters.items():
        value = getattr(quantizer, name)
        if isinstance(value, torch.Tensor):
            value = "<32 x 4>" if value.ndim == 2 else tuple(value.tolist())
        if name in children:
            assert f"({name}): " in repr(quantizer)
        else:
            assert (f"{name}={value!r}" in text) == (value != argument.default), name
    with torch.device("meta"):
        assert type(quantizer).__name__ in repr(build())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_latents_choose_what_float32_of_their_values_does(build, dtype):
    half = latents(200, DIM).to(dtype)
    quantizer = build().eval()
    assert torch.equal(quantizer(half).indices, quantizer(half.float()).indices)
    assert torch.equal(quantizer.encode(half), quantizer.encode(half.float()))
    assert build()(half).quantized.dtype == dtype
    assert torch.equal(build()(half).indices, build()(half.float()).indices)


def test_double_precision_latents_meet_single_precision_weights(build):
    z = latents(dtype=torch.float64).requires_grad_()
    out = build()(z)
    (out.quantized.sum() + out.loss).backward()
    assert out.quantized.dtype == z.grad.dtype == torch.float64


def test_autocast_changes_no_index_and_no_gradient(build):
    z = latents(200, DIM).requires_grad_()
    results = []
    for enabled in (False, True):
        quantizer = build()
        torch.manual_seed(0)  # of the noise in the direction of DiVeQ
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = quantizer(z)
            indices = quantizer.encode(z)
        loss = out.loss + out.quantized.square().sum()
        results.append((out.indices, indices, *torch.autograd.grad(loss, z)))
    for plain, autocast in zip(*results, strict=True):
        assert torch.equal(plain, autocast)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_moving_to_another_dtype_works(build, dtype):
    quantizer = build().to(dtype)
    z = latents(dtype=dtype).requires_grad_()
    for _ in range(2):
        out = quantizer(z)
        (out.quantized.sum() + out.loss).backward()
    assert out.quantized.dtype == dtype
    assert torch.isfinite(z.grad).all()
    assert quantizer.decode(out.indices).shape == z.shape


def test_moving_to_another_device_moves_everything(build):
    quantizer = build().to("meta")
    tensors = [*quantizer.parameters(), *quantizer.buffers()]
    assert all(tensor.is_meta for tensor in tensors)
    assert quantizer(latents().to("meta")).quantized.is_meta


def test_state_round_trips(build):
    source = build()
    for _ in range(3):
        source(latents())
    source.anneal(0.5)
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    copied = build()
    copied.load_state_dict(torch.load(file, weights_only=True))
    z = latents()
    ours, theirs = copied(z), source(z)
    assert torch.equal(ours.indices, theirs.indices)
    assert torch.equal(ours.quantized, theirs.quantized)
    assert torch.equal(ours.loss, theirs.loss)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_quantizer_built_without_memory_loads_a_state(build, assign, dtype):
    source = build()
    source(latents())
    source.eval().to(dtype)
    with torch.device("meta"):
        copied = build().eval().to(dtype)
    if not assign:
        copied.to_empty(device="cpu")
    copied.load_state_dict(source.state_dict(), assign=assign)
    z = latents(50, 2, DIM)
    assert torch.equal(copied.encode(z), source.encode(z))
    assert torch.equal(copied(z).quantized, source(z).quantized)
    assert copied.codebook_size == source.codebook_size


def test_features_may_have_no_values_yet():
    source = ProjectedVQ(torch.randn(32, 4), DIM)
    with torch.device("meta"):
        copied = ProjectedVQ(torch.randn(32, 4), DIM)
    copied.to_empty(device="cpu").load_state_dict(source.state_dict())
    z = latents()
    assert torch.equal(copied.encode(z), source.encode(z))


def test_a_state_with_nan_is_refused_by_name(build):
    state = build().state_dict()
    name = next(name for name, tensor in state.items() if tensor.is_floating_point() and tensor.ndim)
    state[name] = state[name] * torch.nan
    with pytest.raises(LGQError, match=r"contains NaN or infinity in the loaded state"):
        build().load_state_dict(state)


def test_an_empty_batch_gives_an_empty_result_and_a_finite_loss(build):
    quantizer = build()
    quantizer(latents())
    before = copy.deepcopy(quantizer.state_dict())
    z = torch.empty(0, 9, DIM, requires_grad=True)
    out = quantizer(z)
    assert out.quantized.shape == (0, 9, DIM)
    assert out.indices.shape[0] == 0
    assert torch.isfinite(out.loss)
    (out.loss + out.quantized.sum()).backward()
    assert quantizer.encode(z).shape == out.indices.shape
    assert quantizer.decode(out.indices).shape == z.shape
    unchanged = {name for name, value in quantizer.state_dict().items() if torch.equal(value, before[name])}
    moved_by_the_batch_before = {name for name in before if name.endswith("codebook")}
    assert before.keys() - unchanged <= moved_by_the_batch_before
    assert torch.isfinite(quantizer(latents()).quantized).all()


def test_every_gradient_is_finite_and_reaches_the_latents(build):
    quantizer = build()
    z = latents().requires_grad_()
    out = quantizer(z)
    assert all(not term.requires_grad and term.ndim == 0 for term in out.terms.values())
    (out.loss + (out.quantized * torch.randn_like(z)).sum()).backward()
    assert z.grad.abs().sum() > 0
    for name, parameter in quantizer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
    evaluated = quantizer.eval()(z)
    assert evaluated.loss.item() == 0.0
    assert not evaluated.loss.requires_grad


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("training", [True, False])
def test_compiled_quantizers_give_the_same_without_graph_breaks(build_class, training):
    torch.compiler.reset()
    z = latents().requires_grad_()
    eager, compiled = build_class().train(training), build_class().train(training)
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.manual_seed(0)
        expected = eager(z)
        torch.manual_seed(0)
        out = run(z)
        assert torch.equal(out.indices, expected.indices)
        torch.testing.assert_close(out.quantized, expected.quantized)
        torch.testing.assert_close(out.loss, expected.loss)
        ours, theirs = (torch.autograd.grad(o.loss + o.quantized.sum(), z)[0] for o in (out, expected))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch's compiler itself
@pytest.mark.parametrize("name", ["lgq", "vq", "rotvq"])
def test_the_default_compiler_gives_the_same_gradients(name):
    torch.compiler.reset()
    z = latents(40, DIM).requires_grad_()
    eager, compiled = (QUANTIZERS[name](DIM, 32, seed=0) for _ in range(2))
    run = torch.compile(compiled, fullgraph=True)
    for _ in range(2):
        ours, theirs = (torch.autograd.grad((q(z).quantized ** 2).sum(), z)[0] for q in (run, eager))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("without_shape_checks")
def test_one_compilation_serves_batches_of_any_size(build_class):
    torch.compiler.reset()
    quantizer = build_class().eval()
    graphs = CompileCounterWithBackend("aot_eager")
    run = torch.compile(quantizer, fullgraph=True, backend=graphs)
    for n in (5, 6, 7, 8, 9, 10):
        assert run(latents(n, 4, DIM)).quantized.shape == (n, 4, DIM)
    assert graphs.frame_count <= 2


def masked_latents(mask: torch.Tensor) -> torch.Tensor:
    """Latents that are garbage where they do not count."""
    return latents(*mask.shape, DIM).masked_fill(~mask[..., None], float("nan"))


@pytest.mark.parametrize("training", [True, False])
def test_masked_vectors_change_nothing_and_have_no_code(build_maskable, training):
    mask = torch.rand(4, 9) < 0.6
    masked, left_out = build_maskable().train(training), build_maskable().train(training)
    for _ in range(3):  # so that moving averages show what they counted
        z = masked_latents(mask).requires_grad_()
        kept = z.detach()[mask].requires_grad_()
        torch.manual_seed(5)
        out = masked(z, mask)
        torch.manual_seed(5)
        expected = left_out(kept)
        assert torch.equal(out.indices[mask], expected.indices)
        assert (out.indices[~mask] == -1).all()
        assert torch.equal(out.quantized[mask], expected.quantized)
        assert (out.quantized[~mask] == 0).all()
        assert torch.equal(out.loss, expected.loss)
        assert out.terms.keys() == expected.terms.keys()
        assert all(torch.equal(term, expected.terms[name]) for name, term in out.terms.items())
        same_codes(masked.decode(out.indices), out.quantized)
        upstream = torch.randn_like(z)
        (ours,) = torch.autograd.grad(out.loss + (out.quantized * upstream).sum(), z)
        (theirs,) = torch.autograd.grad(expected.loss + (expected.quantized * upstream[mask]).sum(), kept)
        assert torch.equal(ours[mask], theirs)
        assert (ours[~mask] == 0).all()
    states = masked.state_dict(), left_out.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    encoded = masked.eval().encode(z, mask=mask)
    assert torch.equal(encoded[mask], left_out.eval().encode(kept))
    assert (encoded[~mask] == -1).all()


def test_a_mask_follows_the_layout_of_the_latents(build_maskable):
    mask = torch.rand(3, 5, 7) < 0.5
    z = latents(3, DIM, 5, 7)
    out, reference = build_maskable(channel_dim=1)(z, mask), build_maskable()(z.movedim(1, -1), mask)
    assert torch.equal(out.indices, reference.indices)
    same_codes(out.quantized.movedim(1, -1), reference.quantized)


def test_a_batch_in_which_nothing_counts_is_an_empty_one(build_maskable):
    quantizer = build_maskable()
    out = quantizer(latents(), torch.zeros(4, 9, dtype=torch.bool))
    assert (out.indices == -1).all()
    assert (out.quantized == 0).all()
    assert torch.isfinite(out.loss)


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_masks_raise_an_error(build_maskable):
    quantizer = build_maskable()
    with pytest.raises(LGQError, match=r"`mask` must be boolean.*got torch.int64: compare first"):
        quantizer(latents(), torch.ones(4, 9, dtype=torch.int64))
    for shape in ((4,), (4, 9, DIM)):
        with pytest.raises(LGQError, match=r"one value per vector, so shape \(4, 9\), got \(4.*leave out"):
            quantizer.encode(latents(), torch.ones(shape, dtype=torch.bool))


@pytest.mark.usefixtures("without_shape_checks")
def test_compiled_quantizers_take_masks(build_class):
    if isinstance(build_class(), MultiScale):
        pytest.skip("it takes no mask")
    torch.compiler.reset()
    z, mask = latents().requires_grad_(), torch.rand(4, 9) < 0.6
    eager, compiled = build_class(), build_class()
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for seed in range(2):
        torch.manual_seed(seed)
        expected = eager(z, mask)
        torch.manual_seed(seed)
        out = run(z, mask)
        assert torch.equal(out.indices, expected.indices)
        torch.testing.assert_close(out.quantized, expected.quantized)
        ours, theirs = (torch.autograd.grad(o.loss + o.quantized.sum(), z)[0] for o in (out, expected))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan"), "half"])
def test_progress_outside_0_to_1_raises_an_error(build, progress):
    with pytest.raises(ValueError, match=f"progress runs from 0 to 1, got {progress!r}"):
        build().anneal(progress)


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_latents_raise_an_error(build):
    quantizer = build()
    with pytest.raises(ValueError, match=rf"{DIM} channels at axis -1, got shape \(4, 5\).*channel_dim"):
        quantizer(torch.randn(4, 5))
    with pytest.raises(ValueError, match=r"floating point, got torch\.int64"):
        quantizer(torch.zeros(4, DIM, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"latents must be a tensor, got ndarray: .*torch.as_tensor"):
        quantizer(torch.randn(4, DIM).numpy())
    for bad in (float("nan"), float("inf")):
        z = latents(7, DIM)
        z[2, 1] = bad
        with pytest.raises(ValueError, match="1 of 7 latent vectors contain NaN or infinity"):
            quantizer(z)
        with pytest.raises(ValueError, match="1 of 7 latent vectors"):
            quantizer.encode(z)


def test_large_latents_whose_sum_overflows_are_no_mistake():
    require_finite(torch.full((4, 8), 3e38))
    require_finite(torch.empty(0, 8))
    with pytest.raises(ValueError, match="2 of 4 latent vectors"):
        require_finite(torch.tensor([[1.0], [float("inf")], [-float("inf")], [3e38]]))


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_indices_raise_an_error(build):
    quantizer = build()
    good = quantizer(latents()).indices
    bad = good.clone()
    for index, message in ((99, r"index 99 is outside .*31.*another quantizer"), (-2, "index -2 is outside")):
        bad[0] = index
        with pytest.raises(ValueError, match=message):
            quantizer.decode(bad)
    with pytest.raises(ValueError, match=r"indices must be integers, got torch.float32"):
        quantizer.decode(good.float())
    with pytest.raises(ValueError, match=r"indices must be a tensor, got list: .*torch.as_tensor"):
        quantizer.decode([1, 2])


@pytest.mark.usefixtures("without_shape_checks")
def test_the_registry_has_its_quantizers_and_takes_more(monkeypatch):
    names = "lgq ibq vq rotvq fsq lfq simvq bsq diveq wasserstein"
    assert list(QUANTIZERS) == names.split()
    monkeypatch.setattr("lgq.quantizers.QUANTIZERS", dict(QUANTIZERS))
    register("mine", type("Mine", (FSQ,), {"label": "Mine"}))
    assert build_quantizer("mine", DIM, 32).label == "Mine"
    with pytest.raises(LGQError, match="'lgq' is LGQ already: choose another name"):
        register("lgq", FSQ)
    with pytest.raises(
        LGQError, match=r"'bare' lacks `label` \(its name in tables\): add what is missing to Bare"
    ):
        register("bare", type("Bare", (FSQ,), {"label": ""}))
    with pytest.raises(LGQError, match=r"'made' must be a subclass of lgq.quantizers.Quantizer, got FSQ\("):
        register("made", FSQ(DIM, 32))
    everything = r"'part' lacks quantize_vectors, reset_parameters, `label` .*, `seed` of __init__: add what"
    with pytest.raises(LGQError, match=everything):
        register("part", type("Part", (Quantizer,), {"__init__": _without_seed}))


def _without_seed(self, dim: int, codebook_size: int, *, channel_dim: int = -1) -> None:
    Quantizer.__init__(self, dim, codebook_size, channel_dim=channel_dim)


def test_a_name_in_capitals_is_told_the_registered_one():
    with pytest.raises(LGQError, match="did you mean 'lgq'"):
        build_quantizer("LGQ", DIM, 32)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_codebooks_have_distinct_codes(name):
    quantizer = QUANTIZERS[name](DIM, 32)
    assert quantizer.codebook.shape[0] == 32 == quantizer.codebook_size
    assert quantizer.dim == DIM
    assert len(quantizer.codebook.unique(dim=0)) == 32


def test_a_residual_quantizer_has_its_channels_where_its_stages_have_them():
    stages = [VQ(16, 8, channel_dim=1, seed=i) for i in range(2)]
    z = torch.randn(3, 16, 16, 16)
    residual = Residual(stages).eval()
    assert torch.equal(residual(z).indices, Residual(stages, channel_dim=1).eval()(z).indices)
    assert not torch.equal(residual(z).indices, Residual(stages, channel_dim=-1).eval()(z).indices)
    with pytest.raises(LGQError, match=r"channels at axes \[-1, 1\]: give `channel_dim`"):
        Residual([VQ(16, 8), VQ(16, 8, channel_dim=1)])
