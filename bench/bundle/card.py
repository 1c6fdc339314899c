"""Model card of a bundle (`README.md`), computed from `privacy.json` and `model.json` only.

`bench verify` compares the card byte by byte, so its wording must not change within one version of the bundle format.
Text of these files is escaped by `markdown`. The lines of Python come from three templates, filled with names and
numbers that `bench.bundle.schema` has checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping

from bench.bundle.account import WEAK, alarms
from bench.bundle.files import GENERATOR, SYNTHETIC, WEIGHTS
from bench.bundle.schema import MANIFEST, MODEL, PRIVACY, Guarantee, Model, Privacy
from bench.core.epsilon import PROTECTED, describe_change
from bench.escape import markdown
from bench.privacy import Unit


def card(privacy: Privacy, model: Model, extras: Collection[str]) -> str:
    """Return the card's text.

    Args:
        extras: names of the released files other than the student: the generator, the folder of synthetic images.
    """
    rest = [line for line in privacy.warnings if line not in alarms(privacy)]
    found = privacy.accounted.get(Unit.EXAMPLE) or privacy.accounted[privacy.unit]
    summary = f"Accounted epsilon for {PROTECTED.get(found.unit, found.unit)}: "
    summary += (
        f"{found.displayed}."
        if math.isinf(found.epsilon)
        else f"**{found.displayed}** at delta {found.delta:g} (neighbours: {found.relation})."
    )
    audit, measured = privacy.audited, "None."
    if audit is not None:
        measured = (
            f"Lower bound {audit.epsilon_lower:.4g} per {audit.unit} at delta {audit.delta:g} and confidence "
            f"{audit.confidence:g}, with {audit.canaries} canaries; null run {audit.null_run:.4g}; ceiling, if all "
            f"guesses were right, {audit.ceiling:.4g}."
        )
    parts = [
        f"# {markdown(model.architecture)}, released by {markdown(privacy.method.name)}",
        "\n>\n".join(f"> **{line}**" for line in alarms(privacy)),
        summary,
        "\n".join(["## Before you use it", "", *(f"- {line}" for line in rest)]),
        _privacy(privacy),
        _ledger(privacy),
        f"## Audit\n\n{measured}",
        _network(model),
        _loading(model),
        _files(extras),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _privacy(privacy: Privacy) -> str:
    rows = ["| number | epsilon | delta | protects | neighbours | by |", "|---|---|---|---|---|---|"]
    rows += [
        f"| accounted | {found.displayed} | {found.delta:g} | {_protects(found)} | {found.relation} | "
        f"{markdown(found.accountant)} |"
        for _, found in sorted(privacy.accounted.items())
    ]
    claim = privacy.claimed
    if claim is not None:
        epsilon, source = claim.displayed, markdown(claim.source)
        rows.append(f"| claimed | {epsilon} | {claim.delta:g} | {_protects(claim)} | | {source} |")
    words = []
    for unit, found in sorted(privacy.accounted.items()):
        change = describe_change(unit, found.relation)
        if math.isinf(found.epsilon):
            words.append(f"- unit `{unit}`: nothing is proved about {change}.")
            continue
        failure = f", except with a chance of {found.delta:g}" if found.delta else ""
        factor = math.inf if found.epsilon > WEAK else math.exp(found.epsilon)
        size = f"about {factor:,.3g}" if factor < 1000 else f"about {factor:,.0f}"
        words.append(
            f"- unit `{unit}`: {change} changes the probability of any outcome by a factor of at most "
            f"e^{found.displayed} ({size if factor < math.inf else 'more than 10^8, which is no protection'}){failure}."
        )
    note = (
        "*accounted* is proved from the ledger below, and `bench verify` computes it again; *claimed* is what the "
        "method's paper says at these settings, and no one verifies it here."
    )
    return "\n".join(["## Privacy", "", *rows, "", *words, "", note])


def _protects(found: Guarantee) -> str:
    return f"{PROTECTED.get(found.unit, found.unit)} (`{found.unit}`)"


def _ledger(privacy: Privacy) -> str:
    rows = ["| unit | what was taken from the private data | event | times |", "|---|---|---|---|"]
    rows += [f"| {e.unit} | {markdown(e.why)} | `{_event(e.event)}` | {e.count:,} |" for e in privacy.events]
    method = privacy.method
    lines = [
        "## Ledger",
        "",
        f"Everything that {markdown(method.name)} (version {method.version}) took:",
        "",
        *rows,
        "",
        f"Accountant: {markdown(privacy.accountant)}. Delta asked for: {privacy.delta:g}. Noise: {privacy.noise}.",
    ]
    return "\n".join(lines)


def _event(event: Mapping[str, object]) -> str:
    """Format an event on one line, such as Gaussian(noise_multiplier=2)."""

    def plain(value: object) -> str:
        if isinstance(value, dict):
            return _event(value)
        return f"[{', '.join(map(plain, value))}]" if isinstance(value, list) else format(value, ".6g")

    inner = ", ".join(f"{name}={plain(value)}" for name, value in event.items() if name != "name")
    return f"{str(event['name']).removesuffix('DpEvent')}({inner})"


def _network(model: Model) -> str:
    scale, names, shape = model.normalisation, model.class_names, "x".join(map(str, model.input.shape))
    buffers = ", ".join(map(markdown, sorted({name.rpartition(".")[2] for name in model.buffers})))
    lines = [
        f"- {markdown(model.architecture)}, {model.parameters:,} parameters, {model.classes} classes"
        + (f": {', '.join(map(markdown, names))}" if names else " (names withheld)"),
        f"- input: (n, c, h, w) float32 images in [0, 1], {shape}; the network sees (x - mean) / std, mean "
        f"{_constant(scale.mean)}, std {_constant(scale.std)}: public constants",
        "- buffers, released and covered like the weights: "
        + (f"{len(model.buffers)} ({buffers})" if buffers else "none"),
        f"- private data: {markdown(model.data)}",
    ]
    began = model.pretrained
    if began is not None:
        lines.append(
            f"- began from public pretrained weights of timm's {markdown(began.network)}, SHA-256 of their file "
            f"{began.sha256}; the epsilon does not cover the data that these weights were trained on"
        )
    found = model.accuracy
    if found is not None:
        lines.append(
            f"- accuracy {found.share:.2%} [{found.low:.1%}, {found.high:.1%}], measured on the data set's "
            f"public test part ({found.images:,} images)"
        )
    return "\n".join(["## Network", "", *lines])


def _constant(values: list[float]) -> str:
    """Format one number, or one per channel, as Python that broadcasts over (n, c, h, w)."""
    plain = [float(f"{value:.7g}") for value in values]
    return repr(plain[0]) if len(set(plain)) == 1 else f"torch.tensor({plain})[:, None, None]"


def _loading(model: Model) -> str:
    library = "" if model.library is None else model.library.function.partition(".")[0]
    needs = f"{library}, safetensors and torch" if library else "this package, dp-distill-bench, and torch"
    note = f"Needs {needs}; run in this directory. Written with torch {markdown(model.torch)}."
    images = f"images = torch.zeros(1, {', '.join(map(str, model.input.shape))})  # yours, in [0, 1]"
    call, scale = model.library, model.normalisation
    code = ["import torch", "from bench.bundle import load", 'student = load(".")', images, "logits = student(images)"]
    if call is not None:
        arguments = ", ".join([json.dumps(call.name), *(f"{k}={v!r}" for k, v in call.arguments.to_json().items())])
        code = [
            f"import torch, {library}, safetensors.torch",
            f"student = {call.function}({arguments}).eval()",
            f'student.load_state_dict(safetensors.torch.load_file("{WEIGHTS}"))',
            images,
            f"logits = student((images - {_constant(scale.mean)}) / {_constant(scale.std)})",
        ]
    return "\n".join(["## Loading", "", "```python", *code, "```", "", note])


def _files(extras: Collection[str]) -> str:
    purposes = {
        WEIGHTS: "weights and buffers of the bare network",
        GENERATOR: "weights and buffers of the generator that the method releases too",
        SYNTHETIC: "images that the method releases too",
        PRIVACY: "the numbers above in full, and the ledger",
        MODEL: "how to load the student",
        MANIFEST: "SHA-256 of every file",
    }
    present = {WEIGHTS, PRIVACY, MODEL, MANIFEST, *extras}
    rows = [f"- `{name}`: {purpose}" for name, purpose in purposes.items() if name in present]
    return "\n".join(["## Files", "", *rows, "", "`bench verify DIR` checks all of this."])
