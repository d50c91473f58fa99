"""Feed a parser bytes that are chosen by what they reach in the code (Atheris, on libFuzzer); without end.

    pip install --constraint constraints.txt '.[fuzz]'
    python scripts/fuzz_atheris.py "tar shard" -max_total_time=60

The parsers, and what they may answer, are those of scripts/fuzz.py; the options are libFuzzer's. A finding
is written to a file, which `python scripts/fuzz.py --replay` takes.
"""

import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["lgq", "tarfile", "zipfile", "PIL"]):
    from fuzz_parsers import PARSERS, outcome


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.exit(f"name a parser: {', '.join(PARSERS)}.")
    logging.disable()
    with TemporaryDirectory() as folder:
        parser = PARSERS[sys.argv[1]]
        prepared = parser.prepare(Path(folder))
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(prepared.seeds):
            (corpus / str(number)).write_bytes(seed)

        def check(data: bytes) -> None:
            what = outcome(parser, prepared, data)
            if what not in ("accepted", "refused"):
                raise AssertionError(what)

        atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
