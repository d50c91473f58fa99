"""A run never loses more than what came after its last good checkpoint, and never loads a damaged one."""

import json
import logging
import math
import os
import random
import shutil
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from faulty_disk import FAULTS, FaultyDisk, disks_with
from hypothesis import given
from hypothesis import strategies as st
from identity import assert_identical, bits
from process_groups import exit_codes
from torch import Tensor, nn

from lgq.distributed import rank
from lgq.errors import LGQError
from lgq.files import json_bytes, sealed_json
from lgq.training import checkpoint
from lgq.training.checkpoint import (
    STORABLE_DTYPES,
    Checkpoints,
    capture_random_state,
    flatten,
    read_manifest,
    restore_random_state,
    seed_random_state,
    unflatten,
)

FILES = ("state.safetensors", "state.json", "manifest.json")


def state_of(step: int, version: str = "first") -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "step": step,
        "version": version,
        "model/a.b": {"weight": torch.randn(4, 3, generator=generator), "tau": torch.tensor(0.5)},
        "random": generator.get_state(),
        "best": (float("inf"), None),
    }


def save_all(directory: Path, *steps: int, keep: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep=keep)
    for step in steps:
        checkpoints.save(step, state_of(step))
    return checkpoints


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def assert_latest_is(directory: Path, step: int, version: str = "first") -> None:
    latest = Checkpoints(directory).latest()
    assert latest is not None
    assert latest.name.removesuffix(".replaced") == f"step-{step:06d}"
    assert_identical(Checkpoints(directory).load(latest), state_of(step, version))


def test_a_checkpoint_holds_what_its_manifest_says(tmp_path):
    path = Checkpoints(tmp_path / "checkpoints").save(123, state_of(123))
    assert path == tmp_path / "checkpoints" / "step-000123"
    assert names(path) == sorted(FILES)
    manifest = read_manifest(path)
    assert (manifest.format_version, manifest.step, manifest.world_size) == (1, 123, 1)
    assert manifest.files["state.json"].size == (path / "state.json").stat().st_size
    assert set(manifest.files) == {"state.safetensors", "state.json"}
    manifest.verify(path)


@pytest.mark.parametrize(
    ("steps", "keep", "left"),
    [
        ((1, 2, 3, 4, 5), 2, ["step-000004", "step-000005"]),
        ((5, 3, 4), 1, ["step-000004", "step-000005"]),
        ((999_999, 1_000_000, 5), 9, ["step-000005", "step-1000000", "step-999999"]),
    ],
)
def test_only_the_newest_stay_and_files_of_others(tmp_path, steps, keep, left):
    others = ["notes.txt", "old.partial", "step-000001-mine", "step-12"]
    for name in others:
        (tmp_path / name).mkdir()
    assert Checkpoints(tmp_path).latest() is None
    save_all(tmp_path, *steps, keep=keep)
    assert names(tmp_path) == sorted(left + others)
    assert_latest_is(tmp_path, max(steps))


def test_damaged_ones_do_not_count_among_those_that_stay(tmp_path):
    checkpoints = save_all(tmp_path, 1, 2, 3, keep=3)
    flip_bit(tmp_path / "step-000002" / "state.safetensors", 500)
    flip_bit(tmp_path / "step-000003" / "manifest.json", 50)
    Checkpoints(tmp_path, keep=2).save(4, state_of(4))
    shutil.rmtree(tmp_path / "step-000004")
    assert checkpoints.latest() == tmp_path / "step-000001"


def test_a_checkpoint_is_not_removed_for_damaged_ones_of_later_steps(tmp_path):
    save_all(tmp_path, 1, 2, 3)
    for step in (2, 3):
        flip_bit(tmp_path / f"step-{step:06d}" / "state.json", 9)
    Checkpoints(tmp_path, keep=1).save(1, state_of(1, "again"))
    assert_latest_is(tmp_path, 1, "again")


class Scenario(NamedTuple):
    before: tuple[int, ...]
    save: int
    keep: int


SCENARIOS = {
    "the first one": Scenario((), 1, 1),
    "one that makes the last one go": Scenario((1,), 2, 1),
    "one among several": Scenario((1, 2, 3), 4, 2),
    "the only one again": Scenario((1,), 1, 1),
    "after killed writes": Scenario((1, 2), 3, 2),
}


@pytest.fixture(params=SCENARIOS)
def scenario(request, quick_path) -> Scenario:
    """With the checkpoints that were there before in `template`."""
    chosen = SCENARIOS[request.param]
    template = quick_path / "template"
    template.mkdir()
    save_all(template, *chosen.before)
    if request.param == "after killed writes":
        for name in ("step-000003.partial", "step-000002.replaced", "step-000001.replaced.removed"):
            shutil.copytree(template / "step-000002", template / name)
            (template / name / "state.json").unlink()
    return chosen


