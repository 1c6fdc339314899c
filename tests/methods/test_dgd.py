"""DGD: its equations by hand, directions on the manifold, ledger, claims and budgets, and a whole run."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent
from torch import Tensor, nn

from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.noisy_votes import Aggregation, VotePlan
from bench.errors import BenchError, RunFailed
from bench.nets.vae import VAE
from bench.privacy import Budget, Unit
from bench.privacy.accountant import epsilon
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dgd.dgd import Dgd
from methods.dgd.tangent_space import jacobian_gram, spread, tangent_basis, tangent_normal

FREE = Budget(math.inf, solve="none")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smoke(**given: str) -> Dgd:
    return configure(Dgd, "smoke", given, "method")


class Spy(nn.Module):
    """A network that counts the images it is shown and whether gradients were to flow through them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.shown = 0
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        self.shown += len(x)
        self.with_gradient += x.requires_grad
        return self.model(x)

    def features(self, x: Tensor) -> Tensor:
        return self.model.features(x)  # type: ignore[operator]


class SpyEnsemble(nets.Ensemble):
    """An ensemble that counts the images it votes on."""

    asked = 0

    def votes(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return super().votes(images)


def ensemble(count: int = 3) -> SpyEnsemble:
    made = SpyEnsemble.build(["shard-cnn"], count, SHAPE, CLASSES, range(count))
    assert isinstance(made, SpyEnsemble)
    return made.eval().requires_grad_(False)


def teacher(**parts: Any) -> Teacher:
    return replace(toy_teacher(), **({"ensemble": ensemble()} | parts))


def convert(given_teacher: Teacher | None = None, budget: Budget | None = None, **given: str) -> Release:
    torch.manual_seed(0)
    return smoke(**given).convert(given_teacher or teacher(), "datalens", budget or Budget(10.0), context())


class Two(nn.Module):
    """Two classes, logits (2 m, 0) for an image's mean m; features are the mean and its negative."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([2 * mean, torch.zeros_like(mean)], 1)

    def features(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([mean, -3 * mean], 1)


@pytest.mark.parametrize(("balance", "activation"), [("batch", "up"), ("sample", "down")])
def test_equation_2_by_hand(balance: str, activation: str) -> None:
    """Images 0 and 1: logits (0, 0), (2, 0); p = (1/2, 1/2), (s, 1 - s), s = sigmoid(2); features (0, 0), (1, -3)."""
    images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
    s = 1 / (1 + math.exp(-2))
    cross_entropy = (math.log(2) - math.log(s)) / 2
    per_sample = (-math.log(2) + s * math.log(s) + (1 - s) * math.log(1 - s)) / 2
    p = (0.5 + s) / 2
    of_mean = p * math.log(p) + (1 - p) * math.log(1 - p)
    l1 = (0 + 0 + 1 + 3) / 4
    entropy, sign = (of_mean, -1) if balance == "batch" else (per_sample, 1)
    loss = smoke(balance=balance, activation=activation)._generator_loss(Two(), images)
    assert float(loss) == pytest.approx(cross_entropy + 5 * entropy + sign * 0.1 * l1, abs=1e-6)


@pytest.mark.parametrize(("entropy", "sign"), [("down", -1), ("up", 1)])
def test_equation_6_by_hand(entropy: str, sign: int) -> None:
    """Means (0, 1) as they are, (1, 1) across, (0, 3) along: features (m, -3 m), squared distances 10 (m - m')^2."""
    means = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 3.0]])
    triples = means[:, :, None, None, None].expand(3, 2, 1, 4, 4)
    normal, tangent = (10 + 0) / 2, (0 + 40) / 2
    s = 1 / (1 + math.exp(-2))
    plogp = (-math.log(2) + s * math.log(s) + (1 - s) * math.log(1 - s)) / 2
    method = smoke(normal_weight="2", tangent_weight="3", entropy_weight="7", entropy=entropy)
    value = method._unsupervised(Two(), triples)
    assert float(value) == pytest.approx(2 * normal + 3 * tangent + sign * 7 * plogp, rel=1e-5)


def test_the_default_of_equation_6_prefers_sure_outputs() -> None:
    """The text: minimising makes the outputs more determinate. As printed, a flat output has the least energy."""
    sure, flat = torch.full((3, 1, 1, 4, 4), 4.0), torch.zeros(3, 1, 1, 4, 4)
    assert smoke()._unsupervised(Two(), sure) < smoke()._unsupervised(Two(), flat)
    printed = smoke(entropy="up")
    assert printed._unsupervised(Two(), sure) > printed._unsupervised(Two(), flat)


