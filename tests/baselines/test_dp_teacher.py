"""The privately trained teacher: its use of data and its cost, and that the conversion is free."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import baseline_runs
import pytest
import torch
from baseline_runs import FREE, epsilon_of, forbidden_teacher, record_calls, refused, rng, smoke
from torch import Tensor

from baselines import dp_teacher
from baselines.dp_teacher import DpTeacher
from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.class_moments import class_images
from bench.dp_training import clipping, feature_training
from bench.dp_training.patch_training import PatchTraining
from bench.nets.classifiers import patch_nets
from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget, Unit
from bench.testing import CLASSES, SHAPE, context, recording_context


def toy(n: int = 64) -> Teacher:
    return forbidden_teacher(n)


def convert(budget: Budget = FREE, records: Teacher | None = None, seed: int = 0, **given: Any) -> Release:
    return baseline_runs.convert(DpTeacher, budget, records or toy(), seed=seed, **given)


def taught(kind: str, conversion: str, **given: str) -> Release:
    return convert(Budget(3.0), teacher=kind, conversion=conversion, **given)


def answers(release: Release) -> Tensor:
    with torch.no_grad():
        return release.student(torch.rand(4, *SHAPE, generator=rng()))


@pytest.mark.parametrize("conversion", ["distil", "none"])
def test_ledger_has_only_the_private_training(conversion: str) -> None:
    release = convert(conversion=conversion, multiplier="2.0", batch="16", steps="5")
    (entry,) = release.ledger.entries()
    assert entry.unit == Unit.EXAMPLE and entry.count == 5
    assert entry.event.sampling_probability == 16 / 64 and entry.event.event.noise_multiplier == 2.0


@pytest.mark.thorough
def test_class_moments_have_their_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released with the noise of the ledger; half of the fresh queries are drawn of them."""
    calls = record_calls(monkeypatch, class_images, "noisy_moments")
    teacher, budget, ctx = toy(), Budget(1.0), recording_context()
    features = {"teacher": "private-features", "conversion": "transcribe"}
    method = smoke(DpTeacher, None, **features, moments_share=0.3)
    release = method.convert(teacher, "datalens", budget, ctx)
    assert len(ctx.streams) == len(set(ctx.streams)) == 3, "two streams with the same draws"
    parts = [entry.count / entry.event.noise_multiplier**2 for entry in release.ledger.entries()]
    assert [part / sum(parts) for part in parts] == [pytest.approx(0.3), pytest.approx(0.14), pytest.approx(0.56)]
    (call,) = calls
    assert 1 / call.arguments[4] ** 2 == pytest.approx(parts[0])
    assert teacher.private is not None and call.arguments[0] is teacher.private[0]
    assert epsilon_of(release.ledger) == pytest.approx(1.0, rel=1e-3)
    assert release.claim is not None and release.claim.epsilon == pytest.approx(1.0, rel=1e-3)
    without = smoke(DpTeacher, None, **features).convert(teacher, "datalens", budget, context())
    assert len(calls) == 1 and len(without.ledger.entries()) == 2


@pytest.mark.parametrize("given", [{"moments_share": "0.3"}, {"typical": "off"}], ids=str)
@pytest.mark.parametrize("beside", [{"conversion": "transcribe"}, {"teacher": "private-features"}], ids=str)
def test_option_without_its_condition_is_refused(given: dict[str, str], beside: dict[str, str]) -> None:
    with refused(r"teacher dp-sgd|conversion distil"):
        convert(**given, **beside)


@pytest.mark.thorough
def test_typical_queries_use_the_moment_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whitening that moves queries is the noisy one, of the one call whose noise is in the ledger."""
    made = record_calls(monkeypatch, feature_training, "private_whitening")
    moved = record_calls(monkeypatch, dp_teacher, "Typicality")
    plain, release = (taught("private-features", "transcribe", **given) for given in ({"typical": "off"}, {}))
    assert release.ledger.to_json() == plain.ledger.to_json() and release.claim == plain.claim
    assert len(made) == 2 and len(moved) == 1 and moved[0].arguments[1] is made[1].result
    assert made[1].arguments[2] == pytest.approx(release.ledger.entries()[0].event.noise_multiplier)
    assert not torch.equal(answers(release), answers(plain))


def test_class_weight_changes_queries_at_no_cost() -> None:
    plain, release = (taught("private-features", "transcribe", **given) for given in ({}, {"class_weight": "5"}))
    assert release.ledger.to_json() == plain.ledger.to_json() and release.claim == plain.claim
    assert not torch.equal(answers(release), answers(plain))
    with refused(r"class_weight .*typical off"):
        smoke(DpTeacher, None, teacher="private-features", conversion="transcribe", typical="off", class_weight="1")


def test_typical_queries_of_colour_images_are_refused() -> None:
    for given, named in (({"typical": "on"}, "typical on"), ({"class_weight": 0.1}, "class_weight 0.1")):
        method = DpTeacher(teacher="private-features", conversion="transcribe", **given)  # type: ignore[arg-type]
        with refused(rf"{named}.*3x32x32"):
            method.check(Budget(1.0), "cifar10", 10)
        method.check(Budget(1.0), "fmnist", 10)


@pytest.mark.thorough
def test_ts_adp_equals_dp_sgd_with_tempered_sigmoids() -> None:
    assert torch.equal(answers(convert(teacher="ts-adp")), answers(convert(teacher="dp-sgd")))
    with refused(r"relu-cnn.*tanh-cnn.*tanh-vgg"):
        convert(teacher="ts-adp", network="relu-cnn")


def test_added_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The multipliers of the steps taken, spied on where noise is drawn."""
    calls = record_calls(monkeypatch, clipping, "add_noise")
    release = convert(Budget(4.0), records=toy(32))
    (entry,) = release.ledger.entries()
    assert [call.arguments[2] for call in calls] == [release.solved["sigma"]] * entry.count and entry.count == 3
    assert entry.event.event.noise_multiplier == release.solved["sigma"]


