"""Saved models: config.json and model.safetensors, in a directory, in a run, in the package or on the Hub.

Nothing is ever unpickled. A run directory holds its settings (config.json, environment.json) and publishes
weights in best/ (the best validation) and last/ (the last checkpoint), each with a manifest. A model that
comes with the package goes by its name, such as `photo-f8`, where no directory has it; its bf16 weights are
verified, and computed with in float32.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import huggingface_hub
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from lgq.config import from_json
from lgq.distributed import world_size
from lgq.errors import LGQError
from lgq.files import (
    MANIFEST,
    MANIFEST_FORMAT,
    DamagedDirectoryError,
    Fingerprint,
    Manifest,
    WeightsChoice,
    replace_directory,
    replace_file,
)
from lgq.model_sources import CONFIG as CONFIG
from lgq.model_sources import ModelKind as ModelKind
from lgq.model_sources import PretrainedError as PretrainedError
from lgq.model_sources import damaged_config, kind_of, read_config, require_findable, shipped_model

WEIGHTS, ENVIRONMENT = "model.safetensors", "environment.json"
BEST, LAST = "best", "last"
TOKENIZER = "tokenizer"
"""Directory with a copy of the tokenizer, beside tokens and beside the weights of a generator."""

_PATIENCE = 2.0  # seconds until the Hub has to answer
_SERVER_FAILS = 500  # HTTP status from which on the Hub, or a proxy, does not work
_CARD = """\
---
{{ card_data }}
---

# {{ title }}

{{ text }} Made with `lgq`, a library of discrete image tokenizers.

```python
{{ example }}
```

Configuration:

```json
{{ configuration }}
```

License: MIT.
"""

Model = TypeVar("Model", bound="HubModel")
Settings = TypeVar("Settings")
_log = logging.getLogger(__name__)


class HubModel(nn.Module, PyTorchModelHubMixin, library_name="lgq", license="mit", model_card_template=_CARD):
    """Base of models that `save_pretrained` writes and `from_pretrained` reads."""

    settings: dict[str, Any]
    """Content of config.json; `_hub_mixin_config`, which `save_pretrained` writes, must be the same."""

    def _saved_network(self) -> nn.Module:
        """Return the part whose weights model.safetensors holds."""
        return self

    def _card(self) -> dict[str, str]:
        """Return title, text and example of the model card."""
        raise NotImplementedError

    @classmethod
    def _load(cls: type[Model], find: Callable[[str], Path]) -> Model:
        """Load the model from its files, each found by its name."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(  # type: ignore[override]  # settings come from the file alone
        cls: type[Model],
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str | torch.device = "cpu",
        **options: Any,
    ) -> Model:
        """Load a saved model from a directory, by its name from the package, or from owner/name on the
        Hugging Face Hub, in eval mode.

        map_location: the device.
        options: keywords of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.
        """
        source = pretrained_model_name_or_path
        if (shipped := shipped_model(source)) is not None:
            _verify_shipped(shipped)
            return cls._load(lambda name: shipped / name).float().to(map_location)
        return cls._load(lambda name: find_file(source, name, **options)).to(map_location)

    def fingerprint(self) -> str:
        """Return the sha256 (hex) of settings and weights: equal for models that save the same files.

        Device and memory format do not matter; dtype does.
        """
        return self._fingerprint_with(self.settings)

    def _fingerprint_with(self, settings: dict[str, Any]) -> str:
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for name, tensor in sorted(self._saved_network().state_dict().items()):
            digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def _save_pretrained(self, save_directory: Path) -> None:
        tensors = self._saved_network().state_dict().items()
        replace_file(save_directory / WEIGHTS, save({name: x.cpu().contiguous() for name, x in tensors}))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        configuration = json.dumps(self.settings, indent=2, sort_keys=True)
        return super().generate_model_card(*args, configuration=configuration, **self._card(), **kwargs)


def _verify_shipped(directory: Path) -> None:
    try:
        Manifest.read(directory).verify(directory)
    except DamagedDirectoryError as error:
        raise PretrainedError(f"{str(error).removesuffix('.')}: install lgq again.") from error


