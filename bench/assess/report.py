"""Write the report of an assessment: one self-contained HTML file without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as html
from pathlib import Path

from bench.assess.mapping import DISCLAIMER, answers
from bench.assess.roc import as_svg, draw
from bench.assess.schema import Assessment, Interval, Inversion
from bench.escape import visible

COLOURS = {"release": "#17693a", "do not release": "#a3161a", "cannot tell": "#8a5a00"}
CURVES = "ROC curve of each attack on logarithmic axes, with the line of chance; the table above has its numbers"
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1c1c1c}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.8em;border-bottom:1px solid #ddd}
table{border-collapse:collapse;width:100%;font-size:.92em}td,th{text-align:left;padding:.25em .6em;vertical-align:top;
border-bottom:1px solid #e5e5e5}.verdict{color:#fff;padding:.8em 1em;border-radius:6px}.verdict b{font-size:1.4em}
code{background:#f4f4f4;padding:0 .2em;word-break:break-all}svg{width:34em;max-width:100%;height:auto}
.wide{overflow-x:auto}p,li,td:last-child{overflow-wrap:anywhere}td:last-child{min-width:9em}
@media print{body{margin:0}}
"""


def page(found: Assessment) -> str:
    """Return the whole page; every text of a user is escaped."""
    parts = [_verdict(found), *_tested(found), *_numbers(found), *_data(found), *_methods(found)]
    parts += [f"<h2>Exposed records</h2><p>{text(EXPOSED)}</p>"]
    parts += ["<h2>Questions of EDPB Opinion 28/2024 and NIST SP 800-226</h2>"]
    parts += [_table(("Document", "question (paraphrased)", "answer"), answers(found)), f"<p>{text(DISCLAIMER)}</p>"]
    return document("Can this model be released?", "".join(parts), STYLE)


EXPOSED = (
    "This report names no record and shows no picture. The most exposed records are in exposed.html of the folder that "
    "this report was written to. That page shows private records: it is for the owner of the data only."
)
"""Where the most exposed records are; the report itself can be passed on."""


