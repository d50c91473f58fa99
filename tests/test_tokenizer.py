"""Laws of the tokenizer, on networks small enough to run in a blink."""

import copy
import json
import pickle
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.seeds import Trap
from huggingface_hub import ModelCard
from huggingface_hub.errors import LocalEntryNotFoundError
from identity import assert_identical
from safetensors.torch import load_file, save_file
from torch import Tensor

from lgq.errors import LGQError
from lgq.hub import PretrainedError
from lgq.models.autoencoder import Backbone
from lgq.quantizers import QUANTIZERS
from lgq.tokenizer import Tokenizer, load_tokenizer

TINY = Backbone(widths=(8, 16, 16), blocks=1, attention_heads=2, groups=4, latent_channels=8, latent_groups=2)
SIZE = 64

over_quantizers = pytest.mark.parametrize("quantizer", QUANTIZERS)
over_stages = pytest.mark.parametrize("stages", [1, 3])


def build(quantizer: str = "lgq", **settings: Any) -> Tokenizer:
    return Tokenizer(TINY, quantizer, SIZE, **settings)


def pictures(*size: int) -> Tensor:
    return torch.rand(2, 3, *(size or (16, 8))) * 2 - 1


def train_a_step(tokenizer: Tokenizer) -> None:
    images = pictures()
    out = tokenizer.train()(images)
    (torch.nn.functional.mse_loss(out.reconstruction, images) + out.quantized.loss).backward()
    torch.optim.SGD(tokenizer.parameters(), lr=0.1).step()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    build().save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


@over_quantizers
def test_frozen_tokens_are_those_of_encode_and_only_the_decoder_learns(quantizer):
    tokenizer, images = build(quantizer).train(), pictures()
    assert tokenizer.freeze_tokens() is tokenizer
    with torch.autocast("cpu", torch.bfloat16):
        out = tokenizer(images)
    assert torch.equal(out.quantized.indices, tokenizer.encode(images))
    (out.reconstruction.square().mean() + out.quantized.loss).backward()
    with_gradient = [name for name, weight in tokenizer.named_parameters() if weight.grad is not None]
    assert {name.split(".")[0] for name in with_gradient} == {"decoder"}


def test_the_default_is_the_papers_model():
    with torch.device("meta"):
        tokenizer = Tokenizer()
    counts = tokenizer.parameter_counts()
    assert counts == {"encoder": 13_995_712, "decoder": 13_995_523, "quantizer": 16_384 * 64}
    assert tokenizer.factor == 16


@over_quantizers
@over_stages
@pytest.mark.parametrize("grid", [(1, 1), (2, 5), (4, 1)])
def test_images_become_a_grid_of_tokens_and_images_again(quantizer, stages, grid):
    tokenizer = build(quantizer, stages=stages)
    images = pictures(*(side * tokenizer.factor for side in grid))
    tokens = tokenizer.encode(images)
    decoded = tokenizer.decode(tokens)
    assert tokens.shape == (2, *grid) + (stages,) * (stages > 1)
    assert tokens.dtype == torch.int64
    assert 0 <= tokens.min() <= tokens.max() < tokenizer.codebook_size
    assert decoded.shape == images.shape
    if stages > 1:
        coarse = tokenizer.decode(tokens[..., :1])
        assert coarse.shape == images.shape
        assert not torch.equal(coarse, decoded)


@over_quantizers
@over_stages
def test_decoded_tokens_are_the_clamped_reconstruction(quantizer, stages):
    tokenizer, images = build(quantizer, stages=stages).eval(), pictures()
    with torch.no_grad():
        tokenizer.decoder.to_image.weight.mul_(20)
    out = tokenizer(images)
    assert out.reconstruction.abs().max() > 1
    assert torch.equal(tokenizer.encode(images), out.quantized.indices)
    torch.testing.assert_close(tokenizer.decode(out.quantized.indices), out.reconstruction.clamp(-1, 1))


@over_quantizers
@over_stages
def test_gradients_reach_both_networks_and_training_mode_changes_neither_tokens_nor_images(quantizer, stages):
    tokenizer, images = build(quantizer, stages=stages), pictures()
    train_a_step(tokenizer)
    for network in (tokenizer.encoder, tokenizer.decoder):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
        assert any(p.grad.abs().max() > 0 for p in network.parameters())
    before, tokens = tokenizer.fingerprint(), tokenizer.encode(images)
    decoded = tokenizer.decode(tokens)
    assert not decoded.requires_grad
    assert tokenizer.fingerprint() == before
    assert torch.equal(tokenizer.eval().encode(images), tokens)
    assert torch.equal(tokenizer.decode(tokens), decoded)


