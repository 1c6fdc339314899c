"""`bench.assess(...)`, which `bench assess` calls too: from inputs to a finished assessment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from bench.assess.assembly import Options, assemble
from bench.assess.claim import read_claim
from bench.assess.from_scores import material_of_scores
from bench.assess.policy import ATTACKS, INVERSION, SAMPLE_ATTACKS, Policy, read_policy
from bench.assess.schema import Assessment
from bench.errors import BenchError
from bench.storage.atomic_write import check_writable

PathGiven = str | PathLike[str]


def _check_report(report: PathGiven | None) -> None:
    """Refuse a folder that cannot be written, before any work."""
    if report is not None:
        check_writable(Path(report), "--report")


def assess(
    model: PathGiven | Callable[..., Any] | None = None,
    members: PathGiven | None = None,
    nonmembers: PathGiven | None = None,
    *,
    scores: tuple[PathGiven, PathGiven] | None = None,
    bundle: PathGiven | None = None,
    samples: PathGiven | None = None,
    network: str | None = None,
    classes: int | None = None,
    normalise: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
    groups: PathGiven | None = None,
    size: int | None = None,
    channels: int | None = None,
    fit: Literal["crop", "pad", "stretch"] = "crop",
    pixel_range: tuple[float, float] | None = None,
    population: PathGiven | None = None,
    references: int | PathGiven = 0,
    epochs: int = 30,
    control: str | None = None,
    attacks: Sequence[str] | None = None,
    canaries: PathGiven | None = None,
    inversion: bool = True,
    private_classes: bool = False,
    inversion_minutes: float = 10.0,
    trust_code: bool = False,
    policy: str | PathGiven | Policy = "research",
    claim: str | None = None,
    delta: float = 1e-5,
    combine: str = "mean",
    seed: int = 0,
    match: bool = False,
    report: PathGiven | None = None,
    pictures: bool = True,
    command: str = "",
) -> Assessment:
    """Assess a finished model, or the scores of one.

    Args:
        model: a file of weights (with `network`), ONNX, TorchScript or torch.export; or a callable from (n, c, h, w)
            float32 images in [0, 1] to (n, classes) logits or probabilities.
        members, nonmembers: a folder with one folder of images per class, or a .npz file of images and labels.
        scores: files of members' and of non-members' scores, instead of a model (docs/assess.md has the columns).
        bundle: a folder of `bench export`, instead of `model`.
        samples: released synthetic images, a folder or a .npz file, instead of `model`.
        network: network of the weights: a timm name, "tv:NAME" of torchvision, or "PACKAGE.MODULE:FUNCTION".
        classes: number of outputs; None = the largest label + 1.
        normalise: (mean, std) on pixels in [0, 1] that the model expects; None = as the weights say, else none.
        groups: CSV with columns file and group, for folders; archives have an array `group`.
        size, channels, fit, pixel_range: how image files are read.
        population: labelled records of neither set that attacks learn from; None = a part of the non-members.
        references: number of reference models to train here, even, from 4 on; or a folder of their weights.
        epochs: epochs of a reference model's training.
        control: network of the unprotected control.
        attacks: names of attacks; None = all that apply.
        canaries: `canaries.npz` of `bench canaries insert`, for a bound on epsilon without assumptions on the records.
        inversion: whether to reconstruct the classes of the model.
        private_classes: whether the look of a class is private, such as the face of a person: reconstructions are then
            compared with images of other classes, else with other records of the class.
        inversion_minutes: class inversion that takes longer on one network is given up.
        trust_code: load TorchScript and torch.export files, which can run any code.
        policy: "research", "health", the path of a TOML file, or a `Policy`.
        claim: a claimed epsilon to test, as in "epsilon=3 delta=1e-5 unit=example".
        delta: delta of the empirical lower bound on epsilon, in [0, 1).
        combine: how the scores of a group are combined: "mean", "sum" or "max".
        seed: seed of samples, folds, trainings and resampling.
        match: if the sets differ without the model, assess only pairs of one class with similar features.
        report: a folder to write assessment.json, report.html, report.pdf and the most exposed members to.
        pictures: whether exposed.html in that folder shows the images of the most exposed members.
        command: the command that repeats the assessment, for the report.

    Raises:
        BenchError: bad input, with what was expected and what to do.
    """
    chosen = policy if isinstance(policy, Policy) else read_policy(policy if isinstance(policy, str) else Path(policy))
    stated = None if claim is None else read_claim(claim)
    options = Options(chosen, stated, delta, combine, seed, command)
    if scores is not None:
        if model is not None or bundle is not None or samples is not None:
            raise BenchError("scores and something else to assess were given; give one of them")
        _check_report(report)
        material = material_of_scores(Path(scores[0]), Path(scores[1]), delta, seed, match)
    else:
        if sum(each is not None for each in (model, bundle, samples)) != 1 or members is None or nonmembers is None:
            raise BenchError(
                "nothing to assess, or several things: give --scores MEMBERS OTHERS, or --members, --nonmembers and "
                "one of --model, --bundle and --samples"
            )
        _check_report(report)
        # torch is needed from here on only
        from bench.assess.from_model import ModelCase, material_of_model
        from bench.assess.from_samples import SamplesCase, material_of_samples
        from bench.assess.inversion import InversionCase
        from bench.assess.models import ModelGiven
        from bench.assess.records import ReadAs
        from bench.assess.training import CONTROL
        from bench.data.dataset import Reading

        how = ReadAs(size, channels, Reading(fit, pixel_range), None if groups is None else Path(groups))
        sets = Path(members), Path(nonmembers), how, None if population is None else Path(population)
        if samples is not None:
            names = SAMPLE_ATTACKS if attacks is None else tuple(attacks)
            material = material_of_samples(SamplesCase(Path(samples), *sets, names, match), delta, seed)
        else:
            source: Any = model if bundle is None else bundle
            path = source if callable(source) else Path(source)
            names = ATTACKS if attacks is None else tuple(attacks)
            names = names if inversion else tuple(name for name in names if name != INVERSION)
            case = ModelCase(
                ModelGiven(path, network, classes, normalise, trust_code, bundle is not None),
                *sets,
                references if isinstance(references, int) else Path(references),
                control or CONTROL,
                epochs,
                names,
                None if report is None else Path(report) / "work",
                None if canaries is None else Path(canaries),
                match,
                InversionCase(private_classes, inversion_minutes),
            )
            material = material_of_model(case, delta, seed)
    found = assemble(material, options)
    if report is not None:
        from bench.assess.exposed import write_exposed
        from bench.assess.report import write_report

        write_report(found, Path(report))
        write_exposed(material, options, Path(report), pictures)
    return found
