"""Write the report as PDF with matplotlib, which needs no system library."""

from __future__ import annotations

import textwrap
from pathlib import Path

from bench.assess.mapping import DISCLAIMER, answers
from bench.assess.report import COLOURS, interval
from bench.assess.roc import draw
from bench.assess.schema import Assessment
from bench.escape import visible

_PAGE = (8.27, 11.69)
"""Inches of A4."""
_LETTERS, _LINES = 100, 66
"""Largest number of characters per line, and of lines per page."""


def write_pdf(found: Assessment, path: Path) -> None:
    """Write the report, two to six pages."""
    from matplotlib.backends.backend_pdf import PdfPages

    lines = report_lines(found)
    with PdfPages(path, metadata={"Title": "Can this model be released?", "CreationDate": None}) as pages:
        for start in range(0, len(lines), _LINES):
            pages.savefig(_text_page(lines[start : start + _LINES], found if start == 0 else None))
        pages.savefig(draw(found.curves, found.members, found.others))


def report_lines(found: Assessment) -> list[str]:
    """Return the text of the report in lines of at most 100 characters."""
    parts = ["Reasons", *(f"- {reason}" for reason in found.verdict.reasons)]
    parts += [] if found.claim is None else [f"- {found.claim.sentence}"]
    parts += ["", f"Policy: {found.policy.name}. {DISCLAIMER}", "", "Numbers"]
    for attack in found.attacks:
        power = {True: "power shown", False: "no power: cannot tell here", None: "power not known"}[attack.has_power]
        rates = "; ".join(f"TPR at FPR {rate.fpr:.1%} {interval(rate.tpr, True)}" for rate in attack.rates)
        parts.append(
            f"- {attack.name} ({power}): AUC {interval(attack.auc)}; {rates}; "
            f"epsilon at least {attack.epsilon_lower:.2f}"
        )
    inversion = found.inversion
    if inversion is not None:
        said = "power shown" if inversion.has_power else f"cannot tell here: {inversion.reason}"
        parts.append(
            f"- class inversion ({said}): {inversion.shown:.1%} of the reconstructions show their class, "
            f"{inversion.baseline_shown:.1%} of the baseline, {inversion.baseline}: gain {interval(inversion.gain)}"
        )
    parts += ["", "Not tested", *(f"- {each.name}: {each.reason}" for each in found.not_tested)]
    if found.blind is not None:
        parts += ["", f"Baseline without the model: AUC {found.blind.auc:.3f}, p = {found.blind.p:.2g}"]
    if found.copies is not None:
        parts.append(f"Copies: {found.copies.exact} exact, {found.copies.near} near, {found.copies.removed} left out")
    if found.canaries is not None:
        parts.append(f"Canaries: epsilon at least {found.canaries.epsilon_lower:.2f} at delta {found.canaries.delta:g}")
    parts += [*found.notes, "", "Questions of EDPB Opinion 28/2024 and NIST SP 800-226 (paraphrased)"]
    parts += [f"- {each.document}: {each.question} {each.answer}" for each in answers(found)]
    parts += ["", f"Version {found.version}, {found.created}, seed {found.seed}", f"Command: {found.command}"]
    parts += [f"SHA-256 of {name}: {digest}" for name, digest in found.hashes.items()]
    return [line for part in parts for line in (textwrap.wrap(visible(part), _LETTERS, subsequent_indent="  ") or [""])]


def _text_page(lines: list[str], found: Assessment | None) -> object:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_PAGE)
    top = 0.95
    if found is not None:
        colour = COLOURS[found.verdict.decision]
        figure.text(
            0.07, 0.955, f"Can this model be released?  {found.verdict.decision}", size=15, color=colour, weight="bold"
        )
        top = 0.935
    figure.text(0.07, top, "\n".join(lines), size=7.6, family="monospace", va="top", linespacing=1.35, parse_math=False)
    return figure
