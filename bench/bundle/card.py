"""`README.md` of a bundle: the model card, a function of `privacy.json` and `model.json` alone."""

from __future__ import annotations

import json
import math
from typing import Any

from bench.bundle.account import WEAK, alarms, shown
from bench.privacy.budget import INFINITE

FILE = "README.md"
GENERATOR, SYNTHETIC = "generator.safetensors", "synthetic"
EXTRAS = (GENERATOR, SYNTHETIC)
"""What may be released besides the student."""
PROTECTED = {
    "example": "one private record",
    "label": "the label of one private record",
    "query": "the answer to one synthetic image (no private record)",
    "client": "all data of one client",
}
CHANGED = {
    "example": {"add-or-remove": "adding or removing one private record", "replace": "replacing one private record"},
    "label": {"replace": "replacing one private record's label"},
    "query": dict.fromkeys(("add-or-remove", "replace"), "another answer to one synthetic image"),
    "client": {
        "add-or-remove": "adding or removing all data of one client",
        "replace": "replacing all data of one client",
    },
}


def card(privacy: dict[str, Any], model: dict[str, Any], extras: list[str]) -> str:
    """The card's text.

    Args:
        extras: names of the released files besides the student: the generator, the folder of synthetic images.
    """
    rest = [line for line in privacy["warnings"] if line not in alarms(privacy)]
    parts = [
        f"# {model['architecture']}, released by {privacy['method']['name']}",
        "\n>\n".join(f"> **{line}**" for line in alarms(privacy)),
        _summary(privacy),
        "\n".join(["## Before you use it", "", *(f"- {line}" for line in rest)]),
        _privacy(privacy),
        _ledger(privacy),
        _audit(privacy),
        _network(model),
        _loading(model),
        _files(extras, model),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def epsilon_rows(privacy: dict[str, Any]) -> list[str]:
    """The rows of the table of epsilons, one a unit; a card that lacks one of them is not of this account."""
    return [
        f"| accounted | {shown(found)} | {found['delta']:g} | {PROTECTED.get(unit, unit)} (`{unit}`) | "
        f"{found['relation']} | {found['accountant']} |"
        for unit, found in sorted(privacy["accounted"].items())
    ]


def _privacy(privacy: dict[str, Any]) -> str:
    rows = ["| number | epsilon | delta | protects | neighbours | by |", "|---|---|---|---|---|---|"]
    rows += epsilon_rows(privacy)
    claim = privacy["claimed"]
    if claim is not None:
        rows.append(
            f"| claimed | {shown(claim)} | {claim['delta']:g} | {PROTECTED.get(claim['unit'], claim['unit'])} "
            f"(`{claim['unit']}`) | | {claim['source']} |"
        )
    words = [f"- {line}" for unit, found in sorted(privacy["accounted"].items()) for line in [_in_words(unit, found)]]
    note = (
        "*accounted* is proved from the ledger below, and `bench verify` computes it again; *claimed* is what the "
        "method's paper says at these settings, and no one verifies it here."
    )
    return "\n".join(["## Privacy", "", *rows, "", *words, "", note])


def _summary(privacy: dict[str, Any]) -> str:
    """One sentence: what is promised to whom."""
    unit = "example" if "example" in privacy["accounted"] else privacy["unit"]
    found = privacy["accounted"][unit]
    if found["epsilon"] == INFINITE:
        return f"Accounted epsilon for {PROTECTED.get(unit, unit)}: infinite."
    return (
        f"Accounted epsilon for {PROTECTED.get(unit, unit)}: **{shown(found)}** at delta {found['delta']:g} "
        f"(neighbours: {found['relation']})."
    )


def _in_words(unit: str, found: dict[str, Any]) -> str:
    change = CHANGED.get(unit, {}).get(found["relation"], f"the change of one {unit} ({found['relation']})")
    if found["epsilon"] == INFINITE:
        return f"unit `{unit}`: nothing is proved about {change}."
    failure = f", but for a chance of {found['delta']:g}" if found["delta"] else ""
    return (
        f"unit `{unit}`: {change} changes the probability of any outcome by a factor of at most e^{shown(found)} "
        f"({_factor(found['epsilon'])}){failure}."
    )


def _factor(epsilon: float) -> str:
    if epsilon > WEAK:
        return "more than 10^8, which is no protection"
    factor = math.exp(epsilon)
    return f"about {factor:,.3g}" if factor < 1000 else f"about {factor:,.0f}"


def _ledger(privacy: dict[str, Any]) -> str:
    rows = ["| unit | what was taken from the private data | event | times |", "|---|---|---|---|"]
    rows += [f"| {e['unit']} | {e['why']} | `{_event(e['event'])}` | {e['count']:,} |" for e in privacy["events"]]
    solved = "".join(f"\n- {name}: {value:g}" for name, value in sorted(privacy["solved"].items()))
    method = privacy["method"]
    lines = [
        *("## Ledger", "", f"Everything that {method['name']} (version {method['version']}) took:", "", *rows, ""),
        f"Accountant: {privacy['accountant']}. Delta asked for: {privacy['delta']:g}. Noise: {privacy['noise']}.",
    ]
    return "\n".join(lines) + (f"\n\nSolved from the budget:\n{solved}" if solved else "")


def _event(event: dict[str, Any]) -> str:
    """An event on one line, such as Gaussian(noise_multiplier=2)."""

    def plain(value: Any) -> str:
        if isinstance(value, dict):
            return _event(value)
        return f"[{', '.join(map(plain, value))}]" if isinstance(value, list) else f"{value:.6g}"

    inner = ", ".join(f"{name}={plain(value)}" for name, value in event.items() if name != "name")
    return f"{event['name'].removesuffix('DpEvent')}({inner})"


def _audit(privacy: dict[str, Any]) -> str:
    audit = privacy["audited"]
    if audit is None:
        return "## Audit\n\nNone."
    return (
        f"## Audit\n\nLower bound {audit['epsilon_lower']:.4g} per {audit['unit']} at delta {audit['delta']:g} and "
        f"confidence {audit['confidence']:g}, with {audit['canaries']} canaries; null run {audit['null_run']:.4g}; "
        f"ceiling, if all guesses were right, {audit['ceiling']:.4g}."
    )


def _network(model: dict[str, Any]) -> str:
    scale, names = model["normalisation"], model["class_names"]
    shape = "x".join(map(str, model["input"]["shape"]))
    said = [
        f"- {model['architecture']}, {model['parameters']:,} parameters, {model['classes']} classes"
        + (f": {', '.join(names)}" if names else " (names withheld)"),
        f"- input: (n, c, h, w) float32 images in [0, 1], {shape}; the network sees (x - mean) / std, mean "
        f"{_constant(scale['mean'])}, std {_constant(scale['std'])}: public constants",
        f"- buffers, released and covered like the weights: {_buffers(model['buffers'])}",
        f"- private data: {model['data']}",
    ]
    found = model["accuracy"]
    if found is not None:
        said.append(
            f"- accuracy {found['share']:.2%} [{found['low']:.1%}, {found['high']:.1%}], measured on the data set's "
            f"public test part ({found['images']:,} images)"
        )
    return "\n".join(["## Network", "", *said])


def _buffers(names: list[str]) -> str:
    kinds = sorted({name.rpartition(".")[2] for name in names})
    return f"{len(names)} ({', '.join(kinds)})" if names else "none"


def _constant(values: list[float]) -> str:
    """One number, or one a channel, as Python that broadcasts over (n, c, h, w)."""
    plain = [float(f"{value:.7g}") for value in values]
    return repr(plain[0]) if len(set(plain)) == 1 else f"torch.tensor({plain})[:, None, None]"


def _loading(model: dict[str, Any]) -> str:
    needs = "torch" if model["program"] else "this package, dp-distill-bench, and torch"
    if model["library"] is not None:
        needs = f"{model['library']['function'].partition('.')[0]}, safetensors and torch"
    note = f"Needs {needs}; run in this directory. Written with torch {model['torch']}."
    if model["program"]:
        note += " Where another torch does not read the program: `from bench.bundle import load; student = load('.')`."
    return "\n".join(["## Loading", "", "```python", *_five_lines(model), "```", "", note])


def _five_lines(model: dict[str, Any]) -> list[str]:
    images = f"images = torch.zeros(1, {', '.join(map(str, model['input']['shape']))})  # yours, in [0, 1]"
    if model["library"] is None and model["program"]:
        load = f'student = torch.export.load("{model["program"]}").module()'
        return ["import torch", load, images, "logits = student(images)"]
    if model["library"] is None:
        return [
            "import torch",
            "from bench.bundle import load",
            'student = load(".")',
            images,
            "logits = student(images)",
        ]
    call, scale = model["library"], model["normalisation"]
    arguments = ", ".join([json.dumps(call["name"]), *(f"{k}={v!r}" for k, v in call["arguments"].items())])
    return [
        f"import torch, {call['function'].partition('.')[0]}, safetensors.torch",
        f"student = {call['function']}({arguments}).eval()",
        'student.load_state_dict(safetensors.torch.load_file("student.safetensors"))',
        images,
        f"logits = student((images - {_constant(scale['mean'])}) / {_constant(scale['std'])})",
    ]


def _files(extras: list[str], model: dict[str, Any]) -> str:
    said = {
        "student.safetensors": "weights and buffers of the bare network",
        "student.pt2": "the same with its normalisation, as a program of torch.export; a program is code: run it only "
        "from someone you trust",
        GENERATOR: "weights and buffers of the generator that the method releases too",
        SYNTHETIC: "images that the method releases too",
        "privacy.json": "the numbers above in full, and the ledger",
        "model.json": "how to load the student",
        "MANIFEST.json": "SHA-256 of every file",
    }
    there = {"student.safetensors", "privacy.json", "model.json", "MANIFEST.json", *extras}
    there |= {model["program"]} if model["program"] else set()
    rows = [f"- `{name}`: {what}" for name, what in said.items() if name in there]
    return "\n".join(["## Files", "", *rows, "", "`bench verify DIR` checks all of this."])
