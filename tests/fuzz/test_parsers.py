"""From any bytes, every parser reads something sound, or refuses in one line; `make fuzz` tries many more."""

import logging
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.mutations import mutate
from fuzz.parsers import PARSERS, Prepared
from lgq.errors import LGQError

DOCUMENTED = ("accepted", "refused")


@pytest.fixture(autouse=True)
def _own_cache_and_no_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LGQ_CACHE", "")  # a parser sets it, and this restores it
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", PARSERS)
def test_valid_files_are_accepted_and_hostile_ones_are_sound_or_refused(name, tmp_path, without_shape_checks):
    parser = PARSERS[name]
    prepared = parser.prepare(tmp_path)
    assert prepared.outcome(prepared.seeds[0]) == "accepted"
    # Weights beside the settings of another tokenizer are rightly refused.
    assert {prepared.outcome(data) for data in prepared.seeds} <= {*DOCUMENTED}

    @settings(max_examples=max(1, 48 // parser.cost) if parser.cost > 6 else 8, database=None)
    @given(st.integers(0, 2**32))
    def check_mutants(seed: int) -> None:
        assert prepared.outcome(mutate(prepared.seeds, parser.kind, Random(seed))) in DOCUMENTED

    @settings(max_examples=5, database=None)
    @given(st.binary(max_size=600))
    def check_arbitrary_bytes(data: bytes) -> None:
        assert prepared.outcome(data) in DOCUMENTED

    check_mutants()
    if parser.cost <= 6:
        check_arbitrary_bytes()


def test_an_undocumented_outcome_is_seen():
    def talk(data: bytes) -> None:
        raise LGQError("much " * 1_000)

    assert Prepared([], lambda data: {}[data]).outcome(b"x").startswith("KeyError")
    assert "5,000 characters" in Prepared([], talk).outcome(b"x")


def test_a_seed_gives_the_same_mutants(tmp_path):
    prepared = PARSERS["tar shard"].prepare(tmp_path)
    first, second = ([mutate(prepared.seeds, "tar", Random(i)) for i in range(50)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 40
