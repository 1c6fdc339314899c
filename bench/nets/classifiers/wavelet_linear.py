"""a linear layer on finer scattering features, 81 maps a channel, normalised image by image"""

from __future__ import annotations

from bench.nets.wavelet_nets import WaveletNet


class WaveletLinear(WaveletNet):
    """`WaveletNet` on the image without mirroring."""
