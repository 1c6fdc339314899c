"""FedDPSD: DPSD with the teachers of m clients, none of whom sends model or data, as its paper prints it.

Liu et al., "Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation", section III-D.1
and Algorithm 2 (appendix D). The clients' data come from a Dirichlet partition of the private split (section IV-E: five
clients, alpha 0.5), which simulates who owns what and is no part of the mechanism; their networks may differ.

Privacy. A private record lies with one client, and all data of a client stand behind one teacher, so that units
`example` and `client` cost the same: in data mode every answered image is a Gaussian mechanism of multiplier sigma / 2,
in label mode a randomised response. Where every client adds the noise itself (`noise_by client`), this holds against
the server too; the released student then carries sqrt(m) times the noise, which the ledger does not count. Noise at the
server (as printed) protects the student's readers only; the paper claims privacy with an untrusted server. In label
mode each client randomises its own answer. The claims are DPSD's theorems, stated for one teacher, of unit `query`.

Differs from the paper:
- Line 9 writes the student's weights for the client's teacher, line 26 a norm without index and e for the stability
  constant h; the gradient has no top-k here, unlike DPSD's Eq. 3.
- Line 14 makes the averaged gradients labels without saying how; as in DPSD, y = Phi_s(x) - gamma_s g~. Its noise is
  one draw for each image.
- The updates follow Algorithm 2 as DPSD's do: fresh vectors z, cross-entropy, L_S + L_G for the generator, with the
  signs and the batch mean that the text argues for.
- Algorithm 2's settings are those of two other papers (DENSE and FastDFKD) that it does not print; the defaults of the
  distillation are DPSD's. The clients' networks (resnet18) and how they train (3000 steps) are ours: they start from
  their own random weights. A client that has its equal share of all records gets no more, as in DENSE.
- The claim is Theorem 1's number for one teacher, or in label mode Theorem 2's for one response; another synthetic
  image moves the answers of all m clients, which the ledger's unit `query` counts.
- y is held constant in the generator's step, which sees the updated student, in evaluation mode.
- The student has no dropout while it learns from data mode's targets, which lie a step of gamma_s beta from its output.
- Table V does not say which mode it used; both are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import nets
from bench.api import Context, Release, Sampler, Shards, Teacher, gaussian_latents
from bench.config import Size, Solved
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
from bench.privacy.mechanisms import normalise_rows, randomised_response
from bench.privacy.noise import Source
from bench.validate import at_least, positive
from methods.fed_dpsd.clients import NoiseBy, federated_game, noisy_mean, shards

LAMBDA, H = 8.0, 1e-4
"""DPSD's: weight of Eq. 2's non-target part, and stability constant of Eq. 3."""
LATENT, WIDTH = 100, 32
"""Length of a vector z, and channels of the generator's last hidden map; the paper prints neither."""


