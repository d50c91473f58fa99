"""The run directory: what describes a run, and whether a run may start or continue there.

RUN/config.json        resolved settings                RUN/environment.json   versions, hardware, seed
RUN/metrics.jsonl      records (`journal.py`)           RUN/checkpoints/       states (`checkpoint.py`)
RUN/best/, RUN/last/   weights of the best validation and of the last checkpoint, for users to load
RUN/images/            a picture per validation         RUN/tensorboard/       records for TensorBoard
RUN/codebooks/         counts and codes of validations, k = codes, s = stages, c = channels
"""

import hashlib
import logging
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

import lgq
from lgq.checks import require_one_of
from lgq.distributed import world_size
from lgq.errors import LGQError
from lgq.files import (
    make_directory,
    named_disk_errors,
    replace_file,
    replace_json,
    require_no_other_files,
)
from lgq.hub import BEST, CONFIG, ENVIRONMENT, LAST, run_settings
from lgq.models.sampling import Sampling
from lgq.quantizers import foreign_quantizers
from lgq.training.checkpoint import Checkpoints
from lgq.training.history import HISTORY_FIELDS
from lgq.training.journal import METRICS, TENSORBOARD, WANDB
from lgq.training.settings import LoopSettings

CHECKPOINTS, IMAGES, CODEBOOKS = "checkpoints", "images", "codebooks"
MOST_SNAPSHOTS = 64
"""Snapshots of a codebook that a run keeps; where there are more, every other one goes."""
_MOST_NUMBERS = 2**22
"""Size up to which codes are part of a snapshot: 8 MB of float16. Of larger ones it has the norms."""
_NAMES = (
    *(CONFIG, ENVIRONMENT, METRICS, TENSORBOARD, WANDB, "wandb", CHECKPOINTS, BEST, LAST, IMAGES, CODEBOOKS),
    *("*.log", "*.out", "*.err", "nohup.out"),
)
"""What a directory may hold in which a new run starts: leftovers of a run, and the output of its command."""
_SNAPSHOT = re.compile(r"step-(\d+)\.safetensors")

_log = logging.getLogger(__name__)

Resume = Literal["auto", "never", "must"]
"""`auto` continues the run in a directory, if any; `never` refuses one with a run, `must` one without."""

FREE_SETTINGS = frozenset(
    {"workers", "data.source", "validation_data.source", "tokens.source", "validation_tokens.source"}
    | {"sample_images", *(f"sampling.{field.name}" for field in fields(Sampling))}
    | {f"loop.{field.name}" for field in fields(LoopSettings)}
)
"""Settings that may change when a run resumes, because the weights of a step do not depend on them. Those of
the loop say when a run logs, validates, saves and ends; a change of `loop.steps`, on which the schedules
depend, becomes a part of the run's history."""

_SOURCE_SUFFIXES = frozenset({".py", ".c", ".toml", ".js"})
"""Files of the package on which the results of a run may depend."""
_VALIDATION = ("validation_images", "rfid_images", "best_by", "validation_data", "validation_tokens")
"""Settings of validations, which may change until there is a score that later ones are compared with."""
_SOURCES = {"validation_data": "val_data", "validation_tokens": "val_tokens"}
"""Keywords behind the sections of config.json that have other names."""
_TOKENS = {"tokens": "tokens", "validation_tokens": "val_tokens"}
"""Sections of config.json by which a run recognises its tokens, and their keywords."""
_COUNTS = {"data.images": "images in `data`", "val_data.images": "images in `val_data`"}
"""What facts about the data are called."""
_MISSING = "nothing"


def require_resumable(run: Path, resume: Resume) -> None:
    """Refuse a directory of other files, and one with a run, or without, if `resume` asks for the other."""
    require_one_of(get_args(Resume), resume=resume)
    has_config, is_saved = (run / CONFIG).exists(), has_checkpoints(run)
    if has_config and not is_saved and not (run / ENVIRONMENT).exists():
        raise LGQError(f"{run} has a {CONFIG} that belongs to no run: choose another directory.")
    has_run = has_config or is_saved
    if not has_run:
        require_no_other_files(run, _NAMES, "a run directory")
    if resume == "never" and has_run:
        raise LGQError(
            f"{run} holds a run already: choose another directory, or resume it with `resume` auto."
        )
    if resume == "must" and not has_run:
        raise LGQError(f"{run} holds no run to resume: check the path, or start one with `resume` auto.")