@over_stages
def test_encoder_and_decoder_start_alike_whatever_the_quantizer(stages):
    starts = []
    for quantizer in QUANTIZERS:
        torch.manual_seed(7)
        tokenizer = build(quantizer, stages=stages)
        networks = {**tokenizer.encoder.state_dict(), **tokenizer.decoder.state_dict()}
        starts.append((networks, torch.rand(4)))
    for networks, numbers_drawn_next in starts[1:]:
        torch.testing.assert_close(networks, starts[0][0], rtol=0, atol=0)
        assert torch.equal(numbers_drawn_next, starts[0][1])


@pytest.mark.parametrize(
    ("quantizer", "settings"),
    [
        *((name, {"stages": stages}) for name in QUANTIZERS for stages in (1, 3)),
        ("fsq", {"quantizer_options": {"levels": (4, 16)}}),
        ("vq", {"quantizer_options": {"restart_below": 0.5, "init": "kmeans"}}),
        ("lgq", {"quantizer_options": {"init": "data"}}),
    ],
)
def test_saving_and_loading_keeps_every_bit_and_annealing_reaches_every_stage(quantizer, settings, tmp_path):
    tokenizer = build(quantizer, **settings)
    for _ in range(2):
        tokenizer.save_pretrained(tmp_path)
        loaded = Tokenizer.from_pretrained(tmp_path)
        assert_identical(loaded.state_dict(), tokenizer.state_dict())
        assert loaded.settings == tokenizer.settings
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert not loaded.training
        train_a_step(tokenizer)
        tokenizer.anneal(1.0)
    taus = [tau for name, tau in tokenizer.state_dict().items() if name.endswith("tau")]
    assert taus == [pytest.approx(0.1)] * (settings.get("stages", 1) if quantizer == "lgq" else 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("quantizer", ["lgq", "fsq"])
def test_other_precisions_are_used_and_kept(quantizer, dtype, tmp_path):
    tokenizer, images = build(quantizer).to(dtype), pictures()
    tokenizer.save_pretrained(tmp_path)
    loaded = Tokenizer.from_pretrained(tmp_path)
    assert_identical(loaded.state_dict(), tokenizer.state_dict())
    assert loaded(images).reconstruction.dtype == dtype
    assert loaded.decode(loaded.encode(images)).dtype == dtype


def test_a_loaded_tokenizer_depends_on_no_file_and_no_random_number_of_the_caller(saved):
    state = torch.get_rng_state()
    tokenizer = Tokenizer.from_pretrained(saved)
    assert torch.equal(torch.get_rng_state(), state)
    before, weights = tokenizer.fingerprint(), saved / "model.safetensors"
    with weights.open("r+b") as file:
        file.write(bytes(weights.stat().st_size))
    assert tokenizer.fingerprint() == before


@over_quantizers
def test_fingerprint_changes_with_every_weight(quantizer):
    tokenizer = build(quantizer, stages=2)
    before, seen = tokenizer.fingerprint(), set()
    tensors = [t for name, t in tokenizer.state_dict().items() if not name.endswith("_extra_state")]
    for tensor in tensors:
        old = tensor.clone()
        tensor.view(-1)[-1] += 1
        seen.add(tokenizer.fingerprint())
        tensor.copy_(old)
    assert len(seen - {before}) == len(tensors)
    assert tokenizer.fingerprint() == before


def test_fingerprint_changes_with_settings_that_leave_the_weights_alone():
    backbones = [TINY, replace(TINY, checkpointing=True), replace(TINY, attention_heads=1)]
    options = [{}, {"tau_end": 0.2}, {"score": "dot"}, {"hard_gradient": True}, {"peak_weight": 0.0}]
    pairs = [(backbone, chosen) for backbone in backbones for chosen in options]
    tokenizers = [Tokenizer(backbone, "lgq", SIZE, quantizer_options=chosen) for backbone, chosen in pairs]
    for tokenizer in tokenizers:
        tokenizer.load_state_dict(tokenizers[0].state_dict())
    assert len({tokenizer.fingerprint() for tokenizer in tokenizers}) == len(tokenizers)
    vq, rotvq = build("vq"), build("rotvq")
    rotvq.load_state_dict(vq.state_dict())
    assert len({vq.fingerprint(), rotvq.fingerprint(), vq.to(torch.float64).fingerprint()}) == 3


def test_fingerprint_changes_with_nothing_else():
    tokenizer = build(stages=2)
    explicit = build(stages=2, quantizer_options={"tau_start": 1.0, "seed": 0})
    explicit.load_state_dict(tokenizer.state_dict())
    before = tokenizer.fingerprint()
    assert len(before) == 64
    assert explicit.fingerprint() == before
    assert copy.deepcopy(tokenizer).eval().requires_grad_(False).fingerprint() == before
    assert tokenizer.to(memory_format=torch.channels_last).fingerprint() == before


def test_a_seed_is_recorded_and_0_unless_asked():
    def seed(**options: Any) -> Any:
        return build(quantizer_options=options).settings["quantizer_options"]["seed"]

    torch.manual_seed(5)
    drawn = [seed(seed=None), seed(seed=None)]
    assert (seed(), seed(seed=7)) == (0, 7)
    assert all(type(number) is int for number in drawn)
    assert drawn[0] != drawn[1]
    tokenizer = build(stages=2, quantizer_options={"seed": None})
    again = build(stages=2, quantizer_options={"seed": tokenizer.quantizer.seed})
    assert tokenizer.settings == again.settings
    assert_identical(again.quantizer.state_dict(), tokenizer.quantizer.state_dict())


def test_fingerprint_stays_the_same_from_version_to_version():
    """If this fails, tokens on people's disks no longer belong to the tokenizers that made them."""
    tokenizer = build(quantizer_options={"tau_end": 0.25})
    for tensor in (*tokenizer.parameters(), *tokenizer.buffers()):
        torch.nn.init.constant_(tensor, 0.5)
    assert tokenizer.fingerprint() == "d70f156193ff25b9ac1f6a6b945e061be11f1092db79d3ce6e04bd7d5150ed71"


def test_a_saved_directory_holds_settings_weights_and_a_card(saved):
    assert {file.name for file in saved.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert json.loads((saved / "config.json").read_text()) == build().settings
    assert build().settings["quantizer_options"]["tau_end"] == 0.1, "defaults are written out"
    card = ModelCard.load(saved / "README.md")
    assert card.data.license == "mit"
    assert card.data.library_name == "lgq"
    assert "Tokenizer.from_pretrained(" in card.text
    _, block = card.text.split("```json")
    assert json.loads(block.split("```")[0]) == build().settings


def test_saving_again_keeps_an_edited_card_and_replaces_the_rest(saved):
    (saved / "README.md").write_text("my own words")
    fsq = build("fsq")
    fsq.save_pretrained(saved)
    assert (saved / "README.md").read_text() == "my own words"
    assert Tokenizer.from_pretrained(saved).fingerprint() == fsq.fingerprint()


@pytest.mark.parametrize("missing", ["nowhere", "./nowhere", "runs/nowhere", "a/b/c", Path("a/b")])
def test_directories_are_loaded_and_missing_ones_named_without_the_network(missing, saved, monkeypatch):
    calls: list[Any] = []
    for owner, name in [(socket.socket, "connect"), (socket, "getaddrinfo"), (socket, "create_connection")]:
        monkeypatch.setattr(owner, name, lambda *arguments, **_: calls.append(arguments))
    Tokenizer.from_pretrained(str(saved))
    monkeypatch.chdir(saved.parent)
    (saved.parent / "runs").mkdir()
    with pytest.raises(PretrainedError, match=f"no directory {missing}: .* save_pretrained"):
        Tokenizer.from_pretrained(missing)
    assert calls == []


def test_the_hub_is_asked_for_both_files(saved, monkeypatch):
    asked: list[dict[str, Any]] = []

    def download(**request: Any) -> str:
        asked.append(request)
        return str(saved / request["filename"])

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    loaded = Tokenizer.from_pretrained("owner/name", revision="v1", token="secret", local_files_only=True)
    assert loaded.settings == build().settings
    assert [request["filename"] for request in asked] == ["model.safetensors", "config.json"]
    for request in asked:
        assert request["repo_id"] == "owner/name"
        assert (request["revision"], request["token"], request["local_files_only"]) == ("v1", "secret", True)


def test_what_the_hub_does_not_have_is_refused_in_one_line(monkeypatch):
    asked: list[str] = []

    def download(**request: Any) -> str:
        asked.append(request["filename"])
        raise LocalEntryNotFoundError("no\n\nconnection")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(PretrainedError, match=r"no directory owner/name, and .* gave no .*: no connection"):
        Tokenizer.from_pretrained("owner/name", local_files_only=True)
    assert asked == ["model.safetensors"], "and never pickled weights in its place"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dump", [pickle.dump, torch.save])
def test_nothing_is_ever_unpickled(name, dump, saved):
    (saved / "model.safetensors").unlink()
    with (saved / name).open("wb") as file:
        dump(Trap(saved / "sprung"), file)
    with pytest.raises(PretrainedError, match=r"model\.safetensors"):
        Tokenizer.from_pretrained(saved)
    assert not (saved / "sprung").exists()
    with (saved / name).open("rb") as file:
        pickle.load(file) if dump is pickle.dump else torch.load(file, weights_only=False)
    assert (saved / "sprung").exists(), "the trap works"


def test_missing_and_truncated_weights_and_settings_that_are_no_object_are_refused(saved):
    weights, config = saved / "model.safetensors", saved / "config.json"
    content = weights.read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(PretrainedError, match=message):
            Tokenizer.from_pretrained(saved)

    for share in (0.0, 0.01, 0.5, 0.999):
        weights.write_bytes(content[: int(share * len(content))])
        refused(r"model\.safetensors is damaged or cut short .* copy it")
    weights.unlink()
    refused(r"mine has no model\.safetensors: save_pretrained writes one")
    weights.write_bytes(content)
    for text in (b"", b"{", b"[1]", b"\xff\xfe\x00"):
        config.write_bytes(text)
        refused(r"config\.json describes no model")
    config.unlink()
    refused(r"mine has no config\.json: save_pretrained writes one")
    weights.unlink()
    build().save_pretrained(saved / "best")
    refused(r"mine has no model\.safetensors: did you mean .*best\?")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("encoder.stem.bias"), r"encoder\.stem\.bias .* nothing, not numbers"),
        (lambda t: t.update(ghost=torch.zeros(2)), r"ghost .* numbers of shape \(2,\), not nothing"),
        (
            lambda t: t.update({"quantizer.codebook": torch.zeros(32, 8)}),
            r"quantizer\.codebook .* shape \(32, 8\), not numbers of shape \(64, 8\)",
        ),
        (
            lambda t: t.update({"encoder.stem.bias": torch.zeros(8, dtype=torch.int64)}),
            r"encoder\.stem\.bias it holds torch\.int64",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(change, message, saved):
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(PretrainedError, match=rf"model\.safetensors does not fit config\.json .*{message}"):
        Tokenizer.from_pretrained(saved)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("flavour", 1, "unknown field 'flavour': known are backbone, quantizer"),
        ("backbone", 3, "'backbone' must be an object .*, got 3"),
        ("backbone.width", 3, "unknown field 'backbone.width': did you mean 'widths'?"),
        ("backbone.widths", [8, "x"], r"'backbone.widths\[1\]' must be a whole number, got 'x'"),
        ("backbone.groups", 5, "'backbone.groups' must divide 'backbone.widths', got 5"),
        ("quantizer", "lqg", "unknown quantizer 'lqg': did you mean 'lgq'"),
        ("quantizer", "mine", "'mine': import the module that registers it, or pass --plugin MODULE"),
        ("codebook_size", 0, "'codebook_size' must be at least 1, got 0"),
        ("stages", 0, "'stages' must be at least 1, got 0"),
        ("quantizer_options.tua_end", 1, "'quantizer_options.tua_end': did you mean 'tau_end'?"),
        ("quantizer_options.channel_dim", 1, "unknown field 'quantizer_options.channel_dim'"),
        ("quantizer_options.tau_end", -1.0, "'tau_end' must be positive and finite, got -1.0"),
    ],
)
def test_wrong_settings_are_named(path, value, message, saved):
    file = saved / "config.json"
    settings = json.loads(file.read_text())
    *groups, name = path.split(".")
    (settings[groups[0]] if groups else settings)[name] = value
    file.write_text(json.dumps(settings))
    with pytest.raises(LGQError, match=rf"config\.json describes no model .*{message}"):
        Tokenizer.from_pretrained(saved)