def attempt(scenario: Scenario, folder: Path, disk: FaultyDisk) -> bool:
    """Save on a faulty disk; did it say that it succeeded?"""
    directory = folder / "run"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(folder / "template", directory)
    done, failure = False, ""
    with disk.in_use():
        try:
            Checkpoints(directory, keep=scenario.keep).save(scenario.save, state_of(scenario.save, "new"))
            done = True
        except LGQError as error:
            failure = str(error)
    if failure:
        assert "No space left on device; earlier checkpoints are untouched" in failure
        assert disk.fault != "error" or not list(directory.glob("*.partial"))
    return done


def assert_nothing_lost(scenario: Scenario, directory: Path, *, done: bool) -> None:
    latest = Checkpoints(directory).latest()
    if latest is not None and Checkpoints(directory).load(latest)["version"] == "new":
        assert_latest_is(directory, scenario.save, "new")
        return
    assert not done
    assert (latest is None) == (not scenario.before)
    if latest is not None:
        assert_latest_is(directory, max(scenario.before))


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_any_system_call_loses_a_checkpoint(scenario, fault, quick_path, caplog):
    healthy = FaultyDisk()
    assert attempt(scenario, quick_path, healthy)
    assert len(healthy.calls) > 25
    for disk in disks_with(fault, healthy.calls):
        done = attempt(scenario, quick_path, disk)
        assert_nothing_lost(scenario, quick_path / "run", done=done)
        with FaultyDisk().in_use():
            save_all(quick_path / "run", 9, keep=1)
        assert names(quick_path / "run") == ["step-000009"], disk.at


def test_old_checkpoints_that_cannot_be_removed_do_not_stop_a_run(tmp_path, monkeypatch, caplog):
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    save_all(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "remove_directory", refuse)
    save_all(tmp_path, 2, keep=1)
    assert "cannot remove old checkpoints" in caplog.text
    assert_latest_is(tmp_path, 2)


def test_a_disk_that_gives_back_other_bytes_is_noticed_at_once(tmp_path, monkeypatch):
    save_all(tmp_path, 1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(len(data))))
    with pytest.raises(LGQError, match=r"state.safetensors has other bytes than were written"):
        Checkpoints(tmp_path, keep=1).save(2, state_of(2))
    monkeypatch.undo()
    assert names(tmp_path) == ["step-000001"]
    assert_latest_is(tmp_path, 1)


def flip_bit(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte % len(data)] ^= 1 << byte % 8
    path.write_bytes(data)


def truncated(length: Callable[[int], int]) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, length(path.stat().st_size))


