"""`bench audit release` and `bench audit mechanism`: measure leakage as a lower bound on epsilon."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from bench.cli import run_options
from bench.cli.read_given import read_number, read_seeds, read_settings
from bench.errors import BadOption
from bench.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from bench.pipeline.canary_audit import AuditOutcome
    from bench.pipeline.canary_game import CanaryGame
    from bench.pipeline.settings import Settings
    from bench.privacy.audit import DistinguishingGame, MechanismAudit

HELP = "a lower bound on epsilon, measured on a release or on a method's mechanism"
DESCRIPTION = (
    "An audit gives a lower bound on epsilon at 95 % confidence. Above a promise for the same unit, the promise is "
    "refuted; below it nothing is proved: `not refuted` is not `verified`."
)
ACTIONS = {
    "release": "train a teacher with canaries, convert it, and guess from the student which canaries were used",
    "mechanism": "play the distinguishing game on a method's own mechanism, on its worst inputs",
    "prepare": "make what audits of releases share, their teachers, and nothing else; `bench sweep` begins with it",
}
OF_BOTH = {
    *("method", "variant", "dataset", "tier", "epsilon", "delta", "account", "solve", "unit"),
    *("data_root", "download", "size", "channels", "fit", "pixel_range", "skip_broken"),
}
OF_RELEASE = OF_BOTH | {
    "teacher",
    "student",
    "seeds",
    "noise",
    "device",
    "devices",
    "precision",
    "compile",
    "out",
    "fresh",
}
OF_RUN = {"release": OF_RELEASE, "mechanism": OF_BOTH, "prepare": OF_RELEASE}
NAMES = {"student": "student, released", "teacher": "teacher, undefended", "null": "null run, no canary"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, line in ACTIONS.items():
        made = actions.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}. {DESCRIPTION}")
        made.allow_abbrev = False
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        _borrow(made, OF_RUN[name])
        made.set_defaults(parser=made)
        (_add_mechanism if name == "mechanism" else _add_release)(made)
    actions.choices["prepare"].add_argument(
        "--only", choices=("teacher", "null_teacher", "reference_teacher"), help="make this one alone (default all)"
    )
    parser.set_defaults(actions=actions.choices)


def _borrow(parser: argparse.ArgumentParser, names: set[str]) -> None:
    """Add those options of `bench run`, in its groups."""
    run_parser = argparse.ArgumentParser(add_help=False)
    run_options.add_arguments(run_parser)
    for group in run_parser._action_groups:
        chosen = [action for action in group._group_actions if action.dest in names]
        mine = parser.add_argument_group(group.title) if chosen else None
        for action in chosen:
            if mine is not None:
                mine._add_action(action)


def _add_release(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the game")
    group.add_argument(
        "--canaries", default="200", metavar="M", help="mislabelled images, each inserted by a fair coin (default 200)"
    )
    group.add_argument(
        "--guesses", metavar="R", help="coins guessed, half of them on the highest scores (default half the canaries)"
    )
    group.add_argument(
        "--score",
        choices=("loss", "rmia"),
        default="loss",
        help="what is guessed from: the canary's loss, or its likelihood over a reference model's (default loss)",
    )
    group.add_argument(
        "--overfit", action="store_true", help="train the teacher longer, without augmentation, so that it memorises"
    )
    group.add_argument("--confidence", default="0.95", metavar="P", help="of the bounds (default 0.95)")


def _add_mechanism(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the game")
    group.add_argument(
        "--plays", metavar="N", help="plays of the game in each world (default: as many as the game suggests)"
    )
    group.add_argument("--seed", default="0", metavar="S", help="of the plays (default 0)")


def add_plugin_arguments(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Add `--method.X` and, to the audit of a release, `--teacher.X`, for the plug-ins the command line names."""
    action = next((word for word in arguments[1:] if word in ACTIONS), None)
    if action is not None:
        run_options.add_plugin_arguments(parser.get_default("actions")[action], arguments)


def execute(given: argparse.Namespace) -> int:
    """Audit and print. Returns the exit status."""
    if given.action is None:
        raise BadOption(f"name what to audit: {' or '.join(ACTIONS)}, as in `bench audit release --method dpsd`")
    if given.method is None:
        raise BadOption(
            f"--method is missing; name one of `bench list methods`, as in `bench audit {given.action} --method dpsd`"
        )
    return {"release": _release, "mechanism": _mechanism, "prepare": _prepare}[given.action](given)


