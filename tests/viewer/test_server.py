"""What the page asks of the server: pictures, tokens, codes; and one sentence where that fails."""

import inspect
import json

import numpy as np
import pytest
import torch
from serving import LOCAL, Served, gradient, png, serve, small_tokenizer

import lgq.viewer.studio as studio_module
from lgq.data.images import BrokenImage
from lgq.data.transforms import to_tensor
from lgq.training.run_directory import save_codebook
from lgq.viewer import page_files
from lgq.viewer.code_gallery import Model, gallery_of
from lgq.viewer.packets import pack, unpack
from lgq.viewer.studio import Studio, to_rgba

ENCODING = "/api/encoding?model={model}&picture=0&size=128"
models = pytest.mark.parametrize("model", range(4), ids=["plain", "residual", "grid", "scales"])
GRIDS = {
    0: [{"rows": 16, "columns": 24, "first": 0, "step": 1}],
    1: [{"rows": 16, "columns": 24, "first": stage, "step": 2} for stage in range(2)],
    2: [{"rows": 16, "columns": 24, "first": 0, "step": 1}],
    3: [
        {"rows": 4, "columns": 6, "first": 0, "step": 1},
        {"rows": 8, "columns": 12, "first": 24, "step": 1},
        {"rows": 16, "columns": 24, "first": 120, "step": 1},
    ],
}
"""Grids of a picture of 96 x 64 pixels in each of the models."""


def test_a_packet_gives_back_what_went_in():
    arrays = {
        "bytes": np.arange(5, dtype=np.uint8),
        "floats": np.array([[1.5, -2.0]], dtype=np.float32),
        "none": np.zeros((0, 3), dtype=np.uint32),
    }
    meta, found = unpack(pack({"name": "käfer"}, **arrays))
    assert meta == {"name": "käfer"}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_the_page_loads_nothing_from_elsewhere(served: Served):
    page = served.ask("/")
    assert page.status == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for name, text in page_files().items():
        assert "://" not in text, name
        assert served.ask("/" if name == "index.html" else f"/page/{name}").body == text.encode()


@models
def test_a_picture_has_the_tokens_of_its_tokenizer(served: Served, model: int):
    arrays = served.ask(ENCODING.format(model=model)).arrays
    tokenizer = served.studio.models[model].tokenizer
    image = to_tensor(gradient(96, 64))[None]
    tokens = tokenizer.encode(image)
    assert np.array_equal(arrays["tokens"], tokens.flatten().numpy())
    assert np.array_equal(arrays["original"], to_rgba(image))
    assert np.array_equal(arrays["reconstruction"], to_rgba(tokenizer.decode(tokens, (16, 24))))


@models
def test_every_stage_or_scale_is_a_grid_of_tokens(served: Served, model: int):
    meta, arrays = unpack(served.ask(ENCODING.format(model=model)).body)
    tokenizer = served.studio.models[model].tokenizer
    levels = tokenizer.by_level(tokenizer.encode(to_tensor(gradient(96, 64))[None]), (16, 24))
    assert meta["grids"] == GRIDS[model]
    for level, grid in zip(levels, meta["grids"], strict=True):
        places = grid["first"] + grid["step"] * np.arange(grid["rows"] * grid["columns"])
        assert np.array_equal(arrays["tokens"][places].reshape(grid["rows"], -1), level[0].numpy())


@models
def test_a_picture_comes_from_its_first_stages_or_scales(served: Served, model: int):
    tokenizer = served.studio.models[model].tokenizer
    image = to_tensor(gradient(96, 64))[None]
    tokens, errors = tokenizer.encode(image), []
    path = ENCODING.format(model=model).replace("encoding", "reconstruction")
    for levels in range(1, tokenizer.levels + 1):
        meta, arrays = unpack(served.ask(f"{path}&levels={levels}").body)
        first = tokenizer.decode(tokenizer.first_levels(tokens, levels, (16, 24)), (16, 24))
        assert np.array_equal(arrays["reconstruction"], to_rgba(first))
        errors.append(meta["psnr"])
    assert errors[-1] == unpack(served.ask(ENCODING.format(model=model)).body)[0]["psnr"]
    assert len(set(errors)) == tokenizer.levels
    for wrong in ("0", str(tokenizer.levels + 1), "all", ""):
        answer = served.ask(f"{path}&levels={wrong}")
        assert (answer.status, len(answer.error.splitlines())) == (422, 1)


