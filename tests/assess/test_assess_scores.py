"""Scores files: the three formats agree, bad input is one line, and `bench assess` of them from command to report."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from subprocess import run

import numpy as np
import pytest
from assess_made import made_logits, write_csv, write_logits

import bench
from bench.assess import columns
from bench.assess.schema import Assessment
from bench.assess.scores import read_pair, read_scores
from bench.cli import main
from bench.errors import BenchError
from bench.membership.blind import Facts, compare


def test_csv_npz_and_parquet_hold_the_same_scores(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    logits, labels = made_logits(40, 0, 0)
    groups = [f"g{row // 2}" for row in range(40)]
    csv = write_logits(tmp_path / "a.csv", 40, 0, 0, group=groups, feature_size=range(40))
    np.savez(tmp_path / "a.npz", label=labels, logits=logits, group=groups, features=np.arange(40.0)[:, None])
    wide = {f"logit_{place}": logits[:, place] for place in range(3)}
    table = pyarrow.table({"label": labels, **wide, "group": groups, "feature_size": np.arange(40.0)})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = [read_scores(path) for path in (csv, tmp_path / "a.npz", tmp_path / "a.parquet")]
    for side in found:
        assert np.allclose(side.confidence, found[0].confidence) and np.allclose(side.entropy, found[0].entropy)
        assert (side.labels == labels).all() and (side.groups == groups).all() and (side.keys == found[1].keys).all()
        assert (side.features[:, 0] == np.arange(40)).all() and side.layout.classes == 3


def test_confidence_is_the_log_odds_of_the_true_class(tmp_path: Path) -> None:
    logits, labels = made_logits(40, 0, 1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.savez(tmp_path / "l.npz", label=labels, logits=logits)
    np.savez(tmp_path / "p.npz", label=labels, probs=p)
    true = p[np.arange(40), labels]
    by_hand = -(1 - true) * np.log(true) - sum(
        np.where(labels == j, 0, p[:, j] * np.log(1 - p[:, j])) for j in range(3)
    )
    for name in ("l", "p"):
        side = read_scores(tmp_path / f"{name}.npz")
        assert np.allclose(side.confidence, np.log(true / (1 - true)))
        assert np.allclose(side.entropy, -by_hand)
        assert (side.correct == (p.argmax(1) == labels)).all()


def test_saturated_logits_keep_their_order(tmp_path: Path) -> None:
    logits = np.zeros((30, 2))
    logits[:, 0] = np.arange(30) * 10.0
    np.savez(tmp_path / "a.npz", label=np.zeros(30, int), logits=logits)
    assert (np.diff(read_scores(tmp_path / "a.npz").confidence) > 9.9).all()


def _columns(n: int = 40, **other: object) -> dict[str, object]:
    logits, labels = made_logits(n, 0, 0, 2)
    return {"label": labels, "logit_0": logits[:, 0], "logit_1": logits[:, 1], **other}


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (_columns(29), ["29 records", "30"]),
        (_columns(logit_1=[0.5] * 38 + ["nan", "inf"]), ["in 2 of 40 records", "39, 40"]),
        (_columns(logit_1=[0.5] * 39 + ["x"]), ["line 41", "logit_1", "'x'"]),
        (_columns(logit_1=[0.5] * 39 + [""]), ["line 41", "logit_1"]),
        (_columns(label=[2] * 40), ["label 2", "0 to 1"]),
        (_columns(label=[0.5] * 40), ["label 0.5"]),
        (_columns(label=[-1] * 40), ["label -1"]),
        (_columns(colour=range(40)), ["'colour'"]),
        (_columns(loss=range(40)), ["logit and loss"]),
        (_columns(logit_3=range(40)), ["without a gap"]),
        ({"logit_0": range(40), "logit_1": range(40)}, ["'label'"]),
        ({"label": [0] * 40}, ["neither"]),
        ({"label": [0] * 40, "logit_0": range(40)}, ["logit columns [0]"]),
        ({"label": [0] * 40, "prob_0": [0.5] * 40, "prob_1": [0.7] * 40}, ["prob columns", "1.2"]),
        ({"loss": [-1.0] * 40}, ["loss of -1"]),
        ({"loss": []}, ["0 records"]),
    ],
)
def test_bad_scores_are_refused_in_one_line(tmp_path: Path, columns: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(BenchError) as found:
        read_scores(write_csv(tmp_path / "a.csv", columns))
    message = str(found.value)
    assert "\n" not in message and all(part in message for part in ["a.csv", *parts]), message


def test_ragged_lines_and_other_suffixes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("loss\n" + "1\n" * 30 + "1,2\n")
    with pytest.raises(BenchError, match="line 32 has 2 cells"):
        read_scores(tmp_path / "a.csv")
    (tmp_path / "a.pkl").write_bytes(b"")
    for name in ("a.pkl", "missing.csv"):
        with pytest.raises(BenchError, match=name):
            read_scores(tmp_path / name)


def test_an_archive_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", loss=np.array([print] * 40, dtype=object))
    with pytest.raises(BenchError, match="Python objects"):
        read_scores(tmp_path / "a.npz")


def test_archive_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 16 MB takes less than 2 MB; arrays that are stored column by column have the same blocks."""
    monkeypatch.setattr(columns, "BLOCK", 1000)
    logits = np.arange(2_000_000, dtype=np.float64).reshape(200_000, 10)
    np.savez_compressed(tmp_path / "a.npz", label=np.zeros(200_000, int), logits=logits)
    np.savez(tmp_path / "f.npz", label=np.zeros(2500, int), logits=np.asfortranarray(logits[:2500]))
    tracemalloc.start()
    starts = [block["logit"][0, 0] for block in columns.blocks_of(tmp_path / "a.npz")]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert starts == list(range(0, 2_000_000, 10_000)) and most < 2e6
    by_column = [block["logit"] for block in columns.blocks_of(tmp_path / "f.npz")]
    assert [len(block) for block in by_column] == [1000, 1000, 500]
    assert (np.concatenate(by_column) == logits[:2500]).all()