def find_file(source: str | Path, name: str, **options: Any) -> Path:
    """Return a file of a directory, of a model of the package, or of owner/name on the Hub.

    Only the Hub needs the network. Where a directory `owner` exists, owner/name is a path.
    """
    folder = shipped_model(source) or Path(source)
    if folder.is_dir():
        if (folder / name).is_file():
            return folder / name
        better = [folder / part for part in (BEST, LAST) if (folder / part / name).is_file()]
        way_out = (
            f"did you mean {better[0]}?" if better else "save_pretrained writes one; no pickle is loaded."
        )
        raise PretrainedError(f"{folder} has no {name}: {way_out}")
    require_findable(source)
    source = str(source)
    if not options.get("local_files_only") and (silence := _hub_silence(source, name, options)):
        return _cached(source, name, silence, options)
    try:
        return Path(huggingface_hub.hf_hub_download(repo_id=source, filename=name, **options))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PretrainedError(
            f"there is no directory {source}, and the Hugging Face Hub gave no {name} of it: {reason}"
        ) from error


def _hub_silence(source: str, name: str, options: dict[str, Any]) -> str | None:
    """Ask the Hub for the headers of a file; returns why there is no answer, or None if there is one.

    `hf_hub_download` would try again and again for minutes. A thread can be left behind whatever it waits
    for; time-outs hold for each address of a host in turn, and not for its name.
    """
    seconds = float(options.get("etag_timeout") or os.environ.get("HF_HUB_ETAG_TIMEOUT") or _PATIENCE)
    place = {
        key: options[key] for key in ("subfolder", "repo_type", "revision", "endpoint") if key in options
    }
    reasons: list[str | None] = []

    def ask() -> None:
        try:
            url = huggingface_hub.hf_hub_url(source, name, **place)
            # Longer than anyone waits for the thread.
            huggingface_hub.get_hf_file_metadata(url, token=options.get("token"), timeout=2 * seconds)
            reasons.append(None)
        except HfHubHTTPError as error:
            status = error.response.status_code
            reasons.append(None if status < _SERVER_FAILS else f"HTTP status {status}")
        except ValueError:
            reasons.append(None)  # `hf_hub_download` refuses such names with a reason
        except Exception as error:  # connection errors have no base that all versions of the client share
            reasons.append(" ".join(str(error).split()) or type(error).__name__)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return reasons[0] if reasons else f"no answer within {seconds:g} s"


def _cached(source: str, name: str, silence: str, options: dict[str, Any]) -> Path:
    """Return the copy of a file that an earlier download left; `silence` is why the Hub is not asked."""
    place = {key: options[key] for key in ("cache_dir", "repo_type", "revision") if key in options}
    inside = "/".join(filter(None, (options.get("subfolder"), name)))
    copy = huggingface_hub.try_to_load_from_cache(source, inside, **place)
    if isinstance(copy, str):
        return Path(copy)
    raise PretrainedError(
        f"there is no directory {source}, and the Hugging Face Hub, which may have it, cannot be reached "
        f"({silence:.200}): connect to the network (HF_HUB_OFFLINE unset, HF_HUB_ETAG_TIMEOUT=30 if it is "
        "slow), or give a local directory; no earlier download is in the cache."
    )


def build_pretrained(build: Callable[[], Model], config: Path, weights: Path) -> Model:
    """Build a model from the settings and the weights of two files, in eval mode.

    The global random generators stay as they are.
    """
    try:
        tensors = load_file(weights)
    except (SafetensorError, OSError) as error:
        raise PretrainedError(
            f"{weights} is damaged or cut short ({error!s:.300}): copy it again."
        ) from error
    try:
        # The initial weights are about to be overwritten.
        with torch.random.fork_rng(devices=[]):
            with torch.device("meta"):  # wrong settings must not take memory
                expected = build()._saved_network().state_dict()
            for name in expected:
                if name.endswith("_extra_state"):  # older weights of some quantizers have none: they began
                    tensors.setdefault(name, torch.tensor(False))
            _require_fit(_describe(expected), _describe(tensors), weights)
            model = build()
    except PretrainedError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise _no_such_model(config, error) from error
    # `assign` keeps the dtypes of the file; the copy outlives the file, which may be replaced.
    own = {name: tensor.clone() for name, tensor in tensors.items()}
    model._saved_network().load_state_dict(own, assign=True)
    return model.eval()


