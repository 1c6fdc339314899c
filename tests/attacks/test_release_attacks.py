"""Attacks on released images and generators: equations by hand, and power in both directions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import membership_made
import pytest
import torch
from conftest import write_toy
from sklearn.decomposition import PCA
from torch import Tensor, nn

from attacks.domias import Domias
from attacks.gan_leaks import GanLeaks
from attacks.moment_tracing import MomentTracing, clipped
from bench import boards
from bench.api import AccessDenied, AttackerKnowledge, ReleasedImages, Sampler, gaussian_latents
from bench.data import to_float
from bench.gan.latent_search import nearest_images
from bench.membership.neighbours import Components, log_density, nearest
from bench.metrics.levels import LEAST_AUC
from bench.metrics.membership import auc_interval, membership
from bench.pipeline import memorising_generator, run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.testing import context, silent

SIDE = 16


def drawn(n: int, seed: int) -> Tensor:
    """(n, 1, 16, 16) images of one distribution in 24 dimensions."""
    rng = torch.Generator().manual_seed(seed)
    basis = torch.randn(24, SIDE * SIDE, generator=torch.Generator().manual_seed(99))
    return (torch.randn(n, 24, generator=rng) @ basis / 12).sigmoid().view(n, 1, SIDE, SIDE)


def knows(x: Tensor, aux: Tensor) -> AttackerKnowledge:
    of_suspects, of_others = (torch.zeros(len(images), dtype=torch.int64) for images in (x, aux))
    return membership_made.knows(x, of_suspects, (aux, of_others))


X, AUX, SAMPLES = drawn(20, 1), drawn(100, 2), drawn(60, 3)


def scores(attack: Any, samples: Tensor = SAMPLES, x: Tensor = X, aux: Tensor = AUX) -> Tensor:
    return attack.compare(ReleasedImages("samples", samples, None), knows(x, aux), context()).scores


BLACK = GanLeaks(space="whitened", calibration="aux")
ATTACKS: list[Any] = [BLACK, replace(BLACK, space="pixels"), Domias(density="knn", k=3), Domias(), MomentTracing()]


# Distances


def test_nearest_by_hand() -> None:
    among = torch.tensor([[0.0, 0], [3, 4], [6, 8]], dtype=torch.float64)
    points = torch.tensor([[0.0, 0], [6, 0]], dtype=torch.float64)
    assert nearest(points, among).tolist() == pytest.approx([0, 5])
    assert nearest(points, among, 2).tolist() == pytest.approx([5, 6])
    assert nearest(points, among, 9).tolist() == pytest.approx([10, 8]), "the last where there are fewer than k"


@pytest.mark.parametrize("n", [40, 700])
def test_components_whiten_and_residual_by_hand(n: int) -> None:
    images = drawn(n, 0)
    found = Components.of(images, 200)
    assert len(found.deviations) == min(n // 5, len(found.deviations)) and bool((found.deviations.diff() <= 0).all())
    assert torch.allclose(found.directions.T @ found.directions, torch.eye(len(found.deviations)).double(), atol=1e-6)
    assert found.whiten(images).std(0).sub(1).abs().max() < 1e-4
    rows = images.flatten(1).double() - found.mean
    rest = (rows - rows @ found.directions @ found.directions.T).square().sum(1)
    assert torch.allclose(found.residual(images), rest, atol=1e-8)


def test_components_of_constant_images_are_refused() -> None:
    for images in (torch.ones(12, 1, 4, 4), torch.rand(1, 1, 4, 4), torch.rand(0, 1, 4, 4)):
        with pytest.raises(ValueError, match=str(len(images))):
            Components.of(images, 3)


def test_log_density_by_hand() -> None:
    among = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    points = torch.tensor([[0.0], [500.0]], dtype=torch.float64)
    near, far = log_density(points, among, 1.0).tolist()
    assert near == pytest.approx(math.log((1 + math.exp(-2)) / 2))
    assert far == pytest.approx(-(498**2) / 2 - math.log(2)), "logarithms do not underflow"


# Scores


def test_gan_leaks_by_hand() -> None:
    """In pixels of [-1, 1]: distances 2 sqrt(4 x 0.1^2) = 0.4 to the sample and 0.8 to the attacker's image."""
    x, sample, aux = (torch.full((1, 1, 2, 2), v) for v in (0.5, 0.6, 0.3))
    score = scores(GanLeaks(calibration="aux"), sample, x, aux)
    assert score.item() == pytest.approx(math.log(0.8) - math.log(0.4), abs=1e-5)
    assert scores(GanLeaks(), sample, x, aux).item() == pytest.approx(-math.log(0.4), abs=1e-5)


