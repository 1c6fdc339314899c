"""FedDPSD: DPSD with the teachers of m clients, which send neither models nor data, as its paper prints it.

Liu et al., "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation", section III-D.1
and Algorithm 2 (appendix D). The clients' data are a Dirichlet partition of the private data (section IV-E: five
clients, alpha 0.5). The partition simulates ownership and is not part of the mechanism. The clients' networks may
differ.

Privacy. Each private record belongs to one client, and all data of a client train one teacher, so the units `example`
and `client` have the same epsilon. In data mode every queried image is a Gaussian mechanism of multiplier sigma / 2, in
label mode a randomised response. If every client adds the noise itself (`noise_by client`), this also protects against
the server; the released student then has sqrt(m) times the noise, which the ledger does not count. Noise at the server
(as printed) protects only against readers of the student, although the paper claims privacy with an untrusted server.
In label mode each client randomises its own response. The claims are DPSD's theorems for one teacher, of unit `query`.

Differs from the paper:
- Line 9 writes the student's weights for the client's teacher; line 26 has a norm without index, and e for the
  stability constant h. The gradient has no top-k here, unlike DPSD's Eq. 3.
- Line 14 does not say how averaged gradients become labels; as in DPSD, y = Phi_s(x) - gamma_s g~. Its noise is one
  draw per image.
- The updates follow Algorithm 2 as DPSD's do: new vectors z, cross-entropy, L_S + L_G for the generator, with the signs
  and the batch mean for which the text argues.
- Algorithm 2 uses the settings of two other papers (DENSE and FastDFKD) and does not print them; the defaults of the
  distillation are DPSD's. The clients' networks (resnet18) and training (3000 steps) are ours; each client has its own
  random initial weights. A client that has its equal share of all records gets no more, as in DENSE.
- The claim is Theorem 1's epsilon for one teacher, or in label mode Theorem 2's for one response. Another synthetic
  image changes the responses of all m clients, which the ledger's unit `query` counts.
- y is held constant in the generator's step, which uses the updated student, in evaluation mode.
- The student has no dropout while it learns from data mode's targets, which are a step of gamma_s beta from its output.
- Table V does not name its mode; both are implemented.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Sampler, Shards, Teacher, gaussian_latents
from bench.config import Size, Solved
from bench.distillation.distinguishing_games import Step, client_game, response_game
from bench.distillation.losses import activation_loss, balance_loss, confidence_loss, dkd_loss, gradient_at_output
from bench.distillation.noisy_labels import (
    AnnotationMechanism,
    AnnotationParameters,
    calibrate,
    check_candidates,
    paper_beta,
    paper_k,
)
from bench.distillation.training import descend, train_without_dropout
from bench.nets import Ensemble
from bench.nets.generators import UpsampleGenerator
from bench.nets.small_net import xavier
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import gaussian_rows, normalise_rows, randomised_response
from bench.privacy.noise import Source
from bench.validate import at_least, positive

NoiseBy = Literal["server", "client"]
"""Who adds the noise: the server once, or every client."""
LAMBDA, H = 8.0, 1e-4
"""DPSD's weight of Eq. 2's non-target part, and stability constant of Eq. 3."""
LATENT, WIDTH = 100, 32
"""Length of z, and channels of the generator's last hidden map; the paper prints neither."""
CLIENT_BATCH, CLIENT_RATE = 128, 2e-3
"""Batch size and initial learning rate of a client's teacher; the paper prints neither."""
N_SYNTHETIC = 60
"""Number of synthetic images that a release contains."""


