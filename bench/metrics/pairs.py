"""Structural similarity (SSIM) and peak signal-to-noise ratio (PSNR) of pairs of images.

They are meaningful if an image has a counterpart: the input that an attack tries to reconstruct. For attacks on a
class, `best_match` finds the counterpart among the private images of the class.

SSIM(x, y) = (2 m_x m_y + C1) (2 c_xy + C2) / ((m_x^2 + m_y^2 + C1) (v_x + v_y + C2)), averaged over pixels and channels
(Wang et al., IEEE TIP 2004): m, v and c_xy are means, variances and covariance in a Gaussian window of standard
deviation 1.5 around the pixel, C1 = 0.01^2 and C2 = 0.03^2. The window is truncated to 11x11 or, on smaller images, to
the largest odd side that fits, and its weights sum to 1; SSIMs from windows of different sizes are not comparable.
Images are padded by reflection, as in torchmetrics since 1.5; the paper omits windows that cross an edge.

SSIM is our own implementation. On images of at least 11 pixels torchmetrics 1.9 has the same values (to 4e-12) but
takes 4.3 times as long on one core (`benchmarks/peers.py`), as its window is not separated into rows and columns. On
smaller images its window is larger than the image (up to 0.03 off for digits of 8 pixels), and it fails below 6 pixels.
PSNR(x, y) = -10 log10(mean squared error), for pixels in [0, 1], is torchmetrics'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bench.metrics.inversion import check_classes

PSNR_CAP = 100.0
"""PSNR in dB assigned to identical images, whose ratio is infinite; equal to that of an error of 1e-5 in each pixel."""

WINDOW = 11
_SIGMA = 1.5
_C1, _C2 = 0.01**2, 0.03**2
_PIXELS = 2**21
_CHUNK = 256


@dataclass(frozen=True)
class BestMatch:
    """Best matches of each reconstruction; each attribute is (n,) float64.

    Attributes:
        ssim: largest SSIM to one of the `count` private images of the class that are nearest in pixels: a lower bound
            on the largest over all of them.
        psnr: largest PSNR to a private image of the class, in dB, at most PSNR_CAP; it does not depend on `count`,
            since the nearest image in pixels has the largest.
        ssim_mean_image: SSIM to the mean of all private images of the class.
    """

    ssim: Tensor
    psnr: Tensor
    ssim_mean_image: Tensor


def window_side(height: int, width: int) -> int:
    """Return the side of the SSIM window for images of this size: the largest odd number that fits, at most 11.

    >>> [window_side(side, side) for side in (8, 16, 28)]
    [7, 11, 11]
    """
    side = min(WINDOW, height, width)
    return side - 1 + side % 2


def ssim_pairs(images: Tensor, originals: Tensor) -> Tensor:
    """Return (n,) float64 SSIM of image i with original i, in [-1, 1], on the images' device; 1 for identical images.

    Args:
        images, originals: (n, c, h, w), n >= 1, each uint8, or float in [0, 1].

    Raises:
        ValueError: mismatched shapes, a wrong type, or a pixel outside [0, 1].
    """
    _check_pairs(images, originals)
    h, w = images.shape[-2:]
    side = window_side(h, w)
    reach = side // 2
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64, device=images.device)
    weights = (-(steps**2) / (2 * _SIGMA**2)).softmax(0)
    rows, found = max(1, _PIXELS // images[0].numel()), []
    for x, y in zip(map(_unit, images.split(rows)), map(_unit, originals.split(rows)), strict=True):
        maps = torch.stack([x, y, x * x, y * y, x * y])
        padded = functional.pad(maps.reshape(-1, 1, h, w), (reach,) * 4, mode="reflect")
        across = functional.conv2d(padded, weights.view(1, 1, 1, side))
        means = functional.conv2d(across, weights.view(1, 1, side, 1)).view_as(maps)
        mean_x, mean_y, mean_xx, mean_yy, mean_xy = means
        var_x, var_y = (mean_xx - mean_x**2).clamp(min=0), (mean_yy - mean_y**2).clamp(min=0)
        covariance = mean_xy - mean_x * mean_y
        similarity = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
        found.append((similarity / ((mean_x**2 + mean_y**2 + _C1) * (var_x + var_y + _C2))).flatten(1).mean(1))
    return torch.cat(found)


def psnr_pairs(images: Tensor, originals: Tensor) -> Tensor:
    """Return (n,) float64 PSNR: -10 log10 of the mean squared error of image i and original i, in dB, at most PSNR_CAP.

    Arguments and errors as for `ssim_pairs`.
    """
    from torchmetrics.functional.image import peak_signal_noise_ratio  # slow to import

    _check_pairs(images, originals)
    found = peak_signal_noise_ratio(_unit(images), _unit(originals), data_range=1.0, reduction="none", dim=(1, 2, 3))
    return found.clamp(max=PSNR_CAP)


def best_match(
    images: Tensor, targets: Tensor, private_images: Tensor, private_labels: Tensor, count: int = 10
) -> BestMatch:
    """Return the best SSIM and PSNR of each reconstruction over its class's private images, and SSIM to the class mean.

    Args:
        images: (n, c, h, w), n >= 1, uint8, or float in [0, 1].
        targets: (n,) int64.
        private_images: (m, c, h, w), uint8, or float in [0, 1].
        private_labels: (m,) int64.
        count: at least 1: number of private images, nearest in pixels (L2), for which the SSIM is computed; all of the
            class if it has fewer.

    Raises:
        ValueError: a target class without private images, mismatched shapes, a wrong type, a pixel outside [0, 1], or a
            count below 1.
    """
    if count < 1:
        raise ValueError(f"count is {count}; expected at least 1")
    check_classes(images, targets, private_images, private_labels)
    _check_pixels(images)
    _check_pixels(private_images)
    ssim, psnr, mean_image = (torch.empty(len(images), dtype=torch.float64, device=images.device) for _ in range(3))
    for c in targets.unique():
        private = private_images[private_labels == c]
        pixels = _unit(private).flatten(1)
        total = private.sum(0, dtype=torch.float64) / len(private)
        centre = (total / 255 if private.dtype == torch.uint8 else total).clamp(0, 1)
        for rows in (targets == c).nonzero().squeeze(1).split(_CHUNK):
            mine = images[rows]
            order = torch.cdist(_unit(mine).flatten(1), pixels).topk(min(count, len(private)), largest=False).indices
            repeated, near = mine.repeat_interleave(order.shape[1], 0), private[order.flatten()]
            ssim[rows] = ssim_pairs(repeated, near).view(order.shape).amax(1)
            psnr[rows] = psnr_pairs(repeated, near).view(order.shape).amax(1)
            mean_image[rows] = ssim_pairs(mine, centre.expand_as(mine))
    return BestMatch(ssim, psnr, mean_image)


def _unit(images: Tensor) -> Tensor:
    """Convert images to float64 in [0, 1]."""
    return images.double() / 255 if images.dtype == torch.uint8 else images.double()


def _check_pairs(images: Tensor, originals: Tensor) -> None:
    """Raise ValueError unless both are (n, c, h, w) images of one shape, as `ssim_pairs` expects."""
    if images.ndim != 4 or images.shape != originals.shape or not images.numel():
        raise ValueError(
            f"images {tuple(images.shape)} and originals {tuple(originals.shape)}: expected (n, c, h, w) twice, n >= 1"
        )
    _check_pixels(images)
    _check_pixels(originals)


def _check_pixels(images: Tensor) -> None:
    """Raise ValueError unless images are (n, c, h, w), uint8 or float in [0, 1]."""
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise ValueError(f"images {tuple(images.shape)} of {images.dtype}: expected (n, c, h, w), uint8 or float")
    if images.is_floating_point() and not ((images >= 0) & (images <= 1)).all():
        raise ValueError("a pixel is NaN or outside 0 to 1")
