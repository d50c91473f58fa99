"""What is a run, and what belongs to one."""

import pytest

from lgq.hub import PretrainedError, published_weights, run_directory_of, run_settings, seal


def test_published_weights_belong_to_their_run(tmp_path):
    run = tmp_path / "run"
    for part in ("best", "last", "other"):
        (run / part).mkdir(parents=True)
    assert run_directory_of(run / "best") == run / "best", "a directory that only looks like one"
    for file in ("config.json", "environment.json"):
        (run / file).write_text('{"image_size": 8}')
    assert run_directory_of(run / "best") == run_directory_of(run / "last") == run_directory_of(run) == run
    assert run_directory_of(run / "other") == run / "other"


def test_a_foreign_config_makes_no_run(tmp_path):
    (tmp_path / "config.json").write_text('{"image_size": 8}')
    assert run_settings(tmp_path) is None


@pytest.fixture
def published(tmp_path):
    """A run directory with its last weights, as earlier versions left them."""
    (tmp_path / "last").mkdir()
    for file in ("config.json", "environment.json", "last/model.safetensors"):
        (tmp_path / file).write_text('{"image_size": 8}')
    return tmp_path / "last"


def test_weights_without_a_manifest_are_taken(published):
    assert published_weights(published.parent, "last") == published


def test_weights_are_those_that_the_run_sealed(published):
    seal(published, step=3)
    assert published_weights(published.parent, "last") == published
    (published / "model.safetensors").write_text('{"image_size": 9}')
    with pytest.raises(PretrainedError, match=r"is damaged: model.safetensors has other bytes .*: restore"):
        published_weights(published.parent, "last")