@dataclass(frozen=True)
class FedDpsd:
    """Options of FedDPSD, Algorithm 2; defaults as in sections IV-A and IV-E, except for the clients' training."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., FedDPSD, arXiv 2601.19090, Algorithm 2"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_ensemble"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"iterations": 3, "batch": 16, "clients": 2, "client_nets": "shard-cnn", "client_steps": 4},
        "quick": {"client_nets": "shard-cnn", "client_steps": 600},
    }
    only_with: ClassVar[dict[str, str]] = {"noise_by": "mode=data", "k": "mode=label", "beta": "mode=data"}

    mode: Literal["data", "label"] = "data"
    """Responses of the clients, the switch s: noisy gradients (data) or randomised classes (label)."""
    clients: Size[int] = 5
    """m, number of clients."""
    alpha: float = 0.5
    """Concentration of the Dirichlet distribution of each class over the clients; 1e6 = equal shares (IID)."""
    client_nets: Size[str] = "resnet18"
    """Networks of the clients' teachers, separated by commas; with several, they alternate."""
    client_steps: Size[int] = 3000
    """Training steps of a client's teacher."""
    noise_by: NoiseBy = "server"
    """Data mode: add noise once at the server (as printed), or at every client."""
    iterations: Size[int] = 200
    """T, number of iterations."""
    batch: Size[int] = 256
    """b, number of synthetic images per iteration."""
    k: int = 0
    """k, candidates of a randomised response; 0 = the paper's for the data set (3 for MNIST, FMNIST, CIFAR10)."""
    beta: float = 0.0
    """beta, bound on the norm of a gradient; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    sigma: Solved[float] = 100.0
    """sigma, the noise's standard deviation divided by beta; solved from the budget unless --solve steps or --epsilon
    none."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one randomised response; solved from the budget unless --solve steps or --epsilon none."""
    gamma_s: float = 0.1
    """Learning rate of the student, and step from its output to its target along the noisy mean gradient (line 14)."""
    gamma_g: float = 0.01
    """Learning rate of the generator."""

    def __post_init__(self) -> None:
        at_least(self, 1, "clients", "client_steps", "iterations", "batch")
        at_least(self, 0, "k", "beta", "sigma")
        positive(self, "alpha", "answer_epsilon", "gamma_s", "gamma_g")

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Describe the clients' teachers."""
        return client_shards(self.clients, self.client_nets, self.alpha, self.client_steps)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T can meet, before anything is trained."""
        self.parameters(budget, dataset, classes)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build Phi_g, for Gaussian z."""
        return Sampler(UpsampleGenerator(shape, LATENT, WIDTH), gaussian_latents(LATENT))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run Algorithm 2. Only `_annotate` queries the clients."""
        clients, parameters = teacher.members(), self.parameters(budget, teacher.dataset, teacher.classes)
        # The stream names determine the published students; do not rename them
        noise, rng = ctx.privacy_noise("fed-dpsd"), ctx.generator("transcription")
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        phi_g = ctx.prepared(xavier(self.sampler(teacher.shape, teacher.classes, teacher.dataset).generator))
        step_s = torch.optim.Adam(phi_s.parameters(), lr=self.gamma_s)
        step_g = torch.optim.Adam(phi_g.parameters(), lr=self.gamma_g)
        call_s = ctx.compiled(phi_s)

        with ctx.track(f"FedDPSD {self.mode} mode: converting", parameters.iterations) as advance:
            for _ in range(parameters.iterations):  # 1
                # 3-4: the server samples vectors z and generates the images x
                z = torch.randn(self.batch, LATENT, generator=rng, device=ctx.device)
                with torch.no_grad():
                    x = phi_g(z)

                # 5-14: the clients' responses O_j, and labels of their mean; nothing else leaves a client
                y = self._annotate(x, phi_s.eval(), clients, parameters, noise)

                # 15-16: the student descends L_S
                phi_s.train()
                if self.mode == "data":  # y is one small step from the output; dropout would hide it
                    train_without_dropout(phi_s)
                with ctx.precision():
                    l_s = F.cross_entropy(call_s(x).float(), y)
                descend(step_s, l_s)

                # 17-18: the generator descends L_S + L_G; the student is fixed
                phi_s.eval().requires_grad_(False)
                with ctx.precision():
                    x = phi_g(z)
                    l_g = _generator_loss(phi_s, x)
                    l_s = F.cross_entropy(call_s(x).float(), y)
                descend(step_g, l_g + l_s)
                phi_s.requires_grad_(True)
                advance(1)

        mechanism = self._mechanism(teacher.classes)
        with torch.no_grad():
            synthetic = phi_g(torch.randn(self.batch, LATENT, generator=rng, device=ctx.device))[:N_SYNTHETIC]
        return Release(
            student=phi_s.eval(),
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            generator=phi_g,
            synthetic=synthetic,
            solved=parameters.solved(self.mode),
        )

    @torch.no_grad()
    def _annotate(
        self, x: Tensor, phi_s: nn.Module, clients: Ensemble, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """Lines 5 to 14: return (b, c) labels, the only use of the clients' responses."""
        ours, theirs = phi_s(x), clients(x)
        answers = torch.stack([self._fed_flexper(ours, each, parameters, noise) for each in theirs])
        if self.mode == "label":
            return answers.mean(0)
        return ours.softmax(1) - self.gamma_s * noisy_mean(answers, parameters, self.noise_by, noise)

    def _fed_flexper(self, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
        """Lines 21 to 35: return (b, c) responses O_j of one client."""
        if self.mode == "data":
            return _bounded_gradient(ours, theirs, parameters.beta)  # 23-27
        responses = _responses(ours, theirs, parameters, noise)  # 29-33
        return F.one_hot(responses, ours.shape[1]).float()

    def parameters(self, budget: Budget, dataset: str, classes: int) -> AnnotationParameters:
        """Return k, beta, and sigma (or the epsilon of one response, or T) calibrated to the budget."""
        fields = AnnotationParameters(
            k=check_candidates(self.k or paper_k(dataset, classes), dataset, classes),
            beta=self.beta or paper_beta(dataset, budget.epsilon),
            sigma=self.sigma,
            answer_epsilon=self.answer_epsilon,
            iterations=self.iterations,
        )
        return calibrate(self._mechanism(classes), fields, budget)

    def _mechanism(self, classes: int) -> AnnotationMechanism:
        return AnnotationMechanism(self.mode, self.batch, classes, clients=self.clients)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: one client's response to one image, of the two teachers that differ most."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)

        def step(x: Tensor, phi_s: nn.Module, clients: Any, noise: Source) -> Tensor:
            return self._annotate(x, phi_s, clients, parameters, noise)

        return federated_game(step, mechanism, parameters, budget.delta, self.noise_by)


def _bounded_gradient(ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
    """Lines 23 to 27: return (b, c) gradients of norm at most beta."""
    return normalise_rows(gradient_at_output(partial(dkd_loss, weight=LAMBDA), ours, theirs), bound, H)


def _responses(ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
    """Lines 29 to 33: return (b,) randomised responses over the student's k most probable classes."""
    return randomised_response(theirs.argmax(1), ours.topk(parameters.k, 1).indices, parameters.answer_epsilon, noise)


def _generator_loss(phi_s: Any, x: Tensor) -> Tensor:
    """Return L_G: DPSD's Eq. 8 with the signs and the batch mean for which its text argues."""
    logits = phi_s(x).float()
    terms = confidence_loss(logits) + balance_loss(logits, per_sample=False)
    return terms + activation_loss(phi_s.features(x).float(), up=True)


# Used by both variants


def client_shards(clients: int, nets: str, alpha: float, steps: int) -> Shards:
    """Describe the clients' teachers, on Dirichlet shares of the private data.

    As in DENSE, a client that already has its equal share of all records gets no records of further classes.

    Args:
        nets: network names, separated by commas; the clients use them in turn.
        alpha: concentration of the Dirichlet distribution, > 0.
        steps: training steps of each teacher.
    """
    archs = tuple(name.strip() for name in nets.split(","))
    return Shards(clients, archs, "dirichlet-balanced", alpha, steps, CLIENT_BATCH, CLIENT_RATE)


def noisy_mean(rows: Tensor, parameters: AnnotationParameters, by: NoiseBy, noise: Source) -> Tensor:
    """Line 14: return (sum_j g_j + N(0, sigma^2 beta^2)) / m, or with noise on every g_j; (b, c) float32.

    Args:
        rows: (m, b, c), the clients' gradients of norm at most beta.
    """
    std = parameters.sigma * parameters.beta
    if by == "client":
        total = gaussian_rows(rows.flatten(0, 1), std, noise).view_as(rows).double().sum(0)
    else:
        total = gaussian_rows(rows.double().sum(0), std, noise)
    return (total / len(rows)).float()


def sigma_of_mean(sigma: float, clients: int, by: NoiseBy) -> float:
    """Return the standard deviation of the noise of `noisy_mean`, divided by beta."""
    return sigma * (clients**0.5 if by == "client" else 1.0) / clients


def federated_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, by: NoiseBy
) -> DistinguishingGame:
    """Build the audit's game: one client's response to one image, of the two teachers that differ most.

    A second client, if any, responds the same in both worlds. Label mode tries one client and two clients. Data mode
    has two clients, or one if every client adds its own noise, because only its own noise protects it.
    """
    if mechanism.mode == "label":
        return response_game(step, replace(mechanism, clients=1), parameters, delta, clients=(1, 2))
    return client_game(step, mechanism, parameters, delta, clients=1 if by == "client" else 2)