@models
def test_edited_tokens_decode_to_what_the_tokenizer_decodes(served: Served, model: int):
    tokens = served.ask(ENCODING.format(model=model)).arrays["tokens"].copy()
    for grid in GRIDS[model]:
        tokens[grid["first"] + 7 * grid["step"]] ^= 31
    asked = {"model": model, "shape": [16, 24], "tokens": tokens.tolist(), "changed": [0, 0, 8, 12]}
    pixels = served.post("/api/decode", asked).arrays["pixels"]
    tokenizer = served.studio.models[model].tokenizer
    sent = torch.tensor(tokens.astype(np.int64)).view(1, *tokenizer.token_shape((64, 96)))
    assert np.array_equal(pixels, to_rgba(tokenizer.decode(sent, (16, 24))))


def test_only_what_a_change_reaches_is_decoded_again():
    tokenizer = small_tokenizer(backbone=LOCAL)
    studio = Studio([Model("local", tokenizer)])
    tokens = torch.randint(0, 32, (1, 40, 30))
    before = to_rgba(tokenizer.decode(tokens))
    tokens[0, 20:22, 3] = 31 - tokens[0, 20:22, 3]
    asked = {"model": 0, "shape": [40, 30], "tokens": tokens.flatten().tolist()}
    for served in serve(studio):
        meta, arrays = unpack(served.post("/api/decode", asked | {"changed": [20, 3, 22, 4]}).body)
        part, whole = arrays["pixels"], served.post("/api/decode", asked).arrays["pixels"]
    assert part.shape[0] < 80 < whole.shape[0] == 160
    before[meta["top"] : meta["top"] + part.shape[0], meta["left"] : meta["left"] + part.shape[1]] = part
    assert np.abs(before.astype(int) - whole).max() <= 1  # rounded to levels


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"changed": [0, 0, 3, 1]}, "leaves the 2 x 2 tokens"),
        ({"changed": [1, 0, 1, 1]}, "has no area"),
        ({"changed": [-1, 0, 1, 1]}, "leaves the 2 x 2 tokens"),
        ({"changed": [0, 0, 1]}, "must be [top, left, bottom, right]"),
        ({"changed": "all"}, "must be [top, left, bottom, right]"),
        ({"tokens": [0] * 3}, "are 4 numbers"),
        ({"tokens": [0, 0, 0, 32]}, "token 32 is outside 0..31"),
        ({"tokens": [0, 0, 0, -1]}, "token -1 is outside"),
        ({"tokens": [0, 0, 0, 0.5]}, "whole numbers"),
        ({"tokens": [0, 0, 0, True]}, "whole numbers"),
        ({"tokens": "0000"}, "are 4 numbers"),
        ({"shape": [10**9, 10**9]}, "not between 1 and"),
        ({"shape": [0, 4]}, "not between 1 and"),
        ({"shape": [2, 2, 2]}, "must be [height, width]"),
        ({"model": 1}, "2 x 2 places in 2 stages are 8 numbers"),
        ({"model": 3, "shape": [4, 4]}, "4 x 4 places in 3 scales are 21 numbers"),
        ({"model": 7}, "there is no model 7"),
        ({"model": "../plain"}, "must be a whole number"),
    ],
)
def test_tokens_that_no_picture_has_are_refused_in_words(served: Served, change: dict, words: str):
    answer = served.post("/api/decode", {"model": 0, "shape": [2, 2], "tokens": [0] * 4} | change)
    assert answer.status in (404, 422)
    assert words in answer.error


