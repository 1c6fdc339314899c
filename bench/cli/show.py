"""`bench show NAME`: all facts about a plug-in, from the manifest."""

from __future__ import annotations

import argparse
import ast
import re
import textwrap

from bench import data, plugins, registry
from bench.config import Description, Option
from bench.data.naming import BY_PATH, OWN
from bench.errors import BenchError, unknown
from bench.progress import out, tell, tell_lines

PER = {
    "example": "epsilon of one private record (unit example)",
    "label": "epsilon of one private record's label (unit label)",
    "query": "epsilon of one synthetic image's answer (unit query), not of a private record",
    "client": "epsilon of all data of one client (unit client)",
    "none": "nothing",
}
LATER = "known when it is read"
EVALUATED = "by the recipe {}, with {:g} times a teacher's passes"
TYPED = {
    "network": "--teacher {0}, --student {0}",
    "teacher recipe": "--teacher.recipe {0}",
    "prior": "--method.prior {0}, of the methods with this option",
}
"""The options that select a part of a run, by kind."""


class SHOW:
    """The sub-command `show`."""

    HELP = "all about one method, baseline, attack, data set, network, teacher recipe or prior"
    DESCRIPTION = (
        "Of a method or an attack: reference, needs, unit, variants, where it differs from its paper, options with "
        "defaults and help, and the departures of the variant `working`. Of a data set: layout, counts, classes, "
        "licence, and what papers set for it. Of a network, a teacher recipe or a prior: what it is, its options, and "
        "how it is typed. A name of several kinds is shown for each."
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", help="a name from `bench list`")
        parser.add_argument(
            "--variant", choices=("printed", "working", "own"), help="show this one (default: the one that is run)"
        )

    @staticmethod
    def execute(given: argparse.Namespace) -> int:
        kinds = ("method", "attack", "data set", *TYPED)
        found = {kind: known[given.name] for kind in kinds if given.name in (known := plugins.entries(kind))}
        if not found and (name := _dataset_in(given.name)) is not None:
            found["data set"] = plugins.entries("data set")[name]
        if not found and (kind := given.name.partition(":")[0]) in BY_PATH:
            return _print_by_path(kind)
        if not found and _is_library_network(given.name):
            return _print_library_network(given.name)
        if not found:
            raise unknown(" or ".join(kinds), given.name, {name: 0 for kind in kinds for name in plugins.entries(kind)})
        for number, (kind, entry) in enumerate(found.items()):
            if number:
                out.print()
            if kind in ("method", "attack"):
                _print_plugin(entry, given.variant)
            elif kind == "data set":
                _print_dataset(entry.name)
            else:
                _print_part(entry)
        return 0


def _print_by_path(kind: str) -> int:
    """Print the requirements on a user's own images."""
    out.print(f"[bold]{kind}:PATH[/bold]  (data set, read by path)")
    tell(f"  {BY_PATH[kind]}")
    for line in OWN[kind]:
        tell(f"  {line}")
    return 0


def _dataset_in(name: str) -> str | None:
    """Return the data set of a name with an argument or a size, such as celeba-id:25@32; None for any other name."""
    base = re.split("[:@]", name)[0]
    if base == name or base not in plugins.entries("data set"):
        return None
    data.check(name)
    return base


def _is_library_network(name: str) -> bool:
    """Whether timm or torchvision has the network; imports both."""
    from bench import nets

    try:
        nets.check(name)
    except BenchError:
        return False
    return True


def _print_library_network(name: str) -> int:
    library = "torchvision" if name.removeprefix("small:").startswith("tv:") else "timm"
    out.print(f"[bold]{name}[/bold]  (network of {library})")
    tell(f"  typed  {TYPED['network'].format(name)}")
    stem = "with a stem for small images" if name.startswith("small:") else f"small:{name} has a stem for small images"
    tell(f"  {stem}; nothing is downloaded, and weights of your own are given as --teacher-weights")
    return 0


def _print_plugin(entry: plugins.Entry, asked: str | None) -> None:
    """Print a method, a baseline or an attack, at the requested variant."""
    variant = registry.settle(entry.kind, entry.name, asked)
    described = registry.describe(entry.kind, entry.name, variant)
    _print_facts(entry, variant, described)
    out.print()
    tell_lines(textwrap.indent(described.doc, "  "))
    _print_options(f"{entry.kind}.NAME", variant, described)
    if variant == "working":
        _print_departures(entry.name, described)


def _print_part(entry: plugins.Entry) -> None:
    """Print a network, a teacher recipe or a prior: its docstrings, its name as typed, and its options."""
    out.print(f"[bold]{entry.name}[/bold]  ({entry.kind} in {entry.folder}/)")
    tell(f"  typed  {TYPED[entry.kind].format(entry.name)}")
    for text in _docstrings(entry):
        out.print()
        tell_lines(textwrap.indent(text, "  "))
    if entry.kind == "teacher recipe":
        _print_options("teacher.NAME", "own", registry.describe(entry.kind, entry.name))


def _docstrings(entry: plugins.Entry) -> list[str]:
    """Return the docstrings of the file and of its public classes, or only of the class that the entry names.

    For another distribution's plug-in, return its summary.
    """
    if entry.file is None:
        return [entry.summary]
    tree = ast.parse(entry.file.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    if class_name := entry.module.partition(":")[2]:
        return [doc for node in classes if node.name == class_name and (doc := ast.get_docstring(node))]
    found: list[ast.Module | ast.ClassDef] = [tree, *classes]
    return [doc for node in found if (doc := ast.get_docstring(node))]


def _print_dataset(name: str) -> None:
    """Print the facts of a data set that are known without reading it."""
    plugin = data.dataset(name)
    known, missing = plugin.facts, plugin.missing(data.root_folder(None))
    out.print(f"[bold]{name}[/bold]  (data set)")
    tell(f"  {data.names()[name]}")
    counts = "{:,} for training, {:,} for the test".format(*known.counts) if known.counts else LATER
    classes = f"{len(known.class_names)}: {', '.join(known.class_names)}" if known.class_names else LATER
    shape = "{} x {} x {} (channels, height, width)".format(*known.shape) if known.shape else LATER
    facts = {"argument": f"{name}:{plugin.takes}"} if plugin.takes else {}
    facts |= {"images": counts, "shape": f"{shape}; another size is {name}@SIZE", "classes": classes}
    facts |= {"layout": known.layout, "licence": known.licence or "not known"}
    facts |= {"here": f"missing: no {missing[0]}" if missing else f"found in {data.root_folder(None)}"}
    splits = ["iid", "canaries", "few", "disjoint-low", "disjoint-high"]
    splits += [f"full (with {known.other})"] if known.other else []
    splits += [f"cross (with {known.cross})"] if known.cross else []
    splits += ["identity"] if known.of_people else []
    facts |= {"splits": ", ".join(splits), "pictures": "none are drawn: people" if known.of_people else "drawn"}
    facts |= {"evaluator": "by the standard recipe" if known.evaluator is None else EVALUATED.format(*known.evaluator)}
    facts |= {"judge": "dlib's descriptor of faces (extra [faces])"} if known.classes_are_people else {}
    for label, value in facts.items():
        tell_lines(textwrap.fill(f"  {label:<10} {value}", 118, subsequent_indent=" " * 13))
    _print_papers(known)


def _print_papers(known: data.DatasetFacts) -> None:
    """Print a data set's settings in the papers."""
    batch, steps, rate = known.dp_sgd
    bandwidth = "a sixth of the pixels" if known.mmd_bandwidth is None else f"{known.mmd_bandwidth:g}"
    settings = {
        "candidates": f"{known.candidates} classes that randomised response answers within (DPSD, DPDFD)",
        "teachers": "the method's own" if known.teachers is None else f"{known.teachers}, as there are few records",
        "questions": f"{known.dp_dfd_images:,} (DP-DFD)",
        "DP-SGD": f"batch {batch}, {steps} steps, learning rate {rate:g} (Tramer and Boneh)",
        "bandwidth": f"{bandwidth} (DP-MERF)",
        "prior": known.prior,
    }
    out.print()
    out.print("[bold]settings[/bold]  (the papers', or the default where they have none)")
    for label, value in settings.items():
        tell(f"  {label:<10} {value}")


def _print_facts(entry: plugins.Entry, variant: str, described: Description) -> None:
    told = described.facts
    place = f"from {entry.module}" if entry.file is None else f"in {entry.folder}/"
    out.print(f"[bold]{entry.name}[/bold]  ({entry.kind} {place}, version {told['version']})")
    *others, default = registry.variants(entry.kind, entry.name)
    facts = {"reference": told["reference"], "variants": ", ".join([*others, f"{default} (default)"])}
    if others:
        other = next(each for each in (*others, default) if each != variant)
        facts["shown"] = f"variant {variant}; for the other one, `bench show {entry.name} --variant {other}`"
    if entry.kind == "method":
        facts |= {"needs": ", ".join(sorted(told["needs"])), "claimed": PER[told["unit"]]}
        facts |= {"accounted": f"{PER['example']}, and of every other unit in its ledger", "audited": PER["example"]}
    else:
        facts |= {"goal": told["goal"], "access": told["access"]}
    if seen := told.get("seen_test_sets"):
        facts["looked at"] = "; ".join(f"the test set of {name}: {chosen}" for name, chosen in seen.items())
    for name, value in facts.items():
        tell(f"  {name:<13} {value}")


def _print_options(name: str, variant: str, described: Description) -> None:
    out.print()
    out.print(f"[bold]options[/bold]  (--{name} VALUE)")
    tell("  name                 type = default  [what the variant and the tiers change; a tier changes sizes alone]")
    changed = {name: value for d in described.departures if variant == "working" for name, value in d.sets.items()}
    for option in described.options:
        notes = [f"{variant} {changed[option.name]}"] if option.name in changed else []
        notes += [f"{tier} {given[option.name]}" for tier, given in described.tiers.items() if option.name in given]
        tell(f"  {option.name:<20} {_value(option)}" + (f"  [{', '.join(notes)}]" if notes else ""))
        condition = f" (only with {option.only_with})" if option.only_with else ""
        if option.help:
            tell_lines(textwrap.indent(textwrap.fill(option.help + condition, 100), "      "))


def _value(option: Option) -> str:
    kind = "|".join(option.choices) if option.choices else option.kind.__name__
    return f"{kind} = {option.default}" + ("  (a size)" if option.size else "")


def _print_departures(name: str, described: Description) -> None:
    out.print()
    out.print("[bold]departures[/bold]  (what the variant `working` changes of the printed algorithm)")
    for number, departure in enumerate(described.departures, start=1):
        tell(f"  {number}. {departure.what}")
        lines = {"why": departure.why, "worth": registry.effect(name, described, departure) or "not measured"}
        if departure.sets:
            lines = {"sets": ", ".join(f"{name}={value}" for name, value in departure.sets.items())} | lines
        for label, text in lines.items():
            tell_lines(textwrap.indent(textwrap.fill(f"{label}: {text}", 100), "     "))
