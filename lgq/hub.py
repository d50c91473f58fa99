"""Files of a trained model: config.json and model.safetensors, in a directory or on the Hugging Face Hub.

Nothing is ever unpickled.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import huggingface_hub
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from lgq.errors import LGQError

CONFIG, WEIGHTS = "config.json", "model.safetensors"

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class PretrainedError(LGQError):
    """Files that make no model; says which, and the way out."""


class HubOptions(TypedDict, total=False):
    """Of `huggingface_hub.hf_hub_download`."""

    force_download: bool
    token: str | bool | None
    cache_dir: str | Path | None
    local_files_only: bool
    revision: str | None


def find_file(source: str | Path, name: str, options: HubOptions) -> Path:
    """A file of a directory, or of owner/name on the Hub. A directory is read without the network.

    Where a directory `owner` is at hand, owner/name is a path.
    """
    folder = Path(source)
    if folder.is_dir():
        return _find_in(folder, name)
    # A mistyped path must not cost the half minute in which the Hub is tried again and again.
    if isinstance(source, Path) or not _HUB_ID.fullmatch(source) or folder.parent.is_dir():
        raise PretrainedError(
            f"there is no directory {source}: name one that save_pretrained wrote, or owner/name on the Hub."
        )
    try:
        return Path(huggingface_hub.hf_hub_download(repo_id=source, filename=name, **options))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PretrainedError(
            f"there is no directory {source}, and the Hugging Face Hub gave no {name} of it: {reason}"
        ) from error


def _find_in(folder: Path, name: str) -> Path:
    if (folder / name).is_file():
        return folder / name
    better = [folder / part for part in ("best", "last") if (folder / part / name).is_file()]
    advice = f"did you mean {better[0]}?" if better else "save_pretrained writes one; pickles are not loaded."
    raise PretrainedError(f"{folder} has no {name}: {advice}")


def require_weights_of(build: Callable[[], nn.Module], file: Path) -> None:
    """Refuse settings that a file's weights are not of, before a network of any size takes memory."""
    with torch.device("meta"):
        expected = build().state_dict()
    try:
        with safe_open(file, "pt") as weights:
            found = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error
    _require_fit(
        {name: f"numbers of shape {tuple(tensor.shape)}" for name, tensor in expected.items()},
        {name: f"numbers of shape {tuple(shape)}" for name, shape in found.items()},
        file,
    )


def load_weights(module: nn.Module, file: Path) -> None:
    """Take over the tensors of a file, which must be the module's own in name and shape."""
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error
    _require_fit(_kinds(module.state_dict()), _kinds(tensors), file)
    # `assign` keeps the dtypes of the file; the copy frees us from it, for it may be replaced.
    module.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)


def _damaged(file: Path, error: Exception) -> PretrainedError:
    return PretrainedError(f"{file} is damaged or cut short ({error!s:.300}): copy it again.")


def _require_fit(expected: dict[str, str], found: dict[str, str], file: Path) -> None:
    for name in sorted(expected.keys() | found.keys()):
        wanted, given = expected.get(name, "nothing"), found.get(name, "nothing")
        if wanted != given:
            raise PretrainedError(
                f"{file} does not fit {CONFIG} beside it: of {name:.100} it holds {given:.100}, "
                f"not {wanted:.100}. One of the two files is from another model."
            )


def _kinds(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: _kind(tensor) for name, tensor in tensors.items()}


def _kind(tensor: Tensor) -> str:
    return f"{'numbers' if tensor.is_floating_point() else tensor.dtype} of shape {tuple(tensor.shape)}"
