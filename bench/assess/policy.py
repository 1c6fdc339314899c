"""Policies: limits on the numbers of an assessment, and required tests; from a TOML file, or shipped by name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.assess.schema import PolicyValues
from bench.errors import BenchError, did_you_mean
from bench.escape import visible

SHIPPED = Path(__file__).parent / "policies"
CHECKS = ("blind-baseline", "power", "copies")
INVERSION = "class-inversion"
ATTACKS = ("loss", "modified-entropy", "gap", "label-only", "quantile", "calibrated-loss", "lira", "rmia", INVERSION)
SAMPLE_ATTACKS = ("gan-leaks", "domias")
"""Attacks on released images."""
Number = Annotated[float, Field(ge=0, le=1)]


class Policy(BaseModel):
    """The conditions for a release.

    Attributes:
        name: name in the report.
        auc_max: the largest allowed AUC, 0.5 to 1.
        tpr_at_fpr_1pct_max: the largest allowed true positive rate at a false positive rate of 1 %.
        inversion_gain_max: the largest allowed gain of reconstructed classes over their baseline; None = the gain is
            only reported.
        epsilon_lower_max: the largest allowed lower bound on epsilon; None = the bound is only reported.
        epsilon_claim_must_hold: whether a refuted claim forbids the release.
        require: tests that a release requires: "blind-baseline", "power", "copies", or names of attacks.
        min_members: smallest number of members, and of non-members, for a release; of groups if the unit is the group.
        unit: "record"; or "group": groups must be given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    auc_max: Annotated[float, Field(ge=0.5, le=1)]
    tpr_at_fpr_1pct_max: Number
    inversion_gain_max: Number | None = None
    epsilon_lower_max: Annotated[float, Field(ge=0)] | None = None
    epsilon_claim_must_hold: bool = True
    require: tuple[str, ...] = ("blind-baseline", "power")
    min_members: Annotated[int, Field(ge=30)] = 300
    unit: Literal["record", "group"] = "record"

    def values(self) -> PolicyValues:
        """Return the policy as values of the report."""
        return PolicyValues(**{**self.model_dump(), "name": visible(self.name)})


def shipped() -> list[str]:
    """List the names of the shipped policies."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_policy(given: str | Path) -> Policy:
    """Read the shipped policy of that name, or the policy in a TOML file.

    Raises:
        BenchError: no such policy or file, no TOML, an unknown key, or a value out of its range.
    """
    name = str(given)
    path = SHIPPED / f"{name}.toml" if name in shipped() else Path(name)
    if not path.is_file():
        raise BenchError(f"no policy '{visible(name)}'; give {' or '.join(shipped())}, or the path of a TOML file")
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BenchError(f"policy '{path}' is not TOML ({visible(str(error))[:200]}); correct it") from error
    table = read.pop("policy", None)
    if not isinstance(table, dict) or read:
        extra = f"the table '{visible(next(iter(read)))}'" if read else "no table [policy]"
        raise BenchError(f"policy '{path}' has {extra}; expected one table [policy]")
    for key in table:
        if key not in Policy.model_fields:
            hint = did_you_mean(key, Policy.model_fields)
            raise BenchError(
                f"policy '{path}' has the unknown key '{visible(key)}'.{hint} Known: {', '.join(Policy.model_fields)}"
            )
    try:
        found = Policy(**table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BenchError(f"policy '{path}', {where}: {visible(first['msg'])}; correct it") from error
    for name in found.require:
        if name not in (*CHECKS, *ATTACKS, *SAMPLE_ATTACKS):
            hint = did_you_mean(name, (*CHECKS, *ATTACKS, *SAMPLE_ATTACKS))
            known = ", ".join((*CHECKS, *ATTACKS, *SAMPLE_ATTACKS))
            raise BenchError(f"policy '{path}' requires the unknown test '{visible(name)}'.{hint} Known: {known}")
    return found
