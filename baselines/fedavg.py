"""Federated averaging: clients train a common model on their own records, and their weights are averaged.

Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
Algorithm 1 (FederatedAveraging); the federation is that of Zhang et al., "DENSE", NeurIPS 2022, which DPSD's Table V
compares with. K clients; client k holds n_k of n private records.

1. w_0: a fresh network of the architecture `--student`.
2. In each of R rounds:
   a. the server sends w_t to all clients;
   b. client k trains from w_t for E epochs of SGD on its own records, which gives w_t+1^k;
   c. the server averages: w_t+1 = sum_k (n_k / n) w_t+1^k.
3. w_R is released. R = 1 is the one-shot federation of DENSE's and DPSD's tables.

Privacy. None: weights trained on the private records leave the clients and the server without noise, and the ledger
says so for one record and for one client. Keeping the records on the clients is not a protection in this sense.

Differs from the paper:
- All K = 5 clients take part in every round (C = 1), and the split is by Dirichlet shares of each class. The clients'
  optimiser is DENSE's (SGD 0.01, momentum 0.9, batches of 128, 200 epochs), not the paper's without momentum.
- DENSE's and FedDF's code weighs all clients equally: `--method.weighting uniform`.
- The paper does not speak of BatchNorm: running means and variances are averaged like weights; counters are rounded.
- The batches of an epoch are of equal length, instead of a short last one.
- The draw of the Dirichlet shares depends only on the run's seed and data: all federations of one seed, also that of
  `fed-dpsd`, have the same clients if their number, their partition and alpha are the same. An audit's canaries are
  assigned to clients by their hash and do not move other records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.privacy import Budget
from bench.teachers.federated import QUICK, SMOKE, Clients, Federation


@dataclass(frozen=True)
class FedAvg(Federation):
    """Average the clients' models; without a privacy guarantee."""

    version: ClassVar[int] = 2
    releases_images: ClassVar[bool] = False
    reference: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    tiers: ClassVar[Tiers] = {"smoke": SMOKE, "quick": QUICK}

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run Algorithm 1 on `teacher.private`; the teacher's weights are not used, and `budget` has no effect."""
        clients = Clients(self, teacher, student, ctx)
        w = clients.initial()
        with ctx.track("FedAvg: the clients train", self.rounds * clients.steps_per_round) as advance:
            for _ in range(self.rounds):
                w = clients.average([clients.update(k, w, advance) for k in range(self.clients)])
        clients.network.load_state_dict(w)
        return Release(clients.network.eval(), student, self.ledger(), claim=None)
