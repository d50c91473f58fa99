"""Commands as a user types them, and the line in which they name a mistake."""

import pytest

from lgq.cli import main

_TINY = """
--image-size 16 --backbone.widths 8 16 --backbone.groups 4 --batch-size 4 --codebook-size 16 --workers 0
--validation-images 8 --log-every 1 --loss.lpips 0
"""
TINY_TOKENIZER = _TINY.split()
"""Options of a run whose steps take no time."""
_TINY_GENERATOR = """
--transformer.layers 1 --transformer.width 16 --transformer.heads 2 --transformer.hidden 16 --batch-size 4
--steps 3 --schedule.warmup-steps 1 --validation-images 6 --sample-images 2 --sampling.steps 2
--checkpoint-every 1 --log-every 1
"""
TINY_GENERATOR = _TINY_GENERATOR.split()
"""Options of a generator whose steps take no time."""


def lgq(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


def mistake(capsys: pytest.CaptureFixture[str], *arguments: object, lines: int | None = None) -> str:
    """Run a command that must end with exit code 2 and a line about the mistake; return that line.

    lines: number of lines that it may print; None for any.
    """
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        lgq(*arguments)
    printed = capsys.readouterr()
    told = printed.err.strip().splitlines()
    assert (stop.value.code, printed.out) == (2, ""), printed
    assert told[-1].startswith("lgq: "), told
    assert all(line.startswith("lgq: ") for line in told), told
    assert lines in (None, len(told)), told
    return told[-1]
