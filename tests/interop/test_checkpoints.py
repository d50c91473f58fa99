"""Published checkpoints as tokenizers: the same tokens and images as the networks they come from."""

import json
import sys
from pathlib import Path

import pytest
import torch
from command_line import TINY_GENERATOR, lgq, mistake
from diffusers import VQModel
from PIL import Image
from public_networks import CODES, LATENT, Network, checkpoint
from safetensors.torch import save_file

from lgq.errors import LGQError
from lgq.interop.checkpoints import import_tokenizer
from lgq.models.autoencoder import Backbone
from lgq.models.vqgan import VQGANBackbone
from lgq.tokenizer import Tokenizer, load_tokenizer

SMALL = VQGANBackbone(
    widths=(8, 8, 16), blocks=1, attention_levels=(1, 2), groups=4, features=6, latent_channels=5
)
over_families = pytest.mark.parametrize("family", ["taming", "llamagen", "ibq"])


def pictures(height: int = 16, width: int = 24) -> torch.Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(1)) * 2 - 1


def diffusers_model(**changes: object) -> VQModel:
    torch.manual_seed(5)
    settings = {
        "down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        "block_out_channels": (8, 16),
        "layers_per_block": 2,
        "latent_channels": 6,
        "num_vq_embeddings": 30,
        "norm_num_groups": 4,
        "vq_embed_dim": 5,
    }
    model = VQModel(**settings | changes).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.quantize.embedding.weight.normal_(std=0.3)
    return model


@over_families
def test_an_imported_tokenizer_gives_the_tokens_and_images_of_its_network(family):
    state = checkpoint(family)
    tokenizer, network, images = import_tokenizer(state, family), Network(state, family), pictures()
    torch.testing.assert_close(tokenizer.encoder(images), network.latents(images), rtol=1e-4, atol=1e-4)
    tokens = tokenizer.encode(images)
    assert torch.equal(tokens, network.tokens(images))
    assert len(tokens.unique()) > 2
    torch.testing.assert_close(tokenizer(images).reconstruction, network.images(tokens), rtol=1e-4, atol=1e-4)
    decoded = tokenizer.decode(tokens)
    torch.testing.assert_close(decoded, network.images(tokens).clamp(-1, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"mid_block_add_attention": False}, {"layers_per_block": 1}])
def test_a_vqmodel_of_diffusers_keeps_its_forward_both_ways(settings, tmp_path):
    model, images = diffusers_model(**settings), pictures()
    model.save_pretrained(tmp_path / "model")
    tokenizer = import_tokenizer(tmp_path / "model", "diffusers")
    with torch.no_grad():
        expected = model(images).sample
        torch.testing.assert_close(
            tokenizer.encoder(images), model.encode(images).latents, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(tokenizer(images).reconstruction, expected, rtol=1e-4, atol=1e-4)
        back = tokenizer.to_diffusers()
        assert torch.equal(back(images).sample, expected)
    assert len(tokenizer.encode(images).unique()) > 2
    names = (
        "down_block_types",
        "up_block_types",
        "block_out_channels",
        "layers_per_block",
        "norm_num_groups",
    )
    assert all(tuple_of(back.config[name]) == tuple_of(model.config[name]) for name in names)


def tuple_of(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def test_a_tokenizer_with_this_backbone_becomes_a_vqmodel():
    torch.manual_seed(0)
    tokenizer, images = Tokenizer(SMALL, "vq", 20).eval(), pictures()
    model = tokenizer.to_diffusers()
    assert not model.training
    with torch.no_grad():
        expected = tokenizer(images).reconstruction
        torch.testing.assert_close(model(images).sample, expected, rtol=1e-4, atol=1e-5)
        model.decoder.conv_out.weight.zero_()
        assert torch.equal(tokenizer(images).reconstruction, expected)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (
            lambda: Tokenizer(Backbone(widths=(8, 16), groups=4, blocks=1), "vq", 8),
            "its backbone has other layers",
        ),
        (lambda: Tokenizer(SMALL, "ibq", 8), "ibq chooses other codes"),
        (lambda: Tokenizer(SMALL, "vq", 8, stages=2), "it has 2 stages or scales"),
        (lambda: Tokenizer(SMALL, "vq", 8, scales=(1, 2, 4)), "it has 3 stages or scales"),
        (lambda: Tokenizer(SMALL, "vq", 8, quantizer_options={"codebook_dim": 2}), "have a `codebook_dim`"),
        (lambda: import_tokenizer(checkpoint("llamagen"), "llamagen"), "it compares codes by cosine"),
    ],
)
def test_what_diffusers_has_no_counterpart_for_is_refused(tokenizer, reason):
    with pytest.raises(LGQError, match=reason):
        tokenizer().to_diffusers()


