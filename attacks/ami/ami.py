"""AMI: train a decoder from the target's output vectors to images, then decode the vectors of the victims' images.

Yang, Zhang, Chang, Liang, "Neural Network Inversion in Adversarial Setting via Background Knowledge Alignment", CCS
2019 (arXiv 1902.08552). T target, x an image of the attacker, k the number of a response's confidences that are used.

1. Query the target: p = T(x) for every auxiliary image x.
2. Truncate to the k largest entries, t = max(log p, floor) + c, raise the kept entries by one amount so that none is
   below 0, set the others to 0.
3. Train a decoder of transposed convolutions: minimise ||Dec(t) - x||^2.
4. Decode the (truncated) responses to the victims' images. The attack gets only the responses, not the images.

Differs from the paper:
- The authors' code keeps the epoch that is best on the private training set, which an attacker does not have. Here the
  epoch is chosen on a held-out part of the auxiliary images, `holdout`.
- The authors' code scales each pixel by its smallest and largest value in the data set, which divides by zero where
  a border is constant. Images are in [0, 1] here.
- The decoder for 28x28 and 16x16 pixels, which the paper does not have, has a first map of 7x7 and 4x4.
- The attacked class is the largest entry of the response. With `draws` above 1 there are several decoders, with
  different seeds.
- The paper's one-hot vectors as responses, which give one image per class, are omitted.
- Variant `working` has a larger step size. At tier `quick`, on the responses of the digits teacher to 200 private and
  200 unseen images, one seed, the mean squared error is 0.021 and 0.023; that of the class means is 0.022, of the mean
  image 0.044.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.ami.decoder import CHUNK, build_decoder, decode, train_decoder
from bench.api import Access, AttackResult, Context, Target
from bench.config import Departure, Size
from bench.errors import BenchError
from bench.nets.generators import check_square
from bench.seeds import derive
from bench.validate import at_least, below, between, positive

FEWEST = 16
"""Smallest number of auxiliary images."""


@dataclass(frozen=True)
class Ami:
    """Inversion of output vectors by a decoder trained on background knowledge; the defaults are the paper's."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Yang et al., CCS 2019, arXiv 1902.08552"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "scores"
    is_null: ClassVar[bool] = False
    observes: ClassVar[bool] = True
    tiers: ClassVar[dict[str, dict[str, int | str]]] = {
        "smoke": {"width": 4, "epochs": 2, "decoder_batch": 16},
        "quick": {"width": 32, "epochs": 200, "max_steps": 2000, "decoder_batch": 32},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="the decoder's learning rate is 1e-3, not 2e-4",
            why="tier quick trains a narrower decoder for at most 2,000 steps, too few for a small learning rate",
            sets={"lr": 1e-3},
        ),
    )

    truncate: int = 0
    """k, number of largest confidences of a response that are used; 0 = all."""
    shift: float = 50.0
    """c, added to the logarithms of kept confidences, so that they differ from the zeros of dropped ones."""
    floor: float = -1000.0
    """Smallest logarithm of a confidence; a confidence of 0 counts as this."""
    epochs: Size[int] = 100
    """Epochs over the auxiliary images."""
    max_steps: Size[int] = 0
    """Largest number of training steps of one decoder, in whole epochs, at least one epoch; 0 = no limit."""
    decoder_batch: Size[int] = 128
    """Images per step of the decoder's training."""
    lr: float = 2e-4
    """Learning rate of Adam (AMSGrad, betas 0.5 and 0.999)."""
    width: Size[int] = 128
    """f, channels of the decoder's last hidden map."""
    holdout: float = 0.1
    """Share of the auxiliary images on which the best epoch is chosen; 0 keeps the last epoch."""
    draws: Size[int] = 1
    """Decoders trained from different seeds; each reconstructs every victim."""

    def __post_init__(self) -> None:
        at_least(self, 1, "epochs", "decoder_batch", "width", "draws")
        at_least(self, 0, "max_steps", "truncate")
        positive(self, "lr")
        between(self, 0, 0.5, "holdout")
        below(self, 0, "floor")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """Return a skip reason or None: unsupported image size, too few auxiliary images, or k above the classes."""
        try:
            check_square(shape)
        except BenchError as error:
            return str(error)
        if aux < FEWEST:
            return f"{aux} auxiliary images: the decoder needs at least {FEWEST} to learn from"
        if self.truncate > classes:
            return f"truncate is {self.truncate}, and the target has {classes} classes"
        return None

    def run(self, target: Target, aux: Tensor, ctx: Context) -> AttackResult:
        """Reconstruct the image of every observed response, once in each draw; `victims` are the responses' indices."""
        responses = torch.cat([target.scores(part) for part in aux.split(CHUNK)])
        observed = target.victim_scores()
        known, seen = self._encode(responses), self._encode(observed)
        held_out = math.ceil(self.holdout * len(aux))
        epochs = self.passes(len(aux) - held_out)
        with ctx.track("AMI: training the decoder", epochs * self.draws) as advance:
            images = []
            for draw in range(self.draws):
                order = torch.randperm(len(aux), generator=ctx.generator(f"ami/holdout/{draw}"), device=ctx.device)
                held, used = order[:held_out], order[held_out:]
                seed = derive(ctx.seed, "ami/decoder", draw)
                decoder = ctx.prepared(build_decoder(target.classes, target.shape, self.width, seed))
                train_decoder(
                    decoder,
                    (known[used], aux[used]),
                    (known[held], aux[held]),
                    epochs=epochs,
                    batch=self.decoder_batch,
                    lr=self.lr,
                    rng=ctx.generator(f"ami/order/{draw}"),
                    advance=advance,
                )
                images.append(decode(decoder, seen))
        victims = torch.arange(len(observed), device=ctx.device)
        draws = torch.arange(self.draws, device=ctx.device).repeat_interleave(len(observed))
        return AttackResult(torch.cat(images), observed.argmax(1).repeat(self.draws), draws, victims.repeat(self.draws))

    def _encode(self, answers: Tensor) -> Tensor:
        return encode(answers, self.truncate or answers.shape[1], self.floor, self.shift)

    def passes(self, used: int) -> int:
        """Return the number of training epochs over `used` images: `epochs`, or fewer within `max_steps` steps."""
        if not self.max_steps:
            return self.epochs
        return min(self.epochs, max(1, self.max_steps // math.ceil(used / self.decoder_batch)))


def encode(answers: Tensor, keep: int, floor: float, shift: float) -> Tensor:
    """Step 2: return the decoder's (n, classes) inputs, at least 0.

    Args:
        answers: (n, classes) probabilities.
        keep: k, from 1 to the number of classes.
        floor: smallest log p. shift: c.
    """
    largest, where = answers.topk(keep, 1)
    kept = largest.log().clamp(min=floor) + shift
    kept = kept + (-kept.amin(1, keepdim=True)).relu()
    return torch.zeros_like(answers).scatter(1, where, kept)
