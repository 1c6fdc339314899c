"""Sets that differ: matched pairs of records. And exposed members by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models_made import images, trained
from scores_made import made_logits, write_csv, write_logits

import bench
from bench.assess.assembly import Material, Options, exposed_lines_by_class
from bench.assess.blind import Facts, compare, matched, pair_by_score
from bench.assess.numbers import Scored
from bench.assess.policy import read_policy
from bench.cli import main
from bench.errors import BenchError


def _facts(n: int, mean: float, seed: int, classes: int = 2) -> Facts:
    rng = np.random.default_rng(seed)
    return Facts(("age", "size"), rng.normal((mean, 0), 1, (n, 2)), rng.integers(0, classes, n))


def test_matched_pairs_are_not_separable() -> None:
    members, others = _facts(1500, 0, 0), _facts(1500, 1, 1)
    found = compare(members, others, 0)
    assert found is not None and found.differs and found.auc > 0.7
    inside, outside = matched(members, others, 0)
    assert len(inside) == len(outside) == len(set(inside.tolist())) == len(set(outside.tolist())) > 400
    chosen = [
        Facts(side.names, side.values[rows], side.labels[rows])
        for side, rows in ((members, inside), (others, outside))
        if side.labels is not None
    ]
    again = compare(*chosen, 0)
    assert again is not None and not again.differs and again.auc < 0.55


def test_matched_pairs_have_equal_classes() -> None:
    members, others = _facts(300, 0, 0), _facts(900, 0, 1)
    skewed = Facts(others.names, others.values, np.zeros(900, np.int64))
    inside, outside = matched(members, skewed, 0)
    assert members.labels is not None and not members.labels[inside].any()
    assert len(inside) == len(outside) <= int((members.labels == 0).sum())


def test_pair_by_score_finds_the_largest_number_of_pairs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b, caliper = rng.random(7), rng.random(6), rng.choice([0.02, 0.1, 0.3])
        pairs = pair_by_score(a, b, caliper)
        assert len(pairs) == _most_pairs(np.abs(a[:, None] - b) <= caliper)
        assert all(abs(a[i] - b[j]) <= caliper for i, j in pairs)
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)


def _most_pairs(allowed: np.ndarray) -> int:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(-allowed.astype(float))
    return int(allowed[rows, columns].sum())


def _shifted_scores(folder: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    inside = write_logits(folder / "in.csv", 1500, 0.0, 0, feature_age=rng.normal(40, 10, 1500))
    outside = write_logits(folder / "out.csv", 1500, 0.0, 1, feature_age=rng.normal(50, 10, 1500))
    return inside, outside


def test_assess_scores_match_compares_like_with_like(tmp_path: Path) -> None:
    scores = _shifted_scores(tmp_path)
    refused = bench.assess(scores=scores)
    assert refused.verdict.decision == "cannot tell" and refused.blind is not None and refused.blind.differs
    assert any("--match" in note for note in refused.notes) and refused.members == 1500
    found = bench.assess(scores=scores, match=True)
    assert found.blind is not None and not found.blind.differs
    assert 300 < found.members == found.others < 1500
    assert main(["assess", "--scores", *map(str, scores), "--match"]) == found.status


def test_assess_match_leaves_equal_sets_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    scores = tuple(
        write_logits(tmp_path / f"{seed}.csv", 400, 0.0, seed, feature_age=rng.normal(40, 10, 400)) for seed in (0, 1)
    )
    assert bench.assess(scores=(scores[0], scores[1]), match=True).members == 400


def test_assess_match_refuses_groups_and_too_few_pairs(tmp_path: Path) -> None:
    for name, groups in (("grouped", True), ("far", False)):
        paths = []
        for side, age in ((0, 0.0), (1, 1000.0)):
            logits, labels = made_logits(200, 0, side)
            columns = {"label": labels, **{f"logit_{k}": logits[:, k] for k in range(3)}}
            columns["feature_age"] = np.random.default_rng(side).normal(age, 1, 200)
            if groups:
                columns["group"] = [f"{side}-{row // 2}" for row in range(200)]
            paths.append(write_csv(tmp_path / f"{name}{side}.csv", columns))
        with pytest.raises(BenchError):
            bench.assess(scores=(paths[0], paths[1]), match=True)
        assert bench.assess(scores=(paths[0], paths[1])).verdict.decision == "cannot tell"


def test_assess_model_match_uses_pairs_only(tmp_path: Path) -> None:
    members = images(150, 0).save(tmp_path / "members.npz")
    others = images(400, 1, brighter=25).save(tmp_path / "others.npz")
    found = bench.assess(trained(), members, others, attacks=["loss"], match=True)
    assert 30 <= found.members == found.others < 150
    assert found.attacks[0].members == found.members


def test_assess_pixel_range_is_read_from_the_command_line(tmp_path: Path) -> None:
    for seed in (0, 1):
        made = images(150, seed)
        pixels = made.images[:, 0].float().numpy() / 127.5 - 1
        np.savez(tmp_path / f"{seed}.npz", images=pixels, labels=made.labels.numpy())
    from bench.teachers.weights import save

    save(tmp_path / "a.safetensors", trained())
    words = ["assess", "--model", str(tmp_path / "a.safetensors"), "--network", "dense-cnn", "--attacks", "loss"]
    words += ["--members", str(tmp_path / "0.npz"), "--nonmembers", str(tmp_path / "1.npz")]
    assert main(words) == 2
    assert main([*words, "--pixel-range", "1,-1"]) == 2
    assert main([*words, "--pixel-range=-1,1"]) in (0, 1, 3)


def test_exposed_members_are_listed_for_each_class() -> None:
    scores = np.arange(60.0)
    material = Material("model", [Scored("loss", "", "", scores, np.zeros(50), "")], labels=np.arange(60) % 2)
    lines = exposed_lines_by_class(material, Options(read_policy("research")))
    rows = [line.split(",") for line in lines[1:]]
    assert [row[0] for row in rows] == ["0"] * 20 + ["1"] * 20
    assert [int(row[2]) for row in rows[:3]] == [58, 56, 54] and [int(row[2]) for row in rows[20:22]] == [59, 57]
    assert exposed_lines_by_class(Material("scores", material.scored), Options(read_policy("research"))) == []
