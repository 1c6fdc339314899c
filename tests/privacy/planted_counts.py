"""Faults in noisy votes, in randomised labels, and in the decision whether there is a response."""

from __future__ import annotations

import math

import torch
from planted import DELTA, MU, VOTE_STD, C, Planted, chance, gaussian_promise, laplace, normal, sampled_promise
from torch import Tensor
from torch.nn.functional import one_hot

from bench.privacy.mechanisms import randomised_response, randomised_response_as_printed

ONE = gaussian_promise(1)
THRESHOLD = 25.0
RATE, SAMPLED_MU = 0.05, 1.0


def votes(*counts: float) -> Tensor:
    """(classes,) float64."""
    return torch.tensor(counts, dtype=torch.float64)


def noisy(counts: Tensor, n: int, g: torch.Generator) -> Tensor:
    return counts + VOTE_STD * normal(g, n, len(counts))


def noise_on_top_two(world: bool, n: int, g: torch.Generator) -> Tensor:
    counts = votes(25, 20, 3, 2) if world else votes(25, 20, 2, 3)
    return torch.cat([noisy(counts[:2], n, g), counts[2:].expand(n, -1)], 1)


def no_noise_on_empty(world: bool, n: int, g: torch.Generator) -> Tensor:
    counts = votes(25, 24, 1) if world else votes(25, 25, 0)
    return torch.where(counts > 0, noisy(counts, n, g), 0.0)


def exact_threshold(world: bool, n: int, g: torch.Generator) -> Tensor:
    counts = votes(25, 25) if world else votes(24, 26)
    return noisy(counts, n, g) * (counts.max() > THRESHOLD)


def reused_threshold_noise(world: bool, n: int, g: torch.Generator) -> Tensor:
    """The test of class 1 takes the noise of class 0's count: x0 >= 25 + v0 - v1 wherever there is an answer."""
    counts, noise = votes(24, 26) if world else votes(25, 25), VOTE_STD * normal(g, n, 2)
    answered = counts[1] + noise[:, :1] >= THRESHOLD
    return torch.cat([(counts + noise) * answered, answered], 1)


def parity_beside_argmax(world: bool, n: int, g: torch.Generator) -> Tensor:
    counts = votes(24, 26) if world else votes(25, 25)
    return torch.stack([noisy(counts, n, g).argmax(1).double(), (counts[0] % 2).expand(n)], 1)


def in_multiples(grid: float, world: bool, n: int, g: torch.Generator) -> Tensor:
    counts = votes(24, 26) if world else votes(25, 25)
    return counts + grid * (VOTE_STD / grid * normal(g, n, 2)).round()


def rounded_before_noise(world: bool, n: int, g: torch.Generator) -> Tensor:
    """A record moves the sum from 0.45 to 0.55, and noise is for that tenth."""
    return votes(0.55 if world else 0.45).round() + 0.1 * laplace(g, n, 1)


