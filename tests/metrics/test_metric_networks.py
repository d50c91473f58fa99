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


@pytest.mark.parametrize(
    ("cached", "absent"),
    [
        ((), (*LPIPS_METRICS, *RECONSTRUCTION_FEATURE_METRICS)),
        ((LPIPS,), RECONSTRUCTION_FEATURE_METRICS),
        ((InceptionV3,), LPIPS_METRICS),
        ((LPIPS, InceptionV3), ()),
    ],
)
def test_metrics_of_reconstructions_without_weights_are_absent_with_the_command(monkeypatch, cached, absent):
    for network in cached:
        monkeypatch.setattr(network, "pretrained", classmethod(lambda cls: cls()))
    networks = MetricNetworks.available(CPU)
    assert (networks.lpips is not None, networks.inception is not None) == (
        LPIPS in cached,
        InceptionV3 in cached,
    )
    assert tuple(networks.absent) == absent
    assert all("`lgq weights fetch`" in reason for reason in networks.absent.values())


def test_damaged_weights_are_named_as_a_reason():
    file = cache_directory() / "weights" / "inception-fid.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"damaged")
    reason = MetricNetworks.available(CPU).absent["rfid"]
    assert "cannot be read" in reason
    assert "`lgq weights fetch`" in reason


def test_metrics_of_generation_without_weights_are_absent_with_the_command():
    networks = MetricNetworks.available(CPU, for_generation=True)
    assert networks.lpips is networks.inception is networks.classifier is None
    assert networks.absent.keys() == {*GENERATION_FEATURE_METRICS, *CLASSIFIER_METRICS}
    assert all("`lgq weights fetch`" in networks.absent[name] for name in GENERATION_FEATURE_METRICS)
    assert all("`lgq weights import" in networks.absent[name] for name in CLASSIFIER_METRICS)


@pytest.mark.parametrize(
    ("seeds", "features", "classifier", "absent"),
    [
        ({"fid": 0}, "fid", None, {"inception_score": "no full"}),
        ({"full": 0}, "full", "full", {}),
        ({"fid": 3, "full": 3}, "fid", "fid", {}),  # equal features: one network, by the name of FID
        ({"fid": 3, "full": 4}, "fid", "full", {}),
    ],
)
def test_equal_features_are_computed_by_one_network(monkeypatch, seeds, features, classifier, absent):
    """seeds: those of the weights in the cache, for features only (`fid`) and with classifier (`full`)."""

    def pretrained(cls, *, classifier: bool = False) -> InceptionV3:
        name = "full" if classifier else "fid"
        if name not in seeds:
            raise WeightsError(f"no {name}")
        network = cls(classifier=classifier)
        network.network.load_state_dict(cls(seed=seeds[name]).network.state_dict())
        network.convention = FeatureConvention(weights=name, weights_sha256=f"of {name}")
        return network

    monkeypatch.setattr(InceptionV3, "pretrained", classmethod(pretrained))
    networks = MetricNetworks.available(CPU, for_generation=True)
    assert networks.absent == absent
    assert networks.inception.convention.weights == features
    if classifier is None:
        assert networks.classifier is None
    else:
        assert networks.classifier.convention.weights == classifier
        assert networks.classifier.classifier is not None
        assert (networks.inception is networks.classifier) == (features == classifier)


def test_processes_with_different_weights_fail_instead_of_waiting_for_each_other(monkeypatch):
    def with_another_rank_without_any(present):
        return torch.stack([present, torch.zeros_like(present)])

    monkeypatch.setattr("lgq.metrics.metric_networks.stack_over_ranks", with_another_rank_without_any)
    with pytest.raises(WeightsError, match=r"different weights.* LGQ_CACHE"):
        MetricNetworks(inception=InceptionV3()).require_on_all_ranks()
    assert MetricNetworks().require_on_all_ranks() == MetricNetworks()
