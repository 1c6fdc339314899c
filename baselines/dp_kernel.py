"""DP-Kernel, corrected: a generator fitted to one noisy mean of random features of five Gaussian kernels.

Reference: Jiang, Sun, Yu, "Functional Renyi Differential Privacy for Generative Modeling", NeurIPS 2023; the authors'
released code (DP-kernel) and its copy in DPImageBench.

The paper: k(x, x') = sum_j exp(-||x - x'||^2 / (2 sigma_j^2)) with sigma_j = 1, 2, 4, 8, 16 on pixels in [-1, 1], times
[y = y']. Every step draws a batch of private records, adds a Gaussian process of covariance (sigma Delta)^2 k to the
function f = (1/B) sum_i k(x_i, .), and takes a gradient step on -2 mean f~(G(z, y)) + mean k(G, G).

The authors' code is not private. It draws the noise at the generated images as a constant, so that the gradient has the
exact f: it is the private gradient times one noisy scalar (`tests/baselines/test_dp_kernel.py`, docs/findings.md). It
also evaluates f~ at the private images themselves, divides by the size of the drawn batch, and scales the covariance
by sigma Delta instead of its square. Accuracy published for this method does not depend on epsilon: DPImageBench has
94.0 % on MNIST at 1 and 93.6 % at 10.

The version here releases the function once, by random features:

1. W_j in R^(D/2 x d), entries N(0, 1 / sigma_j^2) for pixels in [-1, 1]: frequencies of the j-th kernel, drawn without
   data.
2. psi(x) = sqrt(1/5) [psi_1(x), ..., psi_5(x)], psi_j(x) = sqrt(2 / D) [cos W_j x; sin W_j x], so that
   psi(x) . psi(x') is about k(x, x') / 5. Its norm is 1, where the paper's k(x, x) is 5: the same mechanism at another
   scale.
3. mu = (1/n) sum_i psi(x_i) (x) onehot(y_i), in R^(5D x classes), of all n records.
4. mu~ = mu + (Delta / n) sigma N(0, I), once. Delta = 1, or 2 if neighbours replace a record by another one.
5. A generator G(z, y), z ~ N(0, I), y uniform, is trained by Adam on
   || mu~ - (1/B) sum_b psi(G(z_b, y_b)) (x) onehot(y_b) ||_F^2. The released function <mu~, psi(.)> is differentiated
   with its noise.
6. G is sampled with equally many images of every class, and the student is trained on the samples
   (`bench/dp_training/synthetic_data.py`).

Steps 3 to 5 are in `bench/dp_training/mean_embedding.py`, which DP-MERF and DP-NTK share.

Privacy. Step 4 is one Gaussian and the only use of the private data. Adding or removing a record moves n mu by
||psi(x)|| = 1, where n is public: multiplier sigma for Delta = 1. Replacing a record moves it by at most 2 (sqrt(2) in
the limit of exact, non-negative kernels): the claim is then multiplier sigma for one record replaced, while the ledger,
for adding or removing one, has 2 sigma. The claim is that of this release, not the paper's. The private sums are in
float64, because the angles of the narrow kernels are large. sigma is calibrated on the claim or, with `--account
accounted`, on the ledger.

Differs from the paper:
- One release of all records instead of 200,000 releases of batches of 60.
- Random features instead of the kernel and its Gaussian process; Adam instead of RMSprop.
- The generator is DP-MERF's, with batch normalisation, instead of transposed convolutions.
- Samples are drawn with the running statistics of batch normalisation, so that no image depends on its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench import validate
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.dp_training.mean_embedding import Features, MeanEmbeddingGenerator, RandomFeatures, joint_sum
from bench.dp_training.synthetic_data import QUICK, SMOKE, STUDENT_BY_ADAM
from bench.nets.generators import Shape

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""sigma_j, for pixels in [-1, 1]."""
PIXEL_RANGE = 2.0
"""Length of the paper's range of pixels over ours, [0, 1]."""


@dataclass(frozen=True)
class DpKernel(MeanEmbeddingGenerator):
    """Train a student on a generator fitted to one noisy mean of five kernels' features."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Jiang, Sun, Yu, DP-Kernel, NeurIPS 2023"
    source: ClassVar[str] = "DP-Kernel 2023, corrected to one release"
    tiers: ClassVar[Tiers] = {
        "smoke": {**SMOKE, "features": 16, "steps": 4, "batch": 16},
        "quick": {**QUICK, "features": 400, "epochs": 5, "steps": 160, "batch": 250},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        STUDENT_BY_ADAM,
        Departure(
            what="a learning rate of 1e-2, as in DP-MERF, instead of 5e-5",
            why="tier quick has 800 steps instead of 200,000",
            sets={"rate": 0.01},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"decay": "epochs>1"}

    latent: Size[int] = 10
    """Length of the latent vector z of the generator."""
    batch: Size[int] = 60
    """B, generated images per step."""
    epochs: Size[int] = 1
    """Epochs of the generator's training; the learning rate falls after each."""
    steps: Size[int] = 200_000
    """Steps of the generator per epoch."""
    rate: float = 5e-5
    """Learning rate of the generator's Adam optimiser."""
    features: Size[int] = 2000
    """D, number of random Fourier features of each of the five kernels; even."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 2, "features")
        if self.features % 2:
            raise ValueError(f"features is {self.features}; expected an even number")

    def draw_features(self, shape: Shape, dataset: str, rng: torch.Generator) -> MixedFeatures:
        """Run step 1."""
        return MixedFeatures.draw(self.features, math.prod(shape), rng)

    def played_features(self, shape: Shape) -> MixedFeatures:
        """Draw two features of each kernel."""
        return MixedFeatures.draw(2, math.prod(shape), torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class MixedFeatures(Features):
    """psi of step 2; `kernels` has psi_1 to psi_5 for pixels in [0, 1]."""

    kernels: tuple[RandomFeatures, ...]

    @classmethod
    def draw(cls, features: int, pixels: int, rng: torch.Generator) -> MixedFeatures:
        """Draw W_1 to W_5; a kernel of scale sigma_j on [-1, 1] has scale sigma_j / 2 on [0, 1]."""
        lengths = [(scale / PIXEL_RANGE) ** 2 for scale in SCALES]
        return cls(tuple(RandomFeatures.draw(features, pixels, length, rng) for length in lengths))

    def sums(self, images: Tensor, labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the sum of all classes, kernel by kernel; angles have the result's precision."""
        found = []
        for kernel in self.kernels:
            psi = RandomFeatures(kernel.frequencies.to(dtype))
            found.append(joint_sum(psi(images.to(dtype)), labels, classes))
        return torch.cat(found, 1) / math.sqrt(len(self.kernels))
