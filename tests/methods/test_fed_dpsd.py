"""FedDPSD, both variants: responses and their mean by hand, which client draws the noise, costs, and options."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from loops import small_generator
from methods_made import BOTH, MODES, Fixed, FixedMembers, convert_federation, fed, log, towards
from scipy import stats
from torch import Tensor

from bench.api import Shards
from bench.config import Variant
from bench.distillation.losses import dkd_loss, gradient_at_output, kd_loss
from bench.distillation.noisy_labels import FEWEST, AnnotationParameters
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.accountant import account
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.fed_dpsd.fed_dpsd import FedDpsd, noisy_mean
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


READABLE = 0.5
"""The default of `max_noise`."""
FREE = Budget(None, solve="none")


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize("noise", ["server", "client"])
def test_data_mode_ledger_by_hand(noise: str, variant: Variant) -> None:
    """Another record or client moves one of the m rows of every image, another image all m rows of one."""
    given = {"iterations": "3"} if variant == "printed" else {"queries": "48"}
    release, clients = convert_federation(FREE, variant, noise_by=noise, clients="3", **given)
    assert sum(clients.queried) == 48 and clients.with_gradient == 0
    for unit in (Unit.EXAMPLE, Unit.CLIENT):
        (entry,) = release.ledger.entries(unit)
        assert (entry.event, entry.count) == (GaussianDpEvent(50.0), sum(clients.queried))
    (query,) = release.ledger.entries(Unit.QUERY)
    assert (query.event, query.count) == (GaussianDpEvent(100 / (2 * 3)), 1)


@pytest.mark.thorough
@BOTH
def test_label_mode_ledger_by_hand(variant: Variant) -> None:
    given = {"iterations": "6"} if variant == "printed" else {"queries": "96"}
    release, clients = convert_federation(FREE, variant, mode="label", k="2", clients="3", **given)
    assert sum(clients.queried) == 96 and clients.with_gradient == 0
    for unit in (Unit.EXAMPLE, Unit.CLIENT):
        (entry,) = release.ledger.entries(unit)
        assert (entry.count, entry.event.num_buckets) == (96, 2)
    (query,) = release.ledger.entries(Unit.QUERY)
    assert query.count == 3, "all clients answer for one image"
    assert account(release.ledger, Unit.QUERY, 1e-12).epsilon == pytest.approx(3.0, rel=1e-3)
    assert account(release.ledger, Unit.CLIENT, 1e-100).epsilon == pytest.approx(96.0, rel=1e-3)


def test_queries_are_limited_by_the_noise() -> None:
    budget = Budget(20.0, account="accounted", unit=Unit.CLIENT)
    found = {m: WorkingFedDpsd(clients=m).parameters(budget, "mnist", 10) for m in (1, 40, 80)}
    assert found[1].iterations == FEWEST < found[40].iterations < found[80].iterations < 51_200
    for m in (40, 80):
        assert found[m].sigma == pytest.approx(READABLE * m, rel=0.05)
    assert WorkingFedDpsd(queries=100).parameters(budget, "mnist", 10).iterations == 100


def test_client_noise_limit_is_on_the_mean() -> None:
    """It has to be the square root of their number smaller than the server's, and so buys fewer queries."""
    budget = Budget(1000.0, account="accounted", unit=Unit.CLIENT)
    found = WorkingFedDpsd(clients=25, noise_by="client").parameters(budget, "mnist", 10)
    assert FEWEST < found.iterations < 51_200 and found.sigma == pytest.approx(READABLE * 5, rel=0.05)


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize(("mode", "source"), [("data", "DPSD, Theorem 1"), ("label", "DPSD, Theorem 2")])
def test_claim_is_dpsds(mode: str, source: str, variant: Variant) -> None:
    release, _ = convert_federation(variant=variant, mode=mode, **({"iterations": "3"} if variant == "printed" else {}))
    assert release.claim is not None and release.claim.source == source and release.claim.unit == Unit.QUERY
    assert 9.99 < release.claim.epsilon <= 10
    assert release.solved["iterations"] == (3 if variant == "printed" else 48) and release.solved["beta"] == 5e-3
    assert ("answer_epsilon" in release.solved) == (mode == "label") and ("sigma" in release.solved) == (mode == "data")


def test_theorem_1_at_the_papers_settings() -> None:
    method = FedDpsd()
    parameters = method.parameters(FREE, "toy", 10)
    found = (method.clients, method.alpha, method.batch, parameters.sigma, parameters.iterations)
    assert found == (5, 0.5, 256, 100.0, 200)
    claim = method._mechanism(10).claim(replace(parameters, beta=1e-3), 1e-5)
    assert claim is not None and claim.epsilon == pytest.approx(0.0456, abs=1e-4)


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.EXAMPLE, Unit.QUERY])
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_data_mode_meets_an_accounted_budget(unit: Unit, target: float) -> None:
    method = FedDpsd()
    parameters = method.parameters(Budget(target, account="accounted", unit=unit), "toy", 10)
    spent = account(method._mechanism(10).ledger(parameters), unit, 1e-5).epsilon
    assert target * (1 - 1e-3) <= spent <= target