def test_an_uploaded_picture_is_shown_like_the_others(served: Served):
    added = served.post("/api/pictures", png(200, 100), x_picture_name="my%20c%C3%A4t.png").json
    assert added["name"] == "my cät.png"
    arrays = served.ask(f"/api/encoding?model=0&picture={added['id']}&size=128").arrays
    assert arrays["original"].shape == (64, 128, 4)
    assert served.ask(f"/api/thumbnail?picture={added['id']}").headers["content-type"] == "image/png"


@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 500)])
def test_a_picture_of_less_than_a_token_is_padded(served: Served, width: int, height: int):
    added = served.post("/api/pictures", png(width, height)).json
    arrays = served.ask(f"/api/encoding?model=0&picture={added['id']}&size=128").arrays
    shown = arrays["original"]
    assert shown.shape == (4 if height == 1 else 128, 4, 4)
    assert (shown == shown[:, :1]).all()


def test_a_broken_picture_of_the_data_is_named_as_it_is_spelt(served: Served, monkeypatch):
    def broken(*_: object) -> None:
        raise BrokenImage("text.jpg", "not a readable image")

    monkeypatch.setattr(served.studio, "encode", broken)
    answer = served.ask("/api/encoding?model=0&picture=0&size=128")
    assert (answer.status, answer.error) == (422, "cannot read text.jpg: not a readable image")


def test_the_oldest_upload_makes_room(served: Served):
    first = served.post("/api/pictures", png(16, 16)).json["id"]
    for _ in range(16):
        last = served.post("/api/pictures", png(16, 16)).json["id"]
    assert served.ask(f"/api/thumbnail?picture={first}").status == 404
    assert served.ask(f"/api/thumbnail?picture={last}").status == 200
    assert served.ask("/api/thumbnail?picture=0").status == 200


def test_a_picture_fits_the_factors_of_all_models():
    wide = small_tokenizer()
    wide.factor = 8
    studio = Studio([Model("a", small_tokenizer()), Model("b", wide)])
    encoding = studio.encode(0, 0, 128)
    assert encoding.original.shape[2] % 8 == encoding.original.shape[3] % 8 == 0
    assert max(encoding.original.shape) == 128


@models
def test_saved_tokens_can_be_loaded_again(served: Served, model: int):
    arrays = served.ask(ENCODING.format(model=model)).arrays
    asked = {"model": model, "shape": [16, 24], "tokens": arrays["tokens"].tolist()}
    file = served.post("/api/save-tokens", asked).body
    meta, loaded = unpack(served.post(f"/api/token-file?model={model}", file).body)
    assert meta["grids"] == GRIDS[model]
    assert np.array_equal(loaded["tokens"], arrays["tokens"])
    assert np.array_equal(loaded["pixels"], arrays["reconstruction"])
    name = served.studio.models[model].name
    assert f"made by {name}" in served.post(f"/api/token-file?model={(model + 1) % 4}", file).error


@pytest.mark.parametrize(
    "file",
    [b"", b"\xff\xfe", b"[" * 100_000, b"{}", b'{"format": "lgq-tokens-1"}', b'{"format": NaN}', b"\x89PNG"],
)
def test_a_hostile_token_file_costs_one_sentence(served: Served, file: bytes):
    answer = served.post("/api/token-file?model=0", file)
    assert answer.status == 422
    assert len(answer.error.splitlines()) == 1


def test_a_forged_token_file_is_refused(served: Served):
    asked = {"model": 0, "shape": [1, 1], "tokens": [3]}
    content = json.loads(served.post("/api/save-tokens", asked).body)
    for forged in ({"tokens": [99]}, {"shape": [10**6, 10**6]}, {"tokens": [[3]]}, {"shape": None}):
        assert served.post("/api/token-file?model=0", content | forged).status == 422
    assert served.post("/api/token-file?model=0", content).status == 200


