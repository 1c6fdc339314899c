"""DGD, both variants: its equations by hand, directions on the manifold, and a whole run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dgd_made import SpyEnsemble, learning, printed, teacher
from methods_made import Spy, convert, rng
from torch import Tensor, nn

from bench import nets
from bench.config import configure
from bench.distillation.image_source import image_source
from bench.nets.vae import VAE
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, MethodContract, context, toy_teacher
from methods.dgd import working
from methods.dgd.dgd import Dgd
from methods.dgd.tangent_space import jacobian_gram, tangent_and_normal_step, tangent_basis
from methods.dgd.working import DgdWorking


class TestPrinted(MethodContract):
    plugin = Dgd


GOLDEN = [
    (Dgd, "toy", {}, [0.211238, 0.047741, -0.236814, -0.174120], 3.120064),
    (Dgd, "toy", {"follow": "equations", "code_epsilon": "0.01"}, [0.23581, -0.073633, -0.225645, -0.19754], 3.122532),
    (Dgd, "toy", {"aggregation": "gaussian"}, [0.211238, 0.047741, -0.236814, -0.174120], 1.731728),
]


@pytest.mark.usefixtures("usual_draws")
@pytest.mark.parametrize(("cls", "dataset", "given", "logits", "scale"), GOLDEN)
def test_golden_students(
    cls: type[Any], dataset: str, given: dict[str, str], logits: list[float], scale: float
) -> None:
    """Golden values of the first version of the method."""
    release = convert(configure(cls, "smoke", given, "method"), teacher(dataset=dataset))
    with torch.no_grad():
        found = release.student(torch.linspace(0, 1, 256).view(1, 1, 16, 16))
    assert found[0].tolist() == pytest.approx(logits, abs=1e-4)
    assert release.solved == {"queries": 6, "scale": pytest.approx(scale, rel=1e-5)}
    assert release.claim is not None and release.claim.epsilon == pytest.approx(10, rel=1e-4)


class Two(nn.Module):
    """Two classes, logits (2 m, 0) for an image's mean m; features are the mean and its negative."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([2 * mean, torch.zeros_like(mean)], 1)

    def features(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([mean, -3 * mean], 1)


@pytest.mark.parametrize("follow", ["text", "equations"])
def test_equation_2_by_hand(follow: str) -> None:
    """Images 0 and 1: logits (0, 0), (2, 0); p = (1/2, 1/2), (s, 1 - s), s = sigmoid(2); features (0, 0), (1, -3)."""
    images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
    s = 1 / (1 + math.exp(-2))
    cross_entropy = (math.log(2) - math.log(s)) / 2
    per_sample = (-math.log(2) + s * math.log(s) + (1 - s) * math.log(1 - s)) / 2
    p = (0.5 + s) / 2
    of_mean = p * math.log(p) + (1 - p) * math.log(1 - p)
    l1 = (0 + 0 + 1 + 3) / 4
    entropy, sign = (of_mean, -1) if follow == "text" else (per_sample, 1)
    by_hand = pytest.approx(cross_entropy + 5 * entropy + sign * 0.1 * l1, abs=1e-6)
    assert float(printed(follow=follow).generator_loss(Two(), images)) == by_hand
    if follow == "text":
        assert float(working.generator_loss(Two(), images)) == by_hand


@pytest.mark.parametrize(("follow", "sign"), [("text", -1), ("equations", 1)])
def test_equation_6_by_hand(follow: str, sign: int) -> None:
    """Means (0, 1) as they are, (1, 1) across, (0, 3) along: features (m, -3 m), squared distances 10 (m - m')^2."""
    means = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 3.0]])
    triples = means[:, :, None, None, None].expand(3, 2, 1, 4, 4)
    normal, tangent = (10 + 0) / 2, (0 + 40) / 2
    s = 1 / (1 + math.exp(-2))
    plogp = (-math.log(2) + s * math.log(s) + (1 - s) * math.log(1 - s)) / 2
    value = printed(follow=follow).unsupervised_energy(Two(), triples)
    assert float(value) == pytest.approx(normal + tangent + sign * plogp, rel=1e-5)