def _whole(flag: str, text: str, least: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        raise BadOption(f"{flag} {text}: expected a whole number") from None
    if least is not None and not least <= number <= LARGEST_SEED:
        raise BadOption(f"{flag} {text}: expected a whole number from {least} to {LARGEST_SEED}")
    return number


def settle(given: argparse.Namespace) -> tuple[Settings, CanaryGame, list[int]]:
    """Return settings, game and seeds from the options of `bench audit release`. Raises BenchError."""
    seeds, confidence = read_seeds(given.seeds), read_number("--confidence", given.confidence)
    guesses = None if given.guesses is None else _whole("--guesses", given.guesses)
    from bench.pipeline.canary_game import CanaryGame

    game = CanaryGame(_whole("--canaries", given.canaries), guesses, given.score, given.overfit, confidence)
    return read_settings(given, attack=None), game, seeds


def _release(given: argparse.Namespace) -> int:
    settings, game, seeds = settle(given)
    from bench.interface.auditing import audits

    for outcome in audits(settings, game, seeds):
        _show_release(outcome)
    return 0


def _prepare(given: argparse.Namespace) -> int:
    settings, game, seeds = settle(given)
    from bench.pipeline.canary_audit import prepare_shared
    from bench.pipeline.resolve import load_job

    with closing(load_job(settings)) as job:
        for seed in seeds:
            prepare_shared(job, game, seed, given.only)
    return 0


def _show_release(finished: AuditOutcome) -> None:
    from rich.table import Table

    from bench.progress import head, out
    from bench.storage.records import AUDIT
    from bench.sweeps.run_sweep import powerless

    found = finished.audit
    release, game = found.spec["release"], found.spec
    name = f"audit of {release['method']} on {release['teacher']['data']['dataset']}, tier {game['tier']}"
    head(f"\n{name}, seed {release['seed']}", "  (cached)" if finished.cached else "")
    out.print(
        f"{found.canaries['number']} canaries, {found.canaries['inserted']} inserted; {game['guesses']} coins guessed "
        f"from {game['score']}; bounds are per example, delta {found.delta:g}, confidence {game['confidence']:g}",
        soft_wrap=True,
    )
    table = Table(box=None, header_style="bold")
    for column in ("scored on", "epsilon >=", "right", "accuracy", "as taught: in", "out"):
        table.add_column(column, no_wrap=True)
    for key, line in ((key, found.lines[key]) for key in ("student", "teacher", "null")):
        shares = (line["accuracy"], line["memorised_inserted"], line["memorised_left_out"])
        cells = [
            f"{line['epsilon_lower']:.2f}",
            f"{line['correct']}/{line['guesses']}",
            *("-" if s is None else f"{s:.1%}" for s in shares),
        ]
        table.add_row(NAMES[key], *cells)
    table.add_row("ceiling", f"{found.ceiling:.2f}", f"{game['guesses']}/{game['guesses']}")
    out.print(table)
    for reason in found.reasons:
        out.print(reason, markup=False, soft_wrap=True)
    if not found.powerful:
        out.print(f"{powerless(found)}; try --overfit, or more --canaries", markup=False, soft_wrap=True)
    out.print(f"verdict: {found.verdict}", markup=False)
    out.print(f"{'audit':<16} {finished.path / AUDIT}", markup=False, soft_wrap=True)


def _mechanism(given: argparse.Namespace) -> int:
    plays = None if given.plays is None else _whole("--plays", given.plays, 1)
    seed, settings = _whole("--seed", given.seed, 0), read_settings(given, attack=None)
    from bench.interface.auditing import audit_mechanism

    game, found = audit_mechanism(settings, plays, seed)
    _show_mechanism(given, game, found)
    return 0


def _show_mechanism(given: argparse.Namespace, game: DistinguishingGame, found: MechanismAudit) -> None:
    from rich.table import Table

    from bench.progress import head, out

    head(f"\nmechanism of {given.method} on {given.dataset}, tier {given.tier}")
    out.print(f"played: {game.describe}", markup=False, soft_wrap=True)
    table = Table(box=None, header_style="bold")
    for column in ("per play", "epsilon"):
        table.add_column(column)
    for label, value in (
        ("lower bound, 95 %", found.lower_bound),
        ("claimed", found.claimed),
        ("accounted", found.accounted),
        ("ceiling", found.ceiling),
    ):
        table.add_row(label, "infinite" if value == float("inf") else f"{value:.4g}")
    table.add_row("delta", f"{found.delta:g}")
    table.add_row("plays", f"{found.plays:,} in each world")
    out.print(table)
    if (point := found.curve_point) is not None:
        out.print(
            f"privacy curve: at delta {point.delta:g} the lower bound is {point.lower_bound:.3g}, accounted "
            f"{point.accounted:.3g}",
            markup=False,
            soft_wrap=True,
        )
    out.print(f"verdict: {found.verdict}", markup=False)
