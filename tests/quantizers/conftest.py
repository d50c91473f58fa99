import pytest
from quantizer_family import Build, family, singles

from lgq.quantizers import QUANTIZERS


@pytest.fixture(params=family().items(), ids=lambda item: item[0])
def build(request: pytest.FixtureRequest) -> Build:
    return request.param[1]


@pytest.fixture(params=[*QUANTIZERS, "residual"])
def build_class(request: pytest.FixtureRequest) -> Build:
    """One quantizer of each class, for laws that take long."""
    return family()[request.param]


@pytest.fixture(params=singles().items(), ids=lambda item: item[0])
def build_single(request: pytest.FixtureRequest) -> Build:
    """All but the residual quantizer, which takes its seeds from its stages."""
    return request.param[1]
