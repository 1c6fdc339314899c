"""Scores files: the outputs of a model on members and on non-members, without the model. Needs no torch.

A file has one row per record. Columns: `label` with `logit_0, logit_1, ...`, or `label` with `prob_0, prob_1, ...`, or
`loss` (then `label` is optional). `group` and any number of `feature_NAME` are optional: features are facts about a
record that were known before training, and serve the baseline without the model. CSV, Parquet, and NumPy archives
(.npz), where `logits` or `probs` of shape (n, classes) and `features` of shape (n, d) may replace the single columns.
Files are read in blocks, and only a few numbers of each record are kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.assess.columns import Block, blocks_of
from bench.errors import BenchError
from bench.escape import visible

Floats = NDArray[np.float64]
FEWEST = 30
"""Smallest number of records of each set; with fewer nothing is computed."""
NAMED = 5
"""Largest number of groups, or of lines with a bad value, that a message names."""
_SUM = 1e-3
"""Largest difference between the sum of a row of probabilities and 1."""
TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal float32: probabilities below it count as this."""
_OUTPUT = re.compile(r"(logit|prob)_(0|[1-9]\d*)")


@dataclass(frozen=True)
class Layout:
    """The columns of a scores file.

    Attributes:
        kind: the kind of outputs: "logit", "prob" or "loss".
        classes: number of outputs of a record; 0 for "loss".
        has_label, has_group: whether these columns are there.
        features: names without the prefix, in the order of the file.
    """

    kind: str
    classes: int
    has_label: bool
    has_group: bool
    features: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ScoredRecords:
    """The scores of one set; all arrays have length n.

    Attributes:
        path: path of the file; a description for outputs of a model.
        digest: SHA-256 of the file.
        layout: its columns.
        confidence: the log odds of the true class, log p_y - log(1 - p_y); for "loss", minus the loss.
        correct: 1.0 if the true class has the largest output, else 0.0; None for "loss".
        entropy: minus the modified entropy of Song and Mittal (2021); None for "loss".
        labels: int64; None where the file has none.
        groups: the group of each record as text; None where the file has none.
        features: (n, d) float64.
        keys: uint64, a hash of label and outputs, to find records with equal outputs; None for "loss".
    """

    path: str
    digest: str
    layout: Layout
    confidence: Floats
    correct: Floats | None
    entropy: Floats | None
    labels: NDArray[np.int64] | None
    groups: NDArray[np.str_] | None
    features: Floats
    keys: NDArray[np.uint64] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.confidence)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> ScoredRecords:
        """Select records by a mask or an array of indices."""
        parts: Any = [None if (each := getattr(self, name)) is None else each[chosen] for name in _ARRAYS]
        return ScoredRecords(self.path, self.digest, self.layout, *parts)

    def joined(self, blocks: Sequence[ScoredRecords]) -> ScoredRecords:
        """Return these records followed by those of `blocks`, which have the same layout."""
        every = [self, *blocks]

        def join(name: str) -> Any:
            parts = [getattr(each, name) for each in every]
            return None if parts[0] is None else np.concatenate(parts)

        return ScoredRecords(self.path, self.digest, self.layout, *map(join, _ARRAYS))


_ARRAYS = ("confidence", "correct", "entropy", "labels", "groups", "features", "keys")


def read_pair(members: Path, others: Path) -> tuple[ScoredRecords, ScoredRecords]:
    """Read the scores of members and of non-members from two files.

    Raises:
        BenchError: a file that cannot be read or has other columns than the first; values that are not finite; labels
            that do not fit the outputs; fewer than 30 records; the same file twice; a group in both sets.
    """
    first, second = read_scores(members), read_scores(others)
    check_pair(first, second)
    return first, second


def check_pair(first: ScoredRecords, second: ScoredRecords) -> None:
    """Refuse two sets that cannot be compared. Raises BenchError as `read_pair`."""
    if first.digest and first.digest == second.digest:
        raise BenchError(f"'{first.path}' and '{second.path}' hold the same bytes; give members, then non-members")
    for name in ("kind", "classes", "has_label", "has_group", "features"):
        one, other = getattr(first.layout, name), getattr(second.layout, name)
        if one != other:
            raise BenchError(
                f"the two scores files differ in {name}: {one} in '{first.path}', {other} in '{second.path}'; "
                "give both the same columns"
            )
    if first.groups is not None and second.groups is not None:
        check_groups(first.groups, second.groups)


