"""What all rows of a call share: images, judges, a device, and RESULTS, which other calls share too."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lgq.data import ImageDataset, ImageLoader, LoaderSettings, to_png
from lgq.data.images import Subset, random_subset
from lgq.distributed import broadcast_from_first, rank
from lgq.evaluation import Evaluation
from lgq.experiments.plan import Sources
from lgq.experiments.results_directory import ResultsDirectory
from lgq.experiments.scales import Scale
from lgq.experiments.tasks import CostTask, Task
from lgq.files import LockError, directory_lock, make_directory, replace_file
from lgq.metrics.codebook_study import CodebookStudy
from lgq.metrics.metric_networks import MetricNetworks, judges_at_hand, judges_of_generation
from lgq.tokenizer import Tokenizer
from lgq.training.run_directory import describe_environment
from lgq.training.signals import StopRequest

_SHOWN = 8
_PATIENCE, _PAUSE = 200, 0.05


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A signal asked to stop: all that was done is kept."""


class Drawable(NamedTuple):
    """What pictures of an evaluated tokenizer are drawn from."""

    tokenizer: Tokenizer
    evaluation: Evaluation
    study: CodebookStudy
    data: ImageDataset
    image_size: int


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Work that is done elsewhere."""

    draw: Callable[[Drawable], dict[str, bytes]]
    """PNG files by their stems."""
    measure_cost: Callable[[CostTask], list[dict[str, Any]]]
    """A dictionary for each implementation of a quantizer, ours first."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Of one call, in one process."""

    results: ResultsDirectory
    scale: Scale
    sources: Sources
    images: str
    """Fingerprint of the sources."""
    device: torch.device
    crew: Crew
    command: tuple[str, ...]
    stop: StopRequest

    @cached_property
    def judges(self) -> MetricNetworks:
        return judges_at_hand(self.device)

    @cached_property
    def judges_of_generation(self) -> MetricNetworks:
        return judges_of_generation(self.device)

    @cached_property
    def evaluated(self) -> Subset:
        """The images that reconstruction is measured on, the same for all rows."""
        return random_subset(self.sources.validation, self.scale.measuring.images)

    @cached_property
    def studied(self) -> Subset:
        return random_subset(self.sources.validation, self.scale.measuring.geometry_images)

    @cached_property
    def shown(self) -> Float[Tensor, "b 3 s s"]:
        """Images to look at, the same for all rows."""
        loading = LoaderSettings(image_size=self.scale.tokenizer.image_size, batch_size=_SHOWN)
        return next(ImageLoader(self.sources.shown, loading).one_pass(_SHOWN)).images

    def origin(self, task: Task, id: str) -> dict[str, Any]:
        """Where a record comes from."""
        return {
            "id": id,
            "kind": task.kind,
            "scale": self.scale.name,
            "command": list(self.command),
            "seed": task.seed,
            "environment": describe_environment(task.seed),
        }

    def go_on(self, *_: int) -> None:
        """Called between batches: raises `Stopped` when asked to."""
        if self.stop:
            raise Stopped

    def is_finished(self, id: str) -> bool:
        """As the first process sees it, so that all agree."""
        return bool(broadcast_from_first(torch.tensor(int(rank() == 0 and self.results.is_finished(id)))))

    def wait_for_first(self) -> None:
        """Until the first process comes here too, with what it has written."""
        broadcast_from_first(torch.zeros(1))

    @contextmanager
    def hold(self, id: str) -> Iterator[None]:
        """A row that no other call may work on meanwhile; one that another holds is a `LockError`."""
        with ExitStack() as stack:
            error = None
            if rank() == 0:
                try:
                    stack.enter_context(directory_lock(self.results.lock(id)))
                except LockError as refusal:
                    error = refusal
            if bool(broadcast_from_first(torch.tensor(int(error is not None)))):
                raise error or LockError(f"{id} is in use by another process.")
            yield

    def keep_originals(self) -> None:
        """The images behind all reconstructions, once."""
        file = self.results.originals
        if rank() == 0 and not file.exists():
            with alone(self.results):
                make_directory(file.parent)
                replace_file(file, strip_png(self.shown))


@contextmanager
def alone(results: ResultsDirectory) -> Iterator[None]:
    """Within, no other process writes what all of them share; waits for its turn."""
    with ExitStack() as stack:
        for attempt in range(_PATIENCE):
            try:
                stack.enter_context(directory_lock(results.lock("shared")))
                break
            except LockError:
                if attempt == _PATIENCE - 1:
                    raise
                time.sleep(_PAUSE)
        yield


def strip_png(images: Float[Tensor, "b 3 s s"]) -> bytes:
    """Images in a row, without anything between them."""
    return to_png(torch.cat(list(images.cpu()), dim=2))
