"""DGD: discriminative-generative distillation of a teacher ensemble into a student.

Ge, Liu, Wang, Li, Zeng, "Learning Privacy-Preserving Student Networks via Discriminative-Generative Distillation"
(IEEE TIP 2023), section III. phi_b baseline classifier (the run's teacher), phi_t,i the n teachers on disjoint parts of
the private data, phi_g generator, (phi_e, phi_d) VAE with codes of length c, phi_s student.

1. Generator (Eq. 2, five steps): z_i at random; x_i = phi_g(z_i); y_i = phi_b(x_i); L = l(y_i, argmax y_i) +
   alpha p_i log p_i + beta ||features||_1; update phi_g. The synthetic set D^ is drawn from it; a VAE learns D^.
2. Labels (Eq. 3): few images D^_s are put to the ensemble; l = argmax_k (votes_k + Lap(2 / epsilon_0)).
3. Triples (Eq. 4): every other image's code e_j, decoded as it is, after a random step along the manifold's tangent
   space, and after one along its normal space.
4. Student (Eq. 1): E_s, cross-entropy on the answered images (Eq. 5), plus E_u, features that hold still under the two
   steps and sure outputs (Eq. 6).

Privacy. The claim is n epsilon_0^2 + epsilon_0 sqrt(-2 n log delta) for n queries, PATE's composition, which speaks of
one private record (unit `example`) and leaves out that the generator learnt from phi_b, unprotected: the ledger has a
`NonPrivateDpEvent` for it, so nothing is proved. (The variant `working` leaves phi_b alone; the noisy votes are then
all that is taken, one vote per record and query, and epsilon is finite.) The paper adds epsilon_1 for Laplace noise on
the VAE's codes (`code_epsilon`), which protects synthetic images and proves nothing for a private record. Private
images instead of synthetic ones (Fig. 4 and 7) are used without protection.

Differs from the paper:
- The claim is the formula of section III-E; the paper's epsilon 10 at 1300 queries and 1 at 27 come from a moments
  accountant that it does not specify. Here the noise, or with `--solve steps` the number of queries, follows from the
  budget. For Gaussian votes (DGD+) the paper has no formula: the claim is this project's accountant on the votes alone.
- `code_epsilon` is 0, the noise on codes off, by default. Noise of scale 2c / epsilon_1 = 6400 on codes normalised to
  [-1, 1] leaves nothing of a code, nor of a step of length `step_size` from it: a triple would be three times the same
  meaningless image. At 0.01 it is added as printed, and epsilon_1 enters the claim.
- Tangent and normal directions are not said how to be found. Here the tangent space of a code is spanned by the leading
  right-singular vectors of the decoder's Jacobian that hold nine tenths of its squared norm, the normal space is its
  orthogonal complement among the codes; the steps are random, of one length. Triples are made once. The mapping M of
  Eq. 4 is the decoder's first layer.
- The networks of generator and VAE are not given: `bench.nets.generators.UpsampleGenerator` on vectors z of length 100,
  and `bench.nets.vae`, trained by its evidence lower bound on Bernoulli pixels.
- "Rounds" are taken as steps of one batch; sums over D^_s and D^_u as batch means, both of `batch` images per student
  step. E_u is taken without dropout.
- Where equations and text contradict each other, `follow` decides. Eq. 6 prints + p log p, which flattens the student's
  outputs; the text wants them determinate. Eq. 2 prints the entropy per sample; the text speaks of class balance, the
  entropy of the batch's mean output. Eq. 2 adds ||.||_1, which makes features small; the text argues that real images
  have large ones. ||.||_1 is the mean over a feature vector.
- Queried images are drawn at random from D^.
- phi_b is the run's `--teacher`, where the paper has the teachers' network. D^ has 60,000 images on every data set, for
  the paper's as many as there are private ones; SVHN's two extra layers are left out. CIFAR10's 100 fine-tuned vision
  transformers are options (recipes/dgd-table2.toml).
- Gaussian votes have no threshold: whether DGD+ has the one of PATE 2018 is not said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from bench import nets
from bench.api import Advance, Context, Release, Sampler, Shards, Teacher, gaussian_latents
from bench.config import Size, Solved
from bench.distillation.generator_training import fixed, l1_activation_loss, make_generator
from bench.distillation.losses import balance_loss, confidence_loss
from bench.distillation.votes.noisy_votes import Aggregation, NoisyEnsemble, VotePlan, noisy_votes
from bench.errors import BenchError
from bench.nets import Ensemble
from bench.nets.small_net import xavier
from bench.nets.vae import VAE, sample
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Noise, Source
from bench.validate import at_least, positive
from methods.dgd.accounting import (
    BASELINE,
    PRIVATE_IMAGES,
    UNCHARGED,
    asks_for_a_proof,
    one_query_game,
    votes_claim,
    votes_ledger,
    within,
)
from methods.dgd.steps import CHUNK, SHOWN, draw_images, draw_rows, falling_adam, step
from methods.dgd.tangent_space import jacobian_gram, tangent_and_normal_step

TEACHER_RATE, GENERATOR_RATE, RATE = 0.05, 0.2, 1e-3
"""First learning rates (section IV, Adam): of the n teachers, of the generator, of VAE and student."""
GENERATOR_DECAY = 80
"""The generator's rate falls tenfold every so many rounds (section IV)."""
LATENT = 100
"""Length of a random vector z; not printed."""
TANGENT_SHARE = 0.9
"""Share of the decoder's squared Jacobian norm that spans the tangent space; not printed."""
FEW, MANY = 27, 1300
"""The paper's numbers of queries, at epsilon 1 and 10."""


