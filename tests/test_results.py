"""Records are appended complete, and damaged ones are skipped."""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from lgq.results import ResultsError, append_result, read_results


def test_records_come_back_in_their_order(tmp_path):
    file = tmp_path / "new" / "results.jsonl"
    records = [{"metrics": {"psnr": 21.5}}, {"data": "Fotos/é 犬\u2028\r\n.png"}, {"name": "\udcff"}, {}]
    for record in records:
        append_result(file, record)
    assert read_results(file) == records
    assert len(file.read_bytes().splitlines()) == 4


def test_nan_and_infinity_are_null_at_every_depth(tmp_path):
    file = tmp_path / "results.jsonl"
    append_result(file, {"psnr": math.inf, "rows": [{"kid": math.nan}, (-math.inf, 1.5)], "count": 3})
    assert read_results(file) == [{"psnr": None, "rows": [{"kid": None}, [None, 1.5]], "count": 3}]
    assert not any(word in file.read_text() for word in ("NaN", "Infinity"))


@pytest.mark.parametrize("kept", [1, 5, 14])
def test_an_incomplete_line_is_skipped_and_the_next_record_is_intact(tmp_path, kept):
    file = tmp_path / "results.jsonl"
    for number in range(2):
        append_result(file, {"number": number})
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:kept].removesuffix(b"}\n"))
    assert read_results(file) == [{"number": 0}]
    append_result(file, {"number": 2})
    assert read_results(file) == [{"number": 0}, {"number": 2}]


def test_several_writers_share_a_file(tmp_path):
    file = tmp_path / "results.jsonl"
    records = [{"number": number, "padding": "x" * 5000} for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda record: append_result(file, record), records))
    assert sorted(read_results(file), key=lambda record: record["number"]) == records


def test_a_disk_that_fills_up_is_an_error_and_loses_no_earlier_record(tmp_path, monkeypatch):
    file = tmp_path / "results.jsonl"
    append_result(file, {"number": 0})
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        with pytest.raises(ResultsError, match="No space left"):
            append_result(file, {"number": 1})
    append_result(file, {"number": 2})
    assert read_results(file) == [{"number": 0}, {"number": 2}]


def test_errors_name_the_path(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(ResultsError, match=r"cannot write .*results\.jsonl .*choose another path"):
        append_result(tmp_path / "file" / "results.jsonl", {})
    with pytest.raises(ResultsError, match=r"cannot read .*absent\.jsonl .*check the path"):
        read_results(tmp_path / "absent.jsonl")


def test_changed_lines_and_those_that_are_no_records_are_skipped_with_a_warning(tmp_path, caplog):
    file = tmp_path / "results.jsonl"
    for number in range(3):
        append_result(file, {"number": number, "psnr": 21.5})
    lines = file.read_bytes().splitlines(keepends=True)
    others = b'[1]\n\n3\n\xff\xfe\n{"without a checksum": 1}\n' + b"[" * 100_000 + b"\n"
    file.write_bytes(lines[0] + lines[1].replace(b"21.5", b"29.5") + others + lines[2])
    assert [record["number"] for record in read_results(file)] == [0, 2]
    assert f"skipped line 2 of {file}" in caplog.text