@dataclass(frozen=True)
class FedDpsd:
    """Algorithm 2; the defaults are those of sections IV-A and IV-E, the clients' training ours."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Liu et al., FedDPSD, arXiv 2601.19090, Algorithm 2"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher_ensemble"})
    unit: ClassVar[str] = str(Unit.QUERY)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"iterations": 3, "batch": 16, "clients": 2, "client_nets": "shard-cnn", "client_steps": 4},
        "quick": {"client_nets": "shard-cnn", "client_steps": 600},
    }
    only_with: ClassVar[dict[str, str]] = {"noise_by": "mode=data", "k": "mode=label", "beta": "mode=data"}

    mode: Literal["data", "label"] = "data"
    """The switch s: noisy gradients (data), or randomised responses (label)."""
    clients: Size[int] = 5
    """m."""
    alpha: float = 0.5
    """Concentration of the Dirichlet shares in which the clients hold each class; 1e6 = equal ones (IID)."""
    client_nets: Size[str] = "resnet18"
    """Networks of the clients' teachers, separated by commas and taken in turn."""
    client_steps: Size[int] = 3000
    """Training steps of a client's teacher."""
    noise_by: NoiseBy = "server"
    """Data mode: noise added once by the server (as printed), or by every client."""
    iterations: Size[int] = 200
    """T."""
    batch: Size[int] = 256
    """b, synthetic images per iteration."""
    k: int = 0
    """Candidates of a randomised response; 0 = the paper's for the data set (3 for MNIST, FMNIST, CIFAR10)."""
    beta: float = 0.0
    """Normalisation bound; 0 = the paper's: 1e-3 up to epsilon 1, 5e-3 above, 1e-4 on ImageNet."""
    sigma: Solved[float] = 100.0
    """Noise scale sigma, over beta; solved from the budget unless --solve steps or --epsilon none."""
    answer_epsilon: Solved[float] = 1.0
    """epsilon of one randomised response; solved from the budget unless --solve steps or --epsilon none."""
    gamma_s: float = 0.1
    """Learning rate of the student, and the step of line 14."""
    gamma_g: float = 0.01
    """Learning rate of the generator."""

    def __post_init__(self) -> None:
        at_least(self, 1, "clients", "client_steps", "iterations", "batch")
        at_least(self, 0, "k", "beta", "sigma")
        positive(self, "alpha", "answer_epsilon", "gamma_s", "gamma_g")

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The clients' teachers."""
        return shards(self.clients, self.client_nets, self.alpha, self.client_steps)

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no sigma or T meets, before anything is trained."""
        self.parameters(budget, dataset, classes)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Phi_g, of Gaussian latents."""
        return Sampler(UpsampleGenerator(shape, LATENT, WIDTH), gaussian_latents(LATENT))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Algorithm 2. Only `_annotate` asks the clients."""
        clients, parameters = teacher.members(), self.parameters(budget, teacher.dataset, teacher.classes)
        # The stream is called as when students were published; another name would draw other students
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

                # 5-14: the clients' answers O_j, and the server's labels of their mean; nothing else leaves a client
                y = self._annotate(x, phi_s.eval(), clients, parameters, noise)

                # 15-16: the student descends L_S
                phi_s.train()
                if self.mode == "data":  # y is the student's own output moved, and dropout would move it further
                    train_without_dropout(phi_s)
                with ctx.precision():
                    l_s = F.cross_entropy(call_s(x).float(), y)
                descend(step_s, l_s)

                # 17-18: the generator descends L_S + L_G; the student stays as it is
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
            shown = phi_g(torch.randn(self.batch, LATENT, generator=rng, device=ctx.device))[:60]
        return Release(
            student=phi_s.eval(),
            arch=student,
            ledger=mechanism.ledger(parameters),
            claim=mechanism.claim(parameters, budget.delta),
            generator=phi_g,
            synthetic=shown,
            solved=parameters.solved(self.mode),
        )

    @torch.no_grad()
    def _annotate(
        self, x: Tensor, phi_s: nn.Module, clients: Ensemble, parameters: AnnotationParameters, noise: Source
    ) -> Tensor:
        """Lines 5 to 14: (b, c) labels. All that is ever learnt from the clients."""
        ours, theirs = phi_s(x), clients(x)
        answers = torch.stack([self._fed_flexper(ours, each, parameters, noise) for each in theirs])
        if self.mode == "label":
            return answers.mean(0)
        return ours.softmax(1) - self.gamma_s * noisy_mean(answers, parameters, self.noise_by, noise)

    def _fed_flexper(self, ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
        """Lines 21 to 35: (b, c) answers O_j of one client."""
        if self.mode == "data":
            return _bounded_gradient(ours, theirs, parameters.beta)  # 23-27
        responses = _responses(ours, theirs, parameters, noise)  # 29-33
        return F.one_hot(responses, ours.shape[1]).float()

    def parameters(self, budget: Budget, dataset: str, classes: int) -> AnnotationParameters:
        """k, beta and, from the budget, sigma (or the randomised response's epsilon, or T)."""
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
        """One client's raw answer to one image, by the two teachers that are furthest apart: what an audit plays."""
        parameters, mechanism = self.parameters(budget, dataset, classes), self._mechanism(classes)

        def step(x: Tensor, phi_s: nn.Module, clients: Any, noise: Source) -> Tensor:
            return self._annotate(x, phi_s, clients, parameters, noise)

        return federated_game(step, mechanism, parameters, budget.delta, self.noise_by)


def _bounded_gradient(ours: Tensor, theirs: Tensor, bound: float) -> Tensor:
    """Lines 23 to 27: (b, c) rows of norm at most beta."""
    return normalise_rows(gradient_at_output(partial(dkd_loss, weight=LAMBDA), ours, theirs), bound, H)


def _responses(ours: Tensor, theirs: Tensor, parameters: AnnotationParameters, noise: Source) -> Tensor:
    """Lines 29 to 33: (b,) randomised responses, the student's k most probable classes being the candidates."""
    return randomised_response(theirs.argmax(1), ours.topk(parameters.k, 1).indices, parameters.answer_epsilon, noise)


def _generator_loss(phi_s: Any, x: Tensor) -> Tensor:
    """L_G, DPSD's Eq. 8."""
    logits = phi_s(x).float()
    terms = confidence_loss(logits) + balance_loss(logits, per_sample=False)
    return terms + activation_loss(phi_s.features(x).float(), up=True)
