"""A single DP-SGD gradient of any network and any per-record loss, for private critics and gradient matching.

`dp_sgd.py` trains a classifier by DP-SGD. Every call here is one Poisson-sampled Gaussian of multiplier z, for one
added or removed record: (sum over the sampled records of clip(g_i, C) + N(0, z^2 C^2)) / (q n), divided by the expected
batch size for any sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.dp_training.clipping import MOST_CHUNK, add_clipped, clipping_groups, noisy_mean, poisson_sample
from bench.dp_training.exact_products import exact_products
from bench.privacy.noise import Source

Parameters = dict[str, Tensor]
RecordLoss = Callable[..., Tensor]
"""Loss of one record: (parameters, *data of the record) -> scalar; it calls the network by
torch.func.functional_call."""


@dataclass(frozen=True)
class PrivateGradient:
    """The mechanism of one private gradient; its randomness must come from the context's privacy noise.

    Attributes:
        sampling: q in (0, 1].
        multiplier: z >= 0; 0 = no noise.
        clip: C > 0, the bound on the norm of one record's gradient over all parameters jointly.
        chunk: records whose gradients are in memory at once, at most 256.
    """

    sampling: float
    multiplier: float
    clip: float
    chunk: int = MOST_CHUNK

    def sample(self, records: int, source: Source) -> Tensor:
        """Draw the (m,) int64 record indices of a step; m is binomial and may be 0."""
        return poisson_sample(records, self.sampling, source)

    def __call__(
        self,
        parameters: Parameters,
        loss: RecordLoss,
        rows: tuple[Tensor, ...],
        records: int,
        source: Source,
    ) -> Parameters:
        """Return {parameter name: noisy mean gradient}.

        Args:
            parameters: {name: tensor} of the network; the gradient is with respect to these.
            loss: loss of one record i, called as loss(parameters, *(row[i] for row in rows)).
            rows: tensors (m, ...), one row for each record of `sample`; m = 0 returns noise only.
            records: n, total number of private records.
            source: source of the noise.
        """
        plain = {name: value.detach() for name, value in parameters.items()}
        groups = clipping_groups(list(plain), self.clip)
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in plain.items()}
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *(0 for _ in rows)), randomness="different")
        batch = len(rows[0])
        for start in range(0, batch, self.chunk):
            with exact_products(rows[0].device):
                found = each(plain, *(row[start : start + self.chunk] for row in rows))
            add_clipped(total, found, groups, batch)
        return self.released(total, plain, records, source)

    def released(self, total: Parameters, like: Mapping[str, Tensor], records: int, source: Source) -> Parameters:
        """Return the noisy mean of the given clipped sum `total`, in the dtypes of `like`."""
        groups = clipping_groups(list(like), self.clip)
        return noisy_mean(total, groups, self.multiplier, self.sampling * records, source, like)


def assign(network: nn.Module, gradients: Parameters) -> None:
    """Set the `.grad` of the network's parameters for the optimiser."""
    for name, parameter in network.named_parameters():
        parameter.grad = gradients[name]