def read_settings(kind: type[Settings], config: Path) -> Settings:
    """Read the settings of a model, of a dataclass `kind`, from its config.json."""
    try:
        return from_json(kind, json.loads(config.read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_such_model(config, error) from error


def _no_such_model(config: Path, error: Exception) -> PretrainedError:
    # In quotes: these are fields of a file, which no option changes.
    reason = " ".join(str(error).split()).replace("`", "'")
    return PretrainedError(f"{config} describes no model that this lgq knows: {reason:.400}")


def _require_fit(expected: dict[str, str], actual: dict[str, str], file: Path) -> None:
    for name in sorted(expected.keys() | actual.keys()):
        wanted, given = expected.get(name, "nothing"), actual.get(name, "nothing")
        if wanted != given:
            raise PretrainedError(
                f"{file} does not fit {CONFIG} beside it: of {name:.100} it holds {given:.100}, "
                f"not {wanted:.100}. One of the two files is from another model."
            )


def _describe(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {
        name: f"{'numbers' if tensor.is_floating_point() else tensor.dtype} of shape {tuple(tensor.shape)}"
        for name, tensor in tensors.items()
    }


def published_weights(source: str | Path, weights: WeightsChoice = "best") -> str | Path:
    """Return the directory of a run's published weights, verified; what is no run is returned as it is.

    A run that was not validated yet has last weights only: they then stand for the best.
    """
    run = Path(source)
    if not _is_run(run):
        return source
    order = (BEST, LAST) if weights == "best" else (LAST,)
    published = [run / name for name in order if (run / name / WEIGHTS).is_file()]
    if not published:
        raise PretrainedError(f"{run} holds no {weights} weights yet: let it train to its first checkpoint.")
    if published[0].name != weights:
        _log.warning("%s has no %s weights yet: taking the %s ones", run, weights, published[0].name)
    _verify_published(published[0])
    return published[0]


def _verify_published(directory: Path) -> None:
    # Twice: a run that is training may have replaced them meanwhile.
    for last in (False, True):
        if not (directory / MANIFEST).is_file():  # earlier versions wrote none
            return
        try:
            Manifest.read(directory).verify(directory)
            return
        except DamagedDirectoryError as error:
            if last:
                way_out = "restore it from a copy, or resume the run, which writes its last weights again"
                raise PretrainedError(f"{str(error).removesuffix('.')}: {way_out}.") from error


def seal(directory: Path, step: int) -> None:
    """Write the manifest of weights that a run publishes."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    fingerprints = {path.relative_to(directory).as_posix(): Fingerprint.of_file(path) for path in files}
    Manifest(MANIFEST_FORMAT, step, world_size(), fingerprints).write(directory)


def model_kind(source: str | Path) -> ModelKind:
    """Tell a tokenizer from a generator by the config.json of a run, a saved model or a model on the Hub."""
    return kind_of(find_file(source, CONFIG))


def run_settings(source: str | Path) -> dict[str, Any] | None:
    """Return the resolved settings of a run directory; None for anything else."""
    if not _is_run(Path(source)):
        return None
    settings = read_config(Path(source) / CONFIG)
    if not isinstance(settings.get("image_size"), int):
        raise damaged_config(Path(source) / CONFIG)
    return settings


def run_directory_of(source: str | Path) -> Path:
    """Return the run to which published weights belong; any other directory is returned as it is."""
    folder = Path(source)
    return folder.parent if folder.name in (BEST, LAST) and _is_run(folder.parent) else folder


def _is_run(folder: Path) -> bool:
    described = (folder / CONFIG).is_file() and (folder / ENVIRONMENT).is_file()
    return described and not (folder / WEIGHTS).is_file()


def require_room_for_copy(tokenizer: HubModel, folder: Path) -> bool:
    """Tell whether a directory still lacks its copy of the tokenizer; another model there is an error."""
    place = folder / TOKENIZER
    if not place.exists():
        return True
    try:
        present = type(tokenizer).from_pretrained(place).fingerprint()
    except (LGQError, OSError):
        present = None
    if present != tokenizer.fingerprint():
        raise PretrainedError(
            f"{place} holds something else, where a copy of the tokenizer would come: "
            "choose another directory, or move it away."
        )
    return False


def copy_tokenizer(tokenizer: HubModel, folder: Path) -> None:
    """Write the copy, whole or not at all, where there is none yet."""
    if require_room_for_copy(tokenizer, folder):
        with replace_directory(folder / TOKENIZER) as directory:
            tokenizer.save_pretrained(directory)
