"""Ensembles: members are independent of each other, and both ways of training them are equivalent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.api import Shards
from bench.errors import RunFailed
from bench.nets import Ensemble
from bench.teachers.ensemble import How, fit_ensemble

SHAPE, CLASSES = (1, 8, 8), 3


def toy(n: int = 120) -> tuple[Tensor, Tensor]:
    """Three classes: bright above, bright below, dark."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % CLASSES
    images = torch.randint(0, 60, (n, *SHAPE), generator=rng)
    images[labels == 0, :, :4] += 150
    images[labels == 1, :, 4:] += 150
    return images.to(torch.uint8), labels


def trained(
    images: Tensor,
    labels: Tensor,
    parts: list[np.ndarray],
    how: How = "in turn",
    archs: tuple[str, ...] = ("shard-cnn",),
    steps: int = 12,
    lr: float = 5e-3,
) -> Ensemble:
    ensemble = Ensemble.build(archs, len(parts), SHAPE, CLASSES, seeds=range(len(parts)))
    shards = Shards(len(parts), archs, steps=steps, batch=16, lr=lr, weight_decay=0.01, shift=1)
    fit_ensemble(ensemble, images, labels, parts, shards, device=torch.device("cpu"), seed=3, how=how)
    return ensemble


def unchanged(one: Ensemble, other: Ensemble) -> list[bool]:
    """Whether each member has equal parameters in both ensembles."""
    return [
        all(torch.equal(a, b) for a, b in zip(x.parameters(), y.parameters(), strict=True))
        for x, y in zip(one.members, other.members, strict=True)
    ]


PARTS = [np.arange(0, 50), np.arange(50, 110), np.arange(110, 120)]


@pytest.mark.thorough
@pytest.mark.parametrize(("arch", "lr"), [("shard-cnn", 1e-3), ("resnet10t", 1e-6)])
def test_stacked_training_equals_training_in_turn(arch: str, lr: float) -> None:
    """At a small rate for the network with BatchNorm, as Adam's first step is the sign of a gradient that may be 0."""
    images, labels = toy()
    pair = [trained(images, labels, PARTS, how, (arch,), steps=4, lr=lr) for how in ("stacked", "in turn")]
    fresh = Ensemble.build((arch,), 3, SHAPE, CLASSES, seeds=range(3)).state_dict()
    for (name, one), other in zip(pair[0].state_dict().items(), pair[1].state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)
        assert torch.equal(one, fresh[name]) == (".mean" in name or ".std" in name), name


@pytest.mark.parametrize("how", ["stacked", "in turn"])
def test_record_changes_only_its_member(how: How) -> None:
    images, labels = toy()
    other_images, other_labels = images.clone(), labels.clone()
    other_images[60], other_labels[60] = 255 - images[60], (labels[60] + 1) % CLASSES
    before = trained(images, labels, PARTS, how)
    shorter = [PARTS[0], PARTS[1][:-7], PARTS[2]]
    for other in (trained(other_images, other_labels, PARTS, how), trained(images, labels, shorter, how)):
        assert unchanged(before, other) == [True, False, True]


@pytest.mark.parametrize("how", ["stacked", "in turn"])
def test_member_without_records_is_unchanged(how: How) -> None:
    images, labels = toy()
    parts = [np.arange(0, 60), np.arange(0, 0), np.arange(60, 120)]
    fresh = Ensemble.build(("shard-cnn",), 3, SHAPE, CLASSES, seeds=range(3))
    assert unchanged(fresh, trained(images, labels, parts, how)) == [False, True, False]


def test_members_learn_and_votes_are_counts() -> None:
    images, labels = toy()
    ensemble = trained(images, labels, PARTS, archs=("shard-cnn", "dgd-cnn"), steps=40)
    x = images.float() / 255
    votes, logits = ensemble.votes(x), ensemble(x)
    assert logits.shape == (3, 120, CLASSES) and len(ensemble) == 3 and not ensemble.is_stackable()
    assert (logits.argmax(2) == labels).double().mean() > 0.95
    counted = torch.stack([(logits.argmax(2) == c).sum(0) for c in range(CLASSES)], 1)
    assert torch.equal(votes, counted.float()) and (votes.sum(1) == 3).all()
    assert not any(p.requires_grad for p in ensemble.parameters()) and not ensemble.training


def test_build_uses_one_seed_per_member() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    three = Ensemble.build(("shard-cnn",), 3, SHAPE, CLASSES, seeds=(7, 8, 9))
    assert torch.equal(torch.get_rng_state(), before)
    two = Ensemble.build(("shard-cnn",), 2, SHAPE, CLASSES, seeds=(7, 9))
    weights = [next(iter(member.parameters())) for member in (*three.members, *two.members)]
    assert torch.equal(weights[0], weights[3]) and torch.equal(weights[2], weights[4])
    assert not torch.equal(weights[0], weights[1])


def test_ensemble_divergence_is_a_failed_run() -> None:
    images, labels = toy()
    with pytest.raises(RunFailed):
        trained(images, labels, PARTS, lr=1e30)


@pytest.mark.parametrize("rows", [20, 900])
def test_fixed_features_are_solved_by_ridge_regression(rows: int) -> None:
    """The gradient of |a w - y|^2 + p |w|^2 is 0 at every member's weights, for few rows and for many."""
    images, labels = toy(rows)
    images = images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    parts = [np.arange(0, rows // 2), np.arange(rows // 2, rows), np.arange(0, 0)]
    ensemble = Ensemble.build(("scatter-linear",), 3, (1, 16, 16), CLASSES, seeds=range(3))
    untouched = ensemble.members[2].body.head.weight.clone()
    shards = Shards(3, ("scatter-linear",), steps=1, batch=1, lr=1.0, ridge=0.05)
    fit_ensemble(ensemble, images, labels, parts, shards, device=torch.device("cpu"), seed=0)
    assert ensemble.fixed_features and ensemble.members[0].body.trunk is ensemble.members[1].body.trunk
    x = images.float() / 255
    a = ensemble.features(x).double()
    for j in (0, 1):
        own, y = a[parts[j]], torch.nn.functional.one_hot(labels[parts[j]], CLASSES).double() - 1 / CLASSES
        w = ensemble.members[j].body.head.weight.double().T
        penalty = 0.05 * own.square().sum(1).mean()
        slope = own.T @ (own @ w - y) + penalty * w
        assert slope.norm() < 1e-3 * (own.T @ y).norm()
        torch.testing.assert_close(ensemble(x)[j], ensemble.members[j](x), rtol=1e-4, atol=1e-5)
    assert torch.equal(ensemble.members[2].body.head.weight, untouched)
    assert ensemble.votes(x).sum(1).eq(3).all()


def test_fixed_features_are_computed_per_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs may choose kernels by the size of a batch."""
    images, labels = toy(60)
    images = images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    features = Ensemble.features
    monkeypatch.setattr(Ensemble, "features", lambda self, x: features(self, x) + len(x) * 1e-3)
    shards = Shards(2, ("scatter-linear",), steps=1, batch=1, lr=1.0, ridge=0.05)

    def heads(rows: int) -> list[Tensor]:
        ensemble = Ensemble.build(("scatter-linear",), 2, (1, 16, 16), CLASSES, seeds=range(2))
        parts = [np.arange(30), np.arange(30, rows)]
        fit_ensemble(ensemble, images[:rows], labels[:rows], parts, shards, device=torch.device("cpu"), seed=0)
        return [member.body.head.weight for member in ensemble.members]

    (first, second), (same, other) = heads(60), heads(59)
    assert torch.equal(first, same) and not torch.equal(second, other)
