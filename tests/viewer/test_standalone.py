"""The page as one file holds what the server would answer, and loads nothing."""

import json
import re
import zlib
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from command_line import lgq
from serving import gradient, small_tokenizer

from lgq.data import FolderDataset
from lgq.errors import LGQError
from lgq.viewer.album import Album
from lgq.viewer.code_gallery import Model
from lgq.viewer.packets import unpack
from lgq.viewer.standalone import export_page
from lgq.viewer.studio import Studio, to_rgba
from lgq.viewer.view import view


@pytest.fixture(scope="module")
def exported(photos, tmp_path_factory) -> tuple[Studio, str]:
    models = [
        Model("</script><b>", small_tokenizer()),
        Model("grid", small_tokenizer("fsq")),
        Model("scales", small_tokenizer(scales=(1, 2, 4))),
    ]
    studio = Studio(models, FolderDataset(photos))
    file = tmp_path_factory.mktemp("page") / "view.html"
    assert export_page(studio, file, size=128) == file.stat().st_size
    return studio, file.read_text()


def answers(page: str) -> dict:
    (saved,) = re.findall(r'<script type="application/json" id="saved">(.*?)</script>', page)
    return json.loads(saved)


def arrays(page: str, path: str) -> dict[str, np.ndarray]:
    return unpack(zlib.decompress(b64decode(answers(page)[path])))[1]


def test_the_file_has_the_pictures_tokens_and_codes_of_every_model(exported):
    studio, page = exported
    for model in range(3):
        for picture in range(3):
            found = arrays(page, f"/api/encoding?model={model}&picture={picture}&size=128")
            encoding = studio.encode(model, picture, 128)
            assert np.array_equal(found["reconstruction"], to_rgba(encoding.reconstruction))
            assert np.array_equal(found["tokens"], encoding.tokens.flatten().numpy())
            for levels in range(1, studio.models[model].tokenizer.levels):
                key = f"model={model}&picture={picture}&size=128&levels={levels}"
                first = arrays(page, f"/api/reconstruction?{key}")["reconstruction"]
                assert np.array_equal(
                    first, to_rgba(studio.encode(model, picture, 128, levels).reconstruction)
                )
        gallery = studio.models[model].galleries[0]
        assert np.array_equal(arrays(page, f"/api/codebook?model={model}&stage=0")["counts"], gallery.counts)
        typical = arrays(page, f"/api/typical?model={model}&stage=0")["patches"]
        assert np.array_equal(typical, gallery.typical)
        assert arrays(page, f"/api/plane?model={model}&stage=0&method=pca")["plane"].shape == (32, 2)


def test_the_file_loads_nothing_and_its_policy_allows_nothing_else(exported):
    _, page = exported
    markup = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', markup)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'")
    inline = re.findall(r'<script type="(?:importmap|module)">(.*?)</script>', page, re.DOTALL)
    inline += re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(inline) == 3
    for text in inline:
        assert b64encode(sha256(text.encode()).digest()).decode() in policy
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_names_cannot_leave_their_place_in_the_file(exported):
    _, page = exported
    assert "</script><b>" not in page
    assert answers(page)["/api/state"]["models"][0]["name"] == "</script><b>"


def test_the_command_writes_the_file_and_says_so(tmp_path, capsys):
    small_tokenizer().save_pretrained(tmp_path / "mine")
    gradient(64, 64).save(tmp_path / "photo.png")
    out = tmp_path / "new" / "page.html"
    lgq("view", tmp_path / "mine", "--data", tmp_path / "photo.png", "--export", out)
    assert "MB" in capsys.readouterr().err
    assert answers(out.read_text())["/api/state"]["models"][0]["name"] == "mine"


def test_a_broken_image_has_no_place_in_the_strip(tmp_path, caplog):
    for name in ("a.jpg", "b.jpg"):
        gradient(96, 64, 1).save(tmp_path / name)
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:-200])
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    album = Album(FolderDataset(tmp_path), multiple=8)
    assert [picture.name for picture in album.pictures.values()] == ["b.jpg"]
    assert album.fitted(album[0], 128).size == (96, 64)
    assert [name in caplog.text for name in ("a.jpg: ", "gone.png: ")] == [True, True]


@pytest.mark.parametrize("place", [".", "album"])
def test_a_directory_in_place_of_the_file_is_refused_at_once(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "album").mkdir()
    monkeypatch.setattr("lgq.viewer.studio.open_studio", None)
    file = Path(place, "page.html")
    with pytest.raises(LGQError, match=f"must be a file, got the directory {place}: give {file}"):
        view(export=place)
    (tmp_path / "a.txt").touch()
    with pytest.raises(LGQError, match=r"cannot write to a\.txt"):
        view(export="a.txt/page.html")


def test_the_command_says_that_the_file_has_no_generator(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lgq.cli.view.view", lambda *, export, **_: export.write_text("a page"))
    for generator, said in (([], False), (["--generator", "drawer"], True)):
        lgq("view", *generator, "--export", tmp_path / "page.html")
        assert ("the saved page leaves the generator out" in capsys.readouterr().err) == said
