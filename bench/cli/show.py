"""`bench list` and `bench show NAME`: the plug-ins by kind, and all facts about one, without importing torch."""

from __future__ import annotations

import argparse
import ast
import re
import textwrap

from bench import data, manifest, plugins, registry
from bench.cli.parsing import Command
from bench.config import Description
from bench.core.epsilon import PROTECTED
from bench.data.naming import BY_PATH, OWN
from bench.errors import BenchError, unknown
from bench.progress import out, print_line, print_lines

KINDS = {
    "methods": "method",
    "baselines": "method",
    "attacks": "attack",
    "datasets": "data set",
    "networks": "network",
    "teacher-recipes": "teacher recipe",
    "priors": "prior",
}
"""The argument of `bench list`, and the kind of plug-in that it lists."""
USAGE = {
    "network": "--teacher {0}, --student {0}",
    "teacher recipe": "--teacher.recipe {0}",
    "prior": "--method.prior {0}, for methods with this option",
}
"""The options that select a part of a run, by kind."""
UNKNOWN = "unknown before the data are read"
WIDTH = 118


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of `bench list`."""
    parser.add_argument("what", nargs="?", metavar="|".join(KINDS), help="list only this kind")


def list_kinds(given: argparse.Namespace) -> int:
    """Print a line for each plug-in of the given kind, or of every kind. Returns the exit status."""
    if given.what not in (None, *KINDS):
        raise unknown("kind", given.what, KINDS)
    for kind in KINDS if given.what is None else (given.what,):
        if kind == "datasets":
            found = data.names()
        else:
            folder = kind if KINDS[kind] == "method" else None
            found = {name: manifest.summary(entry) for name, entry in plugins.entries(KINDS[kind], folder).items()}
        if kind == "networks":
            found |= {
                "NAME": "any timm model",
                "tv:NAME": "any classification model of torchvision",
                "small:NAME": "either of them with a stem for small images",
            }
        out.print(f"[bold]{kind}[/bold]")
        for name, line in found.items():
            print_line(f"  {name:<18} {line}")
        if not found:
            print_line("  (none)")
    return 0


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench show`."""
    parser.add_argument("name", help="a name from `bench list`")
    parser.add_argument(
        "--variant",
        choices=("printed", "working", "own"),
        help="variant to show (default: the one that runs by default)",
    )


def show(given: argparse.Namespace) -> int:
    """Print all facts about a plug-in, for each kind that has the name. Returns the exit status."""
    name, kinds = given.name, ("method", "attack", "data set", *USAGE)
    found = [known[name] for kind in kinds if name in (known := plugins.entries(kind))]
    base = re.split("[:@]", name)[0]
    if not found and base != name and base in plugins.entries("data set"):  # such as celeba-id:25@32
        data.check(name)
        found = [plugins.entries("data set")[base]]
    if not found and (kind := name.partition(":")[0]) in BY_PATH:
        _print_lines(f"[bold]{kind}:PATH[/bold]  (data set, read by path)", BY_PATH[kind], *OWN[kind])
        return 0
    if not found and is_library_network(name):
        print_library_network(name)
        return 0
    if not found:
        raise unknown(" or ".join(kinds), name, {each for kind in kinds for each in plugins.entries(kind)})
    for number, entry in enumerate(found):
        if number:
            out.print()
        if entry.kind in ("method", "attack"):
            print_plugin(entry, given.variant)
        elif entry.kind == "data set":
            print_dataset(entry.name)
        else:
            print_part(entry)
    return 0


def _print_lines(title: str, *lines: str) -> None:
    """Print a title with markup, and indented lines without."""
    out.print(title)
    for line in lines:
        print_line(f"  {line}")


def _print_facts(facts: dict[str, str]) -> None:
    """Print label and value in two columns, with long values on several lines."""
    for label, value in facts.items():
        print_lines(textwrap.fill(f"  {label:<10} {value}", WIDTH, subsequent_indent=" " * 13))


