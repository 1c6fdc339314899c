"""DP-NTK: a generator fitted to the noisy mean of the private records' gradients in an untrained network.

Reference: Yang, Adamczewski, Li, Sutherland, Park, "Differentially Private Neural Tangent Kernels (DP-NTK) for
Privacy-Preserving Data Generation", 2023 (arXiv 2303.01687); the authors' released code.

1. F is an untrained network with random weights theta, and F(x) the sum of its 10 outputs. Grey images: dense d-800-10,
   ReLU and layer normalisation (without scale and shift) on the hidden layer. Colour images: dense d-32-256-10, ReLU on
   the first hidden layer, layer normalisation on the second.
2. phi(x) = grad_theta F(x) / ||grad_theta F(x)||, so that phi(x) . phi(x') is the normalised empirical neural tangent
   kernel. theta has 636,010 numbers for 1x28x28 pixels and 109,354 for 3x32x32.
3. mu = (1/n) sum_i phi(x_i) (x) onehot(y_i), in R^(D x classes), of all n records.
4. mu~ = mu + (Delta / n) sigma N(0, I), once. Delta = 1, or 2 if neighbours replace a record by another one.
5. A generator G(z, y), z ~ N(0, I), y uniform, is trained by Adam on
   || mu~ - (1/B) sum_b phi(G(z_b, y_b)) (x) onehot(y_b) ||_F^2.
6. G is sampled with equally many images of every class, and the student is trained on the samples
   (`bench/dp_training/synthetic_data.py`).

Closed form of step 2. Let h_0 = x, h_1, ... be the layers' inputs and b_1, b_2, ... the gradients of F in the layers'
outputs before ReLU or normalisation; the last is a vector of ones. The gradient in the weight matrix W_l is
b_l h_(l-1)^T and in its bias b_l, so that

    ||grad_theta F(x)||^2 = sum_l (||h_(l-1)||^2 + 1) ||b_l||^2.

With w_i = 1 / ||grad_theta F(x_i)||, the sum of phi over the images of one class is, layer by layer,
sum_i w_i b_l(x_i) [h_(l-1)(x_i), 1]^T: one matrix product per class and batch. No gradient of a single image is formed,
and the sum is differentiable in the images.

Steps 3 to 5 are in `bench/dp_training/mean_embedding.py`, which DP-MERF and DP-Kernel share.

Privacy. Step 4 is one Gaussian and the only use of the private data; theta is drawn without them. Adding or removing a
record moves n mu by ||phi(x)|| = 1, where n is public: multiplier sigma for Delta = 1. Replacing a record moves it by
at most 2, which is the paper's relation and its noise, 2 sigma / n: the claim is then multiplier sigma for one record
replaced, while the ledger, for adding or removing one, has 2 sigma. Claim and account are otherwise the same, exact
number. The private sums are in float64, so that a record's removal moves the others' features by rounding errors of
1e-13 only. sigma is calibrated on the claim or, with `--account accounted`, on the ledger.

Differs from the paper:
- Delta = 1 is the default, because the bench's neighbours are one record added or removed (`neighbours`).
- The authors' code adds the noise of epsilon 0.2, 1 and 10 to one tensor in place, one after another, so that its file
  for epsilon 10 also has the noise of 0.2 and 1. It also stores the mean without noise. Here each release has one draw.
- DPImageBench's copy of the method computes mu from the first batch of 5,000 of 55,000 records only; its noise is ten
  times larger relative to the signal, and its published 50.0 % on MNIST at epsilon 1 is not a figure of this algorithm.
- The learning rate is constant; the authors' code multiplies it by 0.9 after the first step and after step 1,500.
- Colour images have the generator of grey ones, instead of a residual network.
- Samples are drawn with the running statistics of batch normalisation, so that no image depends on its batch.
- A classifier on 30,000 or 100,000 samples instead of twelve on 60,000. Imbalanced data are treated as balanced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from bench import validate
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.dp_training.mean_embedding import Features, MeanEmbeddingGenerator
from bench.dp_training.synthetic_data import QUICK, SMOKE, STUDENT_BY_ADAM
from bench.nets.generators import Shape

OUTPUTS = 10
"""Outputs of the untrained network, for every number of classes."""
GREY, COLOUR = (800,), (32, 256)
"""The authors' widths of hidden layers."""
LAYER_NORM_EPSILON = 1e-5
"""Added to the variance by the layer normalisation, as by torch's default."""


