"""Shared code of the federated baselines: simulated clients, their local training, and the server's aggregation.

K clients have disjoint parts P_k of the private split, of n_k records. A model is its `state_dict`, denoted w.

ClientUpdate(k, w): E epochs of SGD with momentum on P_k from w, by cross-entropy, in batches of at most B.
Average: sum_k p_k w_k, p_k = n_k / n or 1 / K; BatchNorm statistics are averaged like weights.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn

from bench import nets, validate
from bench.api import Advance, Context, Release, Teacher
from bench.config import Size
from bench.data import to_float
from bench.data.partition import with_guests
from bench.errors import BadOption, RunFailed
from bench.nets import Classifier
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.budget import refuse_finite_budget
from bench.seeds import derive

UNITS = (Unit.EXAMPLE, Unit.CLIENT)
FEWEST_RECORDS = 2
AT_ONCE = 500
"""Number of images per forward pass of an ensemble."""
SMOKE: dict[str, int] = {"clients": 2, "local_epochs": 2, "local_batch": 16}
QUICK: dict[str, int] = {"local_epochs": 40, "local_limit": 300}
"""Settings of tier quick, for two CPU cores."""

State = dict[str, Tensor]
EnsembleMean = Literal["logits", "probabilities"]
"""Output of an ensemble: the mean of the clients' logits, or of their probabilities."""


@dataclass(frozen=True)
class Federation:
    """Options of a federation's clients and rounds, with DENSE's settings; without any privacy guarantee."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    unit: ClassVar[str] = str(Unit.NONE)
    only_with: ClassVar[dict[str, str]] = {"alpha": "partition=dirichlet-balanced|dirichlet", "weighting": "clients>1"}

    clients: Size[int] = 5
    """K, clients; all take part in every round."""
    partition: Literal["dirichlet-balanced", "dirichlet", "hash"] = "dirichlet-balanced"
    """How the records are divided among the clients: each class by Dirichlet shares, where a client that has its equal
    share of all records gets no more (dirichlet-balanced, as in DENSE) or without that limit (dirichlet); or by the
    hash of the pixels, which gives all clients the same distribution (hash)."""
    alpha: float = 0.5
    """Concentration of the Dirichlet shares of the clients in each class; 1e6 = equal shares (IID)."""
    rounds: Size[int] = 1
    """Rounds of local training and averaging; 1 = one-shot."""
    local_epochs: Size[int] = 200
    """E, passes of a client over its records in a round."""
    local_limit: Size[int] = 0
    """Steps after which a client's round ends even if passes remain; 0 = no limit."""
    local_batch: Size[int] = 128
    """B, largest number of images per client step, at least 2; one more where a batch would have a single image."""
    local_lr: float = 0.01
    """eta, learning rate of the clients' SGD."""
    local_momentum: float = 0.9
    """Momentum of the clients' SGD; its velocity starts at 0 in every round."""
    weighting: Literal["size", "uniform"] = "size"
    """Weight of a client's model in the average: n_k / n, or 1 / K."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "clients", "rounds", "local_epochs")
        validate.at_least(self, 2, "local_batch")
        validate.at_least(self, 0, "local_limit", "local_momentum")
        validate.below(self, 1, "local_momentum")
        validate.positive(self, "alpha", "local_lr")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse to account a finite epsilon; any claimed epsilon is accepted, because there is no guarantee."""
        refuse_finite_budget(budget, UNITS, "the clients' models are trained and released without noise")

    def ledger(self) -> Ledger:
        """Return the ledger of an unprotected use, for one record and for one client; its epsilon is infinite."""
        ledger = Ledger()
        for unit in UNITS:
            ledger.spend(NonPrivateDpEvent(), unit=unit, why="models trained on the private records, without noise")
        return ledger