def is_library_network(name: str) -> bool:
    """Whether timm or torchvision has the network; imports both."""
    from bench import nets

    try:
        nets.check(name)
    except BenchError:
        return False
    return True


def print_library_network(name: str) -> None:
    """Print how a network of timm or torchvision is used."""
    library = "torchvision" if name.removeprefix("small:").startswith("tv:") else "timm"
    stem = (
        "it has a stem for small images" if name.startswith("small:") else f"small:{name} has a stem for small images"
    )
    _print_lines(
        f"[bold]{name}[/bold]  (network of {library})",
        f"option  {USAGE['network'].format(name)}",
        f"{stem}; no weights are downloaded: give your own with --teacher-weights",
    )


def print_plugin(entry: plugins.Entry, variant: str | None) -> None:
    """Print a method, a baseline or an attack at a variant; None = the default one."""
    shown = registry.choose_variant(entry.kind, entry.name, variant)
    described = registry.describe(entry.kind, entry.name, shown)
    facts = described.facts
    place = f"from {entry.module}" if entry.file is None else f"in {entry.folder}/"
    out.print(f"[bold]{entry.name}[/bold]  ({entry.kind} {place}, version {facts['version']})")
    *others, default = registry.variants(entry.kind, entry.name)
    lines = {"reference": facts["reference"], "variants": ", ".join([*others, f"{default} (default)"])}
    if others:
        other = next(each for each in (*others, default) if each != shown)
        lines["shown"] = f"variant {shown}; for the other one, `bench show {entry.name} --variant {other}`"
    if entry.kind == "method":
        unit, per_record = facts["unit"], f"epsilon of {PROTECTED['example']} (unit example)"
        lines["needs"] = ", ".join(sorted(facts["needs"]))
        lines["claimed"] = "nothing" if unit == "none" else f"epsilon of {PROTECTED[unit]} (unit {unit})"
        lines |= {"accounted": f"{per_record}, and of every other unit in its ledger", "audited": per_record}
    else:
        lines |= {"goal": facts["goal"], "access": facts["access"]}
    if tuned := facts.get("seen_test_sets"):
        lines["tuned on"] = "; ".join(f"the test set of {name}: {choices}" for name, choices in tuned.items())
    for label, value in lines.items():
        print_line(f"  {label:<13} {value}")
    out.print()
    print_lines(textwrap.indent(described.doc, "  "))
    print_options(f"{entry.kind}.NAME", shown, described)
    if shown != "working":
        return
    out.print()
    out.print("[bold]changes[/bold]  (differences of the variant `working` from the published algorithm)")
    for number, departure in enumerate(described.departures, start=1):
        print_line(f"  {number}. {departure.what}")
        effect = registry.effect(entry.name, described, departure) or "not measured"
        details = {"why": departure.why, "effect": effect}
        if departure.sets:
            details = {"sets": ", ".join(f"{name}={value}" for name, value in departure.sets.items())} | details
        for label, text in details.items():
            print_lines(textwrap.indent(textwrap.fill(f"{label}: {text}", 100), "     "))


def print_options(name: str, variant: str, described: Description) -> None:
    """Print the options of a plug-in with types, defaults, changes by variant and tier, and help."""
    out.print()
    out.print(f"[bold]options[/bold]  (--{name} VALUE)")
    print_line("  name                 type = default  [changes by variant and tiers; a tier changes only sizes]")
    changed = {name: value for d in described.departures if variant == "working" for name, value in d.sets.items()}
    for option in described.options:
        kind = "|".join(option.choices) if option.choices else option.kind.__name__
        size = "  (a size)" if option.size else ""
        notes = [f"{variant} {changed[option.name]}"] if option.name in changed else []
        notes += [f"{tier} {given[option.name]}" for tier, given in described.tiers.items() if option.name in given]
        note = f"  [{', '.join(notes)}]" if notes else ""
        print_line(f"  {option.name:<20} {kind} = {option.default}{size}{note}")
        condition = f" (only with {option.only_with})" if option.only_with else ""
        if option.help:
            print_lines(textwrap.indent(textwrap.fill(option.help + condition, 100), "      "))


