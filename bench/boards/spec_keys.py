"""Parts of a run's spec as boards show them, and the keys of rows: a spec with its seeds forgotten."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import orjson

from bench.data.naming import is_by_path

SHORT = 8
"""Digits of a hash that tell apart what has the same name."""
KEY = 12
"""Digits of the keys of rows."""
SEED = re.compile(rb'"seed":(?<=[{,]"seed":)-?\d+,')
"""A seed that is not the last of an object in JSON text; within a string the first mark is behind a backslash."""


def identity(spec: Any) -> Any:
    """A spec with every seed forgotten and every variant named: the runs of an evaluation share it.

    Records that are older than variants do not name theirs: it is "printed".
    """
    if not isinstance(spec, dict):
        return spec
    found = {key: identity(value) for key, value in spec.items() if key != "seed"}
    return {"variant": "printed"} | found if spec.get("kind") in ("release", "attack") else found


def key_of(spec: Any, named: bool = False) -> str:
    """The key of a spec or of a part of one, equal for two of them if and only if their `identity` is: 12 digits.

    Args:
        named: every variant in it is named, which makes the usual case quick: seeds are taken out of its text.
    """
    text = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
    short = SEED.sub(b"", text)
    if not named or b'"seed":' in short:
        short = orjson.dumps(identity(spec), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(short).hexdigest()[:KEY]


def variant_of(spec: Mapping[str, Any]) -> str:
    """The variant of a release or an attack; records that are older than variants are of what the paper prints."""
    return str(spec.get("variant", "printed"))


def teacher_of(spec: Mapping[str, Any]) -> str:
    """The teacher's network, with the first digits of the hash of a user's weights."""
    return str(spec["arch"]) + ("" if spec["weights"] is None else f"+weights-{spec['weights'][:SHORT]}")


def split_of(where: Mapping[str, Any]) -> str:
    """Which images. A data set that is read by path has a name that others have too: also what its images hash to."""
    own = is_by_path(where["dataset"])
    return f"{where['split']}-{where['fingerprint'][:SHORT]}" if own else str(where["split"])
