"""The result of every quantizer passes through torch as a plain tuple does, and its terms go with it."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from quantizer_family import DIM, SIZE
from torch import nn
from torch.nn.parallel import scatter_gather
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.data import default_collate

from lgq.quantizers import VQ, MultiScale, Quantized, Residual

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def latents(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (4, 9, DIM))


def result(value: float = 0.0) -> Quantized:
    indices = torch.zeros(2, dtype=torch.int64)
    return Quantized(torch.full((2, 3), value), indices, torch.tensor(value), {"peak": torch.tensor(value)})


def assert_same(actual: Quantized, expected: Quantized) -> None:
    assert type(actual) is Quantized
    assert torch.equal(actual.indices, expected.indices)
    torch.testing.assert_close(tuple(actual), tuple(expected), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(actual.terms, expected.terms, rtol=1e-5, atol=1e-6)


class Inside(nn.Module):
    """A module whose forward returns the result of its quantizer, among others."""

    def __init__(self, quantizer: nn.Module):
        super().__init__()
        self.encoder, self.quantizer = nn.Linear(5, DIM), quantizer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Quantized]:
        out = self.quantizer(self.encoder(x))
        return out[0].mean(), out


def test_a_result_has_the_length_the_items_and_the_slices_of_a_tuple(build):
    out = build()(latents())
    assert isinstance(out, tuple)
    assert len(out) == 3
    assert out[0] is out.quantized is out[-3]
    assert out[1] is out.indices is out[-2]
    assert out[2] is out.loss is out[-1]
    assert [id(part) for part in out[:2]] == [id(out.quantized), id(out.indices)]
    quantized, *rest = out
    assert quantized is out.quantized
    assert rest == [out.indices, out.loss]
    with pytest.raises(IndexError):
        out[3]


def test_copies_keep_the_terms_and_the_representation_names_every_part():
    out = result(0.5)
    for copied in (copy.copy(out), copy.deepcopy(out), pickle.loads(pickle.dumps(out))):
        assert_same(copied, out)
    assert copy.copy(out).quantized is out.quantized
    assert copy.deepcopy(out).quantized is not out.quantized
    names = (
        "Quantized(quantized=tensor(",
        ", indices=tensor(",
        ", loss=tensor(0.5",
        ", terms={'peak': tensor(",
    )
    assert all(name in repr(out) for name in names)


def test_the_pytree_has_the_terms_and_names_its_leaves():
    out = result(1.0)
    doubled = pytree.tree_map(lambda leaf: 2 * leaf, {"out": out})["out"]
    assert_same(doubled, result(2.0))
    keys = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(out)[0]]
    assert keys == [".quantized", ".indices", ".loss", ".terms['peak']"]
    described = pytree.treespec_dumps(pytree.tree_structure(out))
    assert pytree.treespec_loads(described) == pytree.tree_structure(out)


def test_the_faster_pytree_of_torch_knows_it_too():
    pytest.importorskip("optree")
    from torch.utils import _cxx_pytree

    assert_same(_cxx_pytree.tree_map(lambda leaf: 2 * leaf, result(1.0)), result(2.0))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_quantizers_take_any_batch_and_survive_a_file(build_class, strict):
    quantizer = build_class().eval()
    any_batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(quantizer, (latents(),), dynamic_shapes=any_batch, strict=strict)
    assert not any("lgq" in str(node.target) for node in program.graph.nodes), "runs without this package"
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    z = latents(7, 9, DIM)
    with torch.no_grad():
        assert_same(torch.export.load(file).module()(z), quantizer(z))


@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_returns_a_result_exports(build_class, training):
    module, x = Inside(build_class()).train(training), torch.randn(4, 9, 5)
    program = torch.export.export(copy.deepcopy(module), (x,), dynamic_shapes=({0: torch.export.Dim("b")},))
    x = torch.randn(7, 9, 5)
    torch.manual_seed(0)
    with torch.no_grad():
        mean, out = program.module()(x)
        torch.manual_seed(0)
        expected = module(x)
    torch.testing.assert_close(mean, expected[0])
    assert_same(out, expected[1])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_traced_quantizers_take_any_batch_and_give_plain_tuples(build):
    quantizer = build().eval()
    traced = torch.jit.trace(quantizer, latents())
    assert "lgq::" not in str(traced.inlined_graph)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    length = 9 if isinstance(quantizer, MultiScale) else 2  # the size of a grid is fixed by a trace
    for z in (latents(7, 9, DIM), latents(1, length, DIM)):
        quantized, indices, loss = torch.jit.load(file)(z)
        file.seek(0)
        assert_same(Quantized(quantized, indices, loss), Quantized(*quantizer(z)))


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_functional_calls_are_those_of_backward(build, training):
    torch.manual_seed(1)
    quantizer = build().train(training)
    state = dict(quantizer.named_parameters()), dict(quantizer.named_buffers())

    def loss(parameters, buffers, z):
        out = torch.func.functional_call(quantizer, (parameters, buffers), (z,))
        return out.loss + out.quantized.square().sum(), out

    parts = getattr(quantizer, "parts", [])
    if training and len(set(parts)) < len(parts):
        pytest.skip("functional_call leaves other buffers in a module that is used twice")
    z = latents()
    own_copy = pytree.tree_map(lambda tensor: tensor.detach().clone(), state)  # VQ moves its buffers
    torch.manual_seed(2)
    (gradients, dz), out = torch.func.grad(loss, argnums=(0, 2), has_aux=True)(*own_copy, z)
    torch.manual_seed(2)
    expected = quantizer(z.requires_grad_())
    assert_same(out, expected)
    (expected.loss + expected.quantized.square().sum()).backward()
    torch.testing.assert_close(dz, z.grad, rtol=1e-4, atol=1e-5)
    wanted = {
        name: parameter.grad for name, parameter in quantizer.named_parameters() if parameter.grad is not None
    }
    torch.testing.assert_close({name: gradients[name] for name in wanted}, wanted, rtol=1e-4, atol=1e-5)


def test_vmap_equals_a_loop(build):
    quantizer, z = build().eval(), latents()
    batched = torch.func.vmap(quantizer)(z)
    loop = [quantizer(part) for part in z]
    assert_same(batched, pytree.tree_map(lambda *parts: torch.stack(parts), *loop))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_training_equals_a_plain_one(build, reentrant):
    """Gradients, codes and running means: the recomputation of a batch neither counts it nor moves codes."""
    plain, checkpointed = build(), build()
    for step in range(3):
        results = []
        for quantizer in (plain, checkpointed):
            run = partial(checkpoint, quantizer, use_reentrant=reentrant)
            torch.manual_seed(step)
            z = torch.randn(40, DIM).requires_grad_()
            quantized, indices, loss = (quantizer if quantizer is plain else run)(z)
            quantizer.zero_grad()
            (quantized.square().sum() + loss).backward()
            results.append([quantized, indices, loss, z.grad, *(p.grad for p in quantizer.parameters())])
            torch.optim.SGD([z, *quantizer.parameters()], lr=0.1).step()
        # A batch that counts twice moves codes by percents; sums may round in another order.
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(plain.state_dict(), checkpointed.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_draws_of_a_recomputation_are_those_of_the_first_pass(reentrant):
    """Revival draws between the stages too."""
    gradients = []
    for run in (lambda q, z: checkpoint(q, z, use_reentrant=reentrant), lambda q, z: q(z)):
        options = {"restart_below": 2.0, "sample_temperature": 1.0, "seed": 0}
        q = Residual([VQ(DIM, SIZE, **options), VQ(DIM, SIZE, gradient="rotation", **options)], dropout=0.5)
        torch.manual_seed(1)
        z = torch.randn(40, DIM).requires_grad_()
        quantized, _, loss = run(q, z)
        (quantized.square().sum() + loss).backward()
        gradients.append(z.grad)
    assert torch.equal(*gradients)


def test_parts_of_several_devices_are_gathered(monkeypatch):
    stack = type("Stack", (), {"apply": staticmethod(lambda device, dim, *parts: torch.stack(parts))})
    monkeypatch.setattr(scatter_gather, "Gather", stack)  # torch's own gathers from GPUs only
    gathered = scatter_gather.gather([result(1.0), result(2.0)], "cpu")
    assert gathered.quantized.shape == (2, 2, 3)
    assert gathered.loss.tolist() == [1.0, 2.0]


def test_results_are_collated_to_one():
    collated = default_collate([result(1.0), result(2.0)])
    assert type(collated) is Quantized
    assert collated.loss.tolist() == [1.0, 2.0]


def test_a_compiled_module_returns_a_result_with_its_terms():
    torch.compiler.reset()
    quantizer = VQ(DIM, SIZE, seed=0)
    compiled = torch.compile(copy.deepcopy(quantizer), fullgraph=True, backend="aot_eager")
    z = latents()
    assert_same(compiled(z), quantizer(z))
