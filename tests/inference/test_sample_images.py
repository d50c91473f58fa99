"""Drawing samples in batches is reproducible."""

from inspect import signature

import pytest
import torch
from torch import Tensor, nn

from lgq.errors import LGQError
from lgq.evaluation import evaluate
from lgq.inference.sample import draw_images, sample
from lgq.maskgit import MaskGIT
from lgq.models.sampling import Sampling
from lgq.random import batch_seed


class Stub(MaskGIT):
    """A generator without networks: images whose pixels tell their class."""

    classes = ("cat", "dog", "eel")

    def __init__(self):
        nn.Module.__init__(self)
        self.asked: list[tuple[list[int], int]] = []

    def generate(self, classes: Tensor, sampling: Sampling, *, seed: int) -> Tensor:
        self.asked.append((classes.tolist(), seed))
        return (classes / 3).view(-1, 1, 1, 1).expand(-1, 3, 4, 4)


def test_images_are_drawn_in_batches_each_with_a_seed_of_its_own_and_none_of_an_unknown_class():
    stub, told = Stub(), []
    for wrong in (3, -1):
        with pytest.raises(LGQError, match=f"class {wrong} is not among 0..2"):
            next(draw_images(stub, [0, 1, wrong], Sampling(), batch_size=1))
    classes = [0, 0, 1, 1, 2]
    options = {"seed": 3, "batch_size": 2, "on_progress": lambda *done: told.append(done)}
    images = torch.cat(list(draw_images(stub, classes, **options)))
    assert torch.equal(images[:, 0, 0, 0], torch.tensor(classes) / 3)
    assert stub.asked == [([0, 0], batch_seed(3, 0)), ([1, 1], batch_seed(3, 2)), ([2], batch_seed(3, 4))]
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_a_sample_redraws_by_default_what_an_evaluation_measured():
    functions = (draw_images, sample, evaluate)
    sizes = {signature(function).parameters["batch_size"].default for function in functions}
    assert len(sizes) == 1, "seeds belong to batches, so other sizes draw other images"
