import math

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from lgq.metrics.reconstruction import ReconstructionQuality, l1, psnr, ssim


def pair(count: int = 5, size: tuple[int, int] = (24, 32)) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.nn.functional.interpolate(torch.rand(count, 3, 6, 8), size, mode="bicubic").clamp(0, 1)
    return images * 2 - 1, ((images + 0.1 * torch.randn_like(images)).clamp(0, 1)) * 2 - 1


def unit(image: torch.Tensor):
    return ((image + 1) / 2).permute(1, 2, 0).double().numpy()


def test_psnr_and_ssim_equal_those_of_scikit_image_and_l1_the_mean_difference():
    images, reconstructions = pair()
    for i, (image, reconstruction) in enumerate(zip(images, reconstructions, strict=True)):
        a, b = unit(image), unit(reconstruction)
        expected = structural_similarity(
            a, b, data_range=1, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
        )
        assert psnr(images, reconstructions)[i].item() == pytest.approx(
            peak_signal_noise_ratio(a, b, data_range=1), abs=1e-3
        )
        assert ssim(images, reconstructions)[i].item() == pytest.approx(expected, abs=1e-3)
    torch.testing.assert_close(l1(images, reconstructions).mean(), (images - reconstructions).abs().mean())


def test_an_image_against_itself_is_perfect():
    images, _ = pair()
    quality = ReconstructionQuality()
    quality.update(images, images)
    summary = quality.summary()
    assert math.isinf(summary["psnr"])
    assert summary["ssim"] == pytest.approx(1)
    assert summary["l1"] == 0


def test_values_outside_the_visible_range_count_as_its_ends_except_for_l1():
    images, reconstructions = pair()
    far = torch.where(reconstructions > 0.2, 5.0, reconstructions)
    torch.testing.assert_close(psnr(images, far), psnr(images, far.clamp(-1, 1)))
    assert (l1(images, far) > l1(images, far.clamp(-1, 1))).all()


def test_means_do_not_depend_on_how_the_images_are_batched():
    images, reconstructions = pair(7)
    whole, parts = ReconstructionQuality(), ReconstructionQuality()
    with pytest.raises(ValueError, match="no image could be measured"):
        parts.summary()
    whole.update(images, reconstructions)
    for start, stop in ((0, 1), (1, 5), (5, 7)):
        parts.update(images[start:stop], reconstructions[start:stop])
    assert parts.summary() == pytest.approx(whole.summary(), rel=1e-6)
    assert parts.over_ranks().count == 7
