"""The models behind the page, and what is computed with them.   h w = height and width.

One thread computes at a time; studies of codebooks run in the background and let every request go first.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import ConcatDataset

from lgq.data import ImageDataset, SampleDataset, open_dataset
from lgq.data.photographs import TILE_SIDE
from lgq.data.transforms import to_tensor
from lgq.distributed import resolve_device
from lgq.errors import LGQError
from lgq.files import WeightsChoice
from lgq.maskgit import MaskGIT, load_generator
from lgq.metrics.reconstruction import psnr
from lgq.models.sampling import Order, Sampling
from lgq.tokenizer import Tokenizer, load_tokenizer
from lgq.viewer import NoSuchThing
from lgq.viewer.album import SIZES, Album
from lgq.viewer.code_gallery import (
    CodeGallery,
    History,
    Model,
    PlaneMethod,
    codes_of,
    collect_codes,
    history_of,
    plane_of,
)
from lgq.viewer.token_grids import Encoding, grids_of

SHIPPED = "photo-f8"
"""Tokenizer that is shown if none is named."""
FIRST_SIZE = 256
"""Choice that the page begins with."""
_CACHED = 24
_STUDY_SIDE, _STUDY_PIXELS = 256, 96 * 2**16
"""Side of the images that codes are studied on, and pixels in all: some seconds of two cores."""


class DrawnStep(NamedTuple):
    """State of a drawing after a step."""

    step: int
    steps: int
    tokens: Int64[Tensor, "h w stages"]
    """-1 where a token is not decided yet."""
    probabilities: Float32[Tensor, "h w stages"]
    """Probability of each token that this step set; 0 elsewhere."""
    image: Float[Tensor, "1 3 height width"]
    """What the tokens decode to, with the most frequent code where they are undecided."""


class _Closed(Exception):  # noqa: N818 - nothing went wrong
    """The studio was closed."""


class Studio:
    """Models, pictures and a generator, with everything that the page asks of them.

    data: images to study codes on, and pictures to begin with; None for the embedded photographs.
    """

    def __init__(
        self, models: Sequence[Model], data: ImageDataset | None = None, generator: MaskGIT | None = None
    ):
        self.models, self.generator = list(models), generator
        if generator is not None and not self.models:
            self.models = [Model("the generator's tokenizer", generator.tokenizer)]
        for model in self.models:
            # Faster on most processors.
            model.tokenizer.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.album = Album(data, multiple=math.lcm(*(model.tokenizer.factor for model in self.models)))
        self._study_side = TILE_SIDE if data is None else _STUDY_SIDE
        self._data: ImageDataset = data or _all_photographs()
        self._encodings: OrderedDict[tuple[int, int, int, int], Encoding] = OrderedDict()
        self._planes: dict[tuple[int, int, str], np.ndarray] = {}
        self._turn, self._waiting, self._remembering = threading.Lock(), 0, threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Let the study of the codes end before its next batch."""
        self._closed.set()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the processor, for a request that someone waits for."""
        self._waiting += 1
        try:
            with self._turn:
                yield
        finally:
            self._waiting -= 1

    @contextmanager
    def background_turn(self) -> Iterator[None]:
        """Wait for the processor until no request needs it."""
        while self._waiting:
            self._closed.wait(0.01)
        if self._closed.is_set():
            raise _Closed
        with self._turn:
            yield

    # Models and their codes

    def model(self, number: int) -> Model:
        if not 0 <= number < len(self.models):
            raise NoSuchThing(f"there is no model {number}: the page shows {len(self.models)}.")
        return self.models[number]

    def study(self) -> None:
        """Collect the codes of all models, one after the other; meant for a thread of its own."""
        with suppress(_Closed):
            for number, model in enumerate(self.models):
                self.study_model(model)
                for stage in range(len(model.galleries)):
                    self.plane(number, stage, "pca")  # so that the map is there when it is asked for

    def study_model(self, model: Model) -> None:
        """Collect the codes of a model over the data set."""

        def note(done: int, total: int) -> None:
            model.progress = (done, total)

        factor = model.tokenizer.factor
        side = max(self._study_side // factor, 1) * factor
        try:
            model.galleries = collect_codes(
                model.tokenizer,
                self._data,
                image_size=side,
                images=_STUDY_PIXELS // side**2,
                turn=self.background_turn,
                on_progress=note,
            )
        except _Closed:
            raise
        except LGQError as error:
            model.problem = str(error)
        except Exception as error:
            model.problem = f"the study of the codes failed: {error}"
            raise

    def gallery(self, model: int, stage: int) -> CodeGallery | None:
        """Return the codes of a stage, or None while they are being collected."""
        chosen = self.model(model)
        if chosen.problem:
            raise LGQError(chosen.problem)
        if not 0 <= stage < chosen.tokenizer.stages:
            raise NoSuchThing(f"{chosen.name} has stages 0..{chosen.tokenizer.stages - 1}, got {stage}.")
        return chosen.galleries[stage] if chosen.galleries else None

    def plane(self, model: int, stage: int, method: PlaneMethod) -> np.ndarray:
        """Return the codes of a stage in the plane; computed once."""
        key = (model, stage, method)
        if key not in self._planes:
            self._planes[key] = plane_of(codes_of(self.model(model).tokenizer, stage), method)
        return self._planes[key]

    def history(self, model: int, stage: int) -> History:
        """Return what became of the codes over the validations of a run."""
        return history_of(self.model(model), stage)

    # Tokens

    def encode(self, model: int, picture: int, size: int, levels: int | None = None) -> Encoding:
        """Return a picture of the chosen size with its tokens and their reconstruction.

        levels: number of stages or scales that are decoded, the first ones; None for all.
        """
        if size not in SIZES:
            raise LGQError(f"the size must be one of {', '.join(map(str, SIZES))} pixels, got {size}.")
        tokenizer, shown = self.model(model).tokenizer, self.album[picture]
        key = (model, picture, size, tokenizer.levels if levels is None else levels)
        known = self._encodings.get(key)
        if known is not None:
            return known
        if key[3] != tokenizer.levels:
            whole = self.encode(model, picture, size)
            first = tokenizer.first_levels(whole.tokens, key[3], whole.size)
            return self._remember(key, replace(whole, reconstruction=self.decode(model, first, whole.size)))
        pixels = to_tensor(self.album.fitted(shown, size))
        return self._remember(key, self.encode_pixels(tokenizer, pixels[None]))

    def encode_first(self) -> None:
        """Encode the picture that the page begins with, so that it is there when it is asked for."""
        for picture in list(self.album.pictures)[:1]:
            with suppress(LGQError):  # the page will say why
                self.encode(0, picture, FIRST_SIZE)

    def encode_pixels(self, tokenizer: Tokenizer, pixels: Float[Tensor, "1 3 height width"]) -> Encoding:
        original = pixels.to(tokenizer.device)
        h, w = (side // tokenizer.factor for side in original.shape[2:])
        with self.turn():
            tokens = tokenizer.encode(original)
            reconstruction = tokenizer.decode(tokens, (h, w))
        return Encoding(original, tokens, grids_of(tokenizer, h, w), reconstruction)

    def _remember(self, key: tuple[int, int, int, int], encoding: Encoding) -> Encoding:
        with self._remembering:
            self._encodings[key] = encoding
            if len(self._encodings) > _CACHED:
                self._encodings.popitem(last=False)
        return encoding

    def decode(
        self, model: int, tokens: Int64[Tensor, "1 *tokens"], grid: tuple[int, int]
    ) -> Float[Tensor, "1 3 height width"]:
        """Return the image of tokens, or of those of the first stages or scales.

        grid: rows and columns of the finest grid.
        """
        tokenizer = self.model(model).tokenizer
        with self.turn():
            return tokenizer.decode(tokens.to(tokenizer.device), grid)

    def decode_change(
        self,
        model: int,
        tokens: Int64[Tensor, "1 *tokens"],
        grid: tuple[int, int],
        changed: tuple[int, int, int, int],
    ) -> tuple[Float[Tensor, "1 3 _ _"], tuple[int, int]]:
        """Return the part of an image that a change of its tokens can reach, with its top and left pixel.

        grid: rows and columns of the finest grid.
        changed: top, left, bottom and right of what has changed in that grid. With scales, it is the whole
            image that is returned: the tokens of coarse ones reach far.
        """
        tokenizer, (top, left, bottom, right) = self.model(model).tokenizer, changed
        if tokenizer.scales:
            return self.decode(model, tokens, grid), (0, 0)
        with self.turn():
            part, place = tokenizer.decode_around(
                tokens.to(tokenizer.device), slice(top, bottom), slice(left, right)
            )
        return part, (place[0].start, place[1].start)

    def lpips(self, encoding: Encoding) -> float:
        """Return LPIPS of a reconstruction; an error with the way out where its weights are missing."""
        network = _lpips().to(encoding.original.device)
        try:
            with self.background_turn(), torch.no_grad():  # it takes longer than a picture, which goes first
                return float(network(encoding.original, encoding.reconstruction.float())[0])
        except _Closed as closed:
            raise LGQError("the page is being closed.") from closed

    # The generator

    def square(self, picture: int) -> Encoding:
        """Return the centre square of a picture as the generator's images are, with its tokens."""
        generator, shown = self._generator(), self.album[picture]
        side = generator.image_size
        pixels = ImageOps.fit(shown.read(), (side, side), Image.Resampling.BICUBIC)
        return self.encode_pixels(generator.tokenizer, to_tensor(pixels)[None])

    def draw(
        self,
        label: str,
        sampling: Sampling,
        seed: int,
        on_step: Callable[[DrawnStep], None],
        *,
        picture: int | None = None,
        mask: Bool[Tensor, "h w"] | None = None,
    ) -> None:
        """Draw an image of a class, or redraw the tokens of a picture where the mask is true.

        on_step: is called after each step; an error that it raises ends the drawing.

        Around the mask, a picture keeps its own pixels, as `lgq.inpaint` has it.
        """
        from lgq.inference.inpaint import paste_back  # imports matplotlib

        generator = self._generator()
        shape, masked = (1, *generator.token_shape), generator.transformer.mask_token
        factor, original = generator.tokenizer.factor, None

        def show(step: int, steps: int, flat: Tensor, likely: Tensor) -> None:
            tokens, undecided = flat.view(shape), flat.view(shape) == masked
            # The decoder needs a code everywhere: undecided tokens take the most frequent one, and the page
            # covers them.
            some = int(flat[flat != masked].mode().values) if (flat != masked).any() else 0
            image = generator.tokenizer.decode(tokens.masked_fill(undecided, some)).cpu()
            if original is not None and mask is not None:
                area = mask.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
                image = paste_back(original.original[0], image, area, factor)
            shown = tokens.masked_fill(undecided, -1).reshape(*shape[1:3], -1)
            probabilities = likely.view(shape).reshape(*shape[1:3], -1).float()
            on_step(DrawnStep(step, steps, shown.cpu(), probabilities.cpu(), image))

        (number,) = generator.class_numbers([label])
        with self.turn():
            if picture is None or mask is None:
                generator.sample([number], sampling, seed=seed, on_step=show)
                return
            if mask.shape != shape[1:3]:
                raise LGQError(f"the mask must have {shape[1]} x {shape[2]} places, got {tuple(mask.shape)}.")
            if not mask.any():
                raise LGQError("nothing is painted: paint over the tokens to redraw.")
        original = self.square(picture)
        with self.turn():
            generator.inpaint(original.tokens, mask[None], [number], sampling, seed=seed, on_step=show)

    def _generator(self) -> MaskGIT:
        if self.generator is None:
            raise NoSuchThing("there is no generator here: start the page with `generator`.")
        return self.generator

    def _describe_generator(self) -> dict[str, Any] | None:
        if self.generator is None:
            return None
        tokenizer, fingerprint = self.generator.tokenizer, self.generator.tokenizer.fingerprint()
        same = [i for i, model in enumerate(self.models) if model.tokenizer.fingerprint() == fingerprint]
        return {
            "classes": list(self.generator.classes),
            "size": self.generator.image_size,
            "grid": list(self.generator.token_shape[:2]),
            "codes": tokenizer.codebook_size,
            "model": same[0] if same else None,
            "orders": list(get_args(Order)),
        }

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to begin."""
        pictures = dict(self.album.pictures)
        return {
            "models": [model.describe() for model in self.models],
            "pictures": [{"id": number, "name": picture.name} for number, picture in pictures.items()],
            "sizes": list(SIZES),
            "umap": find_spec("umap") is not None,
            "generator": self._describe_generator(),
        }


def open_studio(
    runs: Sequence[str | Path | Tokenizer] = (),
    *,
    data: ImageDataset | str | Path | None = None,
    generator: MaskGIT | str | Path | None = None,
    weights: WeightsChoice = "best",
    device: str = "cpu",
    on_load: Callable[[str], None] = lambda name: None,
) -> Studio:
    """Load what the page shows; the arguments are those of `view`.

    on_load: called with the name of what is loaded next.
    """
    place = resolve_device(device)
    models = []
    if generator is not None:
        on_load("the generator")
    drawing = None if generator is None else load_generator(generator, weights, device=place)
    for run in runs or (() if drawing else (SHIPPED,)):
        if isinstance(run, Tokenizer):
            models.append(Model(str(run.settings["quantizer"]), run.to(place)))
        else:
            on_load(_name(run))
            directory = Path(run) if Path(run).is_dir() else None
            models.append(Model(_name(run), load_tokenizer(run, weights, device=place), directory))
    pictures = None if data is None or data == "sample" else open_dataset(data)
    return Studio(models, pictures, drawing)


def _name(run: str | Path) -> str:
    """Return the end of a path, which tells runs apart; of best/ and last/, the run's name too."""
    path = Path(run)
    return "/".join(path.parts[-2:]) if path.name in ("best", "last", "run") else path.name


def to_rgba(image: Float[Tensor, "1 3 height width"]) -> UInt8[np.ndarray, "height width 4"]:
    """Return an image in [-1, 1] as the pixels of a canvas."""
    levels = image[0].float().add(1).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8).cpu()
    pixels = np.full((*levels.shape[1:], 4), 255, dtype=np.uint8)
    pixels[..., :3] = levels.permute(1, 2, 0).numpy()
    return pixels


def quality_of(encoding: Encoding) -> float:
    """Return the PSNR of a reconstruction in dB, at most 99, as JSON has no infinity."""
    return min(99.0, float(psnr(encoding.original, encoding.reconstruction)[0]))


def _all_photographs() -> Any:
    return ConcatDataset([SampleDataset("train"), SampleDataset("held-out")])  # type: ignore[list-item]


@cache
def _lpips() -> Any:
    from lgq.models.lpips import LPIPS

    return LPIPS.pretrained()