@pytest.mark.parametrize("attack", [Domias(density="knn", k=3, components=4), Domias(components=4)], ids=["knn", "kde"])
def test_domias_by_hand(attack: Domias) -> None:
    """By scikit-learn's whitening: k-th distances, or kernels of width n^(-1 / (d + 4)), n the smaller set's size."""
    pca = PCA(4, whiten=True, svd_solver="full").fit(AUX.flatten(1).double().numpy())
    x, samples, aux = (torch.from_numpy(pca.transform(part.flatten(1).double().numpy())) for part in (X, SAMPLES, AUX))
    ours, theirs = torch.cdist(x, samples), torch.cdist(x, aux)
    if attack.density == "knn":
        wanted = theirs.sort(1).values[:, 2].log() - ours.sort(1).values[:, 2].log()
    else:
        width = 60 ** (-1 / 8)
        near, far = ((-(each**2) / (2 * width**2)).exp().mean(1) for each in (ours, theirs))
        wanted = near.log() - far.log()
    assert torch.allclose(scores(attack), wanted, atol=1e-6)


@pytest.mark.parametrize("attack", [BLACK, Domias(density="knn")])
def test_calibrated_score_does_not_depend_on_the_scale(attack: Any) -> None:
    assert torch.allclose(scores(attack), scores(attack, SAMPLES / 2, X / 2, AUX / 2), atol=1e-4)


@pytest.mark.parametrize("attack", ATTACKS)
def test_scores_are_independent_per_suspect(attack: Any) -> None:
    assert torch.allclose(scores(attack)[7:9], scores(attack, x=X[7:9]), atol=1e-9)


@pytest.mark.parametrize("attack", [ATTACKS[0], ATTACKS[2]])
def test_samples_equal_to_aux_give_zero_scores(attack: Any) -> None:
    assert scores(attack, AUX).abs().max() < 1e-4


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_finds_copies_only(attack: Any) -> None:
    """Copies of the members with a little of others are found; draws of the same distribution are not."""
    members, others, aux = drawn(150, 1), drawn(150, 2), drawn(400, 3)
    x, inside = torch.cat([members, others]), torch.arange(300) < 150
    copies = torch.cat([0.9 * members + 0.1 * drawn(150, seed) for seed in (5, 6, 7)])
    assert auc_interval(scores(attack, copies, x, aux), inside)[0] > 0.9
    _, low, high = auc_interval(scores(attack, drawn(400, 4), x, aux), inside)
    assert low < 0.5 < high


def test_moment_tracing_by_hand() -> None:
    """By scikit-learn's whitening, with loops over images; rows are clipped at the median norm of the attacker's."""
    pca = PCA(4, whiten=True, svd_solver="full").fit(AUX.flatten(1).double().numpy())
    parts = [torch.from_numpy(pca.transform(part.flatten(1).double().numpy())) for part in (X, SAMPLES, AUX)]
    most = parts[2].norm(dim=1).median()
    x, samples, aux = ([row * min(1.0, float(most / row.norm())) for row in part] for part in parts)
    first, second = (
        sum(map(of, samples)) / len(samples) - sum(map(of, aux)) / len(aux)
        for of in (lambda row: row, lambda row: torch.outer(row, row))
    )
    wanted = torch.stack([row @ first for row in x])
    assert torch.allclose(scores(MomentTracing(components=4, moments="first")), wanted, atol=1e-6)
    wanted += torch.stack([row @ second @ row / 2 for row in x])
    assert torch.allclose(scores(MomentTracing(components=4)), wanted, atol=1e-6)


def test_moment_tracing_clips_long_rows_only() -> None:
    rows = torch.tensor([[3.0, 4], [0.3, 0.4], [0, 0]])
    assert torch.allclose(clipped(rows, torch.tensor(1.0)), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0]]))


