"""Parts of a run's spec as boards show them, and the keys of rows: hashes of specs without seeds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import orjson

from bench.data.naming import is_by_path
from bench.storage.specs import JsonObject, digest

SHORT = 8
"""Number of hash digits that distinguish things of the same name."""
KEY = 12
"""Number of digits of row keys."""
SEED = re.compile(rb'"seed":(?<=[{,]"seed":)-?\d+,')
"""Pattern of a seed in JSON text that is not the last field; quotes inside strings are escaped and do not match."""


def identity(spec: Any) -> Any:
    """Return a spec without seeds and with every variant named: the runs of an evaluation share it.

    Older records do not name their variant: it is "printed".
    """
    if not isinstance(spec, dict):
        return spec
    found = {key: identity(value) for key, value in spec.items() if key != "seed"}
    return {"variant": "printed"} | found if spec.get("kind") in ("release", "attack") else found


def key_of(spec: Any, named: bool = False) -> str:
    """Return a 12-digit key of a spec or a part of it; keys are equal exactly if the `identity` is equal.

    Args:
        named: every variant in it is named; seeds are then removed from its text, which is fast.
    """
    text = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
    short = SEED.sub(b"", text)
    if not named or b'"seed":' in short:
        short = orjson.dumps(identity(spec), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(short).hexdigest()[:KEY]


def variant_of(spec: Mapping[str, Any]) -> str:
    """Return the variant of a release or an attack; older records without one have the variant "printed"."""
    return str(spec.get("variant", "printed"))


def teacher_of(spec: Mapping[str, Any]) -> str:
    """Return the teacher's network, with the first digits of the hash of a user's weights."""
    return str(spec["arch"]) + ("" if spec["weights"] is None else f"+weights-{spec['weights'][:SHORT]}")


def split_of(where: Mapping[str, Any]) -> str:
    """Return the split. A data set read by path may share its name with others: add the first digits of its hash."""
    own = is_by_path(where["dataset"])
    return f"{where['split']}-{where['fingerprint'][:SHORT]}" if own else str(where["split"])


class SpecDigest:
    """Compute hashes of specs, caching the texts of parts that many specs share: three times as fast."""

    def __init__(self) -> None:
        self._parts: dict[bytes, JsonObject] = {}

    def __call__(self, spec: dict[str, Any]) -> str:
        """Return the same hash as `bench.storage.specs.digest`."""
        try:
            return digest({name: self._shared(value) for name, value in spec.items()})
        except orjson.JSONEncodeError:  # numbers too large for orjson
            return digest(spec)

    def _shared(self, value: Any) -> Any:
        """Return a value; for an object, the first one with the same content."""
        if not isinstance(value, dict):
            return value
        key = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if key not in self._parts:
            self._parts[key] = JsonObject({name: self._shared(each) for name, each in value.items()})
        return self._parts[key]