def document(title: str, body: str, style: str) -> str:
    """Return an HTML document without scripts and without addresses of other files."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style}</style></head><body>'
        f"<main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def text(value: object) -> str:
    """Escape a value as HTML text."""
    return html(visible(str(value)))


def interval(found: Interval | None, percent: bool = False) -> str:
    """Format a number with its confidence limits; "not measurable" for None."""
    if found is None:
        return "not measurable"
    if percent:
        return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _verdict(found: Assessment) -> str:
    reasons = "".join(f"<br>{text(reason)}" for reason in found.verdict.reasons[:2])
    colour = COLOURS[found.verdict.decision]
    more = "".join(f"<li>{text(reason)}</li>" for reason in found.verdict.reasons[2:])
    claim = "" if found.claim is None else f"<p><strong>{text(found.claim.sentence)}</strong></p>"
    return (
        f'<div class="verdict" style="background:{colour}"><b>{text(found.verdict.decision)}</b>{reasons}</div>'
        + (f"<ul>{more}</ul>" if more else "")
        + f"{claim}<p>Policy: {text(found.policy.name)}. {text(DISCLAIMER)}</p>"
    )


def _tested(found: Assessment) -> Iterable[str]:
    yield "<h2>What was tested</h2>"
    header = ("Attack", "reads", "power on an unprotected copy", "AUC on that copy", "note")
    power = {True: "yes", False: "no: this attack cannot tell here", None: "not known, no control"}
    yield _table(
        header,
        [
            (
                *(each.name, each.reads, power[each.has_power]),
                *("-" if each.control_auc is None else interval(each.control_auc), each.note or "-"),
            )
            for each in found.attacks
        ],
    )
    if found.inversion is not None:
        yield from _inversion(found.inversion)
    yield "<h2>What was not tested</h2>"
    yield _table(("Test", "reason"), [(each.name, each.reason) for each in found.not_tested] or [("-", "-")])


def _inversion(found: Inversion) -> Iterable[str]:
    yield "<h2>Class inversion</h2>"
    rows = [
        ("model", f"{found.shown:.1%}", f"{found.baseline_shown:.1%}", interval(found.gain), _p(found.p)),
        (
            *("unprotected control", f"{found.control_shown:.1%}", f"{found.control_baseline_shown:.1%}"),
            *(interval(found.control_gain), _p(found.control_p)),
        ),
    ]
    yield _table(("Network", "reconstructions that show their class", "baseline", "gain", "p"), rows)
    power = "The attack has power." if found.has_power else f"This attack cannot tell here: {found.reason}."
    yield (
        f"<p>{text(power)} {found.images} reconstructions of {found.classes} classes by {text(found.attack)} "
        f"({text(found.source)}). Baseline: {text(found.baseline)}. An evaluator that was trained on the members "
        f"decides which class an image shows; its accuracy on non-members is {interval(found.evaluator, True)}. Limits "
        "are those of a bootstrap over classes.</p>"
    )


def _p(value: float | None) -> str:
    return "too few classes" if value is None else f"{value:.2g}"


def _numbers(found: Assessment) -> Iterable[str]:
    yield "<h2>Numbers</h2>"
    rates = [f"TPR at FPR {rate.fpr:.1%}" for rate in found.attacks[0].rates]
    header = ("Attack", "AUC", *rates, f"lower bound on epsilon, delta {found.delta:g}")
    rows = [
        (
            attack.name,
            interval(attack.auc),
            *(interval(rate.tpr, True) for rate in attack.rates),
            f"{attack.epsilon_lower:.2f}",
        )
        for attack in found.attacks
    ]
    yield _table(header, rows)
    levels = found.levels
    yield (
        f"<p>{found.members} members and {found.others} non-members ({found.unit}s). Each lower limit is wrong with a "
        f"probability of at most {levels.lower:.2%} ({text(levels.correction)}), each upper limit with "
        f"{levels.upper:.2%}, the bounds on epsilon together with {levels.epsilon:.0%}. The bounds on epsilon "
        "assume that records are independent draws that differ by membership only.</p>"
    )
    yield f'<div role="img" aria-label="{CURVES}">{as_svg(draw(found.curves, found.members, found.others))}</div>'
    seen = found.limits
    yield (
        f"<p>With these numbers of {found.unit}s one attack can show an epsilon of at most {seen.highest_epsilon:.2f}, "
        f"find an epsilon from {seen.smallest_epsilon:.2f} and an AUC from {seen.smallest_auc:.3f}; without any leak "
        f"the upper limit of the AUC is about {seen.largest_auc_without_leak:.3f}.</p>"
    )


def _data(found: Assessment) -> Iterable[str]:
    yield "<h2>The data</h2>"
    rows: list[tuple[str, str]] = []
    if found.accuracy is not None:
        rows.append(("accuracy on members", interval(found.accuracy.members, True)))
        rows.append(("accuracy on non-members", interval(found.accuracy.others, True)))
    copies = found.copies
    if copies is not None:
        said = f"{copies.exact} exact, {copies.near} near; {copies.removed} non-members left out ({copies.method})"
        rows.append(("copies between the sets", said))
    blind = found.blind
    if blind is not None:
        verdict = "the sets differ" if blind.differs else "no difference found"
        said = f"AUC {blind.auc:.3f}, p = {blind.p:.2g}: {verdict} ({blind.method}; {blind.features} features)"
        rows.append(("baseline without the model", said))
        rows.append(("strongest single features", ", ".join(blind.clues)))
    canaries = found.canaries
    if canaries is not None:
        gaussian = canaries.epsilon_lower_gaussian
        more = "" if gaussian is None else f"; {gaussian:.2f} if the mechanism is Gaussian (Mahloujifar et al. 2024)"
        said = f"{canaries.correct} of {canaries.guesses} guesses on {canaries.canaries} canaries right"
        bound = f"epsilon at least {canaries.epsilon_lower:.2f} at delta {canaries.delta:g} (Steinke et al. 2023)"
        rows.append(("canaries", f"{said}: {bound}{more}"))
    rows += [("note", note) for note in found.notes]
    yield _table(("Check", "result"), rows or [("-", "nothing was checked")])


def _methods(found: Assessment) -> Iterable[str]:
    yield "<h2>Methods</h2>"
    yield _table(("Attack", "source"), [(attack.name, attack.source) for attack in found.attacks])
    yield (
        "<p>AUC: DeLong interval on the logit scale. True positive rates: exact binomial limits that include the "
        "uncertainty of the threshold. Epsilon: fixed ranks with Clopper-Pearson and beta limits. Baseline without the "
        "model: Das, Zhang, Tramer 2024.</p>"
    )
    rows = [("version", found.version), ("made", found.created), ("seed", str(found.seed)), ("command", found.command)]
    rows += [(f"SHA-256 of {name}", digest) for name, digest in found.hashes.items()]
    rows += [(f"seconds, {name}", f"{value:.1f}") for name, value in found.seconds.items()]
    yield _table(("Item", "value"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, in a region that a keyboard can scroll on a narrow screen."""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    name = text(f"table of {header[0]} and {header[1]}")
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{name}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def write_report(found: Assessment, folder: Path) -> None:
    """Write assessment.json, report.html and report.pdf into a folder; create it if needed."""
    from bench.assess.pdf import write_pdf

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "assessment.json").write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(found), encoding="utf-8")
    write_pdf(found, folder / "report.pdf")
