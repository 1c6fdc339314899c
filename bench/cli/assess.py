"""`bench assess`: can this model be released?"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli import paths
from bench.cli.read_given import read_reading
from bench.errors import BenchError
from bench.progress import head, tell

if TYPE_CHECKING:
    from bench.assess.schema import Assessment, AttackResult, Canaries, Interval
    from bench.interface.teacher_weights import Normalisation

HELP = "can this model be released? attacks on a finished model or its scores, with a verdict by a policy"
DESCRIPTION = (
    "Tests whether a finished model separates its training records from other records, and decides by a policy: "
    "release (exit status 0), do not release (1) or cannot tell (3). The data are tested before the model: where the "
    "two sets differ without it, no verdict is possible. docs/assess.md describes every number."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench assess`."""
    _add_model_arguments(parser)
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
    parser.add_argument(
        "--match",
        action="store_true",
        help="if the sets differ without the model, assess only pairs of records of one class with similar facts",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything drawn (default 0)")
    parser.add_argument(
        "--report", type=paths.named, metavar="DIR", help="folder for report.html, report.pdf and assessment.json"
    )


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for a local model."""
    path, number = paths.named, int
    add = parser.add_argument
    add("--model", type=path, metavar="FILE", help="weights (with --network), .onnx, TorchScript or .pt2")
    add("--bundle", type=path, metavar="DIR", help="a folder of `bench export`, instead of --model")
    add("--samples", type=path, metavar="PATH", help="released synthetic images, a folder or a .npz file, not a model")
    add("--network", metavar="NAME", help="network of the weights: of timm, tv:NAME, or PACKAGE.MODULE:FUNCTION")
    add("--classes", type=number, metavar="N", help="number of outputs (default: the largest label + 1)")
    add("--normalise", metavar="MEAN,STD", help="normalisation of pixels in [0, 1] that the model expects")
    add("--trust-code", action="store_true", help="run TorchScript and .pt2 files, which hold programs")
    add("--members", type=path, metavar="PATH", help="records the model was trained on: a folder or a .npz file")
    add("--nonmembers", type=path, metavar="PATH", help="records of the same source that it was not trained on")
    add("--groups", type=path, metavar="CSV", help="columns file and group: patients, users or devices, for folders")
    add("--size", type=number, metavar="PIXELS", help="side to which image files are resized (default 32)")
    add("--channels", type=number, choices=(1, 3), help="grey or RGB (default: as the files are)")
    add("--fit", choices=("crop", "pad", "stretch"), default="crop", help="how images become square (default crop)")
    add(
        "--pixel-range",
        metavar="LOW,HIGH",
        help="values of black and white in your arrays, as in -1,1 (default: as the type of the numbers says)",
    )
    add("--population", type=path, metavar="PATH", help="other labelled records that attacks may learn from")
    add("--references", metavar="N|DIR", default="0", help="reference models to train, even, or a folder of weights")
    add("--epochs", type=number, default=30, metavar="N", help="passes of a reference model's training (default 30)")
    add(
        "--canaries", type=path, metavar="PATH", help="canaries of `bench canaries insert`, by which epsilon is bounded"
    )
    add("--control", metavar="NAME", help="network of the unprotected control (default dense-cnn)")
    add("--attacks", metavar="NAMES", help="names with commas between them (default: all that can be played)")


def _normalisation(text: str | None, model: Path | None) -> Normalisation | None:
    """Return the mean and std from --normalise or from a file next to the weights; None without either."""
    from bench.interface.teacher_weights import normalisation

    if text is None:
        return None if model is None or model.suffix == ".onnx" else normalisation(None, model)
    try:
        mean, std = (tuple(float(number) for number in part.split("/")) for part in text.split(","))
    except ValueError:
        mean, std = (), ()
    if not mean or len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
        raise BenchError(
            f"--normalise {text}: expected MEAN,STD with a std above 0, as in 0.1307,0.3081 or, one a channel, "
            "0.49/0.48/0.45,0.25/0.24/0.26"
        )
    return (mean[0], std[0]) if len(mean) == 1 else (mean, std)


def execute(given: argparse.Namespace) -> int:
    """Assess and print. Returns the exit status."""
    from bench.assess.front import assess

    command = shlex.join(["bench", *sys.argv[1:]]) if sys.argv else ""
    found = assess(
        given.model,
        given.members,
        given.nonmembers,
        scores=given.scores,
        bundle=given.bundle,
        samples=given.samples,
        network=given.network,
        classes=given.classes,
        normalise=_normalisation(given.normalise, given.model),
        groups=given.groups,
        size=given.size,
        channels=given.channels,
        fit=given.fit,
        pixel_range=read_reading(given).pixel_range,
        population=given.population,
        references=int(given.references) if given.references.isdecimal() else Path(given.references),
        epochs=given.epochs,
        control=given.control,
        attacks=None if given.attacks is None else given.attacks.split(","),
        canaries=given.canaries,
        trust_code=given.trust_code,
        policy=given.policy,
        claim=given.claim,
        delta=given.delta,
        combine=given.combine,
        seed=given.seed,
        match=given.match,
        report=given.report,
        command=command,
    )
    show(found)
    if given.report is not None:
        tell(f"report: {given.report / 'report.html'}; exposed*.csv next to it name records and are for you only")
    return found.status


def show(found: Assessment) -> None:
    """Print the verdict, its reasons and the numbers."""
    head(found.verdict.decision)
    for reason in found.verdict.reasons:
        tell(f"  {reason}")
    if found.claim is not None and found.claim.finding != "refuted":
        tell(f"  {found.claim.sentence}")
    for attack in found.attacks:
        tell(_attack_line(attack))
    if found.blind is not None:
        tell(f"baseline without the model: AUC {found.blind.auc:.3f}, p = {found.blind.p:.2g}")
    if found.canaries is not None:
        tell(canary_line(found.canaries))
    for each in found.not_tested:
        tell(f"not tested: {each.name}: {each.reason}")


def canary_line(found: Canaries) -> str:
    """Format the bounds by canaries in a line."""
    gaussian = found.epsilon_lower_gaussian
    more = "" if gaussian is None else f"; {gaussian:.2f} if the mechanism is Gaussian"
    return (
        f"canaries: {found.correct} of {found.guesses} guesses right, epsilon at least {found.epsilon_lower:.2f} at "
        f"delta {found.delta:g}{more}"
    )


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