@models
def test_codes_are_counted_over_the_data(served: Served, model: int):
    arrays = served.ask(f"/api/codebook?model={model}&stage=0").arrays
    gallery = served.studio.models[model].galleries[0]
    sides = [16, 32, 64] if model == 3 else [64]  # three squares of 256 pixels, f = 4
    assert arrays["counts"].sum(1).tolist() == [3 * side**2 for side in sides]
    assert np.array_equal(arrays["counts"], gallery.counts.numpy())
    assert arrays["colours"].shape == (len(sides), 32, 3)
    assert arrays["codes"].shape[0] == 32
    assert arrays["means"].shape == (32, 4, 4, 3)


def test_a_code_shows_its_typical_patches(served: Served):
    (counts,) = served.ask("/api/codebook?model=0&stage=0").arrays["counts"]
    often = int(counts.argmax())
    assert served.ask(f"/api/code?model=0&stage=0&code={often}").arrays["patches"].shape == (8, 4, 4, 3)
    assert served.ask("/api/code?model=0&stage=0&code=32").status == 404
    assert served.ask("/api/code?model=0&stage=1&code=0").status == 404
    dead = (counts == 0).nonzero()[0]
    if len(dead):
        assert served.ask(f"/api/code?model=0&stage=0&code={dead[0]}").arrays["patches"].shape[0] == 0


def test_the_page_is_told_how_far_a_study_is():
    studio = Studio([Model("plain", small_tokenizer())])
    for served in serve(studio):
        studio.models[0].progress = (3, 9)
        waiting = served.ask("/api/codebook?model=0&stage=0")
        assert (waiting.status, waiting.json) == (202, {"done": 3, "total": 9})
        studio.models[0].problem = "too many codes."
        assert served.ask("/api/codebook?model=0&stage=0").error == "too many codes."


def test_a_failure_of_ours_is_answered_too(served: Served, monkeypatch, caplog):
    monkeypatch.setattr(served.studio.album, "thumbnail", lambda number: 1 / 0)
    answer = served.ask("/api/thumbnail?picture=0")
    assert answer.status == 500
    assert "terminal" in answer.error
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("size", [1, 255, 10**6])
def test_sizes_are_a_closed_list(served: Served, size: int):
    assert "must be one of" in served.ask(f"/api/encoding?model=0&picture=0&size={size}").error


@models
def test_codes_lie_in_a_plane(served: Served, model: int):
    plane = served.ask(f"/api/plane?model={model}&stage=0&method=pca").arrays["plane"]
    assert plane.shape == (32, 2)
    assert (plane.std(0) > 0).all()
    assert "must be one of" in served.ask(f"/api/plane?model={model}&stage=0&method=tsne").error


def test_a_model_without_snapshots_has_no_history(served: Served):
    answer = served.ask("/api/history?model=0&stage=0")
    assert (answer.status, "no history" in answer.error) == (404, True)


