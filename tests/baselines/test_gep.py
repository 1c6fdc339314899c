"""GEP: the embedding and the residual, the noise on each, and the cost of two releases of one sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from baseline_runs import epsilon_of, is_normal, record_calls, renyi_epsilon, rng
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from privately_trained import check_neighbours, convert, empty_batches, moved, network, toy
from torch import Tensor, nn

from baselines import gep
from baselines.gep import DISPUTED, Embedding, Gep, published_epsilon
from bench import nets
from bench.config import configure
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.clipping import add_clipped
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, context, toy_private


class Numbers(nn.Module):
    """A network of two parameters, whose per-sample gradients the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 2))


def by_hand(anchors: list[list[float]], **given: Any) -> Embedding:
    """Build the embedding of four parameters from these anchor gradients, after step 1."""
    rows = torch.tensor(anchors)

    def gradients(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"first": rows[:, :2], "second": rows[:, None, 2:]}

    public = torch.zeros(len(rows), 1, 1, 1), torch.zeros(len(rows), dtype=torch.long)
    by = Gep(**{"parts": 1, "bases": 1, "anchors": len(rows), "clip": 1.0, "residual_clip": 0.5, **given})
    found = Embedding(by, Numbers(), gradients, public, rng())  # type: ignore[arg-type]
    found.begin(0)
    return found


def as_gradients(*rows: list[float]) -> dict[str, Tensor]:
    held = torch.tensor(rows)
    return {"first": held[:, :2], "second": held[:, None, 2:]}


def test_embedding_and_residual_by_hand() -> None:
    """One anchor along (0, 1, 0, 0): of (3, 4, 5, 6) the embedding is +-4, and (3, 0, 5, 6) is left."""
    coding = by_hand([[0.0, 2.0, 0.0, 0.0]])
    (basis,) = coding.bases
    torch.testing.assert_close(basis.abs().flatten(), torch.tensor([0.0, 1, 0, 0]).double())
    rows = coding.encode(as_gradients([3.0, 4, 5, 6], [0.0, -2, 0, 0]))
    torch.testing.assert_close(rows["embedding"] * basis[1], torch.tensor([[4.0], [-2.0]]).double())
    torch.testing.assert_close(rows["residual"], torch.tensor([[3.0, 0, 5, 6], [0, 0, 0, 0]]).double())
    back = coding.decode({name: row[0] for name, row in rows.items()})
    assert back["first"].tolist() == pytest.approx([3, 4]) and back["second"].tolist() == [pytest.approx([5, 6])]