def has_checkpoints(run: Path) -> bool:
    """Tell whether a run in this directory would be resumed."""
    return bool(Checkpoints(run / CHECKPOINTS).paths())


def require_same_settings(
    run: Path, saved: dict[str, Any], current: dict[str, Any], defaults: dict[str, Any], *, validated: bool
) -> None:
    """Refuse to resume with settings that change the run's weights; the error names those that differ.

    defaults: what a setting had that the run does not know, as it was saved by an earlier version.
    validated: whether the run has a best score, with which later ones are compared.
    """
    before, now = settings_by_path(saved), settings_by_path(current)
    added = {path: value for path, value in settings_by_path(defaults).items() if path in now}
    differences = _differences(added | before, now, validated=validated)
    if not differences:
        return
    if saved.get("kind") != current.get("kind"):
        raise LGQError(f"{run} holds the run of another kind of model: choose another `out`.")
    sections = {path.partition(".")[0] for path in differences}
    # The training tokens first: without others, a run validates on some of them.
    if changed := [name for section, name in _TOKENS.items() if section in sections]:
        raise LGQError(f"these are other `{changed[0]}` than those of {run}: choose another `out`.")
    ways_out = [f"go on with its settings (`config` {run / CONFIG})", "choose another `out` for a new run"]
    if saved.get("backbone") == current.get("backbone"):
        ways_out.append(f"begin that one with the weights of this one (`start_from` {run})")
    raise LGQError(
        f"{run} was started with other settings: {', '.join(differences.values())}; {', or '.join(ways_out)}."
    )


def notice_run(run: Path, planned: dict[str, Any]) -> None:
    """Log that a directory holds a run which planned settings continue; refuse those that cannot.

    Facts about the data, which a run finds out when it starts, are not compared.
    """
    saved = run_settings(run)
    if saved is None:
        return
    before, now = settings_by_path(saved), settings_by_path(planned)
    known = before.keys() & now.keys()
    old, new = ({path: settings[path] for path in known} for settings in (before, now))
    if differences := _differences(old, new, validated=False):
        raise LGQError(
            f"{run} holds a run with other settings, which these cannot continue: "
            f"{', '.join(differences.values())}; choose another `out`."
        )
    _log.info("%s holds a run, which these settings continue", run)


def _differences(before: dict[str, Any], now: dict[str, Any], *, validated: bool) -> dict[str, str]:
    """Return by its path each setting that keeps a run from going on, with both values in words."""
    ignored = set(HISTORY_FIELDS if validated else (*HISTORY_FIELDS, *_VALIDATION))
    if before.get("quantizer") != now.get("quantizer"):
        ignored.add("quantizer_options")  # each quantizer has options of its own: its name says it all
    return {
        path: f"{_keyword(path)} (was {before.get(path, _MISSING)!r}, now {now.get(path, _MISSING)!r})"
        for path in sorted((before.keys() | now.keys()) - FREE_SETTINGS)
        if before.get(path, _MISSING) != now.get(path, _MISSING) and path.split(".")[0] not in ignored
    }


def _keyword(path: str) -> str:
    section, dot, name = path.partition(".")
    keyword = f"{_SOURCES.get(section, section)}{dot}{name}"
    return _COUNTS.get(keyword, f"`{keyword}`")


def describe_run(run: Path, config: dict[str, Any], device: torch.device) -> None:
    """Write config.json and environment.json; `config` has a `seed`."""
    with named_disk_errors(run):
        # In this order: a config.json alone belongs to no run.
        replace_json(run / ENVIRONMENT, describe_environment(config["seed"], device))
        replace_json(run / CONFIG, config)


def describe_environment(seed: int | None, device: torch.device) -> dict[str, Any]:
    """Return what environment.json holds: enough to run the same again."""
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    processor = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lgq": lgq.__version__,
        "platform": platform.platform(),
        "git_commit": commit_of(Path(lgq.__file__).parent.parent),
        "source": source_hash(Path(lgq.__file__).parent),
        "seed": seed,
        "world_size": world_size(),
        "device": device.type,
        "devices": devices or [processor],
        "plugins": foreign_quantizers(),
    }


