import pytest
from quantizer_family import Build, family


@pytest.fixture(params=family().items(), ids=lambda item: item[0])
def build(request: pytest.FixtureRequest) -> Build:
    return request.param[1]