def test_without_diffusers_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(LGQError, match=r"pip install 'lgq\[diffusers\]'"):
        Tokenizer(SMALL, "vq", 8).to_diffusers()


def test_names_of_attention_in_older_diffusers_are_understood():
    model = diffusers_model(norm_num_groups=8, block_out_channels=(32, 32))
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def old_name(name: str) -> str:
        return next((name.replace(new, was) for new, was in old.items() if f".{new}." in name), name)

    renamed = {old_name(name): tensor for name, tensor in model.state_dict().items()}
    assert renamed.keys() != model.state_dict().keys()
    ours, again = (import_tokenizer(state, "diffusers") for state in (model.state_dict(), renamed))
    assert ours.fingerprint() == again.fingerprint()


def test_moving_averages_of_ibq_take_the_place_of_the_weights():
    state = checkpoint("ibq")
    averages = {f"model_ema.{name.replace('.', '')}": 0.5 * tensor for name, tensor in state.items()}
    averages |= {"model_ema.decay": torch.tensor(0.999), "model_ema.num_updates": torch.tensor(3)}
    averaged = import_tokenizer(state | averages, "ibq")
    assert (
        averaged.fingerprint()
        == import_tokenizer({k: 0.5 * v for k, v in state.items()}, "ibq").fingerprint()
    )
    assert averaged.fingerprint() != import_tokenizer(state, "ibq").fingerprint()


@over_families
def test_the_command_makes_a_tokenizer_that_other_commands_take(family, tmp_path, capsys):
    save_file(checkpoint(family), tmp_path / "model.safetensors")
    lgq("import", family, tmp_path / "model.safetensors", "--out", tmp_path / "imported")
    assert f"{CODES} codes, one token per 4 x 4 pixels" in capsys.readouterr().err
    tokenizer = load_tokenizer(tmp_path / "imported")
    assert tokenizer.fingerprint() == import_tokenizer(checkpoint(family), family).fingerprint()
    assert tokenizer.backbone.latent_channels == LATENT
    Image.new("RGB", (16, 16), (200, 90, 30)).save(tmp_path / "photo.png")
    lgq("reconstruct", tmp_path / "imported", tmp_path / "photo.png", "--out", tmp_path / "pictures")
    encode = ("--data", tmp_path / "photo.png", "--out", tmp_path / "tokens", "--image-size", 16)
    lgq("encode", tmp_path / "imported", *encode)
    lgq("decode", tmp_path / "tokens" / "tokenizer", tmp_path / "tokens", "--out", tmp_path / "decoded")
    assert len(list((tmp_path / "decoded").rglob("*.png"))) == 1


def test_an_imported_tokenizer_is_evaluated_and_has_a_generator(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))  # without the networks behind LPIPS and FID
    import_tokenizer(checkpoint("llamagen"), "llamagen", out=tmp_path / "imported")
    (tmp_path / "photos").mkdir()
    for shade in range(8):
        Image.new("RGB", (16, 16), (30 * shade, 90, 30)).save(tmp_path / "photos" / f"{shade}.png")
    data = ("--data", tmp_path / "photos", "--image-size", 16, "--workers", 0)
    lgq("evaluate", tmp_path / "imported", *data)
    assert "PSNR" in capsys.readouterr().out
    lgq("encode", tmp_path / "imported", *data, "--out", tmp_path / "tokens")
    generator = ("--tokens", tmp_path / "tokens", "--out", tmp_path / "generator")
    lgq("train-generator", "pocket", *generator, *TINY_GENERATOR)
    lgq("sample", tmp_path / "generator", "--out", tmp_path / "samples.png", "--count", 1, "--steps", 1)
    assert (tmp_path / "samples.png").is_file()