def test_equation_5_by_hand() -> None:
    """Logits (0, 0) to a target of (1/4, 3/4), and (2, 0) to (1, 0): log 2 and -log sigmoid(2), their mean."""
    targets = torch.tensor([[0.25, 0.75], [1.0, 0.0]]).log()
    found = working.cross_entropy(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), targets)
    assert float(found) == pytest.approx((math.log(2) + math.log(1 + math.exp(-2))) / 2)


@pytest.mark.thorough
def test_student_learns_the_votes_on_two_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prior of black and white images, all votes for class 2 and class 1: the student separates them."""

    class Votes(SpyEnsemble):
        def votes(self, images: Tensor) -> Tensor:
            return 3 * F.one_hot(torch.where(images.flatten(1).mean(1) < 0.5, 2, 1), CLASSES).float()

    class TwoImages:
        def draw(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
            return torch.randint(2, (count, 1, 1, 1), generator=rng).float().expand(count, *shape)

        def learn(self, student: nn.Module) -> None:
            pass

    monkeypatch.setattr(DgdWorking, "image_source", lambda *_: TwoImages())
    made = Votes.build(["shard-cnn"], 3, SHAPE, CLASSES, range(3)).eval()
    given = {"queries": "60", "student_steps": "60", "jitter": "no", "evolve": "0"}
    student = convert(learning(**given), teacher(ensemble=made), Budget(math.inf)).student
    assert student(torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE)])).argmax(1).tolist() == [2, 1]


@pytest.mark.thorough
def test_energy_is_weight_times_the_printed_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same rows of the same triples; and the student goes on in training mode, with its dropout."""
    monkeypatch.setattr(working, "TRIPLES", 64)
    seen = []
    equation_6 = Dgd.unsupervised_energy

    def watched(self: Dgd, phi_s: nn.Module, triples: Tensor) -> Tensor:
        assert not phi_s.training
        seen.append(equation_6(self, phi_s, triples))
        return seen[-1]

    monkeypatch.setattr(Dgd, "unsupervised_energy", watched)
    of, ctx = teacher(), context()
    energy = learning(energy="0.3").unsupervised_energy(image_source("pen", of, ctx), of, ctx)
    phi_s = nets.build("datalens", SHAPE, CLASSES).train()
    assert energy(phi_s, rng()).item() == pytest.approx(0.3 * seen[0].item(), rel=1e-6)
    assert phi_s.training and seen[0].item() > 0


@pytest.mark.thorough
def test_energy_is_in_every_student_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def energy(self: DgdWorking, *_: Any) -> Callable[[nn.Module, torch.Generator], Tensor]:
        def of(phi_s: nn.Module, _: torch.Generator) -> Tensor:
            calls.append(1)
            return self.energy * sum(w.square().sum() for w in phi_s.parameters())

        return of

    monkeypatch.setattr(DgdWorking, "unsupervised_energy", energy)
    size = {
        weight: sum(w.square().sum().item() for w in release.student.parameters())
        for weight in ("0", "10")
        for release in [convert(learning(energy=weight, student_steps="60"), teacher())]
    }
    assert size["10"] < 0.9 * size["0"] and len(calls) == 60


def linear_decoder(rank: int, code: int = 6, pixels: int = 20) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    torch.manual_seed(4)
    w = torch.randn(pixels, rank, dtype=torch.float64) @ torch.randn(rank, code, dtype=torch.float64)
    return w, lambda e: e @ w.T


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_tangent_space_of_linear_decoder_is_row_space(rank: int) -> None:
    w, decode = linear_decoder(rank)
    codes = torch.randn(7, 6, dtype=torch.float64)
    gram = jacobian_gram(decode, codes)
    assert torch.allclose(gram, (w.T @ w).expand(7, 6, 6))
    assert (tangent_basis(gram, 1 - 1e-9)[1].sum(1) == rank).all()
    along, across = tangent_and_normal_step(gram, 1 - 1e-9, 0.7, rng())
    projector = torch.linalg.pinv(w) @ w
    assert torch.allclose(along @ projector.T, along) and torch.allclose(
        across @ w.T, torch.zeros(7, 20).double(), atol=1e-9
    )
    assert not torch.allclose(along[0] + across[0], along[1] + across[1])


