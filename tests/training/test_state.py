"""Whatever a run's state consists of comes back bit for bit, or is refused by name."""

import json
import math
import random
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from identity import assert_identical, bits
from torch import Tensor, nn

from lgq.files import json_bytes
from lgq.training.checkpoint import (
    STORABLE_DTYPES,
    capture_random_state,
    flatten,
    restore_random_state,
    seed_random_state,
    unflatten,
)


def through_files(state: Any) -> Any:
    flat = flatten(state)
    tensors = safetensors.torch.load(safetensors.torch.save(flat.tensors))
    return unflatten(json.loads(json_bytes(flat.skeleton)), tensors)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], layout: str = "plain", seed: int = 0) -> Tensor:
    """Random bits, so that NaNs of every kind, -0.0 and subnormal numbers occur."""
    generator = torch.Generator().manual_seed(seed)
    size = (math.prod(shape) * dtype.itemsize,)
    raw = torch.randint(2 if dtype == torch.bool else 256, size, dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).reshape(shape)
    if layout == "transposed":
        return tensor.permute(tuple(reversed(range(tensor.ndim))))
    if layout == "every second":
        return tensor[..., ::2] if tensor.ndim else tensor
    return tensor


tensors = st.builds(
    random_tensor,
    st.sampled_from(sorted(STORABLE_DTYPES, key=str)),
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
    st.sampled_from(["plain", "transposed", "every second"]),
    st.integers(0, 1000),
)
# Surrogates are no valid Unicode, but file names bring them along.
odd_strings = st.sampled_from(["a/b", "a.b", "/", "", "\ud83d\ude00"])
strings = st.text(st.characters(codec=None), max_size=5) | odd_strings
scalars = st.none() | st.booleans() | st.integers() | st.floats() | strings
keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | strings
states = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(strings, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(states)
def test_nested_states_come_back_bit_for_bit(state):
    assert_identical(through_files(state), state)


@pytest.mark.parametrize("dtype", sorted(STORABLE_DTYPES, key=str), ids=str)
def test_every_dtype_comes_back(dtype):
    for shape in ((), (0,), (2, 0, 3), (7,), (2, 3, 4)):
        state = [random_tensor(dtype, shape)]
        assert_identical(through_files(state), state)


def test_keys_with_separators_stay_apart():
    state = {
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2), "b.c": torch.tensor(3)},
        "a.b": {"c": torch.tensor(4)},
        1: torch.tensor(5),
        "1": torch.tensor(6),
        "__metadata__": torch.tensor(7),
        "\ud800": torch.tensor(8),
    }
    assert_identical(through_files(state), state)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 3, 1, 1).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 5, 2).to(memory_format=torch.channels_last_3d),
        torch.randn(5, 4).t(),
        torch.randn(6, 5)[2:4].t(),
    ],
    ids=["channels_last", "channels_last 1x1", "channels_last_3d", "transposed", "part of another"],
)
def test_dense_memory_formats_stay(tensor):
    found = through_files(tensor)
    assert_identical(found, tensor)
    assert found.stride() == tensor.stride()


def test_lazy_views_and_repeated_memory_come_back_by_value():
    complex_numbers = torch.randn(5, dtype=torch.complex64)
    state = {
        "conjugate": complex_numbers.conj(),
        "negative": complex_numbers.conj().imag,
        "itself": complex_numbers,
        "expanded": torch.arange(3).expand(4, 3),
        "steps": torch.arange(10)[1::3],
    }
    found = through_files(state)
    for name, tensor in state.items():
        assert bits(found[name]) == bits(tensor.resolve_conj().resolve_neg())


def test_one_tensor_in_two_places_stays_one_tensor():
    shared = torch.randn(3, 4)
    found = through_files({"weight": shared, "tied": [shared.detach()], "copy": shared.clone()})
    found["weight"].zero_()
    assert found["tied"][0].count_nonzero() == 0
    assert torch.equal(found["copy"], shared)
    assert len(flatten([shared, shared.detach()]).tensors) == 1


def test_overlapping_views_come_back_each_with_its_values():
    whole = torch.arange(12).reshape(3, 4)
    state = [whole, whole[1:], whole[:, 1], whole.t(), whole.view(torch.int32), whole.flatten()]
    assert_identical(through_files(state), state)


def test_a_part_of_a_large_tensor_takes_only_its_own_room():
    flat = flatten({"part": torch.zeros(1000, 1000)[0, :10]})
    assert len(safetensors.torch.save(flat.tensors)) < 500


def test_what_comes_back_does_not_depend_on_the_bytes_of_the_file():
    flat = flatten({"x": torch.ones(3)})
    stored = {name: tensor.clone() for name, tensor in flat.tensors.items()}
    found = unflatten(flat.skeleton, stored)
    stored["x"].zero_()
    assert found["x"].tolist() == [1, 1, 1]


