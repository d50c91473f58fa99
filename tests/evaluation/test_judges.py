import pytest
import torch

from lgq.evaluation.judges import NEED_INCEPTION, NEED_LPIPS, Judges, judges_at_hand
from lgq.models.inception import InceptionV3
from lgq.models.lpips import LPIPS
from lgq.weights import cache_directory

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path))


def here(monkeypatch, network):
    """As if the weights were in the cache."""
    made = network()
    monkeypatch.setattr(network, "pretrained", classmethod(lambda cls: made))
    return made


def test_every_metric_without_weights_is_absent_with_its_command():
    judges = judges_at_hand(CPU)
    assert judges.lpips is judges.inception is None
    assert judges.absent.keys() == {"lpips", "reconstruction_loss", "rfid", "kid", "precision", "recall"}
    assert all("`lgq weights fetch`" in reason for reason in judges.absent.values())


def test_only_what_needs_the_missing_network_is_absent(monkeypatch):
    lpips = here(monkeypatch, LPIPS)
    judges = judges_at_hand(CPU)
    assert judges.lpips is lpips
    assert tuple(judges.absent) == NEED_INCEPTION


def test_with_all_weights_nothing_is_absent(monkeypatch):
    inception = here(monkeypatch, InceptionV3)
    assert tuple(judges_at_hand(CPU).absent) == NEED_LPIPS
    here(monkeypatch, LPIPS)
    judges = judges_at_hand(CPU)
    assert judges.inception is inception
    assert judges.absent == {}


def test_damaged_weights_are_as_good_as_none():
    file = cache_directory() / "weights" / "inception-fid.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"damaged")
    reason = judges_at_hand(CPU).absent["rfid"]
    assert "cannot be read" in reason
    assert "`lgq weights fetch`" in reason


def test_judges_share_no_list_of_what_is_absent():
    assert Judges().absent is not Judges().absent