def test_steps_are_orthogonal_and_of_one_length() -> None:
    torch.manual_seed(5)
    vae = VAE((1, 8, 8), code=6, width=4)
    codes = torch.randn(40, 6)
    gram = jacobian_gram(vae.decode, codes)
    exact = torch.stack([torch.func.jacfwd(lambda e: vae.decode(e[None]).flatten())(row) for row in codes[:3]])
    assert torch.allclose(gram[:3], exact.transpose(1, 2) @ exact, atol=1e-6)
    along, across = tangent_and_normal_step(gram, 0.6, 0.01, rng())
    assert torch.allclose((along * across).sum(1), torch.zeros(40), atol=1e-8)
    assert torch.allclose(along.norm(dim=1), torch.full((40,), 0.01)) and torch.allclose(
        across.norm(dim=1), along.norm(dim=1)
    )
    moved = [(vae.decode(codes + step) - vae.decode(codes)).flatten(1).norm(dim=1).mean() for step in (along, across)]
    assert moved[0] > 1.3 * moved[1]


@pytest.mark.parametrize("share", [1e-6, 0.5, 1 - 1e-9])
def test_tangent_basis_has_both_kinds_of_directions(share: float) -> None:
    gram = torch.stack([torch.eye(4), torch.zeros(4, 4), torch.diag(torch.tensor([9.0, 0, 0, 0]))])
    vectors, tangent = tangent_basis(gram, share)
    assert ((tangent.sum(1) >= 1) & (tangent.sum(1) <= 3)).all()
    assert torch.allclose(vectors.transpose(1, 2) @ vectors, torch.eye(4).expand(3, 4, 4), atol=1e-6)


def test_triples_differ_by_the_steps() -> None:
    """With hardly any length the three images agree; across stays nearer than along."""
    torch.manual_seed(6)
    vae, images = VAE(SHAPE, code=4, width=4), torch.rand(12, *SHAPE)
    still = printed(step_size="1e-6").triples(images, vae, rng())
    assert still.shape == (3, 12, *SHAPE)
    assert torch.allclose(still[0], still[1], atol=1e-5) and torch.allclose(still[0], still[2], atol=1e-5)
    decoded, across, along = printed(step_size="0.5").triples(images, vae, rng())
    assert (along - decoded).norm() > (across - decoded).norm() > 0


def test_printed_code_noise_destroys_the_code() -> None:
    """Scale 2c / epsilon_1 = 800 on codes in [-1, 1]: two draws of it decode to different images, and steps drown."""
    torch.manual_seed(6)
    vae, images = VAE(SHAPE, code=4, width=4), torch.rand(12, *SHAPE)
    method = printed(code_epsilon="0.01", step_size="0.5")
    one, other = (method.triples(images, vae, rng(seed)) for seed in (1, 2))
    assert (one[0] - other[0]).abs().mean() > 20 * (one[0] - one[1]).abs().mean()


@pytest.mark.parametrize("prior", ["auto", "pen", "generator"])
def test_other_priors_do_not_query_the_baseline(prior: str) -> None:
    spy = Spy(toy_teacher().model)
    convert(learning(prior=prior), teacher(model=spy))
    assert not spy.queried and not spy.with_gradient


@pytest.mark.parametrize("method", [printed(), learning(prior="baseline")])
def test_baseline_trains_the_generator(method: Dgd | DgdWorking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "GENERATOR_STEPS", 3)
    spy = Spy(toy_teacher().model)
    convert(method, teacher(model=spy))
    assert spy.with_gradient == 2 * 3, "logits and features in each step"