def test_parameters_come_back_as_their_values():
    weight = nn.Parameter(torch.randn(2, 2))
    found = through_files({"w": weight})["w"]
    assert_identical(found, weight.detach())
    assert not found.requires_grad


def test_a_module_state_keeps_its_versions():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    found = through_files(module.state_dict())
    assert_identical(found, module.state_dict())
    assert found._metadata["1"] == {"version": 2}
    module.load_state_dict(found)


def three_steps(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    for _ in range(3):
        loss = model(torch.randn(4, 3)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_resumed_optimizer_goes_on_as_the_unbroken_one():
    def parts():
        model = nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True), torch.amp.GradScaler("cpu")

    unbroken = parts()
    three_steps(*unbroken)
    saved = through_files([[part.state_dict() for part in unbroken], capture_random_state()])
    assert_identical(saved[0], [part.state_dict() for part in unbroken])
    three_steps(*unbroken)
    resumed = parts()
    for part, state in zip(resumed, saved[0], strict=True):
        part.load_state_dict(state)
    restore_random_state(saved[1])
    three_steps(*resumed)
    assert_identical([part.state_dict() for part in resumed], [part.state_dict() for part in unbroken])


def draws() -> list[Any]:
    generators = (random.random, lambda: random.gauss(0, 1), np.random.rand, np.random.randn)
    return [[draw() for _ in range(3)] for draw in generators] + [torch.randn(5).tolist()]


def test_restored_generators_repeat_what_they_drew():
    draws()  # an odd number of normal numbers leaves one in reserve
    captured = capture_random_state()
    expected = draws()
    assert draws() != expected
    # Not before: the type checker of the tests draws numbers of its own.
    restore_random_state(through_files(captured))
    assert draws() == expected


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_a_seed_is_one_start_of_every_generator(seed):
    found = []
    for _ in range(2):
        seed_random_state(seed)
        found.append(draws())
    assert found[0] == found[1]
    seed_random_state(seed + 1)
    assert all(value != other for value, other in zip(draws(), found[0], strict=True))


def test_a_generator_object_goes_on_where_it_stood():
    generator = torch.Generator().manual_seed(5)
    torch.randn(3, generator=generator)
    state = through_files(generator.get_state())
    assert torch.equal(
        torch.randn(9, generator=torch.Generator().set_state(state)), torch.randn(9, generator=generator)
    )


def test_random_states_of_other_devices_are_refused():
    state = capture_random_state() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 99}
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"to 99 CUDA devices, and \d+ are here: .* set its 'cuda' to \[\]"):
        restore_random_state(state)
    assert torch.equal(torch.get_rng_state(), before)


class Surprise:
    def __reduce__(self):
        raise AssertionError("pickled")


circle: list[Any] = []
circle.append(circle)
Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (Surprise(), r"test_state.Surprise: leave it out"),
        (np.float64(1), r"numpy.float64: convert it with .item"),
        (np.zeros(3), r"numpy.ndarray: convert it with torch.from_numpy"),
        (b"raw", r"builtins.bytes: convert it to a uint8 tensor"),
        (Pair(1, 2), r"Pair: convert it with tuple"),
        (torch.Size([1]), r"torch.Size: convert it with tuple"),
        ({1, 2}, r"builtins.set: leave it out"),
        ({(1, 2): 3}, r"has the key \(1, 2\): keys must be"),
        (torch.zeros(2, dtype=torch.complex128), r"torch.complex128, which safetensors cannot hold"),
        (torch.eye(2).to_sparse(), r"torch.sparse_coo: convert it with .to_dense"),
        (torch.zeros(2, device="meta"), r"a meta tensor, without values"),
        (1 << 20_000, r"an integer of 20,001 bits"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_cannot_come_back_is_refused_by_name(value, complaint):
    with pytest.raises(ValueError, match=rf"^cannot store state\['run'\]\[1\], which .*{complaint}"):
        flatten({"run": (0, value)})


def test_a_state_that_holds_itself_is_refused():
    with pytest.raises(ValueError, match=r"cannot store state\[0\]\[0\].* contains itself"):
        flatten(circle)


def test_skeleton_and_tensors_of_different_states_are_refused():
    one, other = flatten({"a": torch.ones(1)}), flatten({"b": torch.ones(1)})
    with pytest.raises(ValueError, match="needs tensor 'a'"):
        unflatten(one.skeleton, other.tensors)
    with pytest.raises(ValueError, match="no place for tensor 'b'"):
        unflatten(one.skeleton, one.tensors | other.tensors)
    with pytest.raises(ValueError, match="does not know"):
        unflatten({"set": [1]}, {})
