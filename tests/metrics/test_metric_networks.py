import pytest
import torch

from lgq.metrics.metric_networks import (
    CLASSIFIER_METRICS,
    GENERATION_FEATURE_METRICS,
    LPIPS_METRICS,
    RECONSTRUCTION_FEATURE_METRICS,
    MetricNetworks,
)
from lgq.models.inception import FeatureConvention, InceptionV3
from lgq.models.lpips import LPIPS
from lgq.weights import WeightsError, cache_directory

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
    networks = MetricNetworks.available(CPU)
    assert networks.lpips is networks.inception is None
    assert networks.absent.keys() == {"lpips", "reconstruction_loss", "rfid", "kid", "precision", "recall"}
    assert all("`lgq weights fetch`" in reason for reason in networks.absent.values())


def test_only_what_needs_the_missing_network_is_absent(monkeypatch):
    lpips = here(monkeypatch, LPIPS)
    networks = MetricNetworks.available(CPU)
    assert networks.lpips is lpips
    assert tuple(networks.absent) == RECONSTRUCTION_FEATURE_METRICS


def test_with_all_weights_nothing_is_absent(monkeypatch):
    inception = here(monkeypatch, InceptionV3)
    assert tuple(MetricNetworks.available(CPU).absent) == LPIPS_METRICS
    here(monkeypatch, LPIPS)
    networks = MetricNetworks.available(CPU)
    assert networks.inception is inception
    assert networks.absent == {}


def test_damaged_weights_are_as_good_as_none():
    file = cache_directory() / "weights" / "inception-fid.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"damaged")
    reason = MetricNetworks.available(CPU).absent["rfid"]
    assert "cannot be read" in reason
    assert "`lgq weights fetch`" in reason


def test_networks_share_no_list_of_what_is_absent():
    assert MetricNetworks().absent is not MetricNetworks().absent


def inceptions(monkeypatch, **seeds: int) -> None:
    """As if weights of these seeds were in the cache, under the names `features` and `whole`."""

    def pretrained(cls, *, classifier: bool = False) -> InceptionV3:
        name = "whole" if classifier else "features"
        if name not in seeds:
            raise WeightsError(f"no {name}")
        network = cls(classifier=classifier)
        network.network.load_state_dict(cls(seed=seeds[name]).network.state_dict())
        network.convention = FeatureConvention(weights=name, weights_sha256=f"of {name}")
        return network

    monkeypatch.setattr(InceptionV3, "pretrained", classmethod(pretrained))


def test_without_weights_everything_of_generated_images_is_absent_with_its_command():
    networks = MetricNetworks.available(CPU, for_generation=True)
    assert networks.lpips is networks.inception is networks.classifier is None
    assert networks.absent.keys() == {*GENERATION_FEATURE_METRICS, *CLASSIFIER_METRICS}
    assert all("`lgq weights fetch`" in networks.absent[name] for name in GENERATION_FEATURE_METRICS)
    assert all("`lgq weights import" in networks.absent[name] for name in CLASSIFIER_METRICS)


def test_without_a_classifier_features_remain(monkeypatch):
    inceptions(monkeypatch, features=0)
    networks = MetricNetworks.available(CPU, for_generation=True)
    assert networks.inception.convention.weights == "features"
    assert networks.classifier is None
    assert networks.absent == {"inception_score": "no whole"}


def test_the_whole_network_alone_gives_features_under_its_own_name(monkeypatch):
    inceptions(monkeypatch, whole=0)
    networks = MetricNetworks.available(CPU, for_generation=True)
    assert networks.inception is networks.classifier
    assert networks.inception.convention.weights == "whole"
    assert networks.absent == {}


def test_equal_features_are_those_of_one_network_under_the_name_of_fid(monkeypatch):
    inceptions(monkeypatch, features=3, whole=3)
    networks = MetricNetworks.available(CPU, for_generation=True)
    assert networks.inception is networks.classifier
    assert networks.inception.classifier is not None
    assert networks.inception.convention.weights == "features"
    assert networks.absent == {}


def test_different_features_are_those_of_two_networks(monkeypatch):
    inceptions(monkeypatch, features=3, whole=4)
    networks = MetricNetworks.available(CPU, for_generation=True)
    assert networks.inception.convention.weights == "features"
    assert networks.classifier.convention.weights == "whole"
    assert networks.absent == {}


def test_processes_that_find_different_weights_end_instead_of_waiting_for_each_other(monkeypatch):
    def as_on_another_rank_without_any(here):
        return torch.stack([here, torch.zeros_like(here)])

    monkeypatch.setattr("lgq.metrics.metric_networks.stack_over_ranks", as_on_another_rank_without_any)
    with pytest.raises(WeightsError, match=r"different weights.* LGQ_CACHE"):
        MetricNetworks(inception=InceptionV3()).require_on_all_ranks()
    assert MetricNetworks().require_on_all_ranks() == MetricNetworks()