class Clients:
    """The clients of one federation, and the networks that they and the server load their weights into.

    Args:
        archs: networks of the clients, assigned cyclically; empty = all have the student's.

    Attributes:
        network: of the student's architecture, on the context's device, with the weights of its most recent user.
        own: per client, its network; `network` for all of them if `archs` is empty.
        w0: per client, the initial weights of its network.
        parts: per client, (n_k, c, h, w) uint8 images and (n_k,) int64 labels on the context's device.
        shares: (K,) float64, p_k.
        steps: per client, steps in a round.

    Raises:
        BenchError: an unknown network, or a client with fewer than 2 records.
    """

    def __init__(
        self, settings: Federation, teacher: Teacher, student: str, ctx: Context, archs: Sequence[str] = ()
    ) -> None:
        self.settings, self.ctx = settings, ctx
        self.student, self.shape, self.classes = student, teacher.shape, teacher.classes
        self.dataset = teacher.dataset
        self.rng = ctx.generator("clients")
        self.network: Classifier = self.fresh()
        self.call = ctx.compiled(self.network)
        self.own = [self.fresh(name) for name in islice(cycle(archs), settings.clients)]
        self.own = self.own or [self.network] * settings.clients
        self.w0 = [snapshot(network) for network in self.own] if archs else [snapshot(self.network)] * settings.clients
        if teacher.private is None:
            raise RuntimeError('the clients need the private images; the method\'s `needs` must name "private_data"')
        images, labels = teacher.private
        drawn = settings.clients, settings.partition, settings.alpha, ctx.clients_seed
        rows = [torch.from_numpy(part) for part in with_guests(images, labels, teacher.guests, *drawn)]
        sizes = [len(part) for part in rows]
        if min(sizes) < FEWEST_RECORDS:
            raise BadOption(
                f"--method.clients {settings.clients}: one would have {min(sizes)} of {len(labels)} private records, "
                f"expected at least {FEWEST_RECORDS}; use fewer clients"
            )
        self.parts = [(images[part].to(ctx.device), labels[part].to(ctx.device)) for part in rows]
        weights = torch.tensor(sizes if settings.weighting == "size" else [1] * len(sizes), dtype=torch.float64)
        self.shares = (weights / weights.sum()).to(ctx.device)
        self.steps = []
        for size in sizes:
            steps = settings.local_epochs * batches(size, settings.local_batch)
            self.steps.append(min(steps, settings.local_limit or steps))

    @property
    def steps_per_round(self) -> int:
        """Return the steps of all clients together in a round."""
        return sum(self.steps)

    def with_weights(self, w: State, k: int | None = None) -> Classifier:
        """Return a network with these weights: client k's, or one of the student's architecture."""
        made = copy.deepcopy(self.network if k is None else self.own[k])
        made.load_state_dict(w)
        return made

    def fresh(self, arch: str = "") -> Classifier:
        """Build an untrained network of the architecture `arch`, or of the student's if it is empty."""
        return self.ctx.prepared(nets.build(arch or self.student, self.shape, self.classes))

    def initial(self, k: int = 0) -> State:
        """Return w_0, the initial weights of client k; equal for all clients if they have one architecture."""
        return self.w0[k]

    def update(self, k: int, w: State, advance: Advance) -> State:
        """Run ClientUpdate(k, w): train client k from w and return its weights.

        Raises RunFailed if training diverged.
        """
        s, (images, labels) = self.settings, self.parts[k]
        network = self.own[k]
        call = self.call if network is self.network else self.ctx.compiled(network)
        network.load_state_dict(w)
        network.train()
        optimizer = torch.optim.SGD(network.parameters(), lr=s.local_lr, momentum=s.local_momentum)
        # Every pass is reshuffled and cut into batches of nearly equal size.
        passes = (
            torch.randperm(len(labels), generator=self.rng, device=self.ctx.device).tensor_split(
                batches(len(labels), s.local_batch)
            )
            for _ in range(s.local_epochs)
        )
        for chosen in islice(chain.from_iterable(passes), self.steps[k]):
            with self.ctx.precision():
                logits = call(to_float(images[chosen]))
            loss = F.cross_entropy(logits.float(), labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            advance(1)
        found = snapshot(network)
        require_finite(found, "a client's training diverged; lower --method.local_lr")
        return found

    def average(self, models: Sequence[State]) -> State:
        """Return sum_k p_k w_k, for clients of one architecture."""
        return weighted_mean(models, self.shares)


class ClientEnsemble(nn.Module):
    """The ensemble of the clients' models, frozen and in evaluation mode; its output is their mean.

    Args:
        clients: provides the networks.
        models: the trained weights of each client.
        mean: of logits or of probabilities (`EnsembleMean`).

    Attributes:
        members: the models.
        classes: number of classes.
        dataset: its name; no other property of the data set is available here.
    """

    def __init__(self, clients: Clients, models: Sequence[State], mean: EnsembleMean = "logits") -> None:
        super().__init__()
        self.mean = mean
        self.members = nn.ModuleList(clients.with_weights(w, k) for k, w in enumerate(models))
        self.classes, self.dataset = clients.classes, clients.dataset
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, classes): 1/K sum_k f_k(x), or log 1/K sum_k softmax(f_k(x)), which can be used like logits."""
        f = torch.stack([member(x).float() for member in self.members])
        return f.mean(0) if self.mean == "logits" else f.log_softmax(2).logsumexp(0) - math.log(len(f))

    @torch.no_grad()
    def responses(self, images: Tensor, ctx: Context) -> Tensor:
        """Return (n, classes) float32 outputs for (n, c, h, w) uint8 images on the context's device."""
        with ctx.precision():
            return torch.cat([self(to_float(part)) for part in images.split(AT_ONCE)])