@cache
def source_hash(package: Path) -> str:
    """Return the first 12 hex digits of a sha256 of a package's source: which code made a record, wherever it
    is installed.

    It is read once per process, so that an edit while a run trains changes nothing.
    """
    digest = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.*")}
    for name, path in sorted(files.items()):
        if path.suffix in _SOURCE_SUFFIXES and path.is_file():
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def commit_of(directory: Path) -> str | None:
    """Return the commit of a git checkout; None where the directory is none, as for an installed package.

    Its files are read here: containers often have no git, and git refuses a checkout of another user.
    """
    own = directory / ".git"
    try:
        if own.is_file():  # a worktree
            own = directory / own.read_text().removeprefix("gitdir:").strip()
        head = (own / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name, link = head.removeprefix("ref: "), own / "commondir"
        shared = own / link.read_text().strip() if link.is_file() else own
        if (shared / name).is_file():
            return (shared / name).read_text().strip()
        packed = (line.split() for line in (shared / "packed-refs").read_text().splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), None)
    except OSError:
        return None


def settings_by_path(settings: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested settings by dotted names, such as {"loss.l1": 1.0}."""
    if not isinstance(settings, dict) or not settings:
        return {path: settings}
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= settings_by_path(value, f"{path}.{name}" if path else name)
    return flat


@dataclass(frozen=True)
class CodebookSnapshot:
    """Use of the codes at a validation, and the codes themselves."""

    step: int
    counts: Int[Tensor, "levels k"]
    """Number of tokens of each code over the validation images, for each stage or scale."""
    norms: Float[Tensor, "s k"] | None
    """Norms of the codes; None where codes are a fixed grid."""
    codes: Float[Tensor, "s k c"] | None
    """The codes in half precision; None where they are a fixed grid, or too many to keep."""


def save_codebook(
    run: Path, step: int, counts: Sequence[Int[Tensor, " k"]], codes: Sequence[Float[Tensor, "k c"] | None]
) -> None:
    """Write the snapshot of a validation.

    counts: of each stage or scale.
    codes: of each stage; all scales share one codebook. None for a fixed grid.
    """
    tensors = {"counts": torch.stack(list(counts)).to(torch.int32).cpu()}
    learned = [code.detach().float().cpu() for code in codes if code is not None]
    if len(learned) == len(codes):
        stacked = torch.stack(learned)
        if stacked.numel() <= _MOST_NUMBERS:
            tensors["codes"] = stacked.half()
        else:
            tensors["norms"] = stacked.norm(dim=2)
    with named_disk_errors(run):
        make_directory(run / CODEBOOKS)
        replace_file(run / CODEBOOKS / f"step-{step:06d}.safetensors", save(tensors))
        files = _snapshot_files(run)
        if len(files) > MOST_SNAPSHOTS:
            for file in files[-2::-2]:  # the newest stays
                file.unlink()


def read_codebooks(run: Path) -> list[CodebookSnapshot]:
    """Return the snapshots of a run in the order of their steps, without damaged ones."""
    snapshots = []
    for file in _snapshot_files(run):
        try:
            tensors = load_file(file)
            counts, codes = tensors["counts"], tensors.get("codes")
        except (SafetensorError, OSError, KeyError) as error:
            _log.warning("%s is damaged and left out: %s", file, error)
            continue
        norms = tensors.get("norms") if codes is None else codes.float().norm(dim=2)
        snapshots.append(CodebookSnapshot(_step_of(file), counts, norms, codes))
    return snapshots


def count_codebooks(run: Path) -> int:
    """Count the snapshots of a run without reading them."""
    return len(_snapshot_files(run))


def _snapshot_files(run: Path) -> list[Path]:
    folder = run / CODEBOOKS
    files = [path for path in folder.iterdir() if _SNAPSHOT.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(files, key=_step_of)


def _step_of(file: Path) -> int:
    match = _SNAPSHOT.fullmatch(file.name)
    assert match is not None
    return int(match[1])
