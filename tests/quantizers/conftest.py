import pytest
from quantizer_family import CLASSES, Build, family, singles


@pytest.fixture(params=family().items(), ids=lambda item: item[0])
def build(request: pytest.FixtureRequest) -> Build:
    return request.param[1]


@pytest.fixture(params=CLASSES)
def build_class(request: pytest.FixtureRequest) -> Build:
    """One quantizer of each class, for laws that take long."""
    return family()[request.param]


@pytest.fixture(params=singles().items(), ids=lambda item: item[0])
def build_single(request: pytest.FixtureRequest) -> Build:
    """All but compositions, which take their seeds from their parts."""
    return request.param[1]


@pytest.fixture(
    params=[item for item in family().items() if item[0] != "multiscale"], ids=lambda item: item[0]
)
def build_maskable(request: pytest.FixtureRequest) -> Build:
    """All but those that quantize grids, from which no vector can be left out."""
    return request.param[1]