@dataclass(frozen=True)
class ServerDistillation(Federation, ABC):
    """Options of a federation whose server generates images and distils the clients' ensemble on them."""

    only_with: ClassVar[dict[str, str]] = {"weighting": "start=average clients>1", "momentum": "optimizer=sgd"}

    client_nets: Size[str] = "same"
    """Networks of the clients, with names as for --teacher, separated by commas and assigned cyclically; this needs
    rounds 1. same = all clients have the student's network and start from the same weights."""
    start: Literal["fresh", "average"] = "fresh"
    """The student starts as a fresh network, or as the average of the clients' models."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimiser of the student."""
    lr: float = 0.01
    """Learning rate of the student."""
    momentum: float = 0.9
    """Momentum of the student's SGD."""
    temperature: float = 20.0
    """T, temperature of the distillation."""
    mean: EnsembleMean = "logits"
    """D(x), the ensemble's output: the mean of the clients' logits, or the logarithm of their mean probabilities."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 0, "momentum")
        validate.below(self, 1, "momentum")
        validate.positive(self, "lr", "temperature")
        if self.archs() and (self.start != "fresh" or self.rounds > 1):
            raise BadOption(
                f"--method.client_nets {self.client_nets}: models of several architectures have no average, and none "
                "can go on from the student; give --method.start fresh --method.rounds 1"
            )

    def archs(self) -> tuple[str, ...]:
        """Return the clients' network names, assigned cyclically; empty if they have the student's."""
        return () if self.client_nets == "same" else tuple(name.strip() for name in self.client_nets.split(","))

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse to account a finite epsilon, and unknown networks of clients."""
        super().check(budget, dataset, classes)
        for name in self.archs():
            nets.check(name)

    def student_optimizer(self, student: Classifier) -> torch.optim.Optimizer:
        """Build the student's optimiser from the options."""
        if self.optimizer == "adam":
            return torch.optim.Adam(student.parameters(), lr=self.lr)
        return torch.optim.SGD(student.parameters(), lr=self.lr, momentum=self.momentum)

    def learn(
        self, teacher: ClientEnsemble, student: Classifier, optimizer: torch.optim.Optimizer, x: Tensor, ctx: Context
    ) -> None:
        """Take one student step on the batch mean of T^2 KL(softmax(D(x) / T) || softmax(f_S(x) / T))."""
        student.train()
        with ctx.precision():
            with torch.no_grad():
                t = teacher(x)
            s = student(x).float()
        log_p, log_q = (t / self.temperature).log_softmax(1), (s / self.temperature).log_softmax(1)
        loss = self.temperature**2 * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    @abstractmethod
    def server_steps(self) -> int:
        """Return the server's steps in a round, for the progress bar."""

    @abstractmethod
    def distil(
        self, teacher: ClientEnsemble, student: Classifier, shape: tuple[int, int, int], ctx: Context, advance: Advance
    ) -> Tensor:
        """Train `student` in place, and return some of its training images, in [0, 1]."""

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run `rounds` rounds of local training and distillation; the undefended teacher and `budget` are not used."""
        clients = Clients(self, teacher, student, ctx, self.archs())
        starts = [clients.initial(k) for k in range(self.clients)]
        with ctx.track("federation", self.rounds * (clients.steps_per_round + self.server_steps())) as advance:
            for number in range(self.rounds):
                models = [clients.update(k, w, advance) for k, w in enumerate(starts)]
                averaged = self.start == "average"
                network = clients.with_weights(clients.average(models)) if averaged else clients.fresh()
                # A separate seed per round: otherwise every round would draw the same images as the first.
                here = replace(ctx, seed=derive(ctx.seed, "round", number)) if number else ctx
                images = self.distil(ClientEnsemble(clients, models, self.mean), network, teacher.shape, here, advance)
                starts = [snapshot(network)] * self.clients
                require_finite(starts[0], "the distillation diverged; lower the student's learning rate")
        return Release(network.eval(), student, self.ledger(), claim=None, synthetic=images)


def batches(size: int, most: int) -> int:
    """Return the number of batches in a pass over `size` records: of at most `most`, or one more to avoid a single one.

    >>> [batches(size, 2) for size in (2, 3, 4, 5)], batches(129, 128)
    ([1, 1, 2, 2], 2)
    """
    return min(-(-size // most), size // 2)


def snapshot(network: Classifier) -> State:
    """Return a copy of all parameters and buffers."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def weighted_mean(models: Sequence[State], shares: Tensor) -> State:
    """Return sum_k p_k w_k per entry, computed in float64; integers (BatchNorm's counters) are rounded to integers.

    Args:
        models: K states with the same names and shapes.
        shares: (K,) float64 with sum 1, on their device.
    """
    mean: State = {}
    for name, first in models[0].items():
        value = torch.tensordot(shares, torch.stack([model[name] for model in models]).double(), dims=1)
        mean[name] = (value if first.is_floating_point() else value.round()).to(first.dtype)
    return mean


def require_finite(w: State, why: str) -> None:
    """Raise RunFailed with `why` if a value of the state is NaN or infinite."""
    if not all(bool(value.isfinite().all()) for value in w.values()):
        raise RunFailed(why)
