"""DP-SGD on groups of records: which records are used, a group's influence, its sampling and noise, and the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from baselines.dp_sgd import DpSgd
from baselines.private_features import PrivateFeatures
from bench import nets
from bench.dp_training import clipped_sums, dp_sgd, linear_head
from bench.dp_training.dp_sgd import NoisyGradients
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.gradient_game import ChosenGradients, Lanes
from bench.dp_training.record_groups import RecordGroups, group_means
from bench.privacy import Budget, Unit
from bench.privacy.audit import audit
from bench.testing import CLASSES, SHAPE, context, toy_private

SETTINGS = DpSgdSettings(batch=8, steps=1, multiplier=0.0, clip=0.5, clipping="flat", rate=1.0, momentum=0.0)
BUDGET = Budget(3.0, unit=Unit.GROUP)


def groups_of_sizes(*sizes: int, largest: int = 256) -> RecordGroups:
    return RecordGroups.of(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), largest)


def test_at_most_the_bound_of_each_group_is_used() -> None:
    numbers = torch.tensor([5, 9, 5, 5, 2, 9, 5, 5])
    found = RecordGroups.of(numbers, 3)
    parts = found.records.split(found.sizes.tolist())
    assert [set(numbers[part].tolist()) for part in parts] == [{2}, {5}, {9}] and found.sizes.tolist() == [1, 3, 2]
    assert len(set(found.records.tolist())) == 6
    assert found.records_of(torch.tensor([0, 2])).tolist() == [*parts[0].tolist(), *parts[2].tolist()]


def test_used_records_of_a_group_depend_on_no_other_group() -> None:
    numbers = torch.arange(200) % 10
    others = torch.where(numbers == 4, 4, numbers // 2 * 2 + 100)
    one, other = (RecordGroups.of(given, 5) for given in (numbers, others))
    assert set(one.records_of(torch.tensor([4])).tolist()) == set(other.records_of(torch.tensor([0])).tolist())


def test_group_mean_is_that_of_its_own_rows() -> None:
    sizes, rows = torch.tensor([1, 4, 2]), torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(0))
    rows[0] = torch.nan
    found = group_means({"w": rows}, sizes)["w"]
    assert bool(found[0].isnan().all())
    torch.testing.assert_close(found[1:], torch.stack([rows[1:5].mean(0), rows[5:].mean(0)]))
    assert group_means({"w": rows[:0]}, sizes[:0])["w"].shape == (0, 3, 2)


def noisy_gradients(groups: RecordGroups | None, n: int, gradients: ChosenGradients | None = None) -> NoisyGradients:
    torch.manual_seed(0)
    network = nets.build("tanh-cnn", SHAPE, CLASSES)
    return NoisyGradients(network, "tanh-cnn", toy_private(0, n), SETTINGS, context(), "t", None, gradients, groups)


def norm(part: Mapping[str, Tensor]) -> float:
    return float(torch.stack([value.norm() for value in part.values()]).norm())


def test_removed_group_moves_the_sum_by_at_most_c() -> None:
    groups = groups_of_sizes(1, 16, 3, 40, 2, 8)
    noisy, everyone = noisy_gradients(groups, 70), torch.arange(6)
    private = noisy.images, noisy.labels
    whole = noisy.sums(private, everyone, None, 6)
    for group in range(6):
        rest = noisy.sums(private, everyone[everyone != group], None, 6)
        moved = norm({name: whole[name] - rest[name] for name in whole}) / SETTINGS.clip
        assert 0.9 < moved <= 1


def test_groups_of_one_record_train_as_records() -> None:
    found = []
    for groups in (None, RecordGroups(torch.arange(20), torch.ones(20, dtype=torch.long), 1)):
        found.append(noisy_gradients(groups, 20).noisy_mean(0, 1.0, 0.4))
    for name, mean in found[0].items():
        torch.testing.assert_close(found[1][name], mean, rtol=1e-4, atol=1e-6)


def test_noise_is_z_c_over_the_expected_number_of_groups() -> None:
    """With gradients of zero only the noise remains: 30 groups of 2 records, q = 0.5, z = 3."""
    lanes = Lanes.rows(256)
    zeros = {name: 0 * rows for name, rows in lanes.gradients(1.0).items()}
    groups = RecordGroups(torch.arange(60), torch.full((30,), 2), 2)
    private = torch.zeros(60, 1, 1, lanes.first.shape[2]), torch.zeros(60, dtype=torch.long)
    noisy = NoisyGradients(
        lanes.network(), "lanes", private, SETTINGS, context(), "t", None, ChosenGradients(zeros), groups
    )
    drawn = torch.cat([part.flatten() for part in noisy.noisy_mean(0, 3.0, 0.5).values()])

    def is_normal(std: float) -> bool:
        return bool(5e-5 < stats.chi2.cdf(float(drawn.square().sum()) / std**2, drawn.numel()) < 1 - 5e-5)

    std = 3.0 * SETTINGS.clip / (0.5 * 30)
    assert is_normal(std)
    assert not is_normal(std / 2) and not is_normal(std * 30 / 60)


def verdict(method: DpSgd | PrivateFeatures) -> str:
    return audit(method.game(BUDGET, "mnist", CLASSES), plays=40_000, seed=0).verdict


@pytest.mark.thorough
def test_audit_of_a_sampled_group_refutes_planted_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: records are clipped one by one and added, every group is in every sample, the sum of a mean."""
    method = DpSgd(batch=25_000, steps=1)
    assert verdict(method) == "not refuted"
    with monkeypatch.context() as fault:
        fault.setattr(clipped_sums, "group_means", lambda rows, sizes: rows)
        assert verdict(method) != "not refuted"
    with monkeypatch.context() as fault:
        fault.setattr(dp_sgd, "poisson_sample", lambda records, q, source: torch.arange(records))
        assert verdict(method) != "not refuted"


@pytest.mark.thorough
@pytest.mark.parametrize("whitening", ["none", "private"])
def test_audit_of_a_group_of_rows_refutes_planted_faults(whitening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = PrivateFeatures(steps=1, whitening=whitening, share=0.9)  # type: ignore[arg-type]
    assert verdict(method) == "not refuted"
    if whitening == "none":
        monkeypatch.setattr(linear_head.GroupProducts, "clipped", lambda self, chunk, terms, bound: terms)
    else:
        from bench.dp_training import whitening as module

        original = module.second_moment
        monkeypatch.setattr(module, "second_moment", lambda rows, places, weights=None: original(rows, places))
    assert verdict(method) != "not refuted"


def test_game_accounts_for_a_group() -> None:
    for method in (DpSgd(batch=25_000, steps=1), PrivateFeatures(steps=1)):
        group, record = (
            method.game(replace(BUDGET, unit=unit), "mnist", CLASSES) for unit in (Unit.GROUP, Unit.EXAMPLE)
        )
        assert group.accounted == pytest.approx(record.accounted) and "group" in group.describe
        worlds = [group.play(world, 64, torch.Generator().manual_seed(0)) for world in (False, True)]
        assert worlds[0].shape == worlds[1].shape and not torch.equal(*worlds)
