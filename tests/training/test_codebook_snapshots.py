"""A run keeps the use of its codes, and the codes, at each validation: compact, bounded, and readable."""

from dataclasses import replace

import pytest
import torch
from tiny_run import TINY, paint_photos, train

from lgq.tokenizer import load_tokenizer
from lgq.training import run_directory
from lgq.training.run_directory import read_codebooks, save_codebook


def test_a_training_keeps_counts_and_codes_of_each_validation(tmp_path):
    train(TINY, paint_photos(tmp_path / "photos"), tmp_path / "run")
    snapshots = read_codebooks(tmp_path / "run")
    assert [snapshot.step for snapshot in snapshots] == [3, 6]
    for snapshot in snapshots:
        assert snapshot.counts.shape == (1, 16)
        assert snapshot.counts.sum() == 3 * 6 * 6
    last = load_tokenizer(tmp_path / "run", "last").quantizer.codebook
    assert torch.allclose(snapshots[-1].codes[0].float(), last, atol=1e-3)
    assert torch.allclose(snapshots[-1].norms[0], last.norm(dim=1), atol=1e-3)


@pytest.mark.parametrize(("quantizer", "stages", "learned"), [("lgq", 2, True), ("fsq", 1, False)])
def test_stages_have_codes_of_their_own_and_a_fixed_grid_has_none(tmp_path, quantizer, stages, learned):
    run = replace(TINY, quantizer=quantizer, stages=stages)
    train(run, paint_photos(tmp_path / "photos"), tmp_path / "run")
    last = read_codebooks(tmp_path / "run")[-1]
    assert last.counts.shape == (stages, 16)
    assert (last.codes is not None) == (last.norms is not None) == learned


def test_scales_have_counts_of_their_own_and_share_their_codes(tmp_path):
    train(replace(TINY, scales=(1, 2, 3)), paint_photos(tmp_path / "photos"), tmp_path / "run")
    last = read_codebooks(tmp_path / "run")[-1]
    assert last.counts.sum(1).tolist() == [3 * side**2 for side in (2, 4, 6)]
    codes = load_tokenizer(tmp_path / "run", "last").quantizer.quantizer.codebook
    assert torch.allclose(last.codes[0].float(), codes, atol=1e-3)
    assert len(last.codes) == 1


def test_a_long_run_keeps_few_snapshots_among_them_the_newest(tmp_path):
    for step in range(1, 140):
        save_codebook(tmp_path, step, [torch.tensor([step, 0])], [torch.ones(2, 3)])
    steps = [snapshot.step for snapshot in read_codebooks(tmp_path)]
    assert run_directory.MOST_SNAPSHOTS // 2 <= len(steps) <= run_directory.MOST_SNAPSHOTS
    assert steps[-1] == 139
    assert steps == sorted(steps)


def test_of_a_large_codebook_the_norms_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(run_directory, "_MOST_NUMBERS", 5)
    save_codebook(tmp_path, 1, [torch.tensor([1, 2])], [torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 1.0]])])
    (snapshot,) = read_codebooks(tmp_path)
    assert snapshot.codes is None
    assert snapshot.norms.tolist() == [[5.0, 1.0]]


def test_a_damaged_snapshot_is_left_out(tmp_path, caplog):
    for step in (1, 2):
        save_codebook(tmp_path, step, [torch.tensor([1, 2])], [None])
    (tmp_path / "codebooks" / "step-000001.safetensors").write_bytes(b"torn")
    assert [snapshot.step for snapshot in read_codebooks(tmp_path)] == [2]
    assert "step-000001" in caplog.text
