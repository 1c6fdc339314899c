"""AMI: a decoder learns to turn the target's answers back into images, then decodes the answers to other people's.

Yang, Zhang, Chang, Liang, "Neural Network Inversion in Adversarial Setting via Background Knowledge Alignment", CCS
2019 (arXiv 1902.08552). T target, x an image of the attacker, k how many confidences of an answer are seen.

1. Ask the target for p = T(x) of every auxiliary image x.
2. Truncate to the k largest entries, t = max(log p, floor) + c, raise those kept by one amount so that none is below 0,
   put 0 for the others.
3. Train a decoder of transposed convolutions: minimise ||Dec(t) - x||^2.
4. Feed it with the (truncated) answers that the victims' images are given. The attack sees the answers only.

Differs from the paper:
- The authors' code keeps the epoch that is best on the private training set. The attacker has none: the epoch is chosen
  on a held-out part of the auxiliary images, `holdout`.
- The authors' code scales each pixel by its smallest and largest value in the data set, which divides by zero where
  a border is constant. Images are in [0, 1] here.
- The decoder for 28x28 and 16x16 pixels, which the paper does not have, has a first map of 7x7 and 4x4.
- The class aimed at is the largest entry of the answer. Several decoders with seeds of their own if `draws` is above 1.
- One-hot vectors as answers, which give one image of each class, are left out.
- Variant `working` has a larger step size. At tier `quick`, on the answers of the digits teacher to 200 private and 200
  unseen images, one seed, the mean squared error is 0.021 and 0.023; that of the class means is 0.022, of the mean
  image 0.044.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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


@dataclass(frozen=True)
class Ami:
    """Inversion of answers by a decoder trained on background knowledge; the defaults are the paper's."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Yang et al., CCS 2019, arXiv 1902.08552"
    goal: ClassVar[Literal["inversion", "membership"]] = "inversion"
    access: ClassVar[Access] = "scores"
    is_null: ClassVar[bool] = False
    observes: ClassVar[bool] = True
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"width": 4, "epochs": 2, "decoder_batch": 16},
        "quick": {"width": 32, "epochs": 200, "max_steps": 2000, "decoder_batch": 32},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="the decoder learns by larger steps, 1e-3 for 2e-4",
            why="tier quick trains a narrower decoder for at most 2,000 steps, too few for small ones",
            sets={"lr": 1e-3},
        ),
    )

    truncate: int = 0
    """k, how many of the largest confidences of an answer are used; 0 uses all."""
    shift: float = 50.0
    """c, what is added to log p, so that entries kept differ from the zeros of those dropped."""
    floor: float = -1000.0
    """Smallest log p; a confidence of 0 counts as this."""
    epochs: Size[int] = 100
    """Passes over the auxiliary images."""
    max_steps: Size[int] = 0
    """Most steps of one decoder's training, in whole passes, one at least; 0 is no limit."""
    decoder_batch: Size[int] = 128
    """Images per step of the decoder's training."""
    lr: float = 2e-4
    """Step size of Adam (AMSGrad, betas 0.5 and 0.999)."""
    width: Size[int] = 128
    """f, channels of the decoder's last hidden map."""
    holdout: float = 0.1
    """Share of the auxiliary images on which the best epoch is chosen; 0 keeps the last epoch."""
    draws: Size[int] = 1
    """Decoders trained from seeds of their own; each reconstructs every victim."""

    def __post_init__(self) -> None:
        at_least(self, 1, "epochs", "decoder_batch", "width", "draws")
        at_least(self, 0, "max_steps", "truncate")
        positive(self, "lr")
        between(self, 0, 0.5, "holdout")
        below(self, 0, "floor")

    def skip_reason(self, shape: tuple[int, int, int], classes: int, aux: int) -> str | None:
        """A reason not to run: images the decoder cannot make, too few auxiliary images, k above the classes."""
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
        """Reconstruct the image behind every observed answer, once in each draw; `victims` are the answers' numbers."""
        asked = torch.cat([target.scores(part) for part in aux.split(CHUNK)])
        observed = target.victim_scores()
        known, seen = self._encode(asked), self._encode(observed)
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
        """Passes over `used` images: `epochs`, or as many as `max_steps` has room for."""
        if not self.max_steps:
            return self.epochs
        return min(self.epochs, max(1, self.max_steps // math.ceil(used / self.decoder_batch)))


def encode(answers: Tensor, keep: int, floor: float, shift: float) -> Tensor:
    """Step 2: (n, classes) vectors, at least 0, that the decoder reads.

    Args:
        answers: (n, classes) probabilities.
        keep: k, from 1 to the number of classes.
        floor: smallest log p. shift: c.
    """
    largest, where = answers.topk(keep, 1)
    kept = largest.log().clamp(min=floor) + shift
    kept = kept + (-kept.amin(1, keepdim=True)).relu()
    return torch.zeros_like(answers).scatter(1, where, kept)