def check_groups(members: NDArray[np.str_], others: NDArray[np.str_]) -> None:
    """Refuse a group that has records in both sets. Raises BenchError."""
    both = np.intersect1d(members, others)
    if len(both):
        named = ", ".join(f"'{visible(str(name))}'" for name in both[:NAMED])
        more = f" and {len(both) - NAMED} more" if len(both) > NAMED else ""
        raise BenchError(
            f"{len(both)} groups are in both sets: {named}{more}; a group is a member or a non-member as a whole: "
            "remove its records from one of the sets"
        )


def read_scores(path: Path) -> ScoredRecords:
    """Read one scores file. Raises BenchError as `read_pair`."""
    if not path.is_file():
        raise BenchError(f"no scores file at '{path}'; give a .csv, .npz or .parquet file")
    blocks = blocks_of(path)
    layout = find_layout(blocks.names, blocks.width, path)
    digest = file_digest(path)
    parts = list(_parts(path, digest, layout, blocks))
    count = sum(map(len, parts))
    if count < FEWEST:
        raise BenchError(f"'{path}' has {count} records; expected at least {FEWEST} for any statement; give more")
    return parts[0].joined(parts[1:])


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_layout(names: Sequence[str], width: int, path: Path) -> Layout:
    """Determine the meaning of the columns.

    Args:
        names: names of the columns; "logit_*" or "prob_*" represents `width` of them.

    Raises:
        BenchError: unknown, repeated or missing columns.
    """
    expected = "expected label, logit_0, logit_1, ..., or label, prob_0, ..., or loss; and group, feature_NAME if known"
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise BenchError(f"'{path}' has the column '{visible(repeated[0])}' twice; {expected}")
    outputs = {"logit": set[int](), "prob": set[int]()}
    features, unknown = [], []
    for name in names:
        if found := _OUTPUT.fullmatch(name):
            outputs[found[1]].add(int(found[2]))
        elif name in ("logit_*", "prob_*"):
            outputs[name[:-2]] = set(range(width))
        elif name.startswith("feature_"):
            features.append(name.removeprefix("feature_"))
        elif name not in ("label", "loss", "group"):
            unknown.append(name)
    if unknown:
        raise BenchError(f"'{path}' has the column '{visible(unknown[0])[:80]}'; {expected}")
    kinds = [kind for kind, numbers in outputs.items() if numbers] + (["loss"] if "loss" in names else [])
    if len(kinds) != 1:
        found_kinds = " and ".join(kinds) or "neither logits, probabilities nor a loss"
        raise BenchError(f"'{path}' has {found_kinds}; expected exactly one of them; {expected}")
    numbers = outputs.get(kinds[0], set())
    if numbers != set(range(len(numbers))) or len(numbers) == 1:
        raise BenchError(f"'{path}' has {kinds[0]} columns {sorted(numbers)[:8]}; expected 0, 1, 2, ... without a gap")
    if numbers and "label" not in names:
        raise BenchError(f"'{path}' has no column 'label', the true class of each record; {expected}")
    return Layout(kinds[0], len(numbers), "label" in names, "group" in names, tuple(features))


def _parts(path: Path, digest: str, layout: Layout, blocks: Iterable[Block]) -> Iterator[ScoredRecords]:
    """Yield the blocks of a file as records; raise BenchError at the end if any value is not finite."""
    bad, lines, start = 0, list[int](), 0
    for block in blocks:
        parts = [block[layout.kind]]
        parts += [block["label"]] if layout.has_label else []
        parts += [block["features"]] if layout.features else []
        values: Floats = np.concatenate([np.asarray(part, np.float64).reshape(len(parts[0]), -1) for part in parts], 1)
        rows = np.flatnonzero(~np.isfinite(values).all(1))
        bad += len(rows)
        lines += [start + int(row) + 1 for row in rows[: NAMED - len(lines)]] if len(lines) < NAMED else []
        start += len(values)
        if not bad:
            yield _side(path, digest, layout, block, values)
    if bad:
        named = ", ".join(map(str, lines)) + (", ..." if bad > len(lines) else "")
        raise BenchError(
            f"'{path}' has NaN or infinite values in {bad} of {start} records (records {named}); remove these records "
            "or compute their scores again"
        )