def test_client_noise_has_the_same_ledger() -> None:
    budget = Budget(2.0, account="accounted", unit=Unit.CLIENT)
    sigmas = {FedDpsd(noise_by=noise).parameters(budget, "toy", 10).sigma for noise in ("server", "client")}  # type: ignore[arg-type]
    assert len(sigmas) == 1


@pytest.mark.thorough
def test_client_and_example_have_the_same_epsilon() -> None:
    for mode, variant in itertools.product(MODES, ("printed", "working")):
        release, _ = convert_federation(FREE, variant, mode=mode)
        costs = {account(release.ledger, unit, 1e-5).epsilon for unit in (Unit.CLIENT, Unit.EXAMPLE)}
        assert len(costs) == 1


@pytest.mark.parametrize(("unit", "least"), [(Unit.CLIENT, 2 * (1 - 1e-2)), (Unit.QUERY, 0.0)])
def test_label_mode_meets_an_accounted_budget(unit: Unit, least: float) -> None:
    method = fed(mode="label", clients="3")
    parameters = method.parameters(Budget(2.0, account="accounted", unit=unit), "toy", CLASSES)
    assert least <= account(method._mechanism(CLASSES).ledger(parameters), unit, 1e-5).epsilon <= 2


def test_label_mode_solves_the_batches_per_client() -> None:
    method, budget = FedDpsd(mode="label", batch=4), Budget(20.0, account="accounted", solve="steps", unit=Unit.CLIENT)
    per_example = method.parameters(replace(budget, unit=Unit.EXAMPLE), "toy", 10).iterations
    assert method.parameters(budget, "toy", 10).iterations == per_example > 1


@BOTH
def test_audit_cost_is_that_of_one_client(variant: Variant) -> None:
    """Gaussian noise of sigma beta on a row that moves by 2 beta."""
    one, five = (fed(variant, clients=m, sigma="4").game(FREE, "mnist", 10) for m in ("1", "5"))
    ledger = Ledger()
    ledger.spend(GaussianDpEvent(2.0), unit=Unit.QUERY)
    assert one.accounted == five.accounted == pytest.approx(account(ledger, Unit.QUERY, 1e-5).epsilon)


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "tight"), [("data", 0.3), ("label", 0.8)])
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("variant", [FedDpsd, WorkingFedDpsd])
def test_audit_plays_one_clients_response(mode: Any, tight: float, clients: int, variant: Any) -> None:
    """It is a fifth of the ledger's cost of all 5 clients' responses to an image."""
    method = variant(mode=mode, clients=clients, sigma=4.0, answer_epsilon=2.0)
    game = replace(method.game(FREE, "mnist", 10), claimed=math.inf)
    found = audit(game, 20_000)
    assert tight * game.accounted < found.lower_bound <= game.accounted and found.verdict == "not refuted"
    assert audit(replace(game, accounted=found.lower_bound / 2), 20_000).verdict == "accountant refuted"


def test_clients_may_have_different_networks() -> None:
    given = {"client_nets": "shard-cnn, dgd-cnn", "clients": "3"}
    release, clients = convert_federation(**given)
    bodies = [type(member.get_submodule("body")).__name__ for member in clients.members]
    assert bodies == ["ShardNet", "DgdNet", "ShardNet"]
    assert release.student is not None and clients.queried == [16, 16, 16]


@BOTH
def test_shards_follow_the_options(variant: Variant) -> None:
    given = {"clients": "7", "alpha": "0.2", "client_steps": "9"}
    found = fed(variant, client_nets="a, b", **given).shards("ignored", "toy")
    assert found == Shards(7, ("a", "b"), "dirichlet-balanced", 0.2, 9, 128, 2e-3)


@pytest.mark.thorough
@BOTH
@pytest.mark.parametrize(("mode", "noise"), [("data", "server"), ("data", "client"), ("label", "server")])
def test_options_run_within_their_claim(variant: Variant, mode: str, noise: str) -> None:
    release, _ = convert_federation(variant=variant, mode=mode, noise_by=noise)
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())
    assert release.claim is not None and release.claim.epsilon <= 10


def test_convert_without_clients_is_refused() -> None:
    with pytest.raises(RuntimeError, match="teacher_ensemble"):
        fed().convert(toy_teacher(), "datalens", Budget(10.0), context())
