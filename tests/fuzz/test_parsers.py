"""Whatever bytes a parser meets, it reads something sound, or refuses in one line; many more: make fuzz."""

import logging
from collections.abc import Iterator
from random import Random

import pytest
from fuzz_mutations import mutate
from fuzz_parsers import PARSERS, Parser, Prepared, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = {
    "command line": 1,
    "report of a row": 2,
    "report of a plan": 2,
    "report of a journal": 2,
    "report of a picture": 2,
}
"""Cases of the parsers that take long; all others have more."""
CASES = 8


@pytest.fixture(autouse=True)
def _its_own_cache_and_no_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LGQ_CACHE", "")  # a parser sets it, and the test takes it back
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", PARSERS)
def test_mutants_are_sound_or_refused(name, tmp_path, without_shape_checks):
    parser = PARSERS[name]
    prepared = parser.prepare(tmp_path)

    @settings(max_examples=QUICK.get(name, CASES), database=None)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        data = mutate(prepared.seeds, parser.kind, Random(seed))
        assert outcome(parser, prepared, data) in ("accepted", "refused")

    check()


@pytest.mark.parametrize("name", [name for name in PARSERS if name not in QUICK])
def test_arbitrary_bytes_are_sound_or_refused(name, tmp_path, without_shape_checks):
    parser = PARSERS[name]
    prepared = parser.prepare(tmp_path)

    @settings(max_examples=5, database=None)
    @given(st.binary(max_size=600))
    def check(data: bytes) -> None:
        assert outcome(parser, prepared, data) in ("accepted", "refused")

    check()


@pytest.mark.parametrize("name", PARSERS)
def test_valid_files_are_accepted(name, tmp_path, without_shape_checks):
    parser = PARSERS[name]
    prepared = parser.prepare(tmp_path)
    found = {outcome(parser, prepared, data) for data in prepared.seeds}
    # A shard of weights beside the settings of another tokenizer is refused, as it should be.
    assert outcome(parser, prepared, prepared.seeds[0]) == "accepted"
    assert found <= {"accepted", "refused"}


def test_an_undocumented_outcome_would_be_seen(tmp_path):
    def talk(data: bytes) -> None:
        raise ValueError("much " * 1_000)

    broken = Parser("text", (ValueError,), lambda _: Prepared([], lambda data: {}[data]))
    talkative = Parser("text", (ValueError,), lambda _: Prepared([], talk))
    assert outcome(broken, broken.prepare(tmp_path), b"x").startswith("KeyError")
    assert "5,000 characters" in outcome(talkative, talkative.prepare(tmp_path), b"x")


def test_a_seed_gives_the_same_mutants(tmp_path):
    prepared = PARSERS["tar shard"].prepare(tmp_path)
    first, second = ([mutate(prepared.seeds, "tar", Random(i)) for i in range(50)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 40