def _side(path: Path, digest: str, layout: Layout, block: Block, values: Floats) -> ScoredRecords:
    labels = None
    width = max(layout.classes, 1)
    if layout.has_label:
        labels = _labels(values[:, width], layout, path)
    groups = None if not layout.has_group else np.asarray(block["group"]).astype(np.str_)
    features = values[:, width + layout.has_label :]
    if layout.kind == "loss":
        loss = values[:, 0]
        if loss.min() < -1e-6:
            raise BenchError(f"'{path}' has a loss of {loss.min():g}; a cross-entropy is never negative; check it")
        return ScoredRecords(str(path), digest, layout, -loss, None, None, labels, groups, features)
    outputs = values[:, :width]
    if layout.kind == "prob":
        sums = outputs.sum(1)
        if outputs.min() < 0 or outputs.max() > 1 + _SUM or abs(sums - 1).max() > _SUM:
            raise BenchError(
                f"'{path}' has prob columns that do not hold probabilities (from {outputs.min():g} to "
                f"{outputs.max():g}, sums from {sums.min():g} to {sums.max():g}); name logits logit_0, ..."
            )
    if labels is None:
        raise BenchError(f"'{path}' has no column 'label', the true class of each record")
    return score_outputs(str(path), digest, layout, outputs, labels, groups, features)


def _labels(values: Floats, layout: Layout, path: Path) -> NDArray[np.int64]:
    wrong = (values != np.rint(values)) | (values < 0) | ((values >= layout.classes) if layout.classes else False)
    if wrong.any():
        most = f"0 to {layout.classes - 1}, one for each {layout.kind} column" if layout.classes else "0 or larger"
        raise BenchError(f"'{path}' has the label {values[wrong][0]:g}; expected whole numbers, {most}")
    return values.astype(np.int64)


def score_outputs(
    path: str,
    digest: str,
    layout: Layout,
    outputs: Floats,
    labels: NDArray[np.int64],
    groups: NDArray[np.str_] | None,
    features: Floats,
) -> ScoredRecords:
    """Compute the numbers that attacks read from (n, classes) logits or probabilities (`layout.kind`)."""
    rows = np.arange(len(labels))
    if layout.kind == "logit":
        logs = outputs - outputs.max(1, keepdims=True)
        logs = logs - np.log(np.exp(logs).sum(1, keepdims=True))
    else:
        logs = np.log(np.maximum(outputs, TINY))
    true = logs[rows, labels]
    others = logs.copy()
    others[rows, labels] = -np.inf
    top = others.max(1, keepdims=True)
    log_others = top[:, 0] + np.log(np.exp(others - top).sum(1))
    best = logs[rows, labels] >= logs.max(1)
    mixed = np.column_stack([labels.astype(np.float64), outputs])
    return ScoredRecords(
        path,
        digest,
        layout,
        true - log_others,
        best.astype(np.float64),
        -_modified_entropy(logs, true, log_others, rows, labels),
        labels,
        groups,
        features,
        _keys(mixed),
    )


def _modified_entropy(logs: Floats, true: Floats, log_others: Floats, rows: Any, labels: Any) -> Floats:
    """Mentr = -(1 - p_y) log p_y - sum over j != y of p_j log(1 - p_j) (Song and Mittal, USENIX Security 2021)."""
    p = np.exp(logs)
    with np.errstate(divide="ignore"):
        terms = -p * np.log(np.maximum(1 - p, TINY))
    terms[rows, labels] = 0
    return -np.exp(np.minimum(log_others, 0)) * true + terms.sum(1)


def _keys(values: Floats) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row; equal rows have equal hashes."""
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)
    factors = np.random.default_rng(0).integers(1, 2**63, bits.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = bits ^ (bits >> np.uint64(29))
    return (mixed * factors).sum(1, dtype=np.uint64)
