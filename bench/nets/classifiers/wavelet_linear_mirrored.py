"""the same features, averaged over an image and its mirror image, for photographs"""

from __future__ import annotations

from typing import ClassVar

from bench.nets.wavelet_nets import WaveletNet


class WaveletLinearMirrored(WaveletNet):
    """`WaveletNet` on the mean features of the image and its mirror image."""

    mirrored: ClassVar[bool] = True
