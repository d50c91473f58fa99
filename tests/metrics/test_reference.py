from dataclasses import replace

import pytest
import torch

from lgq.data import BrokenImage, EncodedImage
from lgq.metrics.features import FeatureSet
from lgq.metrics.reference import CachedFeatures, content_sha256
from lgq.models.inception import FeatureConvention

CONVENTION = FeatureConvention(weights="some", weights_sha256="abc")


class Files:
    """A data set of bytes; None cannot be read."""

    def __init__(self, *contents: bytes | None, prefix: str = ""):
        self.contents, self.prefix = contents, prefix

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, index: int) -> EncodedImage:
        data, name = self.contents[index], f"{self.prefix}{index}.png"
        if data is None:
            raise BrokenImage(name, "the disk is tired")
        return EncodedImage(data, None, name)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LGQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def features() -> FeatureSet:
    collected = FeatureSet.empty(3, sample=5)
    collected.update(torch.randn(5, 3), torch.arange(5))
    return collected


def find(dataset=None, image_size: int = 64, convention: FeatureConvention = CONVENTION) -> CachedFeatures:
    return CachedFeatures.find(dataset or Files(b"a", b"b"), image_size, convention)


@pytest.mark.parametrize(
    "other",
    [(b"b", b"a"), (b"a",), (b"a", b"b", b"b"), (b"ab", b""), (b"a", b"B"), (b"a", None), (None, b"b")],
)
def test_different_files_have_different_hashes(other):
    assert content_sha256(Files(*other)) != content_sha256(Files(b"a", b"b"))


def test_saved_features_are_found_again_for_the_same_images_size_and_network(features, cache):
    assert find().features is None
    find().save(features)
    cached = find(Files(b"a", b"b", prefix="elsewhere/")).features
    assert torch.equal(cached.sample.features, features.sample.features)
    assert [path.parent for path in cache.rglob("*.features")] == [cache / "references"]
    assert find(Files(b"a", b"c")).features is find(image_size=32).features is None
    for field in ("weights", "weights_sha256", "quantisation", "resize", "normalisation"):
        assert find(convention=replace(CONVENTION, **{field: "other"})).features is None


def test_damaged_features_are_ignored_and_can_be_replaced(features, caplog):
    find().save(features)
    find().path.write_bytes(b"damaged")
    assert find().features is None
    assert "is damaged" in caplog.text
    find().save(features)
    assert find().features is not None


def test_a_cache_that_cannot_be_written_is_a_warning(features, cache, caplog):
    cache.write_text("a file, where the directory would be")
    find().save(features)
    assert "cannot cache" in caplog.text
    assert find().features is None
