"""`in_eval_mode` switches every part of a network, and restores its mode."""

import pytest
from torch import nn

from lgq.models import in_eval_mode


def modes(module: nn.Module) -> set[bool]:
    return {part.training for part in module.modules()}


@pytest.mark.parametrize("training", [True, False])
def test_every_part_is_in_eval_mode_and_then_as_before(training):
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5))).train(training)
    with in_eval_mode(module):
        with in_eval_mode(module):
            assert modes(module) == {False}
        assert modes(module) == {False}
    assert modes(module) == {training}
    with pytest.raises(RuntimeError, match="inside"), in_eval_mode(module):
        raise RuntimeError("inside")
    assert modes(module) == {training}
