"""One run on several devices: the run itself leads, a helper process on each further device computes its share.

The leader alone keeps weights, optimiser, data, sample and noise. A helper is given weights and its share of a batch,
and gives back what it made of them: nothing has to be kept alike in several places, and no helper can add noise.
"""

from __future__ import annotations

from bench.ranks.exchange import flat, owned, shares, unflat
from bench.ranks.helper import Link
from bench.ranks.leader import Ranks
from bench.ranks.whole_batch import WholeBatchStatistics

__all__ = ["Link", "Ranks", "WholeBatchStatistics", "flat", "owned", "shares", "unflat"]