@pytest.mark.parametrize(("noise", "is_found"), [(0.0, True), (1.0, False)])
def test_moment_tracing_finds_records_in_exact_moments_only(noise: float, is_found: bool) -> None:
    """Images drawn from a Gaussian around 150 records, without any copy: noise in the moments hides the records."""
    members, others, aux = drawn(150, 1), drawn(150, 2), drawn(400, 3)
    x, inside, rng = torch.cat([members, others]), torch.arange(300) < 150, torch.Generator().manual_seed(0)
    phi = Components.of(aux, 24)
    rows = phi.whiten(members)
    mean, spread = rows.mean(0), torch.cov(rows.T)
    mean = mean + noise * torch.randn(mean.shape, generator=rng, dtype=torch.float64)
    shift = noise * torch.randn(spread.shape, generator=rng, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(spread + (shift + shift.T) / 2)
    codes = torch.randn(4000, len(values), generator=rng, dtype=torch.float64)
    codes = mean + codes * values.clamp_min(0).sqrt() @ vectors.T
    images = phi.mean + codes * phi.deviations @ phi.directions.T
    found = scores(MomentTracing(components=24), images.view(-1, 1, SIDE, SIDE).float(), x, aux)
    area, low, _ = auc_interval(found, inside)
    assert low > LEAST_AUC if is_found else area < LEAST_AUC, (area, low)


# The white box


class Linear(nn.Module):
    """z to 16 pixels around 1/2, or with labels that much brighter."""

    def __init__(self) -> None:
        super().__init__()
        self.map = torch.linalg.qr(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))[0]

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        brighter = 0.0 if labels is None else 0.1 * labels[:, None]
        return (0.5 + brighter + 0.1 * z @ self.map.T).view(-1, 1, 4, 4)


def white_scores(attack: GanLeaks, knowledge: AttackerKnowledge, classes: int = 0) -> Tensor:
    seen = ReleasedImages("generator", None, Sampler(Linear(), gaussian_latents(4), classes=classes))
    found = attack.compare(seen, knowledge, context()).scores.float()
    assert seen.queries == attack.steps * len(knowledge.images)
    return found


def uniform(n: int) -> Tensor:
    return torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(n))


def test_nearest_image_of_linear_generator_is_projection() -> None:
    generator, x = Linear(), uniform(5)
    with silent("", 1) as advance:
        found, error = nearest_images(generator, torch.zeros(5, 4), x, steps=400, lr=0.1, penalty=0, advance=advance)
    rest = x.flatten(1) - 0.5
    rest = rest - rest @ generator.map @ generator.map.T
    assert torch.allclose(error, rest.square().sum(1), atol=1e-4)
    assert torch.allclose((found - x).square().flatten(1).sum(1), error, atol=1e-6)


@pytest.mark.parametrize(("penalty", "lr", "kept"), [(0.0, 0.1, 1), (1000.0, 0.001, 0)])
def test_white_box_score_by_hand(penalty: float, lr: float, kept: int) -> None:
    """A linear generator draws the projection, or the centre if latents are costly; their cost is not part of the
    error. The attacker's own components are 2 of 16 numbers."""
    generator, x, aux = Linear(), uniform(8), uniform(40)
    attack = GanLeaks(box="white", calibration="aux", steps=400, lr=lr, penalty=penalty)
    found = white_scores(attack, knows(x, aux))
    rest = x.flatten(1) - 0.5
    own = (rest - kept * rest @ generator.map @ generator.map.T).square().sum(1)
    mean = aux.flatten(1).mean(0)
    leading = torch.linalg.svd(aux.flatten(1) - mean, full_matrices=False).Vh[:2]
    off = x.flatten(1) - mean
    reference = (off - off @ leading.T @ leading).square().sum(1)
    assert torch.allclose(found, reference.log() - own.log(), atol=3e-3)


def test_white_box_starts_at_the_latents_mean() -> None:
    x = uniform(5)
    found = white_scores(GanLeaks(box="white", steps=1, lr=1e-9), knows(x, uniform(40)))
    assert torch.allclose(found, -(x - 0.5).square().flatten(1).sum(1).log(), atol=1e-4)


def test_white_box_uses_labels_and_is_batch_independent() -> None:
    knowledge = replace(knows(uniform(8), uniform(40)), labels=torch.arange(8) % 2)
    attack = GanLeaks(box="white", calibration="aux", steps=30, batch=8)
    whole = white_scores(attack, knowledge, 2)
    assert torch.allclose(white_scores(replace(attack, batch=3), knowledge, 2), whole, atol=1e-5)
    other = replace(knowledge, labels=1 - knowledge.labels)
    assert not torch.allclose(white_scores(attack, other, 2), whole, atol=1e-3)


def test_sample_access_denies_the_generator() -> None:
    seen = ReleasedImages("samples", None, Sampler(Linear(), gaussian_latents(4)))
    assert seen.samples(700, torch.Generator().manual_seed(0)).shape == (700, 1, 4, 4) and seen.queries == 700
    with pytest.raises(AccessDenied):
        GanLeaks(box="white").compare(seen, knows(torch.rand(2, 1, 4, 4), torch.rand(20, 1, 4, 4)), context())


def test_samples_alternate_over_the_classes() -> None:
    """In two parts of 500 and one of 20, by a generator that shows its labels."""

    class Shown(nn.Module):
        def forward(self, z: Tensor, labels: Tensor) -> Tensor:
            return (labels.float() / 255).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)

    seen = ReleasedImages("samples", None, Sampler(Shown(), gaussian_latents(4), classes=7))
    shown = (seen.samples(1020, torch.Generator().manual_seed(0))[:, 0, 0, 0] * 255).round()
    assert torch.equal(shown, (torch.arange(1020) % 7).float())


