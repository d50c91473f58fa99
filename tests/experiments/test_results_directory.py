"""RESULTS: records that are whole or absent, plans that grow, damage that is named."""

from dataclasses import replace

import pytest
from result_sets import plan_of

from lgq.experiments.results_directory import PlannedRow, ResultsDirectory
from lgq.files import sealed_json, unsealed_json
from lgq.results import ResultsError


def planned(row: str, seed: int = 0) -> PlannedRow:
    return PlannedRow(row=row, label=row.upper(), group="", kind="tokenizer", seed=seed, id=f"{row}-{seed}")


PLAN = replace(plan_of("comparison", []), rows=(planned("a"), planned("b")))


def test_what_is_written_is_read_and_nothing_before(tmp_path):
    results = ResultsDirectory(tmp_path / "new")
    assert not results.is_finished("a-0")
    assert (results.record("a-0"), results.plan("comparison")) == (None, None)
    assert (results.records(), results.plans()) == ({}, {})
    assert not (tmp_path / "new").exists()
    results.write_record("a-0", {"id": "a-0", "metrics": {"psnr": float("nan"), "l1": 0.5}})
    results.write_plan(PLAN)
    results.write_pictures("a-0", {"usage": b"png"})
    assert results.record("a-0") == {"id": "a-0", "metrics": {"psnr": None, "l1": 0.5}}
    assert results.records().keys() == {"a-0"}
    assert results.plans() == {"comparison": PLAN}
    assert (results.pictures("a-0") / "usage.png").read_bytes() == b"png"


def test_merged_plans_have_the_rows_of_both_with_seeds_together():
    more = replace(PLAN, rows=(planned("a"), planned("b"), planned("a", 1), planned("b", 1)))
    merged = PLAN.merged(more)
    assert [(row.row, row.seed) for row in merged.rows] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert more.merged(PLAN).rows == merged.rows
    moved = replace(PLAN, rows=(replace(planned("a"), id="new"), planned("b")))
    assert moved.merged(PLAN).rows == moved.rows


@pytest.mark.parametrize("content", ["", "{", "null", '{"psnr": 21.5}', "changed"])
def test_a_damaged_or_changed_record_is_refused(content, tmp_path):
    results, file = ResultsDirectory(tmp_path), tmp_path / "rows" / "a-0.json"
    results.write_record("a-0", {"psnr": 21.5})
    changed = file.read_text().replace("21.5", "29.5")
    file.write_text(changed if content == "changed" else content)
    with pytest.raises(ResultsError, match=r"a-0.json .*: remove it, and run its experiment again"):
        results.record("a-0")


def test_all_damaged_records_are_named_in_one_error(tmp_path):
    results = ResultsDirectory(tmp_path)
    for id in ("a-0", "b-0", "c-0"):
        results.write_record(id, {"psnr": 21.5})
    results.require_intact(["a-0", "b-0", "c-0", "not-finished"])
    files = [tmp_path / "rows" / f"{id}.json" for id in ("a-0", "c-0")]
    files[0].write_text(files[0].read_text().replace("21.5", "29.5"))
    with pytest.raises(ResultsError, match=r"1 record is damaged: remove it, .*a-0.json\.$"):
        results.require_intact(["a-0", "b-0", "c-0"])
    files[1].write_text("{")
    with pytest.raises(ResultsError, match=r"2 records are damaged: remove them, .*a-0.json, .*c-0.json\.$"):
        results.require_intact(["a-0", "b-0", "c-0"])


def test_a_plan_of_another_version_is_named(tmp_path):
    results = ResultsDirectory(tmp_path)
    results.write_plan(PLAN)
    file = tmp_path / "experiments" / "comparison.json"
    file.write_bytes(sealed_json(unsealed_json(file.read_bytes()) | {"news": 1}))
    with pytest.raises(ResultsError, match=r"comparison.json is no plan that this version.*news"):
        results.plans()
