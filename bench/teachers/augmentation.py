"""Random shifts and mirroring of a teacher's training images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def augmented(images: Tensor, shift: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by random integer numbers of pixels, filled with 0, and mirror it at random if `flip`.

    Args:
        images: (n, c, h, w), any dtype and device.
        shift: offsets are uniform on -shift..shift in both directions.
        flip: mirror each image left to right with probability 1/2.
        generator: on the CPU, so that the draws do not depend on the device.
    """
    n, _, height, width = images.shape
    device = images.device
    if shift:
        offsets = torch.randint(0, 2 * shift + 1, (2, n, 1), generator=generator).to(device)
        rows = offsets[0] + torch.arange(height, device=device)
        columns = offsets[1] + torch.arange(width, device=device)
        every = torch.arange(n, device=device)[:, None, None]
        padded = F.pad(images, (shift, shift, shift, shift))
        images = padded[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
    if flip:
        mirrored = (torch.rand(n, generator=generator) < 0.5).to(device)
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    return images