def test_equation_5_fits_the_answered_labels() -> None:
    """With only E_s, two images far apart and their labels, the student learns exactly these labels."""
    torch.manual_seed(0)
    method, ctx = smoke(vae="false", steps="60", lr="0.01"), context()
    streams = method._streams(teacher(), "datalens", ctx)
    images = torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE)])
    streams.asked, streams.targets = (
        [images[:1], images[1:]],
        [F.one_hot(torch.tensor([k]), CLASSES).float() for k in (2, 1)],
    )
    method._learn_student(streams, None, ctx, lambda _: None)
    assert streams.phi_s.eval()(images).argmax(1).tolist() == [2, 1]


def linear_decoder(rank: int, code: int = 6, pixels: int = 20) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    torch.manual_seed(4)
    w = torch.randn(pixels, rank, dtype=torch.float64) @ torch.randn(rank, code, dtype=torch.float64)
    return w, lambda e: e @ w.T


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_of_a_linear_decoder_tangent_is_row_space_and_normal_null_space(rank: int) -> None:
    w, decode = linear_decoder(rank)
    codes = torch.randn(7, 6, dtype=torch.float64)
    gram = jacobian_gram(decode, codes)
    assert torch.allclose(gram, (w.T @ w).expand(7, 6, 6))
    assert (tangent_basis(gram, 1 - 1e-9)[1].sum(1) == rank).all()
    along, across = tangent_normal(gram, 1 - 1e-9, 0.7, rng())
    projector = torch.linalg.pinv(w) @ w
    assert torch.allclose(along @ projector.T, along) and torch.allclose(
        across @ w.T, torch.zeros(7, 20).double(), atol=1e-9
    )
    assert not torch.allclose(along[0] + across[0], along[1] + across[1])


def test_steps_are_orthogonal_of_one_length_and_tangent_ones_move_the_image_more() -> None:
    torch.manual_seed(5)
    vae = VAE((1, 8, 8), code=6, width=4)
    codes = torch.randn(40, 6)
    gram = jacobian_gram(vae.decode, codes)
    exact = torch.stack([torch.func.jacfwd(lambda e: vae.decode(e[None]).flatten())(row) for row in codes[:3]])
    assert torch.allclose(gram[:3], exact.transpose(1, 2) @ exact, atol=1e-6)
    along, across = tangent_normal(gram, 0.6, 0.01, rng())
    assert torch.allclose((along * across).sum(1), torch.zeros(40), atol=1e-8)
    assert torch.allclose(along.norm(dim=1), torch.full((40,), 0.01)) and torch.allclose(
        across.norm(dim=1), along.norm(dim=1)
    )
    moved = [(vae.decode(codes + step) - vae.decode(codes)).flatten(1).norm(dim=1).mean() for step in (along, across)]
    assert moved[0] > 1.3 * moved[1]


@pytest.mark.parametrize("share", [1e-6, 0.5, 1 - 1e-9])
def test_there_is_always_a_tangent_and_a_normal_direction(share: float) -> None:
    gram = torch.stack([torch.eye(4), torch.zeros(4, 4), torch.diag(torch.tensor([9.0, 0, 0, 0]))])
    vectors, tangent = tangent_basis(gram, share)
    assert ((tangent.sum(1) >= 1) & (tangent.sum(1) <= 3)).all()
    assert torch.allclose(vectors.transpose(1, 2) @ vectors, torch.eye(4).expand(3, 4, 4), atol=1e-6)


