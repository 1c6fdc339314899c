"""`bench.assess(...)` and what `bench assess` calls: from inputs to a finished assessment."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from bench.assess.assembly import Options, assemble, exposed_lines, write
from bench.assess.claim import read_claim
from bench.assess.from_scores import material_of_scores
from bench.assess.policy import Policy, read_policy
from bench.assess.schema import Assessment
from bench.errors import BenchError

PathGiven = str | PathLike[str]


def assess(
    model: PathGiven | Callable[..., Any] | None = None,
    members: PathGiven | None = None,
    nonmembers: PathGiven | None = None,
    *,
    scores: tuple[PathGiven, PathGiven] | None = None,
    policy: str | PathGiven | Policy = "research",
    claim: str | None = None,
    delta: float = 1e-5,
    combine: str = "mean",
    seed: int = 0,
    report: PathGiven | None = None,
    command: str = "",
) -> Assessment:
    """Assess a finished model, or the scores of one.

    Args:
        scores: files of members' and of non-members' scores, instead of a model (docs/assess.md has the columns).
        policy: "research", "health", the path of a TOML file, or a `Policy`.
        claim: a claimed epsilon to be tested, "epsilon=3 delta=1e-5 unit=example".
        delta: of the empirical lower bound on epsilon, in [0, 1).
        combine: how the scores of a group become one: "mean", "sum" or "max".
        seed: of samples, folds, trainings and resampling.
        report: a folder to write assessment.json, report.html, report.pdf and exposed.csv to.
        command: shown in the report as the command to repeat it.

    Raises:
        BenchError: bad input, with what was expected and what to do.
    """
    chosen = policy if isinstance(policy, Policy) else read_policy(policy if isinstance(policy, str) else Path(policy))
    stated = None if claim is None else read_claim(claim)
    options = Options(chosen, stated, delta, combine, seed, command)
    if scores is None:
        raise BenchError("nothing to assess: give --scores MEMBERS OTHERS, or --model with --members and --nonmembers")
    material = material_of_scores(Path(scores[0]), Path(scores[1]), delta, seed)
    found = assemble(material, options)
    if report is not None:
        write(found, Path(report), exposed_lines(material, options))
    return found
