"""BREP-MI: walk through the latent space of a GAN away from a class's decision boundary, by labels alone.

Kahla, Chen, Just, Jia, "Label-Only Model Inversion Attacks via Boundary Repulsion", CVPR 2022 (arXiv 2203.01925).
G generator, T the target, which answers with a class, y the class aimed at, z a latent point, R a radius.

0. Train G on the attacker's images (`bench/gan/gan_prior.py`).
1. Draw z ~ N(0, I), clamped to [-1.5, 1.5], in batches of 256 until every class has been predicted for some T(G(z)):
   the starts. R = R_0.
2. Draw u_1 .. u_N uniformly on the unit sphere and ask T for the class of each G(z + R u_i). s_i = 0 if it is y, and
   -1 if not.
3. If more than 7/8 of the N points are of class y: remember z, R <- 1.3 R, and go to 2.
4. Else d = 1/N sum_i s_i u_i (over all N, not scaled to length 1) and z' = clamp(z + min(R/3, 3) d); z <- z' if
   T(G(z')) = y, else z stays. Go to 2.
5. Stop after 1000 steps without a growth of R. The result is G of the z remembered last.

Queries. All of them are counted: those of the starts, N for every step, one for every z', rejected or not. `start_cap`
bounds the first for each draw, `query_cap` the others for each image. In the authors' code both loops may run forever:
a rejected z' does not advance the counter that ends the search, and a class that G cannot make is sought without end.

No start. A class that none of the `start_cap` latents of a draw is predicted as has no start: it is not searched, and
its images in this draw are G of random latents, so that every class has its images; the progress line names how many
classes had none ("no start for 3 of 50"), the record their share over all draws (`without_start`). Fewer starts than
`images_per_class` are used in turn, several searches from one start by different u.

Differs from the paper:
- The two caps; and a rejected z' counts as a step without growth. Step 1 goes on until every class has been predicted
  as often as it has images (`images_per_class`), as several are searched for.
- The search also ends when R exceeds the diagonal of the clamp, 2 x 1.5 sqrt(latent): from no point inside of it is
  there more to learn. It ends the search on a target that knows one class only.
- A z that is still waiting for its first growth at the end is the result itself (the paper says nothing).
- z does not move in a step in which R grows (step 3 goes back to 2), and takes the s_i of points that are not clamped.
- "More than 7/8" is the authors' code, a sum of +1 and -1 above 0.75 N; the paper's text asks for all N.
- G is the plain GAN shared by the attacks here, trained without the target; it is in evaluation mode.
- Several images per class and draw; the paper's own is one.
- Variant `working` trains G by larger steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
from bench.validate import at_least, below, inside, positive

Ask = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BrepMi(GanPrior):
    """Label-only inversion by boundary repulsion; the defaults are the authors'."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Kahla et al., CVPR 2022, arXiv 2203.01925"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "label"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            **SMOKE,
            "sphere_points": 4,
            "patience": 3,
            "query_cap": 25,
            "start_batch": 16,
            "start_cap": 64,
            "draws": 2,
            "images_per_class": 2,
        },
        "quick": {
            **QUICK,
            "sphere_points": 16,
            "patience": 15,
            "query_cap": 600,
            "start_cap": 2560,
            "draws": 2,
            "images_per_class": 4,
        },
    }
    departures: ClassVar[tuple[Departure, ...]] = (SHORT_TRAINING,)

    sphere_points: Size[int] = 32
    """N, points asked about around z in each step."""
    radius: float = 2.0
    """R_0, the first radius of the sphere."""
    growth: float = 1.3
    """Factor by which R grows."""
    inside: float = 0.875
    """R grows if more than this share of the N points is of the class aimed at."""
    max_step: float = 3.0
    """Upper bound of the step size min(R/3, 3)."""
    latent_clip: float = 1.5
    """Bound on every coordinate of z, at the start and after every step."""
    patience: Size[int] = 1000
    """Steps without a growth of R after which a search stops."""
    query_cap: Size[int] = 100_000
    """Most queries of one image's search, not counting those of the starts (the paper: no bound)."""
    start_batch: Size[int] = 256
    """Latents drawn at once in search of the starts."""
    start_cap: Size[int] = 25_600
    """Most latents, and so queries, in search of the starts in each draw (the paper: no bound)."""
    draws: Size[int] = 5
    """Random seeds per class, each with starts of its own (the paper's own: 1)."""
    images_per_class: Size[int] = 20
    """Images aimed at each class in each draw (the paper's own: 1)."""
    batch: Size[int] = 1000
    """Images put to the target at once; changes rounding only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "sphere_points", "patience", "start_batch", "draws", "images_per_class", "batch")
        positive(self, "radius", "max_step", "latent_clip")
        inside(self, 1, math.inf, "growth")
        at_least(self, 0, "inside")
        below(self, 1, "inside")
        at_least(self, self.sphere_points + 1, "query_cap")
        at_least(self, self.start_batch, "start_cap")

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Bring back `draws` x `images_per_class` images of every class, random ones of a class without a start."""
        generator, _ = self.gan(aux, ctx)

        @torch.no_grad()
        def ask(z: Tensor) -> Tensor:
            with ctx.precision():
                parts = [target.labels(generator(part)) for part in z.flatten(0, -2).split(self.batch)]
            return torch.cat(parts).view(z.shape[:-1])

        starts = [self._starts(draw, target.classes, ask, ctx) for draw in range(self.draws)]
        z, started = torch.cat([s for s, _ in starts]).flatten(0, 1), torch.cat([found for _, found in starts])
        missing = int((~started).sum())
        stage = "BREP-MI: searching" + (f" (no start for {missing} of {len(started)})" if missing else "")
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        targets = per_draw.repeat(self.draws)
        with ctx.track(stage, len(z)) as advance:
            z = self._search(z, targets, started.repeat_interleave(self.images_per_class), ask, ctx, advance)
        with torch.no_grad():
            images = torch.cat([generator(part) for part in z.split(self.batch)])
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(images, targets, draws, facts={"without_start": missing / len(started)})

    def _starts(self, draw: int, classes: int, ask: Ask, ctx: Context) -> tuple[Tensor, Tensor]:
        """Step 1.

        Returns:
            (classes, images_per_class, latent) latents, and (classes,) bool: whether they are of the class.
        """
        rng = ctx.generator(f"brep-mi/starts/{draw}")
        drawn: list[Tensor] = []
        seen: list[Tensor] = []
        for _ in range(self.start_cap // self.start_batch):
            z = torch.randn(self.start_batch, self.latent, generator=rng, device=ctx.device)
            drawn.append(z.clamp(-self.latent_clip, self.latent_clip))
            seen.append(ask(drawn[-1]))
            if int(torch.cat(seen).bincount(minlength=classes).min()) >= self.images_per_class:
                break
        pool, labels = torch.cat(drawn), torch.cat(seen)
        order, turn = labels.argsort(stable=True), torch.arange(self.images_per_class, device=ctx.device)
        counts = labels.bincount(minlength=classes)
        first = counts.cumsum(0) - counts
        of_class = first.unsqueeze(1) + turn % counts.clamp(min=1).unsqueeze(1)
        anyone = torch.randint(len(pool), of_class.shape, generator=rng, device=ctx.device)
        chosen = torch.where(counts.unsqueeze(1) > 0, order[of_class.clamp(max=len(pool) - 1)], anyone)
        return pool[chosen], counts > 0

    def _search(self, z: Tensor, labels: Tensor, active: Tensor, ask: Ask, ctx: Context, advance: Advance) -> Tensor:
        """Steps 2 to 5 for all (n, latent) latents at once, each on its own; those not `active` stay as they are."""
        rng, n = ctx.generator("brep-mi/sphere"), len(z)
        best, radius = z.clone(), torch.full((n,), self.radius, device=z.device)
        grown_once, waiting, spent = torch.zeros_like(active), torch.zeros_like(labels), torch.zeros_like(labels)
        left, widest = n, 2 * self.latent_clip * math.sqrt(self.latent)
        z = z.clone()
        while True:
            rows = active.nonzero().squeeze(1)
            advance(left - len(rows))
            left = len(rows)
            if not left:
                return torch.where(grown_once.unsqueeze(1), best, z)
            u = on_sphere(torch.randn(n, self.sphere_points, self.latent, generator=rng, device=z.device)[rows])
            agree = ask(z[rows].unsqueeze(1) + radius[rows].view(-1, 1, 1) * u) == labels[rows].unsqueeze(1)
            grows = agree.sum(1) > self.inside * self.sphere_points
            grown, moving = rows[grows], rows[~grows]
            best[grown], grown_once[grown] = z[grown], True
            radius[grown] *= self.growth
            moved = self._moved(z[moving], radius[moving], u[~grows], agree[~grows])
            accepted = ask(moved) == labels[moving] if len(moving) else moving.bool()
            z[moving] = torch.where(accepted.unsqueeze(1), moved, z[moving])
            waiting[rows] = torch.where(grows, 0, waiting[rows] + 1)
            spent[rows] += self.sphere_points + (~grows).long()
            enough = spent + self.sphere_points + 1 <= self.query_cap
            active = active & (waiting < self.patience) & enough & (radius <= widest)

    def _moved(self, z: Tensor, radius: Tensor, u: Tensor, agree: Tensor) -> Tensor:
        """(n, latent) z' of step 4."""
        step = (radius / 3).clamp(max=self.max_step).unsqueeze(1)
        return (z + step * repulsion(u, agree)).clamp(-self.latent_clip, self.latent_clip)


def on_sphere(gaussian: Tensor) -> Tensor:
    """(..., latent) Gaussian vectors scaled to length 1."""
    return gaussian / gaussian.norm(dim=-1, keepdim=True)


def repulsion(u: Tensor, agree: Tensor) -> Tensor:
    """(n, latent), d of step 4: the mean over all N points of s_i u_i, s_i = 0 where T agrees and -1 where not.

    Args:
        u: (n, N, latent) unit vectors. agree: (n, N) bool, whether the class there is the one aimed at.
    """
    return -(u * (~agree).unsqueeze(-1)).mean(1)
