"""`lgq evaluate`: the paper's row for a tokenizer or a generator."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from lgq.cli.console import ERRORS, command_line, say
from lgq.cli.findings import Findings, Request
from lgq.cli.generator_row import GeneratorQuestions, of_generator
from lgq.cli.places import require_place
from lgq.cli.tokenizer_row import TokenizerQuestions, of_tokenizer
from lgq.data import open_dataset
from lgq.distributed import join_processes, rank
from lgq.errors import LGQError
from lgq.files import replace_file
from lgq.hub import model_kind, published_weights, run_directory_of, run_settings
from lgq.results import RESULTS, append_result, strict
from lgq.training.run_directory import describe_environment


@dataclass(frozen=True, kw_only=True)
class Evaluate(Request):
    """Measure a tokenizer or a generator: the columns of the paper's tables, and more that users ask for."""

    out: Path | None = None
    """Directory for the record and the pictures; by default RUN/evaluation."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the record as one JSON object; the tables then go to the error output."""
    of_tokenizer: Annotated[TokenizerQuestions, tyro.conf.arg(name="")] = field(
        default_factory=TokenizerQuestions
    )
    of_generator: Annotated[GeneratorQuestions, tyro.conf.arg(name="")] = field(
        default_factory=GeneratorQuestions
    )

    def run(self) -> int:
        folder = self._folder()
        kind = model_kind(published_weights(self.source, self.weights))
        self._require_questions_of(kind)
        images = None if self.data is None else open_dataset(self.data)
        device = join_processes()
        if kind == "tokenizer":
            findings = of_tokenizer(self, self.of_tokenizer, images, device)
        else:
            findings = of_generator(self, self.of_generator, images, device)
        if rank() == 0:
            record = {"kind": kind} | self._origin(findings) | findings.record
            self._show(findings, record)
            append_result(folder / RESULTS, record)
            for stem, picture in findings.draw().items():
                replace_file(folder / f"{stem}.png", picture)
            say(f"the record, and pictures: {folder}")
        return 0

    def _require_questions_of(self, kind: str) -> None:
        others = self.of_generator if kind == "tokenizer" else self.of_tokenizer
        if asked := others.asked():
            raise LGQError(f"{self.source} is a {kind}, of which {asked[0]} asks nothing: leave it out.")

    def _origin(self, findings: Findings) -> dict[str, Any]:
        """What was evaluated."""
        settings = run_settings(self.source) or {}
        return {
            "command": ["lgq", *command_line.get()],
            "run": self.source,
            "weights": str(published_weights(self.source, self.weights)),
            "config": settings or findings.settings,
            "seed": settings.get("seed"),
            "environment": describe_environment(settings.get("seed")),
        }

    def _show(self, findings: Findings, record: dict[str, Any]) -> None:
        console = ERRORS if self.as_json else Console()
        for table in findings.tables:
            console.print(table)
        absent = findings.absent
        for reason in dict.fromkeys(absent.values()):
            say(f"no {', '.join(name for name, why in absent.items() if why == reason)}: {reason}")
        if self.as_json:
            print(json.dumps(strict(record)))

    def _folder(self) -> Path:
        """Of the result; it is there once the record is."""
        if self.out is None and not Path(self.source).is_dir():
            raise LGQError(f"{self.source} is not on this machine: give --out for record and pictures.")
        folder = self.out or run_directory_of(self.source) / "evaluation"
        require_place(folder)
        return folder