@dataclass(frozen=True)
class DpNtk(MeanEmbeddingGenerator):
    """Train a student on a generator fitted to noisy mean gradients; the defaults are the authors' for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Yang et al., DP-NTK, 2023"
    source: ClassVar[str] = "DP-NTK 2023"
    tiers: ClassVar[Tiers] = {
        "smoke": {**SMOKE, "width": 8, "steps": 4, "batch": 16},
        "quick": {**QUICK, "steps": 900, "batch": 250},
    }
    departures: ClassVar[tuple[Departure, ...]] = (STUDENT_BY_ADAM,)
    only_with: ClassVar[dict[str, str]] = {"decay": "epochs>1"}

    batch: Size[int] = 5000
    """B, generated images per step."""
    epochs: Size[int] = 1
    """Epochs of the generator's training; the learning rate falls after each."""
    steps: Size[int] = 2000
    """Steps of the generator per epoch."""
    width: Size[int] = 0
    """Width of the untrained network's only hidden layer; 0 = 800 for grey images, layers of 32 and 256 for colour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 0, "width")

    def draw_features(self, shape: Shape, dataset: str, rng: torch.Generator) -> TangentFeatures:
        """Run step 1."""
        authors = GREY if shape[0] == 1 else COLOUR
        return TangentFeatures.draw(math.prod(shape), (self.width,) if self.width else authors, rng)

    def played_features(self, shape: Shape) -> TangentFeatures:
        """Draw a network with one hidden layer of three units."""
        return TangentFeatures.draw(math.prod(shape), (3,), torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class TangentFeatures(Features):
    """phi of step 2, by the closed form.

    Attributes:
        weights: of the dense layers, from the first one, each (outputs, inputs).
        biases: each (outputs,).
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    @classmethod
    def draw(cls, pixels: int, hidden: tuple[int, ...], rng: torch.Generator) -> TangentFeatures:
        """Draw theta: all numbers of a layer are uniform within 1 / sqrt(inputs), torch's default."""
        sizes = (pixels, *hidden, OUTPUTS)
        layers = [
            (torch.rand(outputs, inputs + 1, generator=rng, device=rng.device, dtype=torch.float64) * 2 - 1)
            / math.sqrt(inputs)
            for inputs, outputs in pairwise(sizes)
        ]
        return cls(tuple(layer[:, :-1] for layer in layers), tuple(layer[:, -1] for layer in layers))

    def sums(self, images: Tensor, labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the sum of phi over the images of every class, one matrix product per class and layer."""
        inputs, slopes = self.layers(_sorted(images, labels).to(dtype))
        sizes = labels.bincount(minlength=classes).tolist()
        columns = []
        for h, b in zip(inputs, slopes, strict=True):
            of_class = list(zip(h.split(sizes), b.split(sizes), strict=True))
            columns += [torch.stack([(b.T @ h).flatten() for h, b in of_class])]
            columns += [torch.stack([b.sum(0) for _, b in of_class])]
        return torch.cat(columns, 1)

    def distance(self, target: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the squared distance without the sum of the images' features, which has D numbers per class.

        ||mu~||^2 - 2 <mu~, M> + ||M||^2, where ||M||^2 is a sum of B^2 values of the kernel
        phi(x) . phi(x') = sum_l (h_(l-1) . h'_(l-1) + 1) (b_l . b'_l).
        """
        inputs, slopes = self.layers(_sorted(images, labels))
        sizes, count = labels.bincount(minlength=len(target)).tolist(), len(images)
        places = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(labels.device)
        kernels, along, start = [], [], 0
        for h, b in zip(inputs, slopes, strict=True):
            kernels.append((h @ h.T + 1) * (b @ b.T))
            middle, stop = start + b.shape[1] * h.shape[1], start + b.shape[1] * (h.shape[1] + 1)
            weights = target[:, start:middle].view(-1, b.shape[1], h.shape[1])
            mapped = [part @ weight.T for part, weight in zip(h.split(sizes), weights, strict=True)]
            along.append(((torch.cat(mapped) + target[places, middle:stop]) * b).sum())
            start = stop
        kernel = torch.stack(kernels).sum(0) * (places[:, None] == places)
        return target.square().sum() - 2 * torch.stack(along).sum() / count + kernel.sum() / count**2

    def layers(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return h_0, h_1, ... and w b_1, w b_2, ..., each (n, width), for (n, d) pixels."""
        weights = [weight.to(x) for weight in self.weights]
        first = torch.addmm(self.biases[0].to(x), x, weights[0].T)
        inputs, last = [x], first.relu()
        if len(weights) > 2:
            inputs.append(last)
            last = torch.addmm(self.biases[1].to(x), last, weights[1].T)
        spread = (last.var(1, unbiased=False, keepdim=True) + LAYER_NORM_EPSILON).sqrt()
        normalised = (last - last.mean(1, keepdim=True)) / spread
        inputs.append(normalised)

        top = weights[-1].sum(0)
        slopes = [torch.ones(len(x), OUTPUTS, dtype=x.dtype, device=x.device)]
        back = (top - top.mean() - normalised * (normalised * top).mean(1, keepdim=True)) / spread
        if len(weights) > 2:
            slopes.insert(0, back)
            back = back @ weights[1]
        slopes.insert(0, back * (first > 0))
        squares = [(h.square().sum(1) + 1) * b.square().sum(1) for h, b in zip(inputs, slopes, strict=True)]
        w = torch.stack(squares).sum(0).rsqrt()[:, None]
        return inputs, [w * b for b in slopes]


def _sorted(images: Tensor, labels: Tensor) -> Tensor:
    """Return the (n, d) pixels of the images in the order of their labels."""
    return images.flatten(1).index_select(0, labels.argsort(stable=True))
