"""Algorithm 2 of DPSD, both variants: responses and their mean by hand, and which client draws the noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loops import small_generator
from methods_made import BOTH, MODES, Fixed, FixedMembers, convert_federation, fed, log, towards
from scipy import stats
from torch import Tensor

from bench.config import Variant
from bench.distillation.losses import dkd_loss, gradient_at_output, kd_loss
from bench.distillation.noisy_labels import AnnotationParameters
from bench.privacy import Unit
from bench.testing import CLASSES, SHAPE
from methods.fed_dpsd.fed_dpsd import noisy_mean
from methods.fed_dpsd.working import WorkingFedDpsd

PARAMETERS = AnnotationParameters(k=3, beta=0.5, sigma=0.0, answer_epsilon=math.inf, iterations=1)
P_S = [0.5, 0.3, 0.15, 0.05]
FIRST, SECOND = [0.3, 0.5, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]


def annotate(method: Any, ours: Tensor, clients: Tensor, parameters: AnnotationParameters, k: int = 3) -> Tensor:
    noise, images = torch.Generator().manual_seed(0), torch.zeros(len(ours), *SHAPE)
    if isinstance(method, WorkingFedDpsd):
        method = replace(method, clients=len(clients))
        return method._query_clients(images, ours, FixedMembers(clients), replace(parameters, k=k), noise)
    return method._annotate(images, Fixed(ours), FixedMembers(clients), replace(parameters, k=k), noise)


def test_data_mode_by_hand() -> None:
    """Lines 23 to 27 and 14: two clients' gradients, each of norm beta, averaged, and a step of gamma_s."""
    g = [gradient_at_output(lambda s, t: dkd_loss(s, t, 8.0), log(P_S), log(client)) for client in (FIRST, SECOND)]
    bars = [0.5 * each / (each.norm() + 1e-4) for each in g]
    found = annotate(fed(gamma_s="0.3"), log(P_S), torch.stack([log(FIRST), log(SECOND)]), PARAMETERS)
    assert torch.allclose(found, torch.tensor([P_S]) - 0.3 * (bars[0] + bars[1]) / 2, atol=1e-6)


@BOTH
@pytest.mark.parametrize("noise", ["server", "client"])
def test_every_image_gets_its_own_noise(noise: str, variant: Variant) -> None:
    """No image's answer moves another one's."""
    torch.manual_seed(1)
    ours, clients = torch.randn(3, CLASSES), torch.randn(2, 3, CLASSES)
    other = clients.clone()
    other[:, 0] = -clients[:, 0]
    method, parameters = fed(variant, noise_by=noise), replace(PARAMETERS, sigma=1.0)
    one, two = annotate(method, ours, clients, parameters), annotate(method, ours, other, parameters)
    assert torch.equal(one[1:], two[1:]) and not torch.equal(one[0], two[0])


def test_label_mode_without_noise_by_hand() -> None:
    """Lines 29 to 33: a class among the student's top 3 is revealed, another becomes any of the 3; then the mean."""
    method = fed(mode="label")
    told = annotate(method, log(P_S), torch.stack([log(FIRST), log([0.1, 0.1, 0.7, 0.1])]), PARAMETERS)
    assert torch.equal(told, torch.tensor([[0.0, 0.5, 0.5, 0.0]]))
    n = 3000
    outside = annotate(
        method, log(P_S).expand(n, -1), torch.stack([log(FIRST), log(SECOND)]).expand(-1, n, -1), PARAMETERS
    )
    assert (outside[:, 3] == 0).all() and (outside.sum(1) == 1).all() and (outside[:, 1] >= 0.5).all()
    second = 2 * outside - torch.tensor([0.0, 1.0, 0.0, 0.0])
    counts = second.sum(0)[:3].tolist()
    assert sum(counts) == n and stats.chisquare(counts).pvalue > 0.001
    wide = annotate(method, log(P_S), log(SECOND)[None], PARAMETERS, k=CLASSES)
    assert torch.equal(wide, torch.tensor([[0.0, 0.0, 0.0, 1.0]])), "all classes are candidates"


@pytest.mark.parametrize("others", [2.0, 3.0])
def test_clients_randomise_independently(others: float) -> None:
    """Two sure clients, 3 candidates: how many of them tell the truth is binomial with p = e / (e + 2)."""
    n = 20_000
    ours, clients = log(P_S).expand(n, -1), log(FIRST).expand(2, n, -1)
    answers = annotate(fed(mode="label"), ours, clients, replace(PARAMETERS, answer_epsilon=1.0))
    truths = torch.bincount((2 * answers[:, 1]).round().long(), minlength=3).double().numpy()
    expected = n * stats.binom.pmf([0, 1, 2], 2, math.e / (math.e + others))
    p = stats.chisquare(truths, expected).pvalue
    assert p > 0.001 if others == 2.0 else p < 1e-6
    liars = answers[answers[:, 1] == 0]
    assert 0.3 < float((liars.amax(1) == 0.5).float().mean()) < 0.7, "two liars agree every other time"