def scale_from_count(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Five or four records; their noisy sum of C coordinates, the first of which the fifth moves by 1."""
    count = 5 if world else 4
    total = torch.zeros(C, dtype=torch.float64)
    total[0] = count
    return total + math.sqrt(count / 4) / MU * normal(g, n, C)


def no_noise_for_empty_batch(world: bool, n: int, g: torch.Generator) -> Tensor:
    """A class with one record, or none; sampled at RATE."""
    sampled = chance(RATE, g, n) & world
    return torch.where(sampled, SAMPLED_MU + normal(g, n, 1), 0.0)


def labels(world: bool, n: int, other: int = 1) -> Tensor:
    """(n,): class 0, or class `other` in world 1."""
    return torch.full((n,), other if world else 0)


def candidates(n: int) -> Tensor:
    """(n, 3): classes 0, 1 and 2."""
    return torch.arange(3).expand(n, -1)


def truth_on_ties(world: bool, n: int, g: torch.Generator) -> Tensor:
    """The student's logits, and so whether they tie, are public."""
    label, tied = labels(world, n), chance(0.1, g, n)[:, 0]
    answer = torch.where(tied, label, randomised_response(label, candidates(n), 1.0, g))
    return torch.stack([answer, tied], 1).double()


def kept_whatever_k(world: bool, n: int, g: torch.Generator) -> Tensor:
    label = labels(world, n)
    kept = chance(1 / (1 + math.exp(-1)), g, n)[:, 0]
    return one_hot(torch.where(kept, label, (label + torch.randint(1, 3, (n,), generator=g)) % 3), C).double()


def soft_answers(world: bool, n: int, g: torch.Generator) -> Tensor:
    label = labels(world, n)
    answer = randomised_response(label, candidates(n), 1.0, g)
    return torch.where((answer == label)[:, None], 0.9 * one_hot(label, C) + 0.01, one_hot(answer, C)).double()


REPORTED = [
    Planted("noise only on the top two private counts", noise_on_top_two, ONE, DELTA, "infinite: x2 is exact"),
    Planted("randomised response returns the true label on ties", truth_on_ties, 1.0, 0.0,
        "infinite: tied and class 1 has 0.1 against 0"),
    Planted("votes at or below 0 get no noise", no_noise_on_empty, ONE, DELTA, "infinite: x2 = 0 in world 0 only"),
    Planted("threshold on the exact count", exact_threshold, ONE, DELTA, "infinite: no answer in world 1 only"),
    Planted("Laplace for half the sensitivity",
        lambda world, n, g: (votes(24, 26) if world else votes(25, 25)) + laplace(g, n, 2), 1.0, 0.0,
        "2: two counts move by 1 each at scale 1; x0 < 24 and x1 > 26", 10_000),
    Planted("exact parity next to the arg-max", parity_beside_argmax, ONE, DELTA, "infinite: x1 is exact"),
    Planted("noise in multiples of 2", lambda world, n, g: in_multiples(2.0, world, n, g), ONE, DELTA,
        "infinite: x0 is odd or even"),
    Planted("noise in multiples of 0.75", lambda world, n, g: in_multiples(0.75, world, n, g), ONE, DELTA,
        "infinite: x0 is a multiple of 0.75, or is a quarter above one"),
]  # fmt: skip

ADDED = [
    Planted("randomised response kept with e/(e+1) for any k", kept_whatever_k, 1.0, 0.0,
        "1.69: 1 + log(k - 1), k = 3; class 0"),
    Planted("response over all classes, uniform over candidates",
        lambda world, n, g: one_hot(
            randomised_response_as_printed(labels(world, n, 5), candidates(n), C, 1.0, g), C).double(),
        1.0, 0.0, "infinite: a response outside the candidates"),
    Planted("soft answers", soft_answers, 1.0, 0.0, "infinite: the soft vector is the teacher's"),
    Planted("rounded before the noise", rounded_before_noise, 1.0, 0.0, "10: moved by 1 at Laplace scale 0.1"),
    Planted("no noise for an empty batch", no_noise_for_empty_batch, sampled_promise(RATE, SAMPLED_MU), DELTA,
        "infinite: x0 is not 0 in world 1 only"),
    Planted("noise scale from the count", scale_from_count, ONE, DELTA,
        "at least 2.82: 6 / MU away from the total of four has 1.4e-3 against 8.4e-5", 50_000),
    Planted("one record is in every sample", lambda world, n, g: (SAMPLED_MU if world else 0.0) + normal(g, n, 1),
        sampled_promise(RATE, SAMPLED_MU), DELTA,
        f"{gaussian_promise(1, SAMPLED_MU):.2f}: the Gaussian without the sampling", 10_000),
    Planted("the threshold's noise reused for a count", reused_threshold_noise,
        gaussian_promise(1, math.sqrt(MU**2 + 1 / VOTE_STD**2)), DELTA,
        "infinite: answered and 23 <= x0 < 25 has 0.15 against 0"),
]  # fmt: skip