@pytest.mark.parametrize("damage", ["short", "content", "text"])
def test_damaged_archive_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    array = io.BytesIO()
    np.save(array, np.arange(40_000.0))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("loss.npy", {"short": array.getvalue()[:-8], "text": b"loss"}.get(damage, array.getvalue()))
    if damage == "content":
        path.write_bytes(path.read_bytes().replace(np.float64(5000).tobytes(), np.float64(6000).tobytes()))
    with pytest.raises(BenchError, match="cannot be read as an archive"):
        read_scores(path)


def test_pairs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    names = [f"g\x1b{row}" for row in range(40)]
    members = write_csv(tmp_path / "m.csv", _columns(group=names))
    same_group = write_csv(tmp_path / "o.csv", _columns(group=[f"x{row}" for row in range(39)] + [names[3]]))
    with pytest.raises(BenchError, match=r"1 groups are in both sets: 'g\\x1b3'"):
        read_pair(members, same_group)
    with pytest.raises(BenchError, match="same bytes"):
        read_pair(members, members)
    with pytest.raises(BenchError, match="differ in kind"):
        read_pair(members, write_csv(tmp_path / "l.csv", {"label": [0] * 40, "loss": range(40), "group": range(40)}))


def test_blocks_are_joined_and_torch_is_not_imported(tmp_path: Path) -> None:
    write_csv(tmp_path / "m.csv", {"loss": range(45_000)})
    code = "import sys; from pathlib import Path; from bench.assess.scores import read_scores as read; "
    code += "side = read(Path(sys.argv[1])); assert len(side) == 45_000 and side.confidence[-1] == -44_999; "
    code += "assert 'torch' not in sys.modules"
    run([sys.executable, "-c", code, str(tmp_path / "m.csv")], check=True)


LENIENT = '[policy]\nname = "no <b>power"\nauc_max = 0.6\ntpr_at_fpr_1pct_max = 0.05\nrequire = []\n'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scores")
    made = {
        name: write_logits(folder / f"{name}.csv", 900, shift, seed)
        for seed, (name, shift) in enumerate([("same", 0.0), ("others", 0.0), ("leaks", 1.5)])
    }
    (folder / "policy.toml").write_text(LENIENT)
    return made | {"policy": folder / "policy.toml"}


