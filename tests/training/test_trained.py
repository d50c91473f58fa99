"""What is a run, and what belongs to one."""

from lgq.training.trained import run_of, trained_settings


def test_published_weights_belong_to_their_run(tmp_path):
    run = tmp_path / "run"
    for part in ("best", "last", "other"):
        (run / part).mkdir(parents=True)
    assert run_of(run / "best") == run / "best", "a directory that only looks like one"
    for file in ("config.json", "environment.json"):
        (run / file).write_text('{"image_size": 8}')
    assert run_of(run / "best") == run_of(run / "last") == run_of(run) == run
    assert run_of(run / "other") == run / "other"


def test_a_foreign_config_makes_no_run(tmp_path):
    (tmp_path / "config.json").write_text('{"image_size": 8}')
    assert trained_settings(tmp_path) is None