def test_power_iteration_by_hand() -> None:
    anchors = torch.randn(5, 4, generator=rng(3))
    coding = by_hand(anchors.tolist(), bases=2)
    start = torch.randn(4, 2, generator=rng())
    expected = torch.linalg.qr(anchors.T @ anchors @ start)[0].double()
    torch.testing.assert_close(coding.bases[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(expected.T @ expected, torch.eye(2).double(), rtol=1e-4, atol=1e-5)


def test_groups_have_separate_subspaces() -> None:
    """Two groups of two parameters: an anchor in one group does not affect the other."""
    coding = by_hand([[0.0, 2.0, 3.0, 0.0]], parts=2, bases=2)
    assert coding.sizes == [2, 2] and coding.dimensions == [1, 1]
    assert [basis.abs().flatten().tolist() for basis in coding.bases] == [[0.0, 1.0], [1.0, 0.0]]
    rows = coding.encode(as_gradients([3.0, 4, 5, 6]))
    assert rows["embedding"].abs().tolist() == [[4, 5]] and rows["residual"].tolist() == [[3, 0, 0, 6]]


def test_dimensions_are_the_papers() -> None:
    """333 for each of three groups of the network of MNIST; at most as many as there are anchors."""
    model = nets.build("relu-cnn", (1, 28, 28), 10)
    for count, each in ((2000, 333), (40, 40)):
        public = torch.zeros(count, 1, 28, 28), torch.zeros(count, dtype=torch.long)
        made = Embedding(Gep(), model, lambda *_: {}, public, rng())  # type: ignore[arg-type]
        assert made.sizes == [8670] * 3 and made.dimensions == [each] * 3


def test_clipping_norms_are_c0_and_c1() -> None:
    """Of (3, 4, 0, 0): embedding 4 to C0 = 1, residual 3 to C1 = 0.5, less the room for rounding."""
    coding = by_hand([[0.0, 2.0, 0.0, 0.0]])
    total = coding.zeros()
    add_clipped(total, coding.encode(as_gradients([3.0, 4, 0, 0])), coding.groups(), 1)
    assert float(total["embedding"].norm()) == pytest.approx(127 / 128)
    assert total["residual"].tolist() == pytest.approx([0.5 * 127 / 128, 0, 0, 0])
    assert (Gep().clip, Gep().residual_clip, Gep().power_iterations) == (5.0, 2.0, 1)


def test_subspace_is_reused_for_every_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, Embedding, "_subspace")
    convert(Gep, steps=5, every=2)
    assert [call.arguments[2] for call in calls] == [3, 3, 3] * 3


def noise_alone(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[Tensor, Tensor, float]:
    """Return the moves of one step of rate 1 with an empty batch, in and outside the anchor subspace."""
    calls = record_calls(monkeypatch, Embedding, "begin")
    empty_batches(monkeypatch)
    fixed = {"batch": 8, "rate": 1.0, "momentum": 0, "weight_decay": 0, "clip": 0.6}
    fixed |= {"residual_clip": 0.3} if given.get("residual") != "false" else {}
    release = convert(Gep, steps=1, multiplier=2.0, bases=300, anchors=128, **fixed, **given)
    made = calls[0].arguments[0]
    parts = moved(release).split(made.sizes)
    inside = [basis.T @ part for basis, part in zip(made.bases, parts, strict=True)]
    outside = [part - basis @ w for basis, part, w in zip(made.bases, parts, inside, strict=True)]
    return torch.cat(inside), torch.cat(outside), 2.0 / 8


def test_releases_have_noise_of_their_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the subspace both noises add up, sigma (C0^2 + C1^2)^(1/2); outside of it there is only sigma C1."""
    inside, outside, unit = noise_alone(monkeypatch)
    assert is_normal(inside, unit * math.hypot(0.6, 0.3))
    assert is_normal(outside, unit * 0.3)


def test_b_gep_moves_only_in_the_subspace(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside, unit = noise_alone(monkeypatch, residual="false")
    assert is_normal(inside, unit * 0.6)
    assert float(outside.abs().max()) < 1e-5


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_one_record_moves_releases_by_at_most_the_norms(scale: float) -> None:
    """At gradients far below and far above both clipping norms."""
    model = network()
    with torch.no_grad():
        model.body.head.weight.mul_(scale)  # type: ignore[union-attr, operator]
    gradients = GRADIENTS["opacus"](model, 1)
    public = toy_private(1, 64)[0].float() / 255, torch.arange(64) % CLASSES
    by = Gep(bases=60, clip=0.5, residual_clip=0.2)
    coding = Embedding(by, model, gradients, public, rng())
    coding.begin(0)
    images, labels = toy_private(n=250)
    check_neighbours(coding, gradients, images.float() / 255, labels)


def plain_renyi(event: Any, steps: int, delta: float) -> float:
    """By the published conversion, which later accountants improve."""
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(event, steps))
    pairs = zip(accountant._rdp, accountant._orders, strict=True)  # type: ignore[attr-defined]
    return min(r + math.log(1 / delta) / (a - 1) for r, a in pairs)


@pytest.mark.thorough
def test_ledger_is_two_gaussians_on_one_sample() -> None:
    """Checked by Renyi divergence, which composes them under one sample itself."""
    release = convert(Gep, multiplier=2.5, batch=16, steps=50)
    (entry,) = release.ledger.entries(Unit.EXAMPLE)
    assert entry.count == 50 and entry.event.sampling_probability == 16 / 64  # type: ignore[attr-defined]
    both = ComposedDpEvent([GaussianDpEvent(2.5), GaussianDpEvent(2.5)])
    bound = renyi_epsilon(PoissonSampledDpEvent(0.25, both), 50)
    assert 0.6 * bound < epsilon_of(release.ledger) <= bound
    assert release.solved["sigma"] == 2.5


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("q", "sigma", "steps", "doubled", "true"), [(0.02, 1, 500, 4.93, 8.38), (0.01, 0.8, 1000, 5.56, 11.56)]
)
def test_published_account_treats_samples_as_separate(
    q: float, sigma: float, steps: int, doubled: float, true: float
) -> None:
    """Both by the published conversion; the published number is below all valid bounds."""
    published = published_epsilon(q, sigma, steps, 1e-5)
    assert published == pytest.approx(doubled, rel=0.03)
    one = PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
    assert published == pytest.approx(plain_renyi(one, 2 * steps, 1e-5), rel=0.03)
    together = PoissonSampledDpEvent(q, GaussianDpEvent(sigma / math.sqrt(2)))
    assert plain_renyi(together, steps, 1e-5) == pytest.approx(true, rel=0.02)
    assert published < epsilon_of(DpSgdParameters(q, steps, sigma / math.sqrt(2)).ledger())


@pytest.mark.parametrize(("q", "sigma"), [(1.0, 5.0), (1.0, 40.0), (0.5, 3.0)])
def test_published_formula_at_large_samples(q: float, sigma: float) -> None:
    event = PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
    assert published_epsilon(q, sigma, 10, 1e-5) == pytest.approx(plain_renyi(event, 20, 1e-5), rel=0.05)
    assert math.isinf(published_epsilon(q, 0.0, 10, 1e-5))


@pytest.mark.parametrize(
    ("residual", "against", "disputed"),
    [(True, "claimed", DISPUTED), (True, "accounted", DISPUTED), (False, "claimed", "")],
)
def test_budget_limits_the_chosen_account(residual: bool, against: Any, disputed: str) -> None:
    """The published number is disputed; that of B-GEP is the account."""
    release = convert(Gep, Budget(3.0, account=against), batch=64, residual=residual)
    accounted = epsilon_of(release.ledger)
    assert release.claim is not None and release.claim.disputed == disputed
    assert 0.97 * 3.0 < (release.claim.epsilon if against == "claimed" else accounted) <= 3.0
    assert residual or release.claim.epsilon == accounted


def test_anchors_are_public_images_or_prior_draws() -> None:
    made = configure(Gep, "smoke", {"images": "prior"}, "method", "printed")
    assert made.needs == {"private_data"} and Gep().needs == {"private_data", "public_data"}
    teacher = toy()
    assert teacher.public is not None
    found = Gep(anchors=10)._anchors(teacher, rng())
    public = teacher.public.float() / 255
    assert len(found) == 10 and all(any(torch.equal(image, one) for one in public) for image in found)
    drawn = Gep(anchors=10, images="prior")._anchors(teacher, rng())
    assert drawn.shape == found.shape and float(drawn.min()) >= 0 and float(drawn.max()) <= 1
    assert convert(Gep, images="prior", network="tanh-cnn").arch == "tanh-cnn"


def test_anchors_have_labels_of_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn evenly, as public images have none: 400 of 4 classes."""
    monkeypatch.setattr(gep, "Embedding", lambda by, model, gradients, anchors, rng: anchors)
    make: Any = Gep(anchors=400, images="prior")._coding(toy(), DpSgdParameters(1.0, 1, 0.0), context())
    images, labels = make(None, None)
    assert len(images) == 400 and torch.bincount(labels, minlength=CLASSES).min() > 50
