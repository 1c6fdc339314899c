"""The clients of FedDPSD: their teachers, and the noisy mean of their answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from bench.api import Shards
from bench.distillation.distinguishing_games import Step, client_game, response_game
from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters
from bench.privacy.audit import DistinguishingGame
from bench.privacy.mechanisms import gaussian_rows
from bench.privacy.noise import Source

BATCH, RATE = 128, 2e-3
"""Images per step and first learning rate of a client's teacher, which the paper does not print."""
NoiseBy = Literal["server", "client"]


def shards(clients: int, nets: str, alpha: float, steps: int) -> Shards:
    """The clients' teachers, on Dirichlet shares of the private split. One that has its equal share of all records
    gets no more (DENSE)."""
    archs = tuple(name.strip() for name in nets.split(","))
    return Shards(clients, archs, "dirichlet-balanced", alpha, steps, BATCH, RATE)


def noisy_mean(rows: Tensor, parameters: AnnotationParameters, by: NoiseBy, noise: Source) -> Tensor:
    """(b, c) float32: (sum_j g_j + N(0, sigma^2 beta^2)) / m, line 14; or with noise of their own in all of the g_j.

    Args:
        rows: (m, b, c) the clients' gradients of norm at most beta.
    """
    std = parameters.sigma * parameters.beta
    if by == "client":
        total = gaussian_rows(rows.flatten(0, 1), std, noise).view_as(rows).double().sum(0)
    else:
        total = gaussian_rows(rows.double().sum(0), std, noise)
    return (total / len(rows)).float()


def sigma_of_mean(sigma: float, clients: int, by: NoiseBy) -> float:
    """Noise of `noisy_mean` over beta."""
    return sigma * (clients**0.5 if by == "client" else 1.0) / clients


def federated_game(
    step: Step, mechanism: AnnotationMechanism, parameters: AnnotationParameters, delta: float, by: NoiseBy
) -> DistinguishingGame:
    """One client's answers to one image, by the two teachers that are furthest apart, beside those of another client.

    In label mode, and where every client adds noise, a client is played alone too, as its own noise alone is counted.
    """
    if mechanism.mode == "label":
        return response_game(step, replace(mechanism, clients=1), parameters, delta, clients=(1, 2))
    return client_game(step, mechanism, parameters, delta, clients=1 if by == "client" else 2)
