"""Reading scores files: the three formats agree, and each kind of bad input is one line."""

from __future__ import annotations

import io
import sys
import tracemalloc
import zipfile
from pathlib import Path
from subprocess import run

import numpy as np
import pytest
from scores_made import made_logits, write_csv, write_logits

from bench.assess import columns
from bench.assess.scores import read_pair, read_scores
from bench.errors import BenchError


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
