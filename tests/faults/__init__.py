"""Faults that a run must survive: `python -m faults`, with `tests` on the path, injects them all."""
