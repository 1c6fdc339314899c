"""VMI: fit a latent distribution to each class by variational inference, and draw images from it.

Wang, Fu, Li, Khisti, Zemel, Makhzani, "Variational Model Inversion Attacks", NeurIPS 2021 (arXiv 2201.10787).
G generator, T target, y the attacked class, p(z) = N(0, I) the prior, q(z) the distribution fitted.

1. Train G on the attacker's images (`bench/gan/gan_prior.py`).
2. For each class minimise by SGD  E_{z~q} [-log p_T(y | G(z))] + gamma KL(q || p),  the expectation over `samples`
   latents newly drawn at every step. With eps ~ N(0, I), q is one of
   - full:      z = m + L eps, L lower triangular with a positive diagonal;
   - diagonal:  the same with a diagonal L;
   - flow:      z = f_K(.. f_1(eps)), f_k(u): scale and shift each coordinate, u' = exp(s_k) u + b_k; reverse the order
     of the coordinates; add to the second half an affine function of ELU of an affine function of the first.
3. Return G(z) for z drawn from each q.

Differs from the paper:
- G is GMI's generator, trained as a Wasserstein GAN and shared with the other attacks; the authors have a DCGAN or
  StyleGAN2, and for the latter a flow for each of the layers' latents.
- All classes and `draws` are fitted in parallel, each with its own parameters; the paper fits one after the other.
  Losses are sums over distributions of means over samples, so each fit is independent.
- KL is exact for `full` and `diagonal`; the authors estimate E ||z||^2 by 1,000 samples. For `flow` it is estimated,
  as theirs, by log q - log p at the samples of the step: log q(z) = log N(eps) - sum_k sum_i s_ki.
- q starts as the prior. The flow's scales and shifts start at 0 rather than from the first batch; the coordinates are
  reversed, not rotated by a learned rotation; the functions of its couplings have one hidden layer, and their
  last layer starts at 0. The number of the flow's steps is ours: the authors report it only for StyleGAN.
- SGD at 1e-4 is the authors'; `optimiser=adam` with a learning rate of about 1e-2 needs far fewer steps.
- Each of the `draws` fits separate distributions, from which `images_per_class` images are drawn; the paper fits one
  distribution per class and draws 100 images.
- G is in evaluation mode in steps 2 and 3, so images do not affect each other.
- Variant `working`: diagonal covariance and Adam. (`full` needs a smaller learning rate and more steps.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks.vmi.distributions import flow, gaussian, start_flow
from bench.api import Access, Advance, AttackResult, Context, Target, Tensors
from bench.config import Departure, Size
from bench.gan.gan_prior import QUICK, SHORT_TRAINING, SMOKE, GanPrior
from bench.gan.training import descend
from bench.validate import at_least, below, positive

SGD_MOMENTUM = 0.9


@dataclass(frozen=True)
class Vmi(GanPrior):
    """Variational model inversion; the defaults are the authors', those of the GAN are GMI's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Wang et al., NeurIPS 2021, arXiv 2201.10787"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    observes: ClassVar[bool] = False
    is_null: ClassVar[bool] = False
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {
            **SMOKE,
            "flow_steps": 2,
            "hidden": 4,
            "iterations": 3,
            "samples": 2,
            "draws": 2,
            "images_per_class": 1,
        },
        "quick": {**QUICK, "iterations": 80, "samples": 4, "images_per_class": 4, "batch": 200},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        SHORT_TRAINING,
        Departure(
            what="q is normal with a diagonal covariance, not a flow",
            why="80 steps (tier quick) cannot fit more; a full covariance (4,950 more parameters) gave worse images",
            sets={"family": "diagonal"},
        ),
        Departure(
            what="Adam with learning rate 0.05, not SGD with 1e-4",
            why="tier quick has 80 steps, the authors 4,836; 80 steps of SGD at 1e-4 hardly change q",
            sets={"optimiser": "adam", "lr": 0.05},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"flow_steps": "family=flow", "hidden": "family=flow"}

    family: Literal["full", "diagonal", "flow"] = "flow"
    """Latent distribution q of a class: normal with a full or a diagonal covariance, or a flow."""
    kl_weight: float = 1e-3
    """gamma, weight of the divergence KL(q || p) from the standard normal prior p."""
    iterations: Size[int] = 4836
    """Steps of the fit (31 epochs of 156)."""
    samples: Size[int] = 64
    """Latents drawn from each distribution q at every step."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum 0.9, or Adam."""
    lr: float = 1e-4
    """Learning rate of the fit."""
    label_smoothing: float = 0.0
    """Label smoothing: share of the target probability that is spread over all classes."""
    flow_steps: Size[int] = 10
    """K, number of transformations in a flow."""
    hidden: Size[int] = 100
    """Hidden units of the functions in the flow's couplings."""
    draws: Size[int] = 5
    """Distributions fitted per class, from different seeds (the paper: 1)."""
    images_per_class: Size[int] = 20
    """Images drawn from each fitted distribution (the paper: 100)."""
    batch: Size[int] = 3200
    """Images searched in one batch, at least the samples of one distribution; affects rounding only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "iterations", "samples", "flow_steps", "hidden", "draws", "images_per_class", "batch")
        positive(self, "lr")
        at_least(self, 0, "kl_weight", "label_smoothing")
        below(self, 1, "label_smoothing")
        if self.family == "flow":
            at_least(self, 2, "latent")  # its couplings work on two halves

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct `draws` x `images_per_class` images of every class.

        The GAN depends only on `aux` and on the GAN options; it is trained once for all targets and seeds.
        """
        generator, _ = self.gan(aux, ctx)
        classes = torch.arange(target.classes, device=ctx.device)
        labels = classes.repeat(self.draws)
        prior = self._priors(len(labels), ctx)
        parts = torch.arange(len(labels), device=ctx.device).split(max(1, self.batch // self.samples))
        with ctx.track("VMI: fitting", self.iterations * len(parts)) as advance:
            fitted = [self._fit(rows, labels, prior, generator, target, ctx, advance) for rows in parts]
        q = {name: torch.cat([each[name] for each in fitted]) for name in prior}
        per_draw = classes.repeat_interleave(self.images_per_class)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(self._images(q, len(labels), generator, ctx), per_draw.repeat(self.draws), draws)

    def _priors(self, count: int, ctx: Context) -> Tensors:
        """Return parameters of `count` distributions, all equal to the prior."""
        if self.family == "flow":
            return start_flow(count, self.latent, self.flow_steps, self.hidden, ctx.generator("vmi/flow"))
        q = {name: torch.zeros(count, self.latent, device=ctx.device) for name in ("mean", "log_scale")}
        if self.family == "full":
            q["below"] = torch.zeros(count, self.latent, self.latent, device=ctx.device)
        return q

    def _draw(self, q: Tensors, eps: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents z of q and KL(q || p), from standard normal `eps`."""
        return flow(q, eps) if self.family == "flow" else gaussian(q, eps)

    def _fit(
        self,
        rows: Tensor,
        labels: Tensor,
        prior: Tensors,
        generator: nn.Module,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> Tensors:
        """Step 2 for some `rows` of all (m,) `labels`: fit q, initialised at `prior`; rows are independent."""
        rng = ctx.generator("vmi/noise")
        q = {name: value[rows].clone().requires_grad_() for name, value in prior.items()}
        parameters, y = list(q.values()), labels[rows].repeat_interleave(self.samples)
        optimiser: torch.optim.Optimizer
        if self.optimiser == "adam":
            optimiser = torch.optim.Adam(parameters, lr=self.lr)
        else:
            optimiser = torch.optim.SGD(parameters, lr=self.lr, momentum=SGD_MOMENTUM)
        for _ in range(self.iterations):
            eps = torch.randn(len(labels), self.samples, self.latent, generator=rng, device=ctx.device)[rows]
            z, kl = self._draw(q, eps)
            with ctx.precision():
                logits = target.logits(generator(z.flatten(0, 1)))
            nll = cross_entropy(logits.float(), y, reduction="sum", label_smoothing=self.label_smoothing)
            loss = nll / self.samples + self.kl_weight * kl.sum()
            descend(optimiser, loss)
            advance(1)
        return {name: value.detach() for name, value in q.items()}

    @torch.no_grad()
    def _images(self, q: Tensors, count: int, generator: nn.Module, ctx: Context) -> Tensor:
        """Step 3: return (count x images_per_class, c, h, w) float32 images, distribution by distribution."""
        shape = (count, self.images_per_class, self.latent)
        eps = torch.randn(shape, generator=ctx.generator("vmi/samples"), device=ctx.device)
        z, _ = self._draw(q, eps)
        return torch.cat([generator(part) for part in z.flatten(0, 1).split(self.batch)])