def test_settings_that_the_file_leaves_out_take_their_defaults(saved):
    settings = json.loads((saved / "config.json").read_text())
    del settings["stages"], settings["quantizer_options"], settings["backbone"]["checkpointing"]
    (saved / "config.json").write_text(json.dumps(settings))
    assert Tokenizer.from_pretrained(saved).settings == build().settings


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 8, 8), r"\(b, 3, h, w\), got shape \(3, 8, 8\)"),
        (torch.zeros(1, 1, 8, 8), r"RGB .* got shape \(1, 1, 8, 8\)"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), r"float in \[-1, 1\], got torch.uint8"),
        (torch.zeros(1, 3, 8, 10), "multiples of 4, got 8 x 10"),
    ],
)
@pytest.mark.parametrize("method", ["encode", "forward"])
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_image_is_refused(images, message, method):
    with pytest.raises(ValueError, match=message):
        getattr(build(), method)(images)


@pytest.mark.parametrize(
    ("stages", "shape", "message"),
    [
        (1, (4, 4), r"\(b, h, w\), got \(4, 4\)"),
        (1, (1, 4, 4, 1), r"\(b, h, w\), got \(1, 4, 4, 1\)"),
        (1, (1, 0, 4), r"\(b, h, w\), got \(1, 0, 4\)"),
        (2, (1, 4, 4), r"\(b, h, w, 1 to 2 stages\), got \(1, 4, 4\)"),
        (2, (1, 4, 4, 3), r"\(b, h, w, 1 to 2 stages\), got \(1, 4, 4, 3\)"),
        (2, (1, 4, 4, 0), r"\(b, h, w, 1 to 2 stages\), got \(1, 4, 4, 0\)"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_tokens_of_another_shape_are_refused(stages, shape, message):
    with pytest.raises(LGQError, match=message):
        build(stages=stages).decode(torch.zeros(shape, dtype=torch.int64))
    for dtype in (torch.float32, torch.bool):
        with pytest.raises(LGQError, match=f"must be integers, got {dtype}"):
            build().decode(torch.zeros(1, 2, 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32])
def test_tokens_of_narrow_integers_decode_alike(dtype):
    tokenizer = build()
    tokens = tokenizer.encode(pictures())
    assert torch.equal(tokenizer.decode(tokens.to(dtype)), tokenizer.decode(tokens))


@over_stages
def test_an_empty_batch_gives_an_empty_batch(stages):
    tokenizer = build(stages=stages)
    tokens = tokenizer.encode(torch.empty(0, 3, 8, 12))
    assert tokens.shape == (0, 2, 3) + (stages,) * (stages > 1)
    assert tokenizer.decode(tokens).shape == (0, 3, 8, 12)


@pytest.mark.parametrize("quantizer", ["lgq", "fsq"])
def test_channels_last_changes_no_value_and_each_format_stays(quantizer):
    tokenizer, images = build(quantizer), pictures(16, 16)
    tokens, plain = tokenizer.encode(images), tokenizer(images).reconstruction
    decoded = tokenizer.decode(tokens)
    tokenizer = tokenizer.to(memory_format=torch.channels_last)
    last = tokenizer(images.to(memory_format=torch.channels_last)).reconstruction
    assert torch.equal(tokenizer.encode(images), tokens)
    torch.testing.assert_close(last, plain)
    torch.testing.assert_close(tokenizer.decode(tokens), decoded)
    assert plain.is_contiguous()
    assert decoded.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert tokenizer.decode(tokens).is_contiguous(memory_format=torch.channels_last)


@over_quantizers
def test_bf16_autocast_trains_and_its_tokens_decode(quantizer):
    tokenizer, images = build(quantizer), pictures()
    with torch.autocast("cpu", torch.bfloat16):
        out = tokenizer(images)
        tokens = tokenizer.encode(images)
        decoded = tokenizer.decode(tokens)
    assert out.reconstruction.dtype == decoded.dtype == torch.bfloat16
    assert torch.equal(tokens, out.quantized.indices)
    torch.testing.assert_close(decoded.float(), tokenizer.decode(tokens), atol=0.05, rtol=0.05)
    (out.reconstruction.float().square().mean() + out.quantized.loss).backward()
    assert all(p.grad.isfinite().all() for p in tokenizer.encoder.parameters())


@pytest.mark.parametrize("quantizer", ["lgq", "vq"])
@pytest.mark.usefixtures("without_shape_checks")
def test_compiles_into_one_graph(quantizer):
    tokenizer, images = build(quantizer), pictures()
    twin = copy.deepcopy(tokenizer)
    # aot_eager traces both passes as inductor does, and spares the test its C++ compiler.
    out = torch.compile(twin, fullgraph=True, backend="aot_eager")(images)
    expected = tokenizer(images)
    torch.testing.assert_close(out.reconstruction, expected.reconstruction)
    assert torch.equal(out.quantized.indices, expected.quantized.indices)
    for result in (out, expected):
        (result.reconstruction.square().mean() + result.quantized.loss).backward()
    torch.testing.assert_close(twin.encoder.stem.weight.grad, tokenizer.encoder.stem.weight.grad)


def test_a_saved_tokenizer_keeps_the_size_of_its_images(tmp_path):
    tokenizer = build("fsq", image_size=32)
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert loaded.image_size == loaded.resolve_image_size(None) == 32
    assert loaded.fingerprint() == tokenizer.fingerprint()
    loaded.image_size = None
    assert loaded.fingerprint() == tokenizer.fingerprint()
    with pytest.raises(LGQError, match="does not say for which images it is: give `image_size`"):
        loaded.resolve_image_size(None)