def test_exit_status_is_the_verdict(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def status(members: str, policy: str) -> int:
        return main(["assess", "--scores", str(files[members]), str(files["others"]), "--policy", policy])

    assert status("same", str(files["policy"])) == 0
    assert status("leaks", str(files["policy"])) == 1
    assert status("same", "research") == 3
    assert status("same", "none.toml") == 2
    out = capsys.readouterr()
    assert "release" in out.out and "do not release" in out.out and "cannot tell" in out.out
    assert "one attack can show at most" in out.err, "limits are printed before anything runs"
    assert out.err.index("accuracy:") < out.err.index("baseline without the model")


def test_unwritable_report_is_named_before_anything_runs(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    report = tmp_path / "file" / "report"
    assert main(["assess", "--scores", str(files["same"]), str(files["others"]), "--report", str(report)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"--report {report}" in error and "--out" not in error


def test_report_holds_the_assessment(files: dict[str, Path], tmp_path: Path) -> None:
    claim = "epsilon=0.3 delta=1e-5 unit=example"
    found = bench.assess(
        scores=(files["leaks"], files["others"]),
        policy=files["policy"],
        claim=claim,
        report=tmp_path / "r",
        command="c",
    )
    assert found.claim is not None and found.claim.finding == "refuted" and (found.claim.p or 1) < 0.05
    read = Assessment.model_validate_json((tmp_path / "r" / "assessment.json").read_text())
    assert read == found and read.status == 1
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.index("do not release") < page.index("was tested") < page.index("<svg") < page.index("SP 800-226")
    assert "no &lt;b&gt;power" in page and "<b>power" not in page, "names of a user are text"
    assert not re.search(r"<script|(src|href)=[\"']?https?:", page), "one file that loads nothing"
    names = re.findall(r'role="region" tabindex="0" aria-label="([^"]+)"', page)
    assert len(names) == page.count("<table>") == len(set(names)), "a keyboard can scroll each table, and finds it"
    assert 'name="viewport"' in page and "<th>" not in page
    assert (tmp_path / "r" / "report.pdf").read_bytes().startswith(b"%PDF")
    exposed = (tmp_path / "r" / "exposed.csv").read_text().splitlines()
    assert len(exposed) == 21
    members = np.loadtxt(files["leaks"], delimiter=",", skiprows=1)
    z = members[:, 1:]
    confidence = z[np.arange(900), members[:, 0].astype(int)] - np.median(z, 1)
    assert int(exposed[1].split(",")[1]) in np.argsort(-confidence)[:10]
    assert "exposed" not in json.loads((tmp_path / "r" / "assessment.json").read_text())


@pytest.mark.parametrize(
    ("claim", "finding"),
    [
        ("epsilon=8 delta=1e-5 unit=example", "not refuted"),
        ("epsilon=0.1 delta=1e-5 unit=example", "refuted"),
        ("epsilon=0.1 delta=1e-5 unit=group", "not comparable"),
    ],
)
def test_claims(files: dict[str, Path], claim: str, finding: str) -> None:
    found = bench.assess(scores=(files["leaks"], files["others"]), claim=claim)
    assert found.claim is not None and found.claim.finding == finding


@pytest.mark.parametrize(
    "claim", ["epsilon=3", "epsilon=x delta=0 unit=example", "epsilon=3 delta=2 unit=example", "3"]
)
def test_bad_claims_are_refused(files: dict[str, Path], claim: str) -> None:
    with pytest.raises(BenchError, match=r"expected \"epsilon=3 delta=1e-5 unit=example\""):
        bench.assess(scores=(files["same"], files["others"]), claim=claim)


def test_wrong_class_order_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    table = np.loadtxt(files["same"], delimiter=",", skiprows=1)
    table[:, 0] = np.random.default_rng(9).integers(0, 3, len(table))
    columns = dict(zip(["label", "logit_0", "logit_1", "logit_2"], table.T, strict=True))
    with pytest.raises(BenchError, match="chance level"):
        bench.assess(scores=(write_csv(tmp_path / "m.csv", columns), files["others"]))


def test_python_interface_prints_nothing(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    bench.assess(scores=(files["same"], files["others"]))
    assert capsys.readouterr() == ("", "")
    for options in ({"seed": -1}, {"delta": 1.0}, {"combine": "median"}):
        with pytest.raises(BenchError, match=r"--(seed|delta|combine)"):
            bench.assess(scores=(files["same"], files["others"]), **options)
    with pytest.raises(BenchError, match="nothing to assess"):
        bench.assess()


def test_features_that_differ_give_cannot_tell(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    members = write_logits(tmp_path / "m.csv", 300, 2, 0, feature_year=rng.normal(1, 1, 300))
    others = write_logits(tmp_path / "o.csv", 300, 0, 1, feature_year=rng.normal(0, 1, 300))
    found = bench.assess(scores=(members, others))
    assert found.verdict.decision == "cannot tell" and "year (larger in members)" in found.verdict.reasons[0]


def test_copies_of_members_are_left_out(tmp_path: Path) -> None:
    write_logits(tmp_path / "m.csv", 300, 0, 0)
    lines = write_logits(tmp_path / "o.csv", 300, 0, 1).read_text().splitlines()
    copied = (tmp_path / "m.csv").read_text().splitlines()[1:41]
    (tmp_path / "o.csv").write_text("\n".join([*lines, *copied]) + "\n")
    found = bench.assess(scores=(tmp_path / "m.csv", tmp_path / "o.csv"))
    assert found.copies is not None and found.copies.removed == 40 and found.others == 300


def test_groups_are_the_units(tmp_path: Path) -> None:
    members = write_logits(tmp_path / "m.csv", 600, 0, 0, group=[f"p{row // 10}" for row in range(600)])
    others = write_logits(tmp_path / "o.csv", 600, 0, 1, group=[f"q{row // 10}" for row in range(600)])
    found = bench.assess(scores=(members, others), policy="health", report=tmp_path / "r")
    assert found.unit == "group" and found.members == 60 and "groups resampled" in found.attacks[0].note
    assert (tmp_path / "r" / "exposed.csv").read_text().splitlines()[1].split(",")[1].startswith("p")


def facts(shift: float, seed: int, n: int = 200) -> Facts:
    rng = np.random.default_rng(seed)
    return Facts(("a", "b"), np.column_stack([rng.normal(shift, 1, n), rng.normal(0, 1, n)]), rng.integers(0, 3, n))


@pytest.mark.thorough
def test_baseline_without_the_model_is_silent_on_equal_sets() -> None:
    """At a level of 1 %, more than 1 of 8 equal pairs differ with a probability of 0.3 %."""
    found = [compare(facts(0, 2 * seed), facts(0, 2 * seed + 1), seed) for seed in range(8)]
    assert sum(each is not None and each.differs for each in found) <= 1


def test_baseline_without_the_model_finds_shift_and_class_mix() -> None:
    found = compare(facts(0.8, 0), facts(0, 1), 0)
    assert found is not None and found.differs and found.clues[0] == "a (larger in members)"
    few = Facts(("a", "b"), facts(0, 3).values, np.zeros(200, np.int64))
    mix = compare(few, facts(0, 4), 0)
    assert mix is not None and mix.differs and mix.clues[0] == "class 0 (larger in members)"


def test_baseline_keeps_groups_together() -> None:
    """Each group has its own value: only a classifier that saw the group's other records could tell it."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 10)
    sides = [
        Facts(("a",), np.repeat(rng.normal(size=20), 10)[:, None], None, np.char.add(name, groups.astype(str)))
        for name in "mo"
    ]
    found = compare(*sides, seed=0)
    assert found is not None and not found.differs


@pytest.mark.thorough
def test_scores_are_assessed_without_torch(files: dict[str, Path]) -> None:
    code = f"import bench, sys; bench.assess(scores=({str(files['same'])!r}, {str(files['others'])!r})); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True, capture_output=True)
