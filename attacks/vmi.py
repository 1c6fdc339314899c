"""VMI: fit to each class a distribution of latent vectors by variational inference, and draw images from it.

Wang, Fu, Li, Khisti, Zemel, Makhzani, "Variational Model Inversion Attacks", NeurIPS 2021 (arXiv 2201.10787).
G generator, T target, y the class aimed at, p(z) = N(0, I) the prior, q(z) the distribution fitted.

1. Train G on the attacker's images (`bench/gan/gan_prior.py`).
2. For each class lower by SGD  E_{z~q} [-log p_T(y | G(z))] + gamma KL(q || p),  the expectation over `samples` latents
   drawn anew at every step. With eps ~ N(0, I), q is one of
   - full:      z = m + L eps, L lower triangular with a positive diagonal;
   - diagonal:  the same with a diagonal L;
   - flow:      z = f_K(.. f_1(eps)), f_k(u): scale and shift each coordinate, u' = exp(s_k) u + b_k; turn the order of
                the coordinates around; add to the second half an affine function of ELU of an affine one of the first.
3. Bring back G(z) for z drawn from each q.

Differs from the paper:
- G is GMI's generator, trained as a Wasserstein GAN and shared with the other attacks; the authors have a DCGAN or
  StyleGAN2, and for the latter a flow for each of the layers' latents.
- All classes, and all `draws`, are fitted together, each with its own parameters; the paper fits one after the other.
  Losses are sums over the distributions and means over a distribution's samples, as if fitted alone.
- KL is exact for `full` and `diagonal`; the authors estimate E ||z||^2 by 1,000 samples. For `flow` it is estimated,
  as theirs, by log q - log p at the samples of the step: log q(z) = log N(eps) - sum_k sum_i s_ki.
- q starts as the prior. The flow's scales and shifts start at 0 rather than from the first batch; the coordinates are
  turned around in the place of a learned rotation; the functions of its couplings have one hidden layer, and their
  last layer starts at 0. The number of the flow's steps is ours: the authors print it for StyleGAN only.
- SGD at 1e-4 is the authors'; `optimiser=adam` with a step size of about 1e-2 needs far fewer steps.
- Each of the `draws` fits distributions of its own, from which `images_per_class` images are drawn; the paper fits one
  for each class and draws 100.
- G is in evaluation mode in steps 2 and 3, so images do not affect each other.
- Tier `quick`: diagonal covariance, Adam, few steps and samples. So few do not settle the 4,950 further numbers of a
  full covariance, whose images are worse (`full` wants smaller steps, and more of them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, elu

from bench.api import Access, Advance, AttackResult, Context, Target, Tensors
from bench.gan.gan_prior import QUICK, SMOKE, GanPrior

SGD_MOMENTUM = 0.9


@dataclass(frozen=True)
class Vmi(GanPrior):
    """Variational model inversion; the defaults are the authors', the GAN's GMI's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Wang et al., NeurIPS 2021, arXiv 2201.10787"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "weights"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            **SMOKE,
            "flow_steps": 2,
            "hidden": 4,
            "iterations": 3,
            "samples": 2,
            "lr": 0.01,
            "draws": 2,
            "images_per_class": 1,
        },
        "quick": {
            **QUICK,
            "family": "diagonal",
            "optimiser": "adam",
            "lr": 0.05,
            "iterations": 80,
            "samples": 4,
            "images_per_class": 4,
            "batch": 200,
        },
    }

    family: Literal["full", "diagonal", "flow"] = "flow"
    """q: a normal distribution with full or diagonal covariance, or a flow."""
    kl_weight: float = 1e-3
    """gamma, the weight of KL(q || p)."""
    iterations: int = 4836
    """Steps of the fit (31 epochs of 156)."""
    samples: int = 64
    """Latents drawn from each q at every step."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum 0.9, or Adam."""
    lr: float = 1e-4
    """Step size of the fit."""
    label_smoothing: float = 0.0
    """Share of the probability aimed at that is spread over all classes."""
    flow_steps: int = 10
    """K, the steps of the flow."""
    hidden: int = 100
    """Hidden units of the functions in the flow's couplings."""
    draws: int = 5
    """Fits per class (the paper's own: 1)."""
    images_per_class: int = 20
    """Images drawn from each fitted distribution (the paper's own: 100)."""
    batch: int = 3200
    """Images searched at once, at least the samples of one distribution; changes rounding only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("iterations", "samples", "flow_steps", "hidden", "draws", "images_per_class", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}; expected a number above 0")
        if not 0 <= self.kl_weight < math.inf:
            raise ValueError(f"kl_weight is {self.kl_weight}; expected 0 or more")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; expected 0 or more and less than 1")
        if self.family == "flow" and self.latent < 2:
            raise ValueError(f"latent is {self.latent}; expected 2 or more for a flow, which couples two halves")

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Bring back `draws` x `images_per_class` images of every class.

        The GAN depends on `aux` and on its own fields only; it is trained once for all targets and seeds.
        """
        generator, _ = self.gan(aux, ctx)
        classes = torch.arange(target.classes, device=ctx.device)
        labels = classes.repeat(self.draws)
        whole = self._start(len(labels), ctx)
        parts = torch.arange(len(labels), device=ctx.device).split(max(1, self.batch // self.samples))
        with ctx.track("VMI: fitting", self.iterations * len(parts)) as advance:
            fitted = [self._fit(rows, labels, whole, generator, target, ctx, advance) for rows in parts]
        q = {name: torch.cat([each[name] for each in fitted]) for name in whole}
        per_draw = classes.repeat_interleave(self.images_per_class)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(per_draw))
        return AttackResult(self._images(q, len(labels), generator, ctx), per_draw.repeat(self.draws), draws)

    def _start(self, count: int, ctx: Context) -> Tensors:
        """Parameters of `count` distributions, each of which is the prior."""
        if self.family == "flow":
            return start_flow(count, self.latent, self.flow_steps, self.hidden, ctx.generator("vmi/flow"))
        q = {name: torch.zeros(count, self.latent, device=ctx.device) for name in ("mean", "log_scale")}
        if self.family == "full":
            q["below"] = torch.zeros(count, self.latent, self.latent, device=ctx.device)
        return q

    def _draw(self, q: Tensors, eps: Tensor) -> tuple[Tensor, Tensor]:
        return flow(q, eps) if self.family == "flow" else gaussian(q, eps)

    def _fit(
        self,
        rows: Tensor,
        labels: Tensor,
        whole: Tensors,
        generator: nn.Module,
        target: Target,
        ctx: Context,
        advance: Advance,
    ) -> Tensors:
        """Step 2 for some `rows` of all (m,) `labels`, from the same rows of `whole`, each row on its own."""
        rng = ctx.generator("vmi/noise")
        q = {name: value[rows].clone().requires_grad_() for name, value in whole.items()}
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
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            optimiser.step()
            advance(1)
        return {name: value.detach() for name, value in q.items()}

    @torch.no_grad()
    def _images(self, q: Tensors, count: int, generator: nn.Module, ctx: Context) -> Tensor:
        """Step 3: (count x images_per_class, c, h, w) float32, distribution by distribution."""
        shape = (count, self.images_per_class, self.latent)
        eps = torch.randn(shape, generator=ctx.generator("vmi/samples"), device=ctx.device)
        z, _ = self._draw(q, eps)
        return torch.cat([generator(part) for part in z.flatten(0, 1).split(self.batch)])


def gaussian(q: Tensors, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Latents z = m + L eps and KL(N(m, L L^T) || N(0, I)) = (||L||_F^2 + ||m||^2 - d) / 2 - log det L.

    Args:
        q: "mean" m (n, d), "log_scale" (n, d) the logarithms of L's diagonal, and for a full covariance "below"
            (n, d, d), of which L has what is below the diagonal.
        eps: (n, samples, d).

    Returns:
        (n, samples, d) and (n,).
    """
    mean, log_scale = q["mean"], q["log_scale"]
    scale = log_scale.exp()
    z = mean.unsqueeze(1) + scale.unsqueeze(1) * eps
    squares = scale.square().sum(1) + mean.square().sum(1)
    if "below" in q:
        below = q["below"].tril(-1)
        z = z + eps @ below.mT
        squares = squares + below.square().sum((1, 2))
    return z, (squares - mean.shape[1]) / 2 - log_scale.sum(1)


def start_flow(count: int, latent: int, steps: int, hidden: int, rng: torch.Generator) -> Tensors:
    """Parameters of `count` flows that only turn the coordinates around; all have a first axis of `count`.

    "log_scale" and "shift" (steps, latent); couplings "w1" (steps, first, hidden), "c1" (steps, 1, hidden),
    "w2" (steps, hidden, second), "c2" (steps, 1, second), where second = latent // 2 and first = latent - second.
    """
    second = latent // 2
    first = latent - second
    sizes = {
        "log_scale": (latent,),
        "shift": (latent,),
        "c1": (1, hidden),
        "w2": (hidden, second),
        "c2": (1, second),
    }
    q = {name: torch.zeros(count, steps, *size, device=rng.device) for name, size in sizes.items()}
    q["w1"] = torch.randn(count, steps, first, hidden, generator=rng, device=rng.device) / math.sqrt(first)
    return q


def flow(q: Tensors, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Latents z = f_K(.. f_1(eps)), and the mean over them of log q(z) - log N(z; 0, I), an estimate of KL.

    Args:
        q: parameters as those of `start_flow`. eps: (n, samples, d).

    Returns:
        (n, samples, d) and (n,).
    """
    z = eps
    first = q["w1"].shape[2]
    for k in range(q["shift"].shape[1]):
        z = (q["log_scale"][:, k].exp().unsqueeze(1) * z + q["shift"][:, k].unsqueeze(1)).flip(-1)
        a, b = z[..., :first], z[..., first:]
        hidden = elu(torch.baddbmm(q["c1"][:, k], a, q["w1"][:, k]))
        z = torch.cat([a, b + torch.baddbmm(q["c2"][:, k], hidden, q["w2"][:, k])], -1)
    gap = (z.square().sum(-1) - eps.square().sum(-1)) / 2
    return z, gap.mean(1) - q["log_scale"].sum((1, 2))
