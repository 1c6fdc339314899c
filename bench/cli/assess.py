"""`bench assess`: can this model be released?"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cli.parsing import Command, file_path
from bench.cli.settings import read_pixel_range
from bench.interface.teacher_weights import parse_normalisation, read_normalisation
from bench.progress import print_heading, print_line

if TYPE_CHECKING:
    from bench.assess.schema import Assessment, AttackResult, Canaries, Interval, Inversion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench assess`."""
    add = parser.add_argument
    add("--model", type=file_path, metavar="FILE", help="weights (with --network), .onnx, TorchScript or .pt2")
    add("--bundle", type=file_path, metavar="DIR", help="a folder of `bench export`, instead of --model")
    add("--samples", type=file_path, metavar="PATH", help="released synthetic images: a folder or an .npz file")
    add("--network", metavar="NAME", help="network of the weights: of timm, tv:NAME, or PACKAGE.MODULE:FUNCTION")
    add("--classes", type=int, metavar="N", help="number of outputs (default: the largest label + 1)")
    add("--normalise", metavar="MEAN,STD", help="normalisation that the model expects, for pixels in [0, 1]")
    add("--trust-code", action="store_true", help="load TorchScript and .pt2 files, which can run any code")
    add("--members", type=file_path, metavar="PATH", help="records the model was trained on: a folder or an .npz file")
    add("--nonmembers", type=file_path, metavar="PATH", help="records of the same source that it was not trained on")
    add(
        "--groups",
        type=file_path,
        metavar="CSV",
        help="columns file and group: patients, users or devices, for folders",
    )
    add("--size", type=int, metavar="PIXELS", help="side length to which image files are resized (default 32)")
    add("--channels", type=int, choices=(1, 3), help="1 for grey, 3 for RGB (default: as the files are)")
    add("--fit", choices=("crop", "pad", "stretch"), default="crop", help="how images become square (default crop)")
    add(
        "--pixel-range",
        metavar="LOW,HIGH",
        help="values of black and white in your arrays, as in -1,1 (default: as the type of the numbers says)",
    )
    add("--population", type=file_path, metavar="PATH", help="other labelled records that attacks may learn from")
    add("--references", metavar="N|DIR", default="0", help="even number of reference models to train, or their folder")
    add("--epochs", type=int, default=30, metavar="N", help="epochs of a reference model's training (default 30)")
    add("--canaries", type=file_path, metavar="PATH", help="canaries of `bench canaries insert`, to bound epsilon")
    add("--no-inversion", action="store_true", help="do not reconstruct the classes of the model")
    add("--private-classes", action="store_true", help="the look of a class is private, such as the face of a person")
    add(
        "--inversion-minutes",
        type=float,
        default=10.0,
        metavar="M",
        help="give up class inversion that takes longer on one network (default 10)",
    )
    add("--control", metavar="NAME", help="network of an unprotected model to compare with (default dense-cnn)")
    add("--attacks", metavar="NAMES", help="attacks separated by commas (default: all that apply)")
    add(
        "--scores",
        nargs=2,
        type=file_path,
        metavar=("MEMBERS", "OTHERS"),
        help="files of scores (.csv, .npz, .parquet) with columns label, logit_0, ... or label, prob_0, ... or loss",
    )
    add("--policy", default="research", metavar="NAME", help="research, health, or a TOML file (default research)")
    add("--claim", metavar="TEXT", help='a claimed epsilon to test, as in "epsilon=3 delta=1e-5 unit=example"')
    add("--delta", type=float, default=1e-5, metavar="D", help="delta of the lower bound on epsilon (default 1e-5)")
    add(
        "--combine",
        choices=("mean", "sum", "max"),
        default="mean",
        help="how the scores of a group are combined (default mean)",
    )
    add("--match", action="store_true", help="if the two sets differ, assess only pairs of similar records")
    add("--seed", type=int, default=0, metavar="N", help="seed of all random draws (default 0)")
    add("--report", type=file_path, metavar="DIR", help="folder for report.html, report.pdf and assessment.json")
    add("--no-pictures", action="store_true", help="with --report: exposed.html names the records without pictures")


