"""DGD: discriminative-generative distillation of a teacher ensemble into a student.

Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative Distillation"
(IEEE TIP 2023), section III. Symbols: phi_b baseline classifier (the run's teacher), phi_t,i the n teachers on disjoint
parts of the private data, phi_g generator, (phi_e, phi_d) VAE with codes of length c, phi_s student.

1. Generator (Eq. 2, five steps): z_i at random; x_i = phi_g(z_i); y_i = phi_b(x_i); L = l(y_i, argmax y_i) +
   alpha p_i log p_i + beta ||features||_1; update phi_g. The synthetic set D^ is drawn from it, and a VAE learns D^.
2. Labels (Eq. 3): the ensemble labels a few images D^_s by l = argmax_k (votes_k + Lap(2 / epsilon_0)).
3. Triples (Eq. 4): the code e_j of every other image is decoded unchanged, after a random step along the tangent space
   of the manifold, and after a random step along its normal space.
4. Student (Eq. 1): E_s, the cross-entropy on the labelled images (Eq. 5), plus E_u, which keeps the features constant
   under both steps and the outputs confident (Eq. 6).

Privacy. The claim for n queries is n epsilon_0^2 + epsilon_0 sqrt(-2 n log delta), PATE's composition, for one private
record (unit `example`). It omits that the generator learns from phi_b without protection. The ledger has a
`NonPrivateDpEvent` for that, so the accounted epsilon is infinite. (The variant `working` does not use phi_b: only the
noisy votes leave, one vote per record and query, and epsilon is finite.) The paper adds epsilon_1 for Laplace noise on
the VAE's codes (`code_epsilon`); this protects synthetic images, not private records. With `images private` the private
images replace the synthetic ones (Fig. 4 and 7), without protection.

Differs from the paper:
- The claim is the formula of section III-E. The paper reports epsilon 10 at 1300 queries and 1 at 27 from a moments
  accountant that it does not specify. Here the budget determines the noise, or with `--solve steps` the number of
  queries. The paper has no formula for Gaussian votes (DGD+): their claim is this project's accountant on the votes.
- The noise on codes is off by default (`code_epsilon` 0). Noise of scale 2c / epsilon_1 = 6400 on codes normalised to
  [-1, 1] destroys a code and any step of length `step_size` from it: a triple would be three equally meaningless
  images. At 0.01 the noise is added as printed, and epsilon_1 enters the claim.
- The paper does not say how to find tangent and normal directions. Here the leading right-singular vectors of the
  decoder's Jacobian that hold nine tenths of its squared norm span the tangent space of a code; the normal space is the
  orthogonal complement in code space. Steps are random and have one length. Triples are made once. The mapping M of
  Eq. 4 is the decoder's first layer.
- The paper does not give the networks of generator and VAE: `bench.nets.generators.UpsampleGenerator` on vectors z of
  length 100, and `bench.nets.vae`, trained by its evidence lower bound with Bernoulli pixels.
- A "round" is one step on one batch; sums over D^_s and D^_u are batch means, each of `batch` images per student step.
  E_u is computed without dropout.
- `follow` decides where equations and text contradict each other. Eq. 6 prints + p log p, which flattens the student's
  outputs; the text wants confident ones. Eq. 2 prints the entropy per sample; the text describes class balance, the
  entropy of the batch's mean output. Eq. 2 adds ||.||_1, which makes features small; the text argues that real images
  have large ones. ||.||_1 is the mean over a feature vector.
- Queried images are drawn at random from D^.
- phi_b is the run's `--teacher`; the paper uses the teachers' network. D^ has 60,000 images on every data set; the
  paper's has as many as the private set. SVHN's two extra layers are omitted. CIFAR10's 100 fine-tuned vision
  transformers are options (recipes/dgd-table2.toml).
- Gaussian votes have no threshold: the paper does not say whether DGD+ has the one of PATE 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, StepLR

from bench import nets
from bench.api import Advance, Context, Release, Sampler, Shards, Teacher, gaussian_latents
from bench.config import Size, Solved
from bench.distillation.generator_training import fixed, l1_activation_loss, make_generator
from bench.distillation.losses import balance_loss, confidence_loss
from bench.distillation.training import descend
from bench.distillation.votes.noisy_votes import CHUNK, Aggregation, NoisyEnsemble, VotePlan, noisy_votes
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.nets.small_net import xavier
from bench.nets.vae import VAE, sample
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Noise, Source
from bench.validate import at_least, positive
from methods.dgd.accounting import (
    BASELINE_ACCESS,
    IMAGE_ACCESS,
    calibrate_votes,
    needs_record_guarantee,
    one_query_game,
    votes_claim,
    votes_ledger,
)
from methods.dgd.tangent_space import jacobian_gram, tangent_and_normal_step

TEACHER_RATE, GENERATOR_RATE, RATE = 0.05, 0.2, 1e-3
"""Initial learning rates of the n teachers, of the generator, and of VAE and student (section IV, Adam)."""
GENERATOR_DECAY = 80
"""Number of rounds after which the generator's learning rate is divided by 10 (section IV)."""
LATENT = 100
"""Length of a random vector z; the paper does not print it."""
TANGENT_SHARE = 0.9
"""Share of the decoder's squared Jacobian norm that spans the tangent space; the paper does not print it."""
QUERIES_AT_1, QUERIES_AT_10 = 27, 1300
"""The paper's numbers of queries at epsilon 1 and 10."""
N_SYNTHETIC = 60
"""Number of synthetic images that a release contains."""


