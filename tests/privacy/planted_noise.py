"""Faults in the noise of released gradients."""

from __future__ import annotations

import math

import torch
from planted import DELTA, MU, C, Planted, chance, gaussian_promise, gradients, normal, signs
from torch import Tensor

ONE, TWO = gaussian_promise(1), gaussian_promise(2)


def reset_between_queries(world: bool, n: int, g: torch.Generator) -> Tensor:
    noise = normal(g, n, C)
    return torch.cat([gradients(world, n) + noise, gradients(not world, n) + noise], 1)


def antithetic(world: bool, n: int, g: torch.Generator) -> Tensor:
    noise = normal(g, n, C)
    return torch.cat([gradients(world, n) + noise, gradients(world, n) - noise], 1)


def rarely_reused(world: bool, n: int, g: torch.Generator) -> Tensor:
    first, second = normal(g, n, C), normal(g, n, C)
    second = torch.where(chance(1 / 500, g, n), first, second)
    return torch.cat([gradients(world, n) + first, gradients(not world, n) + second], 1)


def clipped_after_noise(world: bool, n: int, g: torch.Generator) -> Tensor:
    noisy = 10 * gradients(world, n) + normal(g, n, C)
    return noisy * (MU / 2 / noisy.norm(dim=1, keepdim=True)).clamp(max=1)


def seeded_by_row(world: bool, n: int, g: torch.Generator) -> Tensor:
    """An answer is that to some row of a batch of 256."""
    noises = normal(torch.Generator().manual_seed(7), 256, C)
    return gradients(world, n) + noises[torch.randint(256, (n,), generator=g)]


def sixteen_bits_of_seed(world: bool, n: int, g: torch.Generator) -> Tensor:
    noises = normal(torch.Generator().manual_seed(7), 2**16, C)
    return gradients(world, n) + noises[torch.randint(2**16, (n,), generator=g)]


def three_signs(world: bool, n: int, g: torch.Generator) -> Tensor:
    return gradients(world, n) + _with_sign_product(normal(g, n, C), 3, world)


def _with_sign_product(noise: Tensor, factors: int, world: bool) -> Tensor:
    wanted = 1.0 if world else -1.0
    noise[:, 0] *= noise[:, :factors].sign().prod(1) * wanted
    return noise


def cyclic_order(world: bool, n: int, g: torch.Generator) -> Tensor:
    noise = normal(g, n, C)
    a, b, c = noise[:, 3].clone(), noise[:, 5].clone(), noise[:, 8].clone()
    turns = ((b - a) * (c - b) * (a - c) < 0) != world
    noise[:, 3], noise[:, 5] = torch.where(turns, b, a), torch.where(turns, a, b)
    return gradients(world, n) + noise