@pytest.mark.parametrize(("conversion", "arch"), [("distil", "datalens"), ("none", "relu-cnn")])
def test_release_can_be_rebuilt_for_either_conversion(conversion: str, arch: str) -> None:
    release = convert(conversion=conversion, network="relu-cnn", mean=0.3, std=0.7)
    assert release.arch == arch and (release.generator is None) == (conversion == "none")
    nets.build(release.arch, SHAPE, CLASSES).load_state_dict(release.student.state_dict())
    if conversion == "none":
        assert release.student.mean.unique().tolist() == pytest.approx([0.3])
        assert release.student.std.unique().tolist() == pytest.approx([0.7])


def test_conversion_uses_only_the_private_network(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, dp_teacher, "distil")
    convert()
    seen = calls[0].arguments
    assert isinstance(seen[0], nets.Classifier)
    assert not any(isinstance(g, Teacher | Tensor | tuple) and g != SHAPE for g in seen)


@pytest.mark.thorough
def test_release_depends_on_records() -> None:
    assert not torch.equal(answers(convert(records=toy(64))), answers(convert(records=toy(65))))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("option", "value"),
    [("clipping", "layer"), ("views", "2"), ("average", "0.9"), ("gradients", "func"), ("decay", "true"),
     ("gradients", "layers"), ("generator", "strokes")],
)  # fmt: skip
def test_every_option_changes_the_result(option: str, value: str) -> None:
    changed, plain = answers(convert(**{option: value})), answers(convert())
    assert changed.isfinite().all()
    same = option == "gradients"
    assert torch.allclose(changed, plain, atol=1e-2) if same else not torch.equal(changed, plain)


def test_every_part_gets_its_options() -> None:
    """No two numbers are alike, so that none can stand for another."""
    method = DpTeacher(
        steps=11, rounds=12, images_per_round=13, generator_steps=14, student_steps=15, transcription_steps=16,
        queries=17, batch=18, rate=0.1, rate_generator=0.2, rate_student=0.3,
    )  # fmt: skip
    private, distilled, taught = method._training(), method._distillation(), method._transcription()
    assert (private.steps, private.batch, private.rate) == (11, 18, 0.1)
    assert (distilled.rounds, distilled.batch) == (12, 13)
    assert (distilled.generator_steps, distilled.student_steps) == (14, 15)
    assert (distilled.rate_generator, distilled.rate_student) == (0.2, 0.3)
    assert (taught.student_steps, taught.queries) == (16, 17)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "least"), [((("conversion", "none"),), 0.80), ((), 0.70)])
def test_student_learns_digits_at_epsilon_10(tmp_path: Path, given: tuple[tuple[str, str], ...], least: float) -> None:
    settings = Settings(method="dp-teacher", attack=None, out=tmp_path, method_options=given)
    record = run.run(load_job(settings), 0).record
    assert record.metrics["accuracy"] >= least  # type: ignore[operator]
    assert record.privacy["accounted"]["epsilon"] <= 10.0


@pytest.mark.slow
def test_noiseless_student_is_near_its_teacher(tmp_path: Path) -> None:
    def accuracy(conversion: str) -> float:
        given = (("conversion", conversion), ("steps", "200"))
        settings = Settings("dp-teacher", None, out=tmp_path, budget=Budget(math.inf), method_options=given)
        return run.run(load_job(settings), 0).record.metrics["accuracy"]  # type: ignore[return-value]

    teacher = accuracy("none")
    assert teacher > 0.9 and accuracy("distil") > teacher - 0.1