def test_importing_leaves_the_random_generator_and_the_given_tensors_alone():
    state = checkpoint("taming")
    before = {name: tensor.clone() for name, tensor in state.items()}
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    tokenizer = import_tokenizer({name: tensor.half() for name, tensor in state.items()}, "taming")
    assert torch.equal(torch.rand(3), expected)
    assert all(parameter.dtype == torch.float32 for parameter in tokenizer.parameters())
    assert not tokenizer.training
    import_tokenizer(state, "taming").decoder.to_image.weight.data.zero_()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in checkpoint("taming").items() if not key.startswith(name)}


@pytest.mark.parametrize(
    ("state", "family", "message"),
    [
        (
            lambda: checkpoint("taming"),
            "llamagen",
            r"no tensor encoder.conv_blocks.0.res.0.conv1.weight: is it a",
        ),
        (lambda: checkpoint("llamagen"), "ibq", "no tensor encoder.down.0.block.0.conv1.weight"),
        (lambda: without("decoder.mid.attn_1.k.bias"), "taming", "no tensor decoder.mid.attn_1.k.bias"),
        (lambda: without("quantize"), "taming", "no codes of 6 channels in quantize.embedding.weight"),
        (lambda: without("quant_conv"), "taming", "no tensor quant_conv.weight"),
        (
            lambda: checkpoint("taming") | {"decoder.extra.weight": torch.zeros(1)},
            "taming",
            "decoder.extra.weight",
        ),
        (
            lambda: checkpoint("taming") | {"quantize.proj.weight": torch.zeros(1)},
            "taming",
            "quantize.proj.weight",
        ),
        (
            lambda: checkpoint("taming") | {"encoder.conv_in.weight": torch.zeros(32, 1, 3, 3)},
            "taming",
            "1, 3, 3",
        ),
        (lambda: checkpoint("taming") | {"encoder.conv_in.bias": torch.tensor(1)}, "taming", "torch.int64"),
        (lambda: {"state_dict": {}}, "taming", "'state_dict': take the state_dict within"),
        (lambda: {}, "nonsense", "family.*taming.*nonsense"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_weights_of_another_network_are_refused_in_one_sentence(state, family, message):
    with pytest.raises(LGQError, match=message) as refusal:
        import_tokenizer(state(), family)
    assert "\n" not in str(refusal.value)


def test_files_that_are_no_safetensors_are_refused_without_loading_them(tmp_path, capsys):
    pickled = tmp_path / "model.ckpt"
    torch.save({"state_dict": checkpoint("taming")}, pickled)
    out = ("--out", tmp_path / "out")
    assert "a pickle can run code: convert it" in mistake(capsys, "import", "taming", pickled, *out)
    pickled.rename(tmp_path / "model.safetensors")
    assert "is damaged or cut short" in mistake(
        capsys, "import", "taming", tmp_path / "model.safetensors", *out
    )
    assert "missing.safetensors" in mistake(
        capsys, "import", "taming", tmp_path / "missing.safetensors", *out
    )
    assert "is a directory" in mistake(capsys, "import", "taming", tmp_path, *out)
    assert "config.json" in mistake(capsys, "import", "diffusers", tmp_path, *out)
    assert not (tmp_path / "out").exists()
    assert "exists already" in mistake(capsys, "import", "taming", pickled, "--out", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_type": "spatial"}, "norm_type 'spatial'"),
        ({"act_fn": "relu"}, "act_fn 'relu'"),
        ({"norm_num_groups": "4"}, "norm_num_groups '4'"),
        ({"norm_num_groups": 3}, "`groups` must divide"),
    ],
)
def test_a_vqmodel_with_other_layers_is_refused(change, message, tmp_path):
    diffusers_model().save_pretrained(tmp_path)
    config = Path(tmp_path / "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(LGQError, match=message):
        import_tokenizer(tmp_path, "diffusers")
