import pytest
import torch

from lgq.metrics.codebook_study import CodeAtlas

CODES, GRID, PATCH, KEEP, IMAGES = 6, (2, 3), 2, 4, 12


def data() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randint(0, 256, (IMAGES, 3, GRID[0] * PATCH, GRID[1] * PATCH)).float() / 127.5 - 1
    return images, torch.randint(0, CODES - 1, (IMAGES, *GRID))


def atlas_of(images: torch.Tensor, tokens: torch.Tensor, numbers: torch.Tensor, batch: int = 5) -> CodeAtlas:
    atlas = CodeAtlas.of(CODES, grid=GRID, patch=PATCH, keep=KEEP)
    for chosen in numbers.split(batch):
        atlas.update(images[chosen], tokens[chosen], chosen)
    return atlas


def brute_force(images: torch.Tensor, tokens: torch.Tensor) -> dict[int, list[torch.Tensor]]:
    """Patches of each code in order of appearance: image by image, in reading order."""
    found: dict[int, list[torch.Tensor]] = {}
    for image, rows in zip(images, tokens.tolist(), strict=True):
        for i, row in enumerate(rows):
            for j, code in enumerate(row):
                patch = image[:, i * PATCH : (i + 1) * PATCH, j * PATCH : (j + 1) * PATCH]
                found.setdefault(code, []).append(((patch + 1) * 127.5).round().to(torch.uint8))
    return found


def assert_equal(a: CodeAtlas, b: CodeAtlas) -> None:
    assert torch.equal(a.places, b.places)
    assert torch.equal(a.patches, b.patches)
    assert torch.equal(a.usage.counts, b.usage.counts)


@pytest.mark.parametrize("count", [3, 100])
def test_the_first_patches_of_the_most_frequent_codes_are_kept(count):
    images, tokens = data()
    entries = atlas_of(images, tokens, torch.arange(IMAGES)).most_frequent(count)
    found = brute_force(images, tokens)
    expected = sorted(found, key=lambda code: (-len(found[code]), code))[:count]
    assert [entry.code for entry in entries] == expected
    for entry in entries:
        assert entry.count == len(found[entry.code])
        assert torch.equal(entry.patches, torch.stack(found[entry.code][:KEEP]))


def test_rare_codes_have_fewer_patches_and_unused_ones_no_entry():
    images, tokens = data()
    tokens = torch.zeros_like(tokens)
    tokens[3, 1, 2] = 4
    entries = atlas_of(images, tokens, torch.arange(IMAGES)).most_frequent(9)
    assert [(entry.code, entry.count, len(entry.patches)) for entry in entries] == [(0, 71, KEEP), (4, 1, 1)]


@pytest.mark.parametrize("batch", [1, 4, IMAGES])
def test_batches_parts_and_order_change_nothing(batch):
    images, tokens = data()
    whole = atlas_of(images, tokens, torch.arange(IMAGES), batch=IMAGES)
    order = torch.randperm(IMAGES)
    assert_equal(atlas_of(images, tokens, order, batch), whole)
    parts = [atlas_of(images, tokens, part, batch) for part in order.split(5)]
    assert_equal(parts[0].merge(parts[1]).merge(parts[2]), whole)
    assert_equal(whole.over_ranks(), whole)


def test_colours_beyond_the_visible_range_are_its_ends():
    images, tokens = data()
    atlas = atlas_of(images * 9, torch.zeros_like(tokens), torch.arange(1))
    assert torch.equal(atlas.patches[0, 0], ((images[0, :, :2, :2] * 9).clamp(-1, 1) * 127.5 + 127.5).byte())


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_refused_by_name():
    images, tokens = data()
    atlas = CodeAtlas.of(CODES, grid=GRID, patch=PATCH)
    with pytest.raises(ValueError, match=r"expected images and tokens .* got \(12, 3, 3, 6\) and"):
        atlas.update(images[:, :, :3], tokens, torch.arange(IMAGES))
    with pytest.raises(ValueError, match=r"index 9 is outside 0\.\.5"):
        atlas.update(images, tokens + 9 - tokens, torch.arange(IMAGES))
    with pytest.raises(ValueError, match="cannot be merged"):
        atlas.merge(CodeAtlas.of(CODES, grid=GRID, patch=PATCH, keep=3))
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        CodeAtlas.of(CODES, grid=GRID, patch=PATCH, keep=0)
