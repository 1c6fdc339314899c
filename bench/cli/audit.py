"""`bench audit`: measure leakage as a lower bound on epsilon, or as the success of an informed adversary."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from bench.cli.options import add_plugin_options, add_run_options
from bench.cli.parsing import Command
from bench.cli.settings import read_number, read_seeds, read_settings, read_whole
from bench.core.epsilon import format_epsilon
from bench.errors import BadOption

if TYPE_CHECKING:
    from bench.pipeline.canary_audit import AuditOutcome
    from bench.pipeline.canary_game import CanaryGame
    from bench.pipeline.settings import Settings
    from bench.privacy.audit import DistinguishingGame, MechanismAudit
    from bench.privacy.reconstruction import ReconstructionAudit, ReconstructionGame

DESCRIPTION = (
    "An audit measures a lower bound on epsilon at 95 % confidence. If it is above a claimed or accounted epsilon of "
    "the same unit, that epsilon is refuted. If not, nothing is proved: `not refuted` is not `verified`."
)
ACTIONS = {
    "release": "train a teacher with canaries, convert it, and guess from the student which canaries were used",
    "mechanism": "play the distinguishing game on a method's own mechanism with worst-case inputs",
    "reconstruction": "guess which of several candidate records was used, from a method's own noisy releases",
    "prepare": "train only the teachers that several audits of releases share; `bench sweep` starts with it",
}
OF_MECHANISM = {
    *("method", "variant", "dataset", "tier", "epsilon", "delta", "account", "solve", "unit"),
    *("data_root", "download", "size", "channels", "fit", "pixel_range", "groups", "skip_broken"),
}
"""Options of `bench run` that an audit of a mechanism has."""
OF_RELEASE = OF_MECHANISM | {
    *("teacher", "student", "seeds", "noise", "device", "devices", "precision", "compile", "out", "fresh"),
    "pretrained",
}
"""Options of `bench run` that an audit of a release has."""
NAMES = {"student": "released student", "teacher": "unprotected teacher", "null": "teacher, no canaries"}
"""Networks from which the canaries are guessed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, line in ACTIONS.items():
        made = actions.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}. {DESCRIPTION}")
        made.allow_abbrev = False
        made.add_argument("--debug", action="store_true", help="print the traceback of an error")
        add_run_options(made, OF_MECHANISM if name in ("mechanism", "reconstruction") else OF_RELEASE)
        made.set_defaults(parser=made)
        group = made.add_argument_group("the audit")
        if name == "mechanism":
            group.add_argument(
                "--plays", metavar="N", help="plays in each of the two worlds (default: set by the game)"
            )
            group.add_argument("--seed", default="0", metavar="S", help="seed of the plays (default 0)")
        elif name == "reconstruction":
            _add_candidate_options(group)
        else:
            _add_canary_options(group)
        if name == "prepare":
            networks = ("teacher", "null_teacher", "reference_teacher")
            made.add_argument("--only", choices=networks, help="train only this network (default all)")
    parser.set_defaults(actions=actions.choices)


def _add_candidate_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of a game with candidate records."""
    group.add_argument(
        "--candidates", default="10", metavar="K", help="equally likely records, one of which was used (default 10)"
    )
    group.add_argument("--trials", default="1000", metavar="N", help="number of plays (default 1000)")
    group.add_argument(
        "--steps", metavar="T", help="noisy gradients that one play releases, the first ones (default all of training)"
    )
    group.add_argument("--seed", default="0", metavar="S", help="seed of the plays (default 0)")


def _add_canary_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of a game with canaries."""
    group.add_argument(
        "--canaries", default="200", metavar="M", help="mislabelled images, each inserted by a fair coin (default 200)"
    )
    group.add_argument(
        "--guesses",
        metavar="R",
        help="canaries that are guessed, half of them those with the highest scores (default half the canaries)",
    )
    group.add_argument(
        "--score",
        choices=("loss", "rmia"),
        default="loss",
        help="score of a canary: its loss, or its likelihood ratio to a reference model (default loss)",
    )
    group.add_argument(
        "--overfit", action="store_true", help="train the teacher longer, without augmentation, so that it memorises"
    )
    group.add_argument("--confidence", default="0.95", metavar="P", help="confidence of the bounds (default 0.95)")