def test_spread_takes_an_image_of_every_cluster() -> None:
    centres = torch.tensor([[0.0, 0], [9, 0], [0, 9], [9, 9]])
    codes = (centres[:, None] + 0.1 * torch.randn(50, 2, generator=rng())).flatten(0, 1)
    hits = [len(set((spread(codes, 8, rng(seed)) // 50).tolist())) for seed in range(10)]
    assert all(len(spread(codes, 8, rng(seed)).unique()) == 8 for seed in range(10))
    assert sum(hit == 4 for hit in hits) >= 8


def test_triples_are_the_code_and_its_two_neighbours() -> None:
    """With hardly any length the three images agree; across stays nearer than along."""
    torch.manual_seed(6)
    vae, images = VAE(SHAPE, code=4, width=4), torch.rand(12, *SHAPE)
    still = smoke(step_size="1e-6")._triples(images, vae, rng())
    assert still.shape == (3, 12, *SHAPE)
    assert torch.allclose(still[0], still[1], atol=1e-5) and torch.allclose(still[0], still[2], atol=1e-5)
    decoded, across, along = smoke(step_size="0.5", tangent_share="0.5")._triples(images, vae, rng())
    assert (along - decoded).norm() > (across - decoded).norm() > 0


def test_the_printed_code_noise_leaves_nothing_of_a_code() -> None:
    """Scale 2c / epsilon_1 = 800 on codes in [-1, 1]: two draws of it decode to different images, and steps drown."""
    torch.manual_seed(6)
    vae, images = VAE(SHAPE, code=4, width=4), torch.rand(12, *SHAPE)
    method = smoke(code_noise="true", step_size="0.5")
    one, other = (method._triples(images, vae, rng(seed)) for seed in (1, 2))
    assert (one[0] - other[0]).abs().mean() > 20 * (one[0] - one[1]).abs().mean()


def test_the_ensemble_is_asked_as_often_as_the_ledger_says() -> None:
    of = teacher()
    release = convert(of)
    assert isinstance(of.ensemble, SpyEnsemble) and of.ensemble.asked == 6
    entries = release.ledger.entries(Unit.EXAMPLE)
    assert [(type(e.event), e.count) for e in entries] == [(LaplaceDpEvent, 6), (NonPrivateDpEvent, 1)]


def test_rounds_share_the_queries_and_the_student_teaches_the_generator_between_them() -> None:
    spy = Spy(toy_teacher().model)
    of = teacher(model=spy)
    release = convert(of, queries="7", rounds="3", discriminator="student", generator_steps="4")
    assert isinstance(of.ensemble, SpyEnsemble) and of.ensemble.asked == 7 and release.solved["answered"] == 7
    assert spy.shown == 0, "the baseline is left alone"
    untouched = convert(of, queries="7", rounds="3", discriminator="none").generator
    assert release.generator is not None and untouched is not None
    assert any(
        not torch.equal(a, b) for a, b in zip(release.generator.parameters(), untouched.parameters(), strict=True)
    )


def test_the_baseline_trains_the_generator_by_default() -> None:
    spy = Spy(toy_teacher().model)
    convert(teacher(model=spy))
    assert spy.with_gradient == 3


def test_answers_are_the_votes_arg_max_without_noise() -> None:
    method, of = smoke(vae="false"), teacher()
    streams = method._streams(of, "datalens", context())
    images = torch.rand(40, *SHAPE, generator=rng())
    plan = VotePlan(Aggregation("laplace", 0.0), 6, 6, 3)
    rest = method._ask(streams, images, None, plan, of, rng())
    assert torch.equal(rest, torch.arange(6, 40)) and torch.equal(streams.asked[0], images[:6])
    assert torch.equal(streams.targets[0].argmax(1), of.members().votes(images[:6]).argmax(1))


def test_threshold_above_all_votes_fails_with_a_way_out() -> None:
    with pytest.raises(RunFailed, match="threshold"):
        convert(budget=FREE, aggregation="gaussian", threshold="1.5")


def test_private_images_take_the_place_of_synthetic_ones_and_are_charged() -> None:
    method = smoke(images="private")
    assert method.needs == Dgd.needs | {"private_data"} and "private_data" not in Dgd().needs
    private = (torch.randint(0, 256, (60, *SHAPE), dtype=torch.uint8), torch.zeros(60, dtype=torch.long))
    spy = Spy(toy_teacher().model)
    release = convert(teacher(private=private, model=spy), images="private", vae="false")
    assert spy.shown == 0 and release.generator is None and release.synthetic is None
    assert any("private images" in e.why for e in release.ledger.entries(Unit.EXAMPLE))
    assert release.claim is not None and "private images" in release.claim.source


@pytest.mark.parametrize(("queries", "golden"), [(400, 5.7985), (1000, 10.087)])
def test_golden_claims(queries: int, golden: float) -> None:
    """Section IV-C: 5.80 for 400 queries and 10.1 for 1000, at 2 / epsilon_0 = 40 and delta 1e-5."""
    method = configure(Dgd, "paper", {"queries": str(queries)}, "method")
    claim = method.claim(method.plan(Budget(None, solve="none"), "mnist"), 1e-5)
    assert claim.epsilon == pytest.approx(golden, abs=1e-3)
    assert claim.unit == Unit.EXAMPLE and "not charged" in claim.source
    noisy = replace(method, code_noise=True)
    assert noisy.claim(noisy.plan(Budget(None, solve="none"), "mnist"), 1e-5).epsilon == pytest.approx(
        golden + 0.01, abs=1e-3
    )


@pytest.mark.parametrize(("target", "queries"), [(1.0, 27), (1.1, 1300), (10.0, 1300)])
def test_the_papers_number_of_queries(target: float, queries: int) -> None:
    plan = Dgd().plan(Budget(target), "mnist")
    assert plan.queries == queries
    assert (
        Dgd().claim(plan, 1e-5).epsilon == pytest.approx(target, rel=1e-3) and Dgd().claim(plan, 1e-5).epsilon <= target
    )


def test_the_claim_of_gaussian_votes_is_the_accountants_of_the_votes() -> None:
    method = smoke(aggregation="gaussian", threshold="0.5")
    plan = method.plan(Budget(2.0), "digits")
    assert method.claim(plan, 1e-5).epsilon == pytest.approx(2.0, rel=1e-3)
    answers, asked, _ = method.ledger(plan).entries(Unit.EXAMPLE)
    assert isinstance(answers.event, GaussianDpEvent) and (answers.count, asked.count) == (6, 12)


@pytest.mark.parametrize("given", [{"discriminator": "none"}, {"discriminator": "student", "rounds": "2"}])
def test_accounted_epsilon_is_met_where_the_baseline_is_left_alone(given: dict[str, str]) -> None:
    release = convert(budget=Budget(3.0, account="accounted"), **given)
    found = epsilon(release.ledger, Unit.EXAMPLE, 1e-5).epsilon
    assert 2.9 < found <= 3.0


@pytest.mark.parametrize(
    ("given", "budget", "says"),
    [
        ({}, Budget(3.0, account="accounted"), "discriminator none"),
        ({"images": "private"}, Budget(3.0, account="accounted"), "images synthetic"),
        ({}, Budget(3.0, unit=Unit.CLIENT), "per example or per query"),
        ({"queries": "39", "synthetic": "40", "aggregation": "gaussian", "threshold": "0.5"}, Budget(3.0), "synthetic"),
    ],
)
def test_impossible_budgets_are_refused_before_anything_is_trained(
    given: dict[str, str], budget: Budget, says: str
) -> None:
    with pytest.raises(BenchError, match=says):
        smoke(**given).check(budget, "digits", CLASSES)


@pytest.mark.parametrize(
    "given",
    [
        {"threshold": "0.5"},
        {"discriminator": "student"},
        {"choose": "spread", "vae": "false"},
        {"tangent_share": "1.0"},
        {"queries": "40"},
        {"teachers": "-1"},
        {"candidates": "0.5"},
    ],
)
def test_impossible_fields_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(BenchError, match="expected"):
        smoke(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"reading": "posterior", "choose": "spread"},
        {"aggregation": "gaussian", "threshold": "0.1", "candidates": "3"},
        {"generator": "strokes", "augment": "true", "code_noise": "true"},
        {"balance": "sample", "activation": "down", "entropy": "up"},
        {"vae": "false", "discriminator": "none"},
        {"beta": "0", "entropy_weight": "0", "generator_decay": "0"},
        {"discriminator": "student", "rounds": "2", "choose": "spread"},
    ],
    ids=lambda given: "-".join(given),
)
def test_every_other_option_runs(given: dict[str, str]) -> None:
    release = convert(budget=Budget(50.0), **given)
    assert all(torch.isfinite(w).all() for w in release.student.state_dict().values())
    assert release.ledger.entries(Unit.EXAMPLE)


def test_the_ensemble_asked_for_is_the_papers() -> None:
    shards = Dgd().shards("resnet18", "mnist")
    assert (shards.count, shards.archs, shards.steps, shards.batch, shards.lr) == (250, ("dgd-cnn",), 3000, 128, 0.05)
    assert replace(Dgd(), teacher_net="same").shards("resnet18", "mnist").archs == ("resnet18",)
    assert replace(Dgd(), teachers=0).shards("resnet18", "digits").count == 48


def test_an_audit_does_not_refute_what_the_ledger_says_of_one_query() -> None:
    found = audit(smoke(queries="6").game(Budget(6.0), "digits", CLASSES), 100_000)
    assert found.verdict == "not refuted" and found.lower_bound > 0


@pytest.mark.slow
def test_noise_free_student_comes_within_ten_points_of_its_teacher(
    bench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    few = ["--method.teachers", 16, "--method.teacher_steps", 400, "--method.teacher_batch", 32]
    done = bench("run", "--method", "dgd", "--dataset", "digits", "--tier", "quick", "--epsilon", "inf", *few)
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "runs" / "records").glob("*/record.json")
    metrics = json.loads(record.read_text())["metrics"]
    assert metrics["accuracy"] > metrics["teacher_accuracy"] - 0.10