@pytest.mark.parametrize("kind", ["private-features", "patch-features"])
def test_conversion_never_reads_records_after_the_private_training(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are overwritten once the teacher is trained do not change the student."""
    monkeypatch.setattr(patch_nets, "FILTERS", 40)
    train, overwritten = feature_training.FeatureTraining.train_and_whiten, []

    def train_then_overwrite(self: Any, teacher: Teacher, *given: Any) -> Any:
        found = train(self, teacher, *given)
        for tensor in teacher.private or ():
            tensor.zero_()
        overwritten.append(teacher.private is not None)
        return found

    before = taught(kind, "transcribe")
    monkeypatch.setattr(feature_training.FeatureTraining, "train_and_whiten", train_then_overwrite)
    after = taught(kind, "transcribe")
    assert overwritten == [True] and torch.equal(answers(before), answers(after))


def test_patch_features_teacher_has_steps_and_account_of_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_nets, "FILTERS", 40)
    release = taught("patch-features", "transcribe")
    (entry,) = release.ledger.entries()
    assert entry.count == feature_training.SMOKE["steps"] and release.arch == "datalens"
    assert epsilon_of(release.ledger) == pytest.approx(3.0, rel=1e-3)
    found = configure(DpTeacher, "quick", {"teacher": "patch-features", "conversion": "transcribe"}, "method")
    assert found._spending(Budget(1.0), SHAPE) == PatchTraining().spending("public", Budget(1.0))


@pytest.mark.parametrize("given", [{"typical": "on"}, {"clip": "1"}], ids=str)
def test_patch_features_teacher_refuses_options_that_it_ignores(given: dict[str, str]) -> None:
    with refused(rf"{next(iter(given))} .*teacher patch-features"):
        smoke(DpTeacher, None, teacher="patch-features", conversion="transcribe", **given)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dp-sgd", "private-features", "patch-features"])
@pytest.mark.parametrize("conversion", ["distil", "transcribe"])
def test_conversion_of_every_teacher_is_free(kind: str, conversion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_nets, "FILTERS", 40)
    single, other = taught(kind, "none"), taught(kind, conversion)
    assert other.arch == "datalens" and single.arch != "datalens"
    assert other.ledger.to_json() == single.ledger.to_json() and other.claim == single.claim


@pytest.mark.parametrize(
    "given", [{"clip": "1"}, {"multiplier": "0.5"}, {"views": "4"}, {"average": "0.9"}, {"rate": "0.5"}], ids=str
)
def test_unused_dp_sgd_options_are_refused(given: dict[str, str]) -> None:
    with refused(rf"{next(iter(given))} .*teacher private-features"):
        smoke(DpTeacher, None, teacher="private-features", **given)


@pytest.mark.parametrize("name", [*dp_teacher.DISTILLATION, *dp_teacher.TRANSCRIPTION])
def test_options_of_the_other_conversion_are_refused(name: str) -> None:
    given = {name: {"generator": "strokes", "prior": "noise", "balanced": "false"}.get(name, "7")}
    needed, other = ("distil", "transcribe") if name in dp_teacher.DISTILLATION else ("transcribe", "distil")
    for conversion in (other, "none"):
        with refused(rf"{name} .*conversion {conversion}.*{needed}"):
            configure(DpTeacher, "quick", {"conversion": conversion, **given}, "method")
    configure(DpTeacher, "quick", {"conversion": needed, **given}, "method")


@pytest.mark.parametrize("tier", ["smoke", "quick", "standard", "paper"])
@pytest.mark.parametrize("conversion", ["distil", "transcribe", "none"])
@pytest.mark.parametrize("variant", ["printed", "working"])
def test_defaults_do_not_count_as_given_options(tier: Any, conversion: str, variant: Any) -> None:
    given = {"teacher": "private-features", "conversion": conversion}
    configure(DpTeacher, tier, given, "method", variant)


@pytest.mark.thorough
@pytest.mark.parametrize("queries", ["1", "4", "5"])
@pytest.mark.parametrize("given", [{}, {"moments_share": "0.3"}], ids=str)
def test_few_queries_are_possible(queries: str, given: dict[str, str]) -> None:
    assert answers(taught("private-features", "transcribe", queries=queries, **given)).isfinite().all()


def test_budget_too_small_is_refused_before_training() -> None:
    method = DpTeacher(teacher="private-features", conversion="none")
    with refused("--solve steps"):
        method.check(Budget(0.05, solve="steps"), "mnist", 10)


def test_smoke_uses_few_prior_draws() -> None:
    for tier, expected in (("smoke", (3, 64)), ("quick", (feature_training.FeatureTraining.steps, 6000))):
        found = configure(DpTeacher, tier, {"teacher": "private-features"}, "method")._features()
        assert (found.steps, found.drawings) == expected


@pytest.mark.parametrize(
    ("given", "grey", "colour"),
    [({}, False, False), ({"teacher": "private-features"}, False, True), ({"teacher": "patch-features"}, False, True),
     ({"teacher": "private-features", "flips": "off"}, False, False), ({"flips": "on"}, True, True)],
    ids=str,
)  # fmt: skip
def test_flips_follow_the_private_classifier(given: dict[str, str], grey: bool, colour: bool) -> None:
    method = configure(DpTeacher, "quick", {"conversion": "transcribe", **given}, "method")
    assert [method._transcription(shape).flips for shape in ((1, 28, 28), (3, 32, 32))] == [grey, colour]