def add_audit_plugin_options(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Add the options of the method and of the teacher that the command line names."""
    action = next((word for word in arguments[1:] if word in ACTIONS), None)
    if action is not None:
        add_plugin_options(parser.get_default("actions")[action], arguments)


def execute(given: argparse.Namespace) -> int:
    """Audit and print. Returns the exit status."""
    if given.action is None:
        raise BadOption(f"give an action: {' or '.join(ACTIONS)}, as in `bench audit release --method dpsd`")
    if given.method is None:
        raise BadOption(
            f"--method is missing; give one of `bench list methods`, as in `bench audit {given.action} --method dpsd`"
        )
    if given.action == "mechanism":
        plays = None if given.plays is None else read_whole("--plays", given.plays, 1)
        seed, settings = read_whole("--seed", given.seed, 0), read_settings(given)
        from bench.interface.auditing import audit_mechanism

        show_mechanism_audit(settings, *audit_mechanism(settings, plays, seed))
        return 0
    if given.action == "reconstruction":
        from bench.interface.auditing import reconstruct

        candidates, trials = read_whole("--candidates", given.candidates, 2), read_whole("--trials", given.trials, 1)
        steps = None if given.steps is None else read_whole("--steps", given.steps, 1)
        seed, settings = read_whole("--seed", given.seed, 0), read_settings(given)
        show_reconstruction(settings, *reconstruct(settings, candidates, trials, steps, seed))
        return 0
    settings, game, seeds = read_audit(given)
    if given.action == "release":
        from bench.interface.auditing import audit_seeds

        for outcome in audit_seeds(settings, game, seeds):
            show_release_audit(outcome)
        return 0
    from bench.pipeline.canary_audit import prepare_shared
    from bench.pipeline.resolve import load_job

    with closing(load_job(settings)) as job:
        for seed in seeds:
            prepare_shared(job, game, seed, given.only)
    return 0


def read_audit(given: argparse.Namespace) -> tuple[Settings, CanaryGame, list[int]]:
    """Return settings, game and seeds from the options of `bench audit release`. Raises BenchError."""
    seeds, confidence = read_seeds(given.seeds), read_number("--confidence", given.confidence)
    guesses = None if given.guesses is None else read_whole("--guesses", given.guesses)
    from bench.pipeline.canary_game import CanaryGame

    game = CanaryGame(read_whole("--canaries", given.canaries), guesses, given.score, given.overfit, confidence)
    return read_settings(given), game, seeds


def show_release_audit(outcome: AuditOutcome) -> None:
    """Print the bound from each network, the reasons, and the verdict."""
    from rich.table import Table

    from bench.progress import out, print_heading, print_line
    from bench.storage.records import AUDIT
    from bench.sweeps.run_sweep import powerless

    audit = outcome.audit
    release, game = audit.spec["release"], audit.spec
    name = f"audit of {release['method']} on {release['teacher']['data']['dataset']}, tier {game['tier']}"
    print_heading(f"\n{name}, seed {release['seed']}", "  (cached)" if outcome.cached else "")
    print_line(
        f"{audit.canaries['number']} canaries, {audit.canaries['inserted']} inserted; {game['guesses']} of them "
        f"guessed from {game['score']}; bounds are per example, delta {audit.delta:g}, confidence "
        f"{game['confidence']:g}"
    )
    table = Table(box=None, header_style="bold")
    for column in ("network", "epsilon >=", "correct", "accuracy", "memorised: in", "out"):
        table.add_column(column, no_wrap=True)
    for network, label in NAMES.items():
        line = audit.lines[network]
        shares = (line["accuracy"], line["memorised_inserted"], line["memorised_left_out"])
        table.add_row(
            label,
            f"{line['epsilon_lower']:.2f}",
            f"{line['correct']}/{line['guesses']}",
            *("-" if share is None else f"{share:.1%}" for share in shares),
        )
    table.add_row("largest possible", f"{audit.ceiling:.2f}", f"{game['guesses']}/{game['guesses']}")
    out.print(table)
    for reason in audit.reasons:
        print_line(reason)
    if not audit.powerful:
        print_line(f"{powerless(audit)}; try --overfit, or more --canaries")
    print_line(f"verdict: {audit.verdict}")
    print_line(f"{'audit':<16} {outcome.path / AUDIT}")


def show_mechanism_audit(settings: Settings, game: DistinguishingGame, audit: MechanismAudit) -> None:
    """Print the bound on the mechanism next to its claimed and accounted epsilon, and the verdict."""
    from rich.table import Table

    from bench.progress import out, print_heading, print_line

    print_heading(f"\nmechanism of {settings.method} on {settings.dataset}, tier {settings.tier}")
    print_line(f"game: {game.describe}")
    table = Table(box=None, header_style="bold")
    for column in ("per play", "epsilon"):
        table.add_column(column)
    rows = {
        "lower bound, 95 %": audit.lower_bound,
        "claimed": audit.claimed,
        "accounted": audit.accounted,
        "largest possible bound": audit.ceiling,
    }
    for label, epsilon in rows.items():
        table.add_row(label, format_epsilon(epsilon))
    table.add_row("delta", f"{audit.delta:g}")
    table.add_row("plays", f"{audit.plays:,} in each world")
    out.print(table)
    if (point := audit.curve_point) is not None:
        print_line(
            f"privacy curve: at delta {point.delta:g} the lower bound is {point.lower_bound:.3g}, accounted "
            f"{point.accounted:.3g}"
        )
    print_line(f"verdict: {audit.verdict}")


def show_reconstruction(settings: Settings, game: ReconstructionGame, audit: ReconstructionAudit) -> None:
    """Print the success of the informed adversary next to the bounds on it, and the verdict."""
    from rich.table import Table

    from bench.progress import out, print_heading, print_line

    print_heading(f"\ninformed reconstruction from {settings.method} on {settings.dataset}, tier {settings.tier}")
    print_line(f"game: {game.describe}")
    table = Table(box=None, header_style="bold")
    for column in ("probability of naming the right record", ""):
        table.add_column(column)
    rows = {
        "without the release": audit.chance,
        "attack": audit.success,
        "largest possible by the accounted privacy curve": audit.bound,
        "largest possible by the accounted epsilon at delta 0": audit.bound_pure,
        "largest possible for DP-SGD, by Monte Carlo": audit.bound_gaussian,
    }
    for label, value in rows.items():
        if value is not None:
            interval = f" [{audit.low:.4f}, {audit.high:.4f}]" if label == "attack" else ""
            table.add_row(label, f"{value:.4f}{interval}")
    table.add_row("candidates", f"{audit.candidates}")
    table.add_row("trials", f"{audit.trials:,}")
    out.print(table)
    print_line(f"verdict: {audit.verdict}")


AUDIT = Command(
    DESCRIPTION,
    add_arguments,
    execute,
    add_audit_plugin_options,
    is_resumable=True,
)
