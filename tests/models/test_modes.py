"""Networks are in eval mode for a while, and then again as they were."""

import pytest
from torch import nn

from lgq.models import in_eval_mode


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2)))


def modes(module: nn.Module) -> set[bool]:
    return {part.training for part in module.modules()}


@pytest.mark.parametrize("training", [True, False])
def test_every_part_is_in_eval_mode_and_then_as_before(training):
    module = network().train(training)
    with in_eval_mode(module):
        assert modes(module) == {False}
    assert modes(module) == {training}


@pytest.mark.parametrize("training", [True, False])
def test_an_error_leaves_the_mode_as_it_was(training):
    module = network().train(training)
    with pytest.raises(RuntimeError, match="on the way"), in_eval_mode(module):
        raise RuntimeError("on the way")
    assert modes(module) == {training}


def test_the_inner_of_two_leaves_eval_mode_to_the_outer():
    module = network()
    with in_eval_mode(module):
        with in_eval_mode(module):
            pass
        assert modes(module) == {False}
    assert modes(module) == {True}