def flipped(share: float) -> Callable[[Path], None]:
    return lambda path: flip_bit(path, int(share * (path.stat().st_size - 1)))


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {
    "missing": Path.unlink,
    "a directory": replaced_by_a_directory,
    "empty": truncated(lambda size: 0),
    "one byte": truncated(lambda size: 1),
    "half": truncated(lambda size: size // 2),
    "one byte short": truncated(lambda size: size - 1),
    "one byte long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    **{f"bit flipped at {share}": flipped(share) for share in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_never_accepted(tmp_path, caplog, name, damage):
    save_all(tmp_path, 1, 2)
    DAMAGES[damage](tmp_path / "step-000002" / name)
    with pytest.raises(LGQError, match=rf"step-000002 is damaged: {name} (has|cannot be read)"):
        Checkpoints(tmp_path).load(tmp_path / "step-000002")
    with caplog.at_level(logging.WARNING):
        assert_latest_is(tmp_path, 1)
    assert f"step-000002 is damaged: {name}" in caplog.text


@pytest.mark.parametrize("name", [*FILES, ""])
def test_swapped_files_and_checkpoints_are_never_accepted(tmp_path, name):
    checkpoints = save_all(tmp_path, 1, 2, 3)
    swap(tmp_path / "step-000002" / name, tmp_path / "step-000003" / name)
    assert_latest_is(tmp_path, 1)
    if not name:
        with pytest.raises(LGQError, match="step-000003 belongs to step 2: its directory was renamed"):
            checkpoints.load(tmp_path / "step-000003")


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def test_a_later_format_is_refused_by_its_number(tmp_path):
    path = Checkpoints(tmp_path).save(1, state_of(1))
    content = json.loads((path / "manifest.json").read_bytes())
    content.pop("checksum")
    (path / "manifest.json").write_bytes(sealed_json(content | {"format_version": 2}))
    with pytest.raises(LGQError, match="has format 2, this lgq reads format 1: use the lgq"):
        Checkpoints(tmp_path).load(path)


def test_a_rank_that_saved_nothing_is_refused(tmp_path):
    path = Checkpoints(tmp_path).save(1, state_of(1))
    with pytest.raises(LGQError, match="holds the states of ranks 0 to 0, not of rank 1: resume with"):
        Checkpoints(tmp_path).load(path, rank=1)


def rank_state(step: int) -> dict[str, Any]:
    return state_of(step) if rank() == 0 else {"random": torch.full((3,), rank() + step)}


def save_and_load(directory: Path) -> None:
    checkpoints = Checkpoints(directory, keep=1)
    for step in (1, 2):
        checkpoints.save(step, rank_state(step))
    latest = checkpoints.latest()
    assert latest == directory / "step-000002"
    assert_identical(checkpoints.load(latest, rank()), rank_state(2))


def test_every_rank_gets_its_own_state_back(tmp_path):
    assert exit_codes(3, save_and_load, tmp_path) == [0, 0, 0]
    assert names(tmp_path) == ["step-000002"]
    assert read_manifest(tmp_path / "step-000002").world_size == 3
    assert "rank-0002.safetensors" in names(tmp_path / "step-000002")


def fail_to_save(directory: Path, failing: int) -> None:
    state = {"model": object()} if rank() == failing else rank_state(2)
    message = "cannot store" if rank() == failing else "1 other rank.* could not save"
    with pytest.raises(LGQError, match=message):
        Checkpoints(directory).save(2, state)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_of_one_rank_is_a_failure_of_all(tmp_path, failing):
    save_all(tmp_path, 1)
    assert exit_codes(2, fail_to_save, tmp_path, failing) == [0, 0]
    assert names(tmp_path) == ["step-000001"]


def skip_damaged(directory: Path, name: str) -> None:
    checkpoints = Checkpoints(directory)
    for step in (1, 2):
        checkpoints.save(step, rank_state(step))
    if rank() == 0:
        flip_bit(directory / "step-000002" / name, 30)
    assert checkpoints.latest() == directory / "step-000001"


@pytest.mark.parametrize("name", ["rank-0001.safetensors", "rank-0001.json"])
def test_ranks_agree_to_skip_what_is_damaged_for_one_of_them(tmp_path, name):
    assert exit_codes(2, skip_damaged, tmp_path, name) == [0, 0]


# A state comes back bit for bit, or is refused by name.


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
    restored = through_files(tensor)
    assert_identical(restored, tensor)
    assert restored.stride() == tensor.stride()


def test_lazy_and_overlapping_views_come_back_by_value():
    complex_numbers, whole = torch.randn(5, dtype=torch.complex64), torch.arange(12).reshape(3, 4)
    state = {
        "conjugate": complex_numbers.conj(),
        "negative": complex_numbers.conj().imag,
        "itself": complex_numbers,
        "expanded": torch.arange(3).expand(4, 3),
        "steps": torch.arange(10)[1::3],
        "whole": whole,
        "rows": whole[1:],
        "column": whole[:, 1],
        "transposed": whole.t(),
        "halves": whole.view(torch.int32),
    }
    restored = through_files(state)
    for name, tensor in state.items():
        assert bits(restored[name]) == bits(tensor.resolve_conj().resolve_neg())


def test_one_tensor_in_two_places_stays_one_tensor():
    shared = torch.randn(3, 4)
    restored = through_files({"weight": shared, "tied": [shared.detach()], "copy": shared.clone()})
    restored["weight"].zero_()
    assert restored["tied"][0].count_nonzero() == 0
    assert torch.equal(restored["copy"], shared)
    assert len(flatten([shared, shared.detach()]).tensors) == 1


def test_a_part_of_a_large_tensor_takes_only_its_own_room():
    flat = flatten({"part": torch.zeros(1000, 1000)[0, :10]})
    assert len(safetensors.torch.save(flat.tensors)) < 500


def test_what_comes_back_does_not_depend_on_the_bytes_of_the_file():
    flat = flatten({"x": torch.ones(3)})
    stored = {name: tensor.clone() for name, tensor in flat.tensors.items()}
    restored = unflatten(flat.skeleton, stored)
    stored["x"].zero_()
    assert restored["x"].tolist() == [1, 1, 1]


def test_a_module_state_keeps_its_versions_and_parameters_are_values():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    restored = through_files(module.state_dict(keep_vars=True))
    assert_identical(restored, module.state_dict())
    assert not any(value.requires_grad for value in restored.values())
    assert restored._metadata["1"] == {"version": 2}
    module.load_state_dict(restored)


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
    drawn = []
    for _ in range(2):
        seed_random_state(seed)
        drawn.append(draws())
    assert drawn[0] == drawn[1]
    seed_random_state(seed + 1)
    assert all(value != other for value, other in zip(draws(), drawn[0], strict=True))


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
        (Surprise(), r"test_checkpoint.Surprise: leave it out"),
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
        (circle, "contains itself"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_cannot_come_back_is_refused_by_name(value, complaint):
    with pytest.raises(LGQError, match=rf"^cannot store state\['run'\]\[1\].*, which .*{complaint}"):
        flatten({"run": (0, value)})


def test_skeleton_and_tensors_of_different_states_are_refused():
    one, other = flatten({"a": torch.ones(1)}), flatten({"b": torch.ones(1)})
    with pytest.raises(ValueError, match="needs tensor 'a'"):
        unflatten(one.skeleton, other.tensors)
    with pytest.raises(ValueError, match="no place for tensor 'b'"):
        unflatten(one.skeleton, one.tensors | other.tensors)
    with pytest.raises(ValueError, match="does not know"):
        unflatten({"set": [1]}, {})
