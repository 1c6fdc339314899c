"""BREP-MI: move through the latent space of a GAN away from a class's decision boundary, using only labels.

Kahla, Chen, Just, Jia, "Label-Only Model Inversion Attacks via Boundary Repulsion", CVPR 2022 (arXiv 2203.01925).
G generator, T the target, which returns a class, y the attacked class, z a latent point, R a radius.

0. Train G on the attacker's images (`bench/gan/gan_prior.py`).
1. Draw z ~ N(0, I), clamped to [-1.5, 1.5], in batches of 256, until T has predicted every class for some G(z). These
   z are the starting points. R = R_0.
2. Draw u_1 .. u_N uniformly on the unit sphere and query T for the class of each G(z + R u_i). s_i = 0 if it is y, -1
   otherwise.
3. If more than 7/8 of the N points are of class y: store z, R <- 1.3 R, and go to 2.
4. Else d = 1/N sum_i s_i u_i (over all N, not normalised) and z' = clamp(z + min(R/3, 3) d); z <- z' if
   T(G(z')) = y, else z is unchanged. Go to 2.
5. Stop after 1000 steps in which R did not grow. The result is G of the last stored z.

Queries. All are counted: those for the starting points, N per step, and one per z', rejected or not. `start_cap` limits
the first per draw, `query_cap` the others per image. The loops of the authors' code may never end: a rejected z' does
not advance the counter that ends the search, and a class that G cannot generate is searched for without limit.

No starting point. If T predicts a class for none of the `start_cap` latents of a draw, there is no search for it. Its
images in this draw are G of random latents, so that every class has images. The progress line shows the number of such
classes ("no start for 3 of 50"); `without_start` in the record is their share over all draws. If a class has fewer
starting points than `images_per_class`, several searches with different u share one.

Differs from the paper:
- The two limits; and a rejected z' counts as a step without growth. Step 1 continues until every class has
  `images_per_class` starting points.
- The search also ends when R exceeds the diagonal of the clamp, 2 x 1.5 sqrt(latent): no larger
  sphere adds information. This ends the search on a target that predicts a single class.
- If R never grew, the result is G of the last z (the paper does not say).
- z does not move in a step in which R grows (step 3 returns to 2); the points of step 2 are not clamped.
- "More than 7/8" is the authors' code, a sum of +1 and -1 above 0.75 N; the paper's text requires all N.
- G is the GAN that several attacks here share, trained without the target; it is in evaluation mode.
- Several images per class and draw; the paper has one.
- Variant `working` trains G with a larger learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bench.api import Access, Advance, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
from bench.validate import at_least, below, inside, positive

Query = Callable[[Tensor], Tensor]
"""(..., latent) latents -> (...) classes that the target predicts for their images."""


@dataclass(frozen=True)
class BrepMi(GanPrior):
    """Label-only inversion by boundary repulsion; the defaults are the authors'."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Kahla et al., CVPR 2022, arXiv 2203.01925"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "label"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
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
    """N, number of latents on the sphere around z that are queried in each step."""
    radius: float = 2.0
    """R_0, the first radius of the sphere."""
    growth: float = 1.3
    """Factor by which the radius R grows."""
    inside: float = 0.875
    """The radius R grows if the target predicts the attacked class for more than this share of the N points."""
    max_step: float = 3.0
    """Upper bound of the step size, min(R / 3, max_step)."""
    latent_clip: float = 1.5
    """Bound on every coordinate of the latent z, at the start and after every step."""
    patience: Size[int] = 1000
    """A search stops after this many steps without growth of the radius R."""
    query_cap: Size[int] = 100_000
    """Largest number of queries per image, without those for the starting points (the paper: no limit)."""
    start_batch: Size[int] = 256
    """Latents per batch in the search for starting points."""
    start_cap: Size[int] = 25_600
    """Largest number of latents, hence queries, in each draw's search for starting points (the paper: no limit)."""
    draws: Size[int] = 5
    """Random seeds per class, each with its own starting points (the paper: 1)."""
    images_per_class: Size[int] = 20
    """Images per class in each draw (the paper: 1)."""
    batch: Size[int] = 1000
    """Images per query to the target; affects rounding only."""

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
        """Reconstruct `draws` x `images_per_class` images of every class.

        A class without a starting point gets images of random latents.
        """
        generator, _ = self.gan(aux, ctx)

        @torch.no_grad()
        def query(z: Tensor) -> Tensor:
            with ctx.precision():
                parts = [target.labels(generator(part)) for part in z.flatten(0, -2).split(self.batch)]
            return torch.cat(parts).view(z.shape[:-1])

        starts = [self._starts(draw, target.classes, query, ctx) for draw in range(self.draws)]
        z, started = torch.cat([s for s, _ in starts]).flatten(0, 1), torch.cat([found for _, found in starts])
        missing = int((~started).sum())
        stage = "BREP-MI: searching" + (f" (no start for {missing} of {len(started)})" if missing else "")
        per_draw = torch.arange(target.classes, device=ctx.device).repeat_interleave(self.images_per_class)
        targets = per_draw.repeat(self.draws)
        with ctx.track(stage, len(z)) as advance:
            z = self._search(z, targets, started.repeat_interleave(self.images_per_class), query, ctx, advance)
        with torch.no_grad():
            images = torch.cat([generator(part) for part in z.split(self.batch)])
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(images, targets, draws, facts={"without_start": missing / len(started)})

    def _starts(self, draw: int, classes: int, query: Query, ctx: Context) -> tuple[Tensor, Tensor]:
        """Step 1: find starting points of every class.

        Returns:
            (classes, images_per_class, latent) latents, and (classes,) bool, False for classes without a start, whose
            latents are random.
        """
        rng = ctx.generator(f"brep-mi/starts/{draw}")
        drawn: list[Tensor] = []
        predicted: list[Tensor] = []
        for _ in range(self.start_cap // self.start_batch):
            z = torch.randn(self.start_batch, self.latent, generator=rng, device=ctx.device)
            drawn.append(z.clamp(-self.latent_clip, self.latent_clip))
            predicted.append(query(drawn[-1]))
            if int(torch.cat(predicted).bincount(minlength=classes).min()) >= self.images_per_class:
                break
        pool, labels = torch.cat(drawn), torch.cat(predicted)
        order, turn = labels.argsort(stable=True), torch.arange(self.images_per_class, device=ctx.device)
        counts = labels.bincount(minlength=classes)
        first = counts.cumsum(0) - counts
        of_class = first.unsqueeze(1) + turn % counts.clamp(min=1).unsqueeze(1)
        random = torch.randint(len(pool), of_class.shape, generator=rng, device=ctx.device)
        chosen = torch.where(counts.unsqueeze(1) > 0, order[of_class.clamp(max=len(pool) - 1)], random)
        return pool[chosen], counts > 0

    def _search(
        self, z: Tensor, labels: Tensor, active: Tensor, query: Query, ctx: Context, advance: Advance
    ) -> Tensor:
        """Steps 2 to 5: search from all (n, latent) latents independently; those not `active` do not change."""
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
            agree = query(z[rows].unsqueeze(1) + radius[rows].view(-1, 1, 1) * u) == labels[rows].unsqueeze(1)
            grows = agree.sum(1) > self.inside * self.sphere_points
            grown, moving = rows[grows], rows[~grows]
            best[grown], grown_once[grown] = z[grown], True
            radius[grown] *= self.growth
            moved = self._moved(z[moving], radius[moving], u[~grows], agree[~grows])
            accepted = query(moved) == labels[moving] if len(moving) else moving.bool()
            z[moving] = torch.where(accepted.unsqueeze(1), moved, z[moving])
            waiting[rows] = torch.where(grows, 0, waiting[rows] + 1)
            spent[rows] += self.sphere_points + (~grows).long()
            enough = spent + self.sphere_points + 1 <= self.query_cap
            active = active & (waiting < self.patience) & enough & (radius <= widest)

    def _moved(self, z: Tensor, radius: Tensor, u: Tensor, agree: Tensor) -> Tensor:
        """Return z' of step 4, (n, latent)."""
        step = (radius / 3).clamp(max=self.max_step).unsqueeze(1)
        return (z + step * repulsion(u, agree)).clamp(-self.latent_clip, self.latent_clip)


def on_sphere(gaussian: Tensor) -> Tensor:
    """Scale (..., latent) Gaussian vectors to length 1."""
    return gaussian / gaussian.norm(dim=-1, keepdim=True)


def repulsion(u: Tensor, agree: Tensor) -> Tensor:
    """Return d of step 4, (n, latent): the mean over all N points of s_i u_i, s_i = 0 where T predicts y, else -1.

    Args:
        u: (n, N, latent) unit vectors. agree: (n, N) bool, whether T predicts the attacked class there.
    """
    return -(u * (~agree).unsqueeze(-1)).mean(1)