@pytest.mark.parametrize("scale", [1.0, 1.15, 1 / 1.15])
@pytest.mark.parametrize(("noise", "std"), [("server", 3.0 * 0.5 / 4), ("client", 3.0 * 0.5 / 2)])
def test_noisy_mean_has_the_right_deviation(noise: str, std: float, scale: float) -> None:
    """sigma beta / m where the server adds it once, sigma beta / sqrt(m) where every client does."""
    ours = torch.zeros(3000, CLASSES)
    method = fed(noise_by=noise, gamma_s="1.0")
    found = ours.softmax(1) - annotate(method, ours, ours.expand(4, -1, -1), replace(PARAMETERS, sigma=3.0))
    p = stats.kstest(found.flatten().double().numpy(), stats.norm(0, std * scale).cdf).pvalue
    assert p > 0.01 if scale == 1.0 else p < 1e-6
    assert float((torch.corrcoef(found.T) - torch.eye(CLASSES)).abs().max()) < 0.1
    assert len(found.unique(dim=0)) == 3000, "every image has its own noise"


@pytest.mark.parametrize(("noise", "of_mean"), [("server", 4.0 / 16), ("client", 4.0 / 4)])
def test_reading_has_noise_and_spread(noise: str, of_mean: float) -> None:
    """16 clients, sigma 4: log P = -|answer / beta - towards r|^2 / (2 (s^2 + 0.3^2)), s the noise of the mean."""
    r = torch.arange(40) % CLASSES
    sure = (9 * F.one_hot(r, CLASSES).float()).expand(16, -1, -1)
    means, parameters = torch.stack([towards(c) for c in range(CLASSES)]), replace(PARAMETERS, sigma=4.0)
    rows = (0.5 * means[r]).expand(16, -1, -1)
    sent = noisy_mean(rows, parameters, noise, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    by_hand = -(sent[:, None] / 0.5 - means).square().sum(2) / (2 * (of_mean**2 + 0.3**2))
    by_hand -= by_hand.amax(1, keepdim=True)
    found = annotate(fed("working", noise_by=noise), torch.zeros(40, CLASSES), sure, parameters)
    assert torch.allclose(found, by_hand, atol=2e-2, rtol=0.03)


def test_printed_data_reading_is_a_step() -> None:
    """Lines 23 to 27 and 14, of plain distillation, with the step 0.1."""
    g = [gradient_at_output(kd_loss, log(P_S), log(client)) for client in (FIRST, SECOND)]
    bars = [0.5 * each / (each.norm() + 1e-4) for each in g]
    method = fed("working", reading="printed")
    found = annotate(method, log(P_S), torch.stack([log(FIRST), log(SECOND)]), PARAMETERS)
    assert torch.allclose(found, log(P_S).softmax(1) - 0.1 * (bars[0] + bars[1]) / 2, atol=1e-6)


def test_printed_label_reading_is_the_mean() -> None:
    method = fed("working", mode="label", reading="printed")
    told = annotate(method, log(P_S), torch.stack([log(FIRST), log([0.1, 0.1, 0.7, 0.1])]), PARAMETERS)
    assert torch.equal(told, torch.tensor([[0.0, 0.5, 0.5, 0.0]]))


@pytest.mark.parametrize("m", [1, 2, 5])
def test_label_reading_multiplies_client_likelihoods(m: int) -> None:
    """3 of 4 classes are candidates, epsilon = 1: of every answer a client gives, 0.2 / 3 + 0.8 P(answer | r), P being
    e / (e + 2) for the class that was answered, 1 / (e + 2) for the other two, and 1 / 3 for the class outside."""
    n, parameters = 400, replace(PARAMETERS, answer_epsilon=1.0)
    queried = (log(P_S).expand(n, -1), log(FIRST).expand(m, n, -1), parameters)
    votes = m * annotate(fed("working", mode="label", reading="printed"), *queried)
    assert m == 1 or len(votes.unique(dim=0)) > 3, "clients disagree"
    told, silent = 0.8 * math.e / (math.e + 2) + 0.2 / 3, 0.8 / (math.e + 2) + 0.2 / 3
    by_hand = votes * math.log(told) + (m - votes) * math.log(silent)
    by_hand[:, 3] = m * math.log(1 / 3)
    assert torch.allclose(annotate(fed("working", mode="label"), *queried), by_hand, atol=1e-5)


def test_label_reading_without_noise_is_not_certain() -> None:
    """Without noise three of five clients that agree outweigh two, and two are not forgotten."""
    logits = 5 * torch.eye(CLASSES)[[0, 0, 0, 1, 1]][:, None]
    found = annotate(fed("working", mode="label"), torch.zeros(1, CLASSES), logits, PARAMETERS, k=CLASSES)
    told, other = 0.8 + 0.2 / CLASSES, 0.2 / CLASSES
    by_hand = [
        3 * math.log(told) + 2 * math.log(other),
        2 * math.log(told) + 3 * math.log(other),
        *[5 * math.log(other)] * 2,
    ]
    assert found[0].tolist() == pytest.approx(by_hand, abs=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_working_generator_does_not_query_clients(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_generator(monkeypatch)
    release, clients = convert_federation(variant="working", mode=mode, prior="generator", choose="3", queries="50")
    assert sum(clients.queried) == 50 and clients.with_gradient == 0
    assert release.ledger.entries(Unit.EXAMPLE)[0].count == 50