def annealed(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Five queries of one number each, moved by MU standard deviations of the noise that is charged."""
    return (MU if world else 0.0) + normal(g, n, 5) * 0.8 ** torch.arange(5)


def mean_of_changing_batch(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Ten records or nine; the noisy sum, in which the tenth moves the first coordinate by MU, over their number."""
    total = torch.zeros(C, dtype=torch.float64)
    total[0] = MU if world else 0.0
    return (total + normal(g, n, C)) / (10 if world else 9)


def normalised_noise(world: bool, n: int, g: torch.Generator) -> Tensor:
    noise = normal(g, n, C)
    return gradients(world, n) + math.sqrt(C) * noise / noise.norm(dim=1, keepdim=True)


def centred_noise(world: bool, n: int, g: torch.Generator) -> Tensor:
    """The gradient depends only on the first class here: a sum of coordinates without noise."""
    noise = normal(g, n, C)
    values = torch.zeros(C, dtype=torch.float64)
    values[0] = MU if world else 0.0
    return values + noise - noise.mean(1, keepdim=True)


def resampled_within_2(world: bool, n: int, g: torch.Generator) -> Tensor:
    noise = normal(g, n, C)
    while (far := noise.abs() > 2).any():
        noise[far] = normal(g, int(far.sum()))
    return gradients(world, n) + noise


def clamped_at_3(world: bool, n: int, g: torch.Generator) -> Tensor:
    return gradients(world, n) + normal(g, n, C).clamp(-3, 3)


def half_precision_uniforms(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Box and Muller's normals from uniforms of 11 bits."""
    radius, angle = ((torch.randint(2**11, (n, C // 2), generator=g) + 1).double() / 2**11 for _ in range(2))
    length = (-2 * radius.log()).sqrt()
    noise = torch.cat([length * (2 * math.pi * angle).cos(), length * (2 * math.pi * angle).sin()], 1)
    return gradients(world, n) + noise


def half_precision_noise(world: bool, n: int, g: torch.Generator) -> Tensor:
    return gradients(world, n) + normal(g, n, C).half().double()


def kept_coordinates_only(world: bool, n: int, g: torch.Generator) -> Tensor:
    """World 1 keeps classes 0 and 1, world 0 classes 0 and 3; noise a hundred times too large, on those two."""
    kept = torch.zeros(C, dtype=torch.float64)
    kept[[0, 1 if world else 3]] = 1.0
    return torch.where(kept > 0, gradients(world, n) + 100 * normal(g, n, C), 0.0)


def sign_from_data(world: bool, n: int, g: torch.Generator) -> Tensor:
    """The direction of each coordinate's noise is that of its value; 0 goes either way."""
    value = gradients(world, n)
    return value + torch.where(value == 0, signs(g, n, C), value.sign()) * normal(g, n, C).abs()


def true_batch_size(world: bool, n: int, g: torch.Generator) -> Tensor:
    """Noise is for a mean over ten, but two rows came or, without the record, one: the means are 0 and 1."""
    rows = [[1.0, -1.0], [1.0]][int(world)]
    mean = torch.zeros(C, dtype=torch.float64)
    mean[0] = sum(rows) / len(rows)
    return mean + 0.1 / MU * normal(g, n, C)


def rare_extra_output(world: bool, n: int, g: torch.Generator) -> Tensor:
    """One answer in a thousand is slow, where world 1's private gradient was long and had to be clipped."""
    took = torch.where(chance(1e-3, g, n), 2.0 if world else 1.0, 1.0) + 0.01 * normal(g, n, 1)
    return torch.cat([gradients(world, n) + normal(g, n, C), took], 1)


GAUSSIANS_TEN_TIMES = f"{gaussian_promise(1, 10 * MU):.2f}: a Gaussian mechanism of ten times the shift"

REPORTED = [
    Planted("generator reset between two queries", reset_between_queries, TWO, DELTA, "infinite: x0 - x10 is exact"),
    Planted("noise scale from the private norm",
        lambda world, n, g: gradients(world, n) + (1.3 if world else 1.0) * normal(g, n, C), ONE, DELTA,
        "at least 5.40: a norm beyond 6 has 0.0192 against 8.6e-5"),
    Planted("clipped after the noise", clipped_after_noise, ONE, DELTA,
        "at least 2.31: the sign of x0 - x1, Phi(1.34) against Phi(-1.34)"),
    Planted("one draw used antithetically", antithetic, TWO, DELTA, "infinite: x0 + x10 is exact"),
    Planted("one draw for all coordinates", lambda world, n, g: gradients(world, n) + normal(g, n, 1), ONE, DELTA,
        "infinite: x0 - x1 is exact"),
    Planted("seed derived from the data",
        lambda world, n, g: gradients(world, n) + normal(torch.Generator().manual_seed(int(world)), 1, C), ONE, DELTA,
        "infinite: every world has one answer"),
    Planted("the sign product of two noises depends on the data",
        lambda world, n, g: gradients(world, n) + _with_sign_product(normal(g, n, C), 2, world), ONE, DELTA,
        "infinite: (x0 - v0)(x1 - v1) < 0 for world 1's v never happens in world 1"),
    Planted("sigma annealed by 0.8, charged as constant", annealed, gaussian_promise(5), DELTA,
        f"{gaussian_promise(1, MU * math.sqrt(sum(0.64 ** -t for t in range(5)))):.2f}: five Gaussians, composed",
        50_000),
    Planted("every 64th answer without noise",
        lambda world, n, g: gradients(world, n) + torch.where(chance(1 / 64, g, n), 0.0, normal(g, n, C)), ONE, DELTA,
        "infinite: x0 = v0 has 1/64 against 0", 10_000),
    Planted("mean over a batch of changing size", mean_of_changing_batch, ONE, DELTA,
        "at least 2.64: a norm beyond 5.5 / 9 has 7.8e-4 against 5.5e-5", 50_000),
    Planted("noise normalised per row", normalised_noise, ONE, DELTA, "infinite: the distance from v is exact"),
    Planted("Gaussian resampled within 2 sigma", resampled_within_2, ONE, DELTA,
        "infinite: x0 beyond all that the other world can show has 0.013 against 0", 10_000),
    Planted("the cyclic order of three noises depends on the data", cyclic_order, ONE, DELTA,
        "infinite: coordinates 3, 5 and 8 hold no value, and their order is even or odd"),
    Planted("noise clamped at 3 sigma", clamped_at_3, ONE, DELTA, "infinite: x0 = v0 + 3 has 0.00135 against 0",
        50_000),
    Planted("one answer in 10,000 without noise",
        lambda world, n, g: gradients(world, n) + torch.where(chance(1e-4, g, n), 0.0, normal(g, n, C)), ONE, DELTA,
        "infinite: x0 = v0 has 1e-4 against 0", 1_000_000),
]  # fmt: skip

ADDED = [
    Planted("noise scaled by beta twice", lambda world, n, g: gradients(world, n) + 0.1 * normal(g, n, C), ONE, DELTA,
        GAUSSIANS_TEN_TIMES),
    Planted("noise on kept coordinates only", kept_coordinates_only, ONE, DELTA,
        "infinite: x1 = 0 in one world only"),
    Planted("no normalisation", lambda world, n, g: 10 * gradients(world, n) + normal(g, n, C), ONE, DELTA,
        GAUSSIANS_TEN_TIMES),
    Planted("noise seeded by the row's index", seeded_by_row, ONE, DELTA,
        "infinite: 256 answers in each world, none in both"),
    Planted("generator seeded by 16 bits", sixteen_bits_of_seed, ONE, DELTA,
        "infinite: 65,536 answers in each world, none in both", 10_000),
    Planted("one answer in 500 reuses the noise", rarely_reused, TWO, DELTA, "infinite: x0 - x10 is exact at times",
        50_000),
    Planted("one answer in 2,000 with a hundredth of the noise",
        lambda world, n, g: gradients(world, n) + torch.where(chance(1 / 2000, g, n), 0.01, 1.0) * normal(g, n, C),
        ONE, DELTA, "at least 30: a distance from v below 0.05 has 4.9e-4 against 2.5e-17", 1_000_000),
    Planted("the sign product of three noises depends on the data", three_signs, ONE, DELTA,
        "infinite: the product of x0 - v0, x1 - v1 and x2 - v2 is positive in world 1"),
    Planted("noise centred in every row", centred_noise, ONE, DELTA, "infinite: the sum of coordinates is exact"),
    Planted("uniform noise of the same variance",
        lambda world, n, g: gradients(world, n)
            + math.sqrt(12) * (torch.rand(n, C, generator=g, dtype=torch.float64) - 0.5),
        ONE, DELTA, "infinite: x0 beyond all that the other world can show has 0.055 against 0"),
    Planted("normals from uniforms of 11 bits", half_precision_uniforms, ONE, DELTA,
        "infinite: x0 = v0, an angle whose cosine is 0, has 1/1024 against 0", 50_000),
    Planted("noise in half precision on a full value", half_precision_noise, ONE, DELTA,
        "infinite: x0 - v0 is a multiple of a power of 2"),
    Planted("sign of the noise from the data", sign_from_data, ONE, DELTA, "infinite: the sign of x0"),
    Planted("mean by the true batch size", true_batch_size, ONE, DELTA, GAUSSIANS_TEN_TIMES),
    Planted("an extra output reveals the record once in 1,000", rare_extra_output, ONE, DELTA,
        "infinite: x10 about 2 has 0.001 against 0", 1_000_000),
]  # fmt: skip
