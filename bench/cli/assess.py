"""`bench assess`: can this model be released?"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.progress import head, tell

if TYPE_CHECKING:
    from bench.assess.schema import Assessment, AttackResult, Interval

HELP = "can this model be released? attacks on a finished model or its scores, with a verdict by a policy"
DESCRIPTION = (
    "Tests whether training records can be told from other records by a finished model, and decides by a policy: "
    "release (exit status 0), do not release (1) or cannot tell (3). The data are tested before the model: where the "
    "two sets differ without it, no verdict is possible. docs/assess.md describes every number."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench assess`."""
    parser.add_argument(
        "--scores",
        nargs=2,
        type=paths.named,
        metavar=("MEMBERS", "OTHERS"),
        help="files of scores (.csv, .npz, .parquet) with columns label, logit_0, ... or label, prob_0, ... or loss",
    )
    parser.add_argument(
        "--policy", default="research", metavar="NAME", help="research, health, or a TOML file (default research)"
    )
    parser.add_argument(
        "--claim", metavar="TEXT", help='a claimed epsilon to test, as "epsilon=3 delta=1e-5 unit=example"'
    )
    parser.add_argument(
        "--delta", type=float, default=1e-5, metavar="D", help="delta of the lower bound on epsilon (default 1e-5)"
    )
    parser.add_argument(
        "--combine",
        choices=("mean", "sum", "max"),
        default="mean",
        help="how the scores of a group become one (default mean)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything drawn (default 0)")
    parser.add_argument(
        "--report", type=paths.named, metavar="DIR", help="folder for report.html, report.pdf and assessment.json"
    )


def execute(given: argparse.Namespace) -> int:
    """Assess and show. Returns the exit status."""
    from bench.assess.front import assess

    command = shlex.join(["bench", *sys.argv[1:]]) if sys.argv else ""
    found = assess(
        scores=given.scores,
        policy=given.policy,
        claim=given.claim,
        delta=given.delta,
        combine=given.combine,
        seed=given.seed,
        report=given.report,
        command=command,
    )
    show(found)
    if given.report is not None:
        tell(f"report: {given.report / 'report.html'}; exposed.csv next to it names records and is for you only")
    return found.status


def show(found: Assessment) -> None:
    """The verdict, its reasons and the numbers."""
    head(found.verdict.decision)
    for reason in found.verdict.reasons:
        tell(f"  {reason}")
    if found.claim is not None and found.claim.finding != "refuted":
        tell(f"  {found.claim.sentence}")
    for attack in found.attacks:
        tell(_attack_line(attack))
    if found.blind is not None:
        tell(f"baseline without the model: AUC {found.blind.auc:.3f}, p = {found.blind.p:.2g}")
    for each in found.not_tested:
        tell(f"not tested: {each.name}: {each.reason}")


def _attack_line(attack: AttackResult) -> str:
    rate = next(rate for rate in attack.rates if rate.fpr == 0.01)
    power = {True: "", False: "; no power: cannot tell here", None: ""}[attack.has_power]
    shown = "not measurable" if rate.tpr is None else _interval(rate.tpr)
    return (
        f"{attack.name:<16} AUC {_interval(attack.auc)}, TPR at FPR 1 % {shown}, "
        f"epsilon at least {attack.epsilon_lower:.2f}{power}"
    )


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