def execute(given: argparse.Namespace) -> int:
    """Assess and print. Returns the exit status."""
    from bench.assess.front import assess

    normalise = None
    if given.normalise is not None:
        normalise = parse_normalisation("--normalise", given.normalise)
    elif given.model is not None and given.model.suffix != ".onnx":
        normalise = read_normalisation(given.model)
    found = assess(
        given.model,
        given.members,
        given.nonmembers,
        scores=given.scores,
        bundle=given.bundle,
        samples=given.samples,
        network=given.network,
        classes=given.classes,
        normalise=normalise,
        groups=given.groups,
        size=given.size,
        channels=given.channels,
        fit=given.fit,
        pixel_range=None if given.pixel_range is None else read_pixel_range(given.pixel_range),
        population=given.population,
        references=int(given.references) if given.references.isdecimal() else Path(given.references),
        epochs=given.epochs,
        control=given.control,
        attacks=None if given.attacks is None else given.attacks.split(","),
        canaries=given.canaries,
        inversion=not given.no_inversion,
        private_classes=given.private_classes,
        inversion_minutes=given.inversion_minutes,
        trust_code=given.trust_code,
        policy=given.policy,
        claim=given.claim,
        delta=given.delta,
        combine=given.combine,
        seed=given.seed,
        match=given.match,
        report=given.report,
        pictures=not given.no_pictures,
        command=shlex.join(["bench", *sys.argv[1:]]) if sys.argv else "",
    )
    show(found)
    if given.report is not None:
        print_line(
            f"report: {given.report / 'report.html'}; the files exposed* next to it show private records: keep them"
        )
    return found.status


def show(found: Assessment) -> None:
    """Print the verdict, its reasons and the numbers."""
    print_heading(found.verdict.decision)
    for reason in found.verdict.reasons:
        print_line(f"  {reason}")
    if found.claim is not None and found.claim.finding != "refuted":
        print_line(f"  {found.claim.sentence}")
    for attack in found.attacks:
        print_line(attack_line(attack))
    if found.blind is not None:
        print_line(f"baseline without the model: AUC {found.blind.auc:.3f}, p = {found.blind.p:.2g}")
    if found.canaries is not None:
        print_line(canary_line(found.canaries))
    if found.inversion is not None:
        print_line(inversion_line(found.inversion))
    for each in found.not_tested:
        print_line(f"not tested: {each.name}: {each.reason}")


def canary_line(found: Canaries) -> str:
    """Format the bounds by canaries in a line."""
    gaussian = found.epsilon_lower_gaussian
    more = "" if gaussian is None else f"; {gaussian:.2f} if the mechanism is Gaussian"
    return (
        f"canaries: {found.correct} of {found.guesses} guesses correct, epsilon at least {found.epsilon_lower:.2f} at "
        f"delta {found.delta:g}{more}"
    )


def inversion_line(found: Inversion) -> str:
    """Format the gain of class inversion over its baseline in a line."""
    power = "" if found.has_power else f"; this attack cannot tell here: {found.reason}"
    shown = f"{found.shown:.1%} of {found.images} reconstructions show their class"
    return (
        f"class inversion  {shown}, {found.baseline_shown:.1%} of the baseline ({found.baseline}): gain "
        f"{_interval(found.gain)}{power}"
    )


def attack_line(attack: AttackResult) -> str:
    """Format the success of an attack in a line."""
    rate = next(rate for rate in attack.rates if rate.fpr == 0.01)
    power = "; the attack has no power here, so it cannot tell" if attack.has_power is False else ""
    shown = "not measurable" if rate.tpr is None else _interval(rate.tpr)
    return (
        f"{attack.name:<16} AUC {_interval(attack.auc)}, TPR at FPR 1 % {shown}, "
        f"epsilon at least {attack.epsilon_lower:.2f}{power}"
    )


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


ASSESS = Command(
    "Tests whether a finished model separates its training records from other records, and decides by a policy: "
    "release (exit status 0), do not release (1) or cannot tell (3). The data are tested before the model: if the two "
    "sets differ without it, no verdict is possible. docs/assess.md describes every number.",
    add_arguments,
    execute,
)
