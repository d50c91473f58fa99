"""Published checkpoints of other libraries as an `lgq.Tokenizer`, with the same tokens and images.

    tokenizer = import_tokenizer("vqgan.safetensors", "taming")
    import_tokenizer("vqgan.safetensors", "taming", out="tokenizers/vqgan")     # now every command takes it

    taming      taming-transformers VQGAN (Esser et al. 2021)
    llamagen    LlamaGen VQ-16 and VQ-8 (Sun et al. 2024): the code with the largest cosine
    ibq         IBQ of SEED-Voken (Shi et al. 2024): the code with the largest inner product
    diffusers   `diffusers.VQModel`
    magvit2     Open-MAGVIT2 of SEED-Voken (Luo et al. 2024): signs of the latents (LFQ)

Settings come from the shapes of the weights. No pickle is loaded: a checkpoint in .ckpt, .pt or .bin must be
converted to safetensors first, in an environment that its author's code is trusted in.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lgq.checks import require_one_of
from lgq.files import named_disk_errors, replace_directory, require_writable
from lgq.hub import CONFIG, PretrainedError
from lgq.models import magvit2
from lgq.models.vqgan_names import (
    CODEBOOK,
    DIFFUSERS,
    LLAMAGEN,
    TAMING,
    NamesError,
    backbone_of,
    to_ours,
)
from lgq.tokenizer import Tokenizer

Family = Literal["taming", "llamagen", "ibq", "diffusers", "magvit2"]
"""Library whose checkpoint it is."""

_NAMES = {"taming": TAMING, "llamagen": LLAMAGEN, "ibq": TAMING, "diffusers": DIFFUSERS}
_DIFFUSERS_WEIGHTS = "diffusion_pytorch_model.safetensors"
_GROUPS = 32  # of every GroupNorm, unless diffusers' config.json says otherwise
_EMA = "model_ema."
_OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_CONVERT = (
    "convert it where you trust it: safetensors.torch.save_file of its state_dict, as docs/interop.md shows"
)


def import_tokenizer(
    source: str | Path | Mapping[str, Tensor], family: Family, *, out: str | Path | None = None
) -> Tokenizer:
    """Return the tokenizer of a published checkpoint, in eval mode and float32.

    source: a safetensors file; for diffusers also the directory with its config.json; or a state_dict.
    out: new directory to save it in, as `save_pretrained` does.
    """
    require_one_of(get_args(Family), family=family)
    if out is not None:
        require_writable(Path(out))
        if Path(out).exists():
            raise PretrainedError(f"{out} exists already: choose a new directory.")
    shown = "the state_dict" if isinstance(source, Mapping) else str(source)
    weights, config = _read(source, family)
    if family in ("ibq", "magvit2"):
        weights = _averaged(weights)
    if family == "diffusers":
        weights = {_present_name(name): tensor for name, tensor in weights.items()}
    try:
        if family == "magvit2":
            tokenizer = _build_magvit2(weights)
        else:
            tokenizer = _build(weights, family, groups=config.get("norm_num_groups", _GROUPS))
    except NamesError as error:
        way_out = f"is it a checkpoint of {family}? Known are {', '.join(get_args(Family))}."
        raise PretrainedError(f"{shown} {error}: {way_out}") from error
    if out is not None:
        with named_disk_errors(out), replace_directory(Path(out)) as folder:
            tokenizer.save_pretrained(folder)
    return tokenizer


def _build(weights: Mapping[str, Tensor], family: Family, *, groups: int) -> Tokenizer:
    names = _NAMES[family]
    backbone = backbone_of(weights, names, groups=groups)
    codes = weights.get(CODEBOOK)
    if codes is None or codes.ndim != 2 or codes.shape[1] != backbone.latent_channels:
        raise NamesError(f"has no codes of {backbone.latent_channels} channels in {CODEBOOK}")
    quantizer = "ibq" if family == "ibq" else "vq"
    options = {"score": "cosine"} if family == "llamagen" else {}

    def build() -> Tokenizer:
        return Tokenizer(backbone, quantizer, len(codes), quantizer_options=options)

    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):  # weights that do not fit must not take memory
            expected = build().state_dict()
        shapes = {name: tensor.shape for name, tensor in expected.items()}
        networks = to_ours(weights, backbone, names, shapes)
        tokenizer = build().eval()
    start = {"codebook": codes.float()}
    if quantizer == "vq":  # moving averages from which training would go on
        start |= {"sums": codes.float(), "counts": torch.ones(len(codes))}
    state: dict[str, Any] = tokenizer.state_dict()
    state |= networks | {f"quantizer.{name}": tensor for name, tensor in start.items()}
    tokenizer.load_state_dict(state)
    return tokenizer


def _build_magvit2(weights: Mapping[str, Tensor]) -> Tokenizer:
    backbone = magvit2.backbone_of(weights)

    def build() -> Tokenizer:
        return Tokenizer(backbone, "lfq", 2**backbone.latent_channels)

    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            expected = build().state_dict()
        networks = magvit2.to_ours(weights, {name: tensor.shape for name, tensor in expected.items()})
        tokenizer = build().eval()
    identity, zero = torch.eye(backbone.latent_channels), torch.zeros(backbone.latent_channels)
    state: dict[str, Any] = tokenizer.state_dict()
    for projection in ("project_in", "project_out"):  # there, latents have as many channels as bits
        state |= {f"quantizer.{projection}.weight": identity, f"quantizer.{projection}.bias": zero}
    tokenizer.load_state_dict(state | networks)
    return tokenizer


def _read(
    source: str | Path | Mapping[str, Tensor], family: Family
) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    """Return the weights, and for a directory of diffusers its settings."""
    if isinstance(source, Mapping):
        if wrong := [name for name, value in source.items() if not isinstance(value, Tensor)]:
            rule = "a state_dict maps names to tensors"
            raise PretrainedError(
                f"{rule}, got {wrong[0]!r:.100}: take the state_dict within, if there is one."
            )
        return source, {}
    path, config = Path(source), {}
    if path.is_dir() and family == "diffusers":
        config = _diffusers_config(path / CONFIG)
        path = path / _DIFFUSERS_WEIGHTS
    if path.is_dir() or path.suffix != ".safetensors":
        kind = "a directory" if path.is_dir() else f"a {path.suffix or 'nameless'} file"
        raise PretrainedError(
            f"{path} is {kind}, and only .safetensors is read, as a pickle can run code: {_CONVERT}."
        )
    with named_disk_errors(path):
        try:
            return load_file(path), config
        except SafetensorError as error:
            raise PretrainedError(
                f"{path} is damaged or cut short ({error!s:.300}): copy it again."
            ) from error


def _diffusers_config(path: Path) -> dict[str, Any]:
    """Read config.json of a `diffusers.VQModel`; what our network cannot do is an error."""
    with named_disk_errors(path):
        data = path.read_bytes()
    try:
        config = json.loads(data)
        settings = {"norm_type": config.get("norm_type", "group"), "act_fn": config.get("act_fn", "silu")}
        groups = config.get("norm_num_groups", _GROUPS)
    except (ValueError, AttributeError, RecursionError) as error:
        raise PretrainedError(f"{path} is damaged, or not of diffusers: copy it again.") from error
    known = {"norm_type": ("group",), "act_fn": ("silu", "swish")}
    for name, value in settings.items():
        if value not in known[name]:
            raise PretrainedError(
                f"{path} says {name} {value!r:.60}, and only {known[name][0]!r} is known here."
            )
    if type(groups) is not int or groups < 1:
        raise PretrainedError(
            f"{path} says norm_num_groups {groups!r:.60}, which must be a whole number from 1 on."
        )
    return config


def _averaged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the moving averages that SEED-Voken evaluates in place of the weights they belong to."""
    own = {name: tensor for name, tensor in weights.items() if not name.startswith(_EMA)}
    return {name: weights.get(_EMA + name.replace(".", ""), tensor) for name, tensor in own.items()}


def _present_name(name: str) -> str:
    """Return the name that diffusers gives to a weight today; older releases called attention's otherwise."""
    head, _, kind = name.rpartition(".")
    place, _, layer = head.rpartition(".")
    return f"{place}.{_OLD_ATTENTION[layer]}.{kind}" if layer in _OLD_ATTENTION else name