def test_history_follows_the_validations_of_a_run(tmp_path):
    tokenizer = small_tokenizer()
    codes = tokenizer.quantizer.codebook.detach()
    for step in (10, 20, 30):
        counts = torch.arange(32) * (step // 10)
        save_codebook(tmp_path, step, [counts], [codes * step / 30])
    studio = Studio([Model("run", tokenizer, tmp_path)])
    history = studio.history(0, 0)
    assert history.steps == [10, 20, 30]
    assert history.counts[:, 0, 5].tolist() == [5, 10, 15]
    assert np.allclose(history.norms[-1], codes.norm(dim=1), atol=1e-2)
    # The last codes are where the map has them, and the others are on their way from the middle.
    assert np.allclose(history.planes[-1], studio.plane(0, 0, "pca"), atol=1e-2)
    assert np.abs(history.planes[0] - history.planes[0].mean(0)).max() < np.abs(history.planes[-1]).max()


def test_scales_share_one_history_of_codes_with_counts_of_their_own(tmp_path):
    tokenizer = small_tokenizer(scales=(1, 2, 4))
    codes = tokenizer.quantizer.quantizer.codebook.detach()
    for step in (10, 20):
        save_codebook(tmp_path, step, [torch.arange(32) * (scale + step) for scale in range(3)], [codes])
    history = Studio([Model("run", tokenizer, tmp_path)]).history(0, 0)
    assert history.counts[:, :, 1].tolist() == [[10, 11, 12], [20, 21, 22]]
    assert np.allclose(history.norms[-1], codes.norm(dim=1), atol=1e-2)
    assert history.planes.shape == (2, 32, 2)


def test_a_patch_of_a_coarse_scale_is_what_its_token_stands_for(served: Served):
    model = served.studio.models[3]
    centres = [gradient(96, 64, i).crop((16, 0, 80, 64)).resize((256, 256), 3) for i in range(3)]
    images = torch.stack([to_tensor(centre) for centre in centres])
    coarse = model.tokenizer.by_level(model.tokenizer.encode(images), (64, 64))[0]
    cells = torch.nn.functional.avg_pool2d(images, 16).movedim(1, 3)
    code = int(coarse.flatten().mode().values)
    expected = (cells[coarse == code].mean(0) + 1) * 127.5
    colour = served.ask("/api/codebook?model=3&stage=0").arrays["colours"][0, code]
    assert np.abs(colour - expected.numpy()).max() < 3


def test_typical_patches_are_nearest_to_the_mean_of_their_code():
    patches = torch.randint(0, 256, (200, 2, 2, 3), dtype=torch.uint8)
    codes = torch.randint(0, 5, (200,))
    gallery = gallery_of([patches[:50], patches[50:]], [codes[:50], codes[50:]], 6, images=1)
    for code in range(5):
        own = patches[codes == code].float()
        distances = (own - own.mean(0)).flatten(1).square().sum(1)
        nearest = own[distances.argsort(stable=True)[:8]].to(torch.uint8)
        assert torch.equal(gallery.typical_of(code), nearest)
        assert torch.equal(gallery.means[code], own.mean(0).round().to(torch.uint8))
        for level, part in enumerate((slice(50), slice(50, 200))):
            there = patches[part][codes[part] == code].float()
            assert gallery.counts[level, code] == len(there)
            assert torch.equal(gallery.colours[level, code], there.mean((0, 1, 2)).round().to(torch.uint8))
    assert (int(gallery.counts[:, 5].sum()), len(gallery.typical_of(5))) == (0, 0)


def test_too_many_codes_are_refused_in_words(monkeypatch):
    monkeypatch.setattr("lgq.viewer.code_gallery.MOST_CODES", 16)
    studio = Studio([Model("plain", small_tokenizer())])
    studio.study()
    with pytest.raises(ValueError, match="32 codes are too many"):
        studio.gallery(0, 0)


def test_lpips_without_its_weights_is_absent_with_the_reason(served: Served, monkeypatch, tmp_path):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path))
    monkeypatch.setattr("lgq.viewer.studio._lpips", inspect.unwrap(studio_module._lpips))
    answer = served.ask(ENCODING.format(model=0).replace("encoding", "lpips") + "&levels=1").json
    assert answer["lpips"] is None
    assert "lgq weights fetch" in answer["reason"]


def test_lpips_is_measured_where_its_weights_are(served: Served, monkeypatch):
    monkeypatch.setattr(
        "lgq.viewer.studio._lpips",
        Halves,
    )
    answer = served.ask(ENCODING.format(model=0).replace("encoding", "lpips") + "&levels=1").json
    assert answer == {"lpips": 0.5}


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x),), 0.5)


def test_the_page_is_told_how_many_stages_or_scales_there_are(served: Served):
    models = served.ask("/api/state").json["models"]
    assert [(about["stages"], about["scales"]) for about in models] == [(1, 0), (2, 0), (1, 0), (1, 3)]