@dataclass(frozen=True)
class Dgd:
    """Options of DGD; the defaults are those of the paper's section IV for MNIST.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Ge et al., DGD, IEEE TIP 2023, section III"
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"teachers": 3, "teacher_net": "shard-cnn", "teacher_steps": 3, "queries": 6, "synthetic": 40,
                  "generator_steps": 3, "steps": 3, "batch": 8, "width": 4, "code": 4},
        "quick": {"teachers": 48, "teacher_net": "shard-cnn", "teacher_steps": 120, "synthetic": 3000,
                  "generator_steps": 100, "batch": 64, "width": 8},
    }  # fmt: skip
    only_with: ClassVar[dict[str, str]] = {
        "alpha": "images=synthetic generator_steps>0",
        "beta": "images=synthetic generator_steps>0",
        "generator_steps": "images=synthetic",
    }

    teachers: Size[int] = 250
    """n, number of teachers on disjoint parts of the private data."""
    teacher_net: Size[str] = "dgd-cnn"
    """Network of the n teachers: a name as for --teacher, or `same` = the network of --teacher."""
    teacher_steps: Size[int] = 3000
    """Training steps of each teacher."""
    aggregation: Literal["laplace", "gaussian"] = "laplace"
    """Noise on the vote counts: Laplace (Eq. 3) or Gaussian (DGD+, section IV-B)."""
    scale: Solved[float] = 40.0
    """Noise scale 2 / epsilon_0 of Eq. 3, or sigma of Gaussian votes, in votes; solved from the budget unless --solve
    steps."""
    queries: Size[int] = 0
    """|D^_s|, number of images that the ensemble labels; 0 = the paper's: 27 up to epsilon 1, 1300 above."""
    images: Literal["synthetic", "private"] = "synthetic"
    """Images of D^: generated, or the private images without protection (RAW of Fig. 4; DGD and DGD+ of Fig. 7)."""
    synthetic: Size[int] = 60_000
    """|D^|, number of images for the student, labelled or not."""
    alpha: float = 5.0
    """alpha, weight of the information entropy (class balance) in the generator's loss, Eq. 2."""
    beta: float = 0.1
    """beta, weight of the activation (size of the features) in the generator's loss, Eq. 2."""
    follow: Literal["text", "equations"] = "text"
    """Reading of Eq. 2 and 6, where the paper contradicts itself: class balance, large activations, confident outputs
    (text), or the printed signs and sums (equations)."""
    generator_steps: Size[int] = 200
    """Training steps of the generator."""
    width: Size[int] = 32
    """Channels of the generator's last hidden map and of the VAE's first convolution."""
    code: Size[int] = 32
    """c, length of a code of the VAE."""
    step_size: float = 1.0
    """Length of a code's random steps along and across the manifold, n of Eq. 4; codes are about standard normal."""
    code_epsilon: float = 0.0
    """epsilon_1 of the Laplace noise on normalised codes, of scale 2c / epsilon_1 (III-E; the paper's is 0.01); 0 = no
    noise."""
    steps: Size[int] = 500
    """Training steps of the VAE, and the same number of the student."""
    batch: Size[int] = 128
    """Images per step of teachers, generator, VAE and student (for each of E_s and E_u)."""

    def __post_init__(self) -> None:
        at_least(self, 1, "teachers", "teacher_steps", "width", "steps")
        at_least(self, 2, "batch", "code")
        at_least(self, 0, "scale", "queries", "generator_steps", "code_epsilon")
        positive(self, "step_size")
        if self.synthetic <= self.queries:
            raise ValueError(f"synthetic is {self.synthetic}; expected more than the {self.queries} queries")

    @property
    def needs(self) -> frozenset[str]:
        """Return the inputs: phi_b and the ensemble, and with `images private` the private images."""
        images = {"private_data"} if self.images == "private" else set()
        return frozenset({"teacher", "teacher_ensemble"} | images)

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """Describe the ensemble of section III-C; `teacher_arch` is the network of phi_b."""
        net = teacher_arch if self.teacher_net == "same" else self.teacher_net
        return Shards(self.teachers, (net,), steps=self.teacher_steps, batch=self.batch, lr=TEACHER_RATE)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Build phi_g, for Gaussian z."""
        return Sampler(make_generator("upsample", dataset, shape, LATENT, self.width), gaussian_latents(LATENT))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run section III. Only `label` queries the ensemble, only `learn_generator` queries phi_b."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        noise, rng = ctx.privacy_noise("dgd"), ctx.generator("dgd")
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        with ctx.track("DGD: converting", self.generator_rounds + 2 * self.steps) as advance:
            # III-B: the generator (Eq. 2), its synthetic set D^, and a VAE of D^
            phi_g = None
            if self.images == "synthetic":
                phi_g = self.learn_generator(teacher, rng, ctx, advance)
                images = draw_images(phi_g, self.synthetic, rng)
            else:
                images = self.private_images(teacher, rng)
            if plan.queries >= len(images):
                raise BenchError(f"{plan.queries} queries for {len(images)} images; lower --method.queries")
            vae = self.learn_vae(images, rng, ctx, advance)
            # III-C: noisy labels of D^_s (Eq. 3); D^ is in random order, so its first images are a random sample
            queried = images[: plan.queries]
            labels = self.label(plan, queried, teacher.members(), noise)
            # III-D: triples of all other images, D^_u (Eq. 4), and the student (Eq. 1)
            triples = self.triples(images[plan.queries :], vae, rng)
            self.learn_student(phi_s, queried, labels, triples, rng, ctx, advance)
        return Release(
            student=phi_s.eval(),
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan, budget.delta),
            generator=phi_g,
            synthetic=None if phi_g is None else images[:N_SYNTHETIC],
            solved={"queries": plan.queries, "scale": plan.aggregation.scale},
            votes=NoisyEnsemble(teacher.members(), plan.aggregation, ctx.privacy_noise("votes measured")),
        )

    # III-B: data-free generator learning

    @property
    def generator_rounds(self) -> int:
        """Training steps of the generator; 0 if there is none."""
        return self.generator_steps if self.images == "synthetic" else 0

    def learn_generator(self, teacher: Teacher, rng: torch.Generator, ctx: Context, advance: Advance) -> nn.Module:
        """Train phi_g against the fixed discriminator phi_b, in the paper's five steps."""
        phi_b = teacher.model
        phi_g = ctx.prepared(self.sampler(teacher.shape, teacher.classes, teacher.dataset).generator).train()
        optimizer = torch.optim.Adam(phi_g.parameters(), lr=GENERATOR_RATE)
        schedule = StepLR(optimizer, GENERATOR_DECAY, gamma=0.1)
        with fixed(phi_b):
            for _ in range(self.generator_steps):
                # 1: a batch of random vectors
                z = torch.randn(self.batch, LATENT, generator=rng, device=rng.device)
                with ctx.precision():
                    # 2: synthetic samples
                    x = phi_g(z)
                    # 3, 4: outputs of the discriminator and their loss, Eq. 2
                    loss = self.generator_loss(phi_b, x)
                # 5: update phi_g
                descend(optimizer, loss)
                schedule.step()
                advance(1)
        return phi_g

    def generator_loss(self, phi_b: Any, x: Tensor) -> Tensor:
        """Return L of Eq. 2, batch mean; under `follow text` it rewards one-hot outputs, balance and large features."""
        logits, features = phi_b(x).float(), phi_b.features(x).float()
        as_printed = self.follow == "equations"
        entropy = balance_loss(logits, per_sample=as_printed)
        activation = l1_activation_loss(features, up=not as_printed)
        return confidence_loss(logits) + self.alpha * entropy + self.beta * activation

    def private_images(self, teacher: Teacher, rng: torch.Generator) -> Tensor:
        """Return at most `synthetic` private images in random order (Fig. 4, RAW, and 7), (m, c, h, w) in [0, 1]."""
        if teacher.private is None:
            raise BenchError("--method.images private: the method did not receive the private images")
        private = teacher.private[0]
        order = torch.randperm(len(private), generator=rng, device=rng.device)[: self.synthetic]
        return private.to(rng.device)[order].float() / 255

    def learn_vae(self, images: Tensor, rng: torch.Generator, ctx: Context, advance: Advance) -> VAE:
        """Train the VAE (phi_e, phi_d) on the images D^, (n, c, h, w) in [0, 1]; return it in eval mode, frozen."""
        vae = VAE((images.shape[1], images.shape[2], images.shape[3]), self.code, self.width).to(images.device)
        optimizer, schedule = adam_with_linear_decay(vae, RATE, self.steps)
        for _ in range(self.steps):
            batch = images[sample_rows(len(images), self.batch, rng)]
            with ctx.precision():
                loss = vae.loss(batch, rng)
            descend(optimizer, loss)
            schedule.step()
            advance(1)
        return vae.eval().requires_grad_(False)

    # III-C: teacher ensemble learning

    def label(self, plan: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> Tensor:
        """Eq. 3: return (n, classes) one-hot noisy labels of D^_s, the only output of the ensemble that is used."""
        _, counts = noisy_votes(plan, images, members, noise)
        return F.one_hot(counts.argmax(1), members.classes).float()

    # III-D: semi-supervised student learning

    @torch.no_grad()
    def triples(self, images: Tensor, vae: VAE, rng: torch.Generator) -> Tensor:
        """Eq. 4: decode the code of every image, and the code after n^perp and after n^parallel; (3, m, c, h, w)."""
        parts = []
        for batch in images.split(CHUNK):
            codes = sample(*vae.encode(batch), rng)
            if self.code_epsilon:
                # III-E; this protects synthetic images, not records, so the public random generator suffices
                normalised = codes / codes.abs().amax(1, keepdim=True)
                codes = Noise.of(rng).laplace(normalised, 2 * self.code / self.code_epsilon)
            gram = jacobian_gram(vae.decode, codes)
            along, across = tangent_and_normal_step(gram, TANGENT_SHARE, self.step_size, rng)
            parts.append(torch.stack([vae.decode(each) for each in (codes, codes + across, codes + along)]))
        return torch.cat(parts, 1)

    def learn_student(
        self,
        phi_s: nn.Module,
        queried: Tensor,
        labels: Tensor,
        triples: Tensor,
        rng: torch.Generator,
        ctx: Context,
        advance: Advance,
    ) -> None:
        """Train phi_s in place on E = E_s + E_u (Eq. 1), on `queried` images with `labels` and on `triples` (Eq. 4)."""
        trained = ctx.compiled(phi_s)
        optimizer, schedule = adam_with_linear_decay(phi_s, RATE, self.steps)
        for _ in range(self.steps):
            # Eq. 5
            rows = sample_rows(len(queried), self.batch, rng)
            phi_s.train()
            with ctx.precision():
                supervised = F.cross_entropy(trained(queried[rows]).float(), labels[rows])
            # Eq. 6; dropout would change the features more than the steps do
            rows = sample_rows(triples.shape[1], self.batch, rng)
            phi_s.eval()
            with ctx.precision():
                loss = supervised + self.unsupervised_energy(phi_s, triples[:, rows])
            descend(optimizer, loss)
            schedule.step()
            advance(1)

    def unsupervised_energy(self, phi_s: Any, triples: Tensor) -> Tensor:
        """Return E_u of Eq. 6, batch mean.

        Args:
            triples: (3, n, c, h, w), decoded without a step, after n^perp, and after n^parallel.
        """
        unmoved, across, along = phi_s.features(triples.flatten(0, 1)).float().unflatten(0, triples.shape[:2])
        normal = (unmoved - across).square().flatten(1).sum(1).mean()
        tangent = (unmoved - along).square().flatten(1).sum(1).mean()
        log_p = phi_s(triples[0]).float().log_softmax(1)
        plogp = (log_p.exp() * log_p).sum(1).mean()
        return normal + tangent + (plogp if self.follow == "equations" else -plogp)

    # III-E: privacy analysis

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries can meet, before anything is trained."""
        self.plan(budget, dataset)

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """Calibrate the noise on the votes, or with `--solve steps` the number of queries, to the budget."""
        if needs_record_guarantee(budget):
            raise BenchError(
                f"--account accounted: {self.unprotected}, which has no finite epsilon; use --variant working"
            )
        queries = self.queries or (
            QUERIES_AT_1 if budget.epsilon is not None and budget.epsilon <= 1 else QUERIES_AT_10
        )
        fields = VotePlan(Aggregation(self.aggregation, self.scale), queries, queries, self.teachers)
        plan = calibrate_votes(fields, budget, self.unprotected, self.code_epsilon)
        if plan.queries >= self.synthetic and self.images == "synthetic":
            raise BenchError(f"{plan.queries} queries for {self.synthetic} images; lower --method.queries")
        return plan

    @property
    def unprotected(self) -> str:
        """Return the ledger's description of the unprotected access to the private data."""
        return IMAGE_ACCESS if self.images == "private" else BASELINE_ACCESS

    def ledger(self, plan: VotePlan) -> Ledger:
        """Return the ledger of all access to the private data."""
        return votes_ledger(plan, self.unprotected)

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """Return section III-E's claim at these settings; its unit is one private record, as in PATE."""
        return votes_claim(plan, delta, self.unprotected, self.code_epsilon)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Build the audit's game: the label of one image, with and without a changed vote of one teacher."""
        return one_query_game(self.plan(budget, dataset), budget.delta, self.label)


@torch.no_grad()
def draw_images(phi_g: nn.Module, count: int, rng: torch.Generator) -> Tensor:
    """Draw D^, (count, c, h, w), from phi_g in training mode: BatchNorm uses the statistics of each batch."""
    parts = []
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        # BatchNorm in training mode needs at least two images
        z = torch.randn(max(size, 2), phi_g.latent, generator=rng, device=rng.device)  # type: ignore[call-overload]
        parts.append(phi_g(z)[:size])
    return torch.cat(parts)


def adam_with_linear_decay(module: nn.Module, rate: float, steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return Adam and a schedule whose learning rate falls linearly to 0 (section IV)."""
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    return optimizer, LambdaLR(optimizer, lambda done: 1 - done / max(steps, 1))


def sample_rows(size: int, count: int, rng: torch.Generator) -> Tensor:
    """Draw `count` of `size` row indices, with replacement."""
    return torch.randint(size, (count,), generator=rng, device=rng.device)
