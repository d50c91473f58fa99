from itertools import pairwise

from lgq.data import EncodedImage
from lgq.data.images import Subset, random_subset


class Letters:
    classes = ("vowel", "other")

    def __init__(self, count: int = 26):
        self.count = count

    def __repr__(self) -> str:
        return "letters"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> EncodedImage:
        return EncodedImage(bytes([97 + index]), index % 2, f"{index}.png")


def test_items_are_those_of_the_data_set_in_the_given_order():
    subset = Subset(Letters(), [3, 0, 3])
    assert len(subset) == 3
    assert [item.data for item in subset] == [b"d", b"a", b"d"]
    assert subset[0] == Letters()[3]
    assert subset.classes == ("vowel", "other")


def test_a_subset_says_what_it_is():
    assert repr(Subset(Letters(), [1, 5])) == "2 images of letters"
    assert repr(Subset(Letters(), range(3, 7))) == "letters, images 3 to 6"
    assert repr(Subset(Letters(), range(0))) == "0 images of letters"


def test_a_random_subset_is_the_same_for_everyone():
    first, second = random_subset(Letters(), 10), random_subset(Letters(), 10)
    assert list(first.indices) == list(second.indices) == sorted(set(first.indices))
    assert len(first) == 10


def test_which_images_it_is_stays_from_release_to_release():
    assert list(random_subset(Letters(), 5).indices) == [4, 16, 20, 21, 24]


def test_a_larger_subset_holds_the_smaller_ones():
    sizes = [set(random_subset(Letters(), size).indices) for size in (1, 5, 12, 25)]
    assert all(small < large for small, large in pairwise(sizes))


def test_no_more_than_there_are():
    assert list(random_subset(Letters(4), 9).indices) == [0, 1, 2, 3]
    assert len(random_subset(Letters(0), 9)) == 0