def print_part(entry: plugins.Entry) -> None:
    """Print a network, a teacher recipe or a prior: its option, its docstrings, and its own options."""
    _print_lines(
        f"[bold]{entry.name}[/bold]  ({entry.kind} in {entry.folder}/)",
        f"option  {USAGE[entry.kind].format(entry.name)}",
    )
    texts = [entry.summary]
    if entry.file is not None:
        tree = ast.parse(entry.file.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        named = entry.module.partition(":")[2]
        nodes: list[ast.Module | ast.ClassDef] = [tree, *classes]
        nodes = [node for node in classes if node.name == named] if named else nodes
        texts = [doc for node in nodes if (doc := ast.get_docstring(node))]
    for text in texts:
        out.print()
        print_lines(textwrap.indent(text, "  "))
    if entry.kind == "teacher recipe":
        print_options("teacher.NAME", "own", registry.describe(entry.kind, entry.name))


def print_dataset(name: str) -> None:
    """Print the facts of a data set that are known without reading it, and its settings in the papers."""
    plugin, root = data.dataset(name), data.root_folder(None)
    known, missing = plugin.facts, plugin.missing(root)
    _print_lines(f"[bold]{name}[/bold]  (data set)", data.names()[name])
    shape = "{} x {} x {} (channels, height, width)".format(*known.shape) if known.shape else UNKNOWN
    splits = ["iid", "canaries", "few", "disjoint-low", "disjoint-high"]
    splits += [f"full (with {known.other})"] if known.other else []
    splits += [f"cross (with {known.cross})"] if known.cross else []
    splits += ["identity"] if known.of_people or known.has_outsiders else []
    facts = {"argument": f"{name}:{plugin.takes}"} if plugin.takes else {}
    facts |= {
        "images": "{:,} for training, {:,} for the test".format(*known.counts) if known.counts else UNKNOWN,
        "shape": f"{shape}; another size is {name}@SIZE",
        "classes": f"{len(known.class_names)}: {', '.join(known.class_names)}" if known.class_names else UNKNOWN,
        "layout": known.layout,
        "licence": known.licence or "unknown",
        "here": f"missing: no {missing[0]}" if missing else f"found in {root}",
        "splits": ", ".join(splits),
        "pictures": "none, since they would show people" if known.of_people else "drawn",
        "evaluator": "trained by the standard recipe"
        if known.evaluator is None
        else "trained by the recipe {}, for {:g} times the epochs of a teacher".format(*known.evaluator),
    }
    if known.classes_are_people:
        facts["judge"] = "dlib's face descriptor (extra [faces])"
    _print_facts(facts)
    batch, steps, rate = known.dp_sgd
    bandwidth = "a sixth of the number of pixels" if known.mmd_bandwidth is None else f"{known.mmd_bandwidth:g}"
    out.print()
    out.print("[bold]settings[/bold]  (of the papers, or the default if they have none)")
    _print_facts(
        {
            "candidates": f"randomised response chooses among {known.candidates} classes (DPSD, DPDFD)",
            "teachers": "as in the method" if known.teachers is None else f"{known.teachers}, as there are few records",
            "queries": f"{known.dp_dfd_images:,} (DP-DFD)",
            "DP-SGD": f"batch {batch}, {steps} steps, learning rate {rate:g} (Tramer and Boneh)",
            "bandwidth": f"{bandwidth} (DP-MERF)",
            "prior": known.prior,
        }
    )


LIST = Command(
    "Prints the names that other commands take, with a line about each.",
    add_list_arguments,
    list_kinds,
)
SHOW = Command(
    "For a method or an attack: its paper, needs, unit, variants and options, and the changes of the variant "
    "`working` from the paper. For a data set: layout, number of images, classes, licence, and the papers' settings. "
    "For a network, a teacher recipe or a prior: its description and its options. If several kinds have the name, all "
    "are shown.",
    add_show_arguments,
    show,
)