@dataclass(frozen=True)
class Dgd:
    """Discriminative-generative distillation; the defaults are those of the paper's section IV for MNIST.

    Raises:
        ValueError: a value out of its range; the sentence names it.
    """

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Ge et al., DGD, IEEE TIP 2023, section III"
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
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
    """n, teachers on disjoint parts of the private data."""
    teacher_net: Size[str] = "dgd-cnn"
    """Network of the n teachers, a name as for --teacher, or `same` for the run's own --teacher."""
    teacher_steps: Size[int] = 3000
    """Rounds of the teachers' training."""
    aggregation: Literal["laplace", "gaussian"] = "laplace"
    """Noise on the vote counts: Laplace (Eq. 3) or Gaussian (DGD+, section IV-B)."""
    scale: Solved[float] = 40.0
    """Noise scale 2 / epsilon_0 of Eq. 3, or sigma of Gaussian votes; solved from the budget unless --solve steps."""
    queries: Size[int] = 0
    """|D^_s|, images put to the ensemble; 0 = the paper's: 27 up to epsilon 1, 1300 above."""
    images: Literal["synthetic", "private"] = "synthetic"
    """D^ is generated, or the private images themselves, unprotected (RAW of Fig. 4; DGD and DGD+ of Fig. 7)."""
    synthetic: Size[int] = 60_000
    """|D^|, images in all."""
    alpha: float = 5.0
    """alpha of Eq. 2, of the information entropy."""
    beta: float = 0.1
    """beta of Eq. 2, of the activation."""
    follow: Literal["text", "equations"] = "text"
    """Where the paper contradicts itself: the text's class balance, large activations (Eq. 2) and sure outputs (Eq. 6),
    or the signs and sums as its equations print them."""
    generator_steps: Size[int] = 200
    """Rounds of the generator's training."""
    width: Size[int] = 32
    """Channels of the generator's last hidden map and of the VAE's first convolution."""
    code: Size[int] = 32
    """c, length of a latent code."""
    step_size: float = 1.0
    """Length of the steps n of Eq. 4, in code units (codes are about standard normal)."""
    code_epsilon: float = 0.0
    """epsilon_1 of Laplace noise of scale 2c / epsilon_1 on normalised codes (III-E; the paper has 0.01); 0 = none."""
    steps: Size[int] = 500
    """Rounds of the VAE's and of the student's training."""
    batch: Size[int] = 128
    """Images per step of teachers, generator, VAE and student (E_s and E_u each)."""

    def __post_init__(self) -> None:
        at_least(self, 1, "teachers", "teacher_steps", "width", "steps")
        at_least(self, 2, "batch", "code")
        at_least(self, 0, "scale", "queries", "generator_steps", "code_epsilon")
        positive(self, "step_size")
        if self.synthetic <= self.queries:
            raise ValueError(f"synthetic is {self.synthetic}; expected more than the {self.queries} queries")

    @property
    def needs(self) -> frozenset[str]:
        """The baseline, the ensemble, and the private images where they are used."""
        images = {"private_data"} if self.images == "private" else set()
        return frozenset({"teacher", "teacher_ensemble"} | images)

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The ensemble of section III-C; `teacher_arch` is the network of phi_b."""
        net = teacher_arch if self.teacher_net == "same" else self.teacher_net
        return Shards(self.teachers, (net,), steps=self.teacher_steps, batch=self.batch, lr=TEACHER_RATE)

    def sampler(self, shape: tuple[int, int, int], classes: int, dataset: str) -> Sampler:
        """Phi_g, of Gaussian latents."""
        return Sampler(make_generator("upsample", dataset, shape, LATENT, self.width), gaussian_latents(LATENT))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Section III. `label` alone asks the ensemble, `learn_generator` alone phi_b."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        noise, rng = ctx.privacy_noise("dgd"), ctx.generator("dgd")
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        with ctx.track("DGD: converting", self.generator_rounds + 2 * self.steps) as advance:
            # III-B: the generator (Eq. 2), its synthetic set D^, and a VAE of that
            phi_g = None
            if self.images == "synthetic":
                phi_g = self.learn_generator(teacher, rng, ctx, advance)
                images = draw_images(phi_g, self.synthetic, rng)
            else:
                images = self.private_images(teacher, rng)
            if plan.queries >= len(images):
                raise BenchError(f"{plan.queries} images to query, but there are {len(images)}; ask less")
            vae = self.learn_vae(images, rng, ctx, advance)
            # III-C: noisy labels of the few images D^_s (Eq. 3); D^ has no order, so that its first images will do
            asked = images[: plan.queries]
            labels = self.label(plan, asked, teacher.members(), noise)
            # III-D: triples of all other images, D^_u (Eq. 4), and the student (Eq. 1)
            triples = self.triples(images[plan.queries :], vae, rng)
            self.learn_student(phi_s, asked, labels, triples, rng, ctx, advance)
        return Release(
            student=phi_s.eval(),
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan, budget.delta),
            generator=phi_g,
            synthetic=None if phi_g is None else images[:SHOWN],
            solved={"queries": plan.queries, "scale": plan.aggregation.scale},
            votes=NoisyEnsemble(teacher.members(), plan.aggregation, ctx.privacy_noise("votes measured")),
        )

    # III-B: data-free generator learning

    @property
    def generator_rounds(self) -> int:
        """Steps of the generator's training."""
        return self.generator_steps if self.images == "synthetic" else 0

    def learn_generator(self, teacher: Teacher, rng: torch.Generator, ctx: Context, advance: Advance) -> nn.Module:
        """phi_g against the fixed discriminator phi_b, in the paper's five steps."""
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
                    # 3, 4: what the discriminator makes of them, Eq. 2
                    loss = self.generator_loss(phi_b, x)
                # 5: update phi_g
                step(loss, optimizer, schedule)
                advance(1)
        return phi_g

    def generator_loss(self, phi_b: Any, x: Tensor) -> Tensor:
        """L of Eq. 2, batch mean: one-hot outputs, balanced classes, features of large magnitude."""
        logits, features = phi_b(x).float(), phi_b.features(x).float()
        as_printed = self.follow == "equations"
        entropy = balance_loss(logits, per_sample=as_printed)
        activation = l1_activation_loss(features, up=not as_printed)
        return confidence_loss(logits) + self.alpha * entropy + self.beta * activation

    def private_images(self, teacher: Teacher, rng: torch.Generator) -> Tensor:
        """Fig. 4 (RAW) and 7: at most `synthetic` private images in random order, (m, c, h, w) in [0, 1]."""
        if teacher.private is None:
            raise BenchError("--method.images private: the private images were not handed over to the method")
        private = teacher.private[0]
        order = torch.randperm(len(private), generator=rng, device=rng.device)[: self.synthetic]
        return private.to(rng.device)[order].float() / 255

    def learn_vae(self, images: Tensor, rng: torch.Generator, ctx: Context, advance: Advance) -> VAE:
        """(phi_e, phi_d) on D^."""
        vae = VAE((images.shape[1], images.shape[2], images.shape[3]), self.code, self.width).to(images.device)
        optimizer, schedule = falling_adam(vae, RATE, self.steps)
        for _ in range(self.steps):
            batch = images[draw_rows(len(images), self.batch, rng)]
            with ctx.precision():
                loss = vae.loss(batch, rng)
            step(loss, optimizer, schedule)
            advance(1)
        return vae.eval().requires_grad_(False)

    # III-C: teacher ensemble learning

    def label(self, plan: VotePlan, images: Tensor, members: Ensemble, noise: Source) -> Tensor:
        """Eq. 3: (n, classes) one-hot noisy labels of D^_s. All that is ever learnt from the ensemble."""
        _, counts = noisy_votes(plan, images, members, noise)
        return F.one_hot(counts.argmax(1), members.classes).float()

    # III-D: semi-supervised student learning

    @torch.no_grad()
    def triples(self, images: Tensor, vae: VAE, rng: torch.Generator) -> Tensor:
        """Eq. 4: (3, m, c, h, w), every image decoded from its code, and from the code after n^perp and n^parallel."""
        made = []
        for batch in images.split(CHUNK):
            codes = sample(*vae.encode(batch), rng)
            if self.code_epsilon:
                # III-E. It protects synthetic images, not records: the public generator will do
                normalised = codes / codes.abs().amax(1, keepdim=True)
                codes = Noise.of(rng).laplace(normalised, 2 * self.code / self.code_epsilon)
            gram = jacobian_gram(vae.decode, codes)
            along, across = tangent_and_normal_step(gram, TANGENT_SHARE, self.step_size, rng)
            made.append(torch.stack([vae.decode(each) for each in (codes, codes + across, codes + along)]))
        return torch.cat(made, 1)

    def learn_student(
        self,
        phi_s: nn.Module,
        asked: Tensor,
        labels: Tensor,
        triples: Tensor,
        rng: torch.Generator,
        ctx: Context,
        advance: Advance,
    ) -> None:
        """phi_s on E = E_s + E_u (Eq. 1)."""
        trained = ctx.compiled(phi_s)
        optimizer, schedule = falling_adam(phi_s, RATE, self.steps)
        for _ in range(self.steps):
            # Eq. 5
            rows = draw_rows(len(asked), self.batch, rng)
            phi_s.train()
            with ctx.precision():
                supervised = F.cross_entropy(trained(asked[rows]).float(), labels[rows])
            # Eq. 6; dropout would move the features more than the steps do
            rows = draw_rows(triples.shape[1], self.batch, rng)
            phi_s.eval()
            with ctx.precision():
                loss = supervised + self.unsupervised_energy(phi_s, triples[:, rows])
            step(loss, optimizer, schedule)
            advance(1)

    def unsupervised_energy(self, phi_s: Any, triples: Tensor) -> Tensor:
        """E_u of Eq. 6, batch mean; `triples` is (3, n, c, h, w): as it is, across, along."""
        still, across, along = phi_s.features(triples.flatten(0, 1)).float().unflatten(0, triples.shape[:2])
        normal = (still - across).square().flatten(1).sum(1).mean()
        tangent = (still - along).square().flatten(1).sum(1).mean()
        log_p = phi_s(triples[0]).float().log_softmax(1)
        plogp = (log_p.exp() * log_p).sum(1).mean()
        return normal + tangent + (plogp if self.follow == "equations" else -plogp)

    # III-E: privacy analysis

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries meets, before anything is trained."""
        self.plan(budget, dataset)

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """The queries and, from the budget, the noise on the votes (or the number of queries)."""
        if asks_for_a_proof(budget):
            raise BenchError(
                f"--account accounted: {self.unprotected}, which has no finite epsilon; use --variant working"
            )
        queries = self.queries or (FEW if budget.epsilon is not None and budget.epsilon <= 1 else MANY)
        fields = VotePlan(Aggregation(self.aggregation, self.scale), queries, queries, self.teachers)
        plan = within(fields, budget, self.unprotected, self.code_epsilon)
        if plan.queries >= self.synthetic and self.images == "synthetic":
            raise BenchError(
                f"{plan.queries} images to query of {self.synthetic}: raise --method.synthetic, or ask less"
            )
        return plan

    @property
    def unprotected(self) -> str:
        """What is taken from the private data without protection."""
        return PRIVATE_IMAGES if self.images == "private" else BASELINE

    def ledger(self, plan: VotePlan) -> Ledger:
        """Everything that is taken from the private data."""
        return votes_ledger(plan, self.unprotected)

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """Section III-E at these settings; the votes' part follows PATE, whose unit is one private record."""
        return votes_claim(plan, delta, UNCHARGED[self.unprotected], self.code_epsilon)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """The label of one image, with and without one teacher's change of mind: what an audit plays."""
        return one_query_game(self.plan(budget, dataset), budget.delta, self.label)
