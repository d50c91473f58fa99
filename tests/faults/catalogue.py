"""All faults, in the order in which they are told."""

from faults import damage, disk, images, kills, numbers, stored, torchrun

FAULTS = (
    *kills.FAULTS,
    *torchrun.FAULTS,
    *disk.FAULTS,
    *damage.FAULTS,
    *stored.FAULTS,
    *images.FAULTS,
    *numbers.FAULTS,
)