def test_box_option_sets_the_access() -> None:
    assert GanLeaks().access == "samples" and GanLeaks(box="white").access == "generator"


# The control, and whole runs


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"), 240)


@pytest.mark.thorough
def test_attack_finds_only_the_memorising_generator() -> None:
    members, others, aux = drawn(100, 1), drawn(100, 2), drawn(300, 3)
    x, inside = torch.cat([members, others]), torch.arange(200) < 100
    found = {}
    for name, steps in (("memorising", 900), ("random", 0)):
        torch.manual_seed(0)
        decoder = memorising_generator.Decoder((1, SIDE, SIDE))
        if steps:
            memorising_generator.train(decoder, members, steps, 0, lambda n: None)
        sampler = Sampler(decoder.eval().requires_grad_(False), gaussian_latents(decoder.latent))
        for attack in (replace(BLACK, samples=5000), Domias(density="knn", samples=5000), WHITE):
            seen = ReleasedImages(attack.access, None, sampler)
            of_suspects = attack.compare(seen, knows(x, aux), context()).scores
            found[name, attack.access, type(attack)] = membership(of_suspects, inside)
    for (name, access, _), one in found.items():
        if name == "memorising":
            assert one.auc >= (0.9 if access == "generator" else 0.7), (access, one.auc)
        else:
            assert one.auc_low < 0.5 < one.auc_high


WHITE = GanLeaks(box="white", calibration="aux", steps=150)


def job(toy: Path, method: str, variant: str | None = None, **options: str) -> Any:
    settings = Settings(
        method=method, attack="gan-leaks", dataset=f"npz:{toy}/toy.npz", teacher="datalens", tier="smoke",
        out=toy / "runs", variant=variant, attack_options=tuple(options.items()),
    )  # fmt: skip
    return load_job(settings)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method",
    ["dp-merf", "dp-ntk", "dp-kernel", "gs-wgan", "dp-gan", "pate-gan", "g-pate", "dp-sinkhorn", "datalens", "dpdm"],
)
@pytest.mark.parametrize("box", ["black", "white"])
def test_run_on_generator_methods(toy: Path, method: str, box: str) -> None:
    record = run.run(job(toy, method, box=box), 0).record
    assert record.status in ("ok", "inconclusive")
    for prefix in ("", "memorising_", "random_"):
        assert 0 <= record.metrics[f"{prefix}auc"] <= 1  # type: ignore[operator]
    assert "teacher_auc" not in record.metrics, "a teacher draws nothing"
    assert record.spec["attack"]["access"] == ("generator" if box == "white" else "samples")
    boards.flags(record)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dpsd", "dpdfd", "fed-dpsd", "dp-dfd", "dgd"])
def test_run_on_the_papers_methods(toy: Path, method: str) -> None:
    given = job(toy, method, "printed", box="white")
    sampler = given.method.sampler((1, 16, 16), 4, "toy")
    z = sampler.latents(3, torch.Generator().manual_seed(0))
    assert sampler.decode(z, torch.zeros(3, dtype=torch.int64)).shape == (3, 1, 16, 16)
    if method != "dp-dfd":  # which needs a teacher of BatchNorm
        assert run.run(given, 0).record.status in ("ok", "inconclusive", "skipped")


@pytest.mark.thorough
def test_run_without_generator_skips_the_white_box(toy: Path) -> None:
    assert run.run(job(toy, "dpsd"), 0).record.metrics["queries"] <= 60  # type: ignore[operator]
    skipped = run.run(job(toy, "dpsd", box="white"), 0).record
    assert skipped.status == "skipped" and "releases no generator" in skipped.reason
    nothing = run.run(job(toy, "no-defence"), 0).record
    assert nothing.status == "skipped" and "neither a generator nor images" in nothing.reason


def test_released_generator_has_the_released_weights(toy: Path) -> None:
    from bench.pipeline import stages
    from bench.pipeline.job import run_spec

    given = job(toy, "dp-merf")
    spec = run_spec(given, 0)
    teacher = stages.train_teacher(given, spec.release.teacher)
    student = stages.make_release(given, spec.release, teacher.network, None)
    seen = [stages.released_images(given, student, "samples") for _ in range(2)]
    one, other = (s.samples(30, torch.Generator().manual_seed(0)) for s in seen)  # type: ignore[union-attr]
    assert torch.equal(one, other) and torch.equal(to_float((one * 255).round().to(torch.uint8)), one)
