"""The privately trained teacher: its use of data and its cost, and that the conversion is free."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_runs import FREE, forbidden_teacher, record_calls
from torch import Tensor

from baselines import dp_teacher
from baselines.dp_teacher import DpTeacher
from bench import nets
from bench.api import Release, Teacher
from bench.config import configure
from bench.distillation.class_moments import class_images
from bench.dp_training import feature_training
from bench.errors import BenchError
from bench.pipeline import run
from bench.pipeline.resolve import load_job
from bench.pipeline.settings import Settings
from bench.privacy import Budget, Unit
from bench.privacy.accountant import account
from bench.testing import CLASSES, SHAPE, context, recording_context


def private(n: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, *SHAPE), generator=rng, dtype=torch.uint8), torch.arange(n) % CLASSES


def toy(n: int = 64) -> Teacher:
    return forbidden_teacher(private=private(n))


def convert(budget: Budget = FREE, records: Teacher | None = None, seed: int = 0, **given: str) -> Release:
    torch.manual_seed(seed)
    method = configure(DpTeacher, "smoke", given, "method", "printed")
    return method.convert(records or toy(), "datalens", budget, context(seed))


def answers(release: Release) -> Tensor:
    with torch.no_grad():
        return release.student(torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("conversion", ["distil", "none"])
def test_ledger_has_only_the_private_training(conversion: str) -> None:
    release = convert(conversion=conversion, multiplier="2.0", batch="16", steps="5")
    (entry,) = release.ledger.entries()
    assert entry.unit == Unit.EXAMPLE and entry.count == 5
    assert entry.event.sampling_probability == 16 / 64 and entry.event.event.noise_multiplier == 2.0


@pytest.mark.thorough
def test_class_moments_have_their_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released with the noise of the ledger; half of the fresh queries are drawn of them."""
    taken: list[tuple[float, Tensor]] = []
    real = class_images.noisy_moments

    def recorded(images: Tensor, labels: Tensor, classes: int, basis: Tensor, multiplier: float, *rest: Any) -> Any:
        taken.append((multiplier, images))
        return real(images, labels, classes, basis, multiplier, *rest)

    monkeypatch.setattr(class_images, "noisy_moments", recorded)
    teacher, budget, ctx = toy(), Budget(1.0), recording_context()
    features = {"teacher": "private-features", "conversion": "transcribe"}
    method = configure(DpTeacher, "smoke", {**features, "moments_share": "0.3"}, "method")
    release = method.convert(teacher, "datalens", budget, ctx)
    assert len(ctx.streams) == len(set(ctx.streams)) == 3, "two streams with the same draws"
    parts = [entry.count / entry.event.noise_multiplier**2 for entry in release.ledger.entries()]
    assert [part / sum(parts) for part in parts] == [pytest.approx(0.3), pytest.approx(0.14), pytest.approx(0.56)]
    assert [(1 / multiplier**2, images is teacher.private[0]) for multiplier, images in taken] == [  # type: ignore[index]
        (pytest.approx(parts[0]), True)
    ]
    assert account(release.ledger, Unit.EXAMPLE, budget.delta).epsilon == pytest.approx(1.0, rel=1e-3)
    assert release.claim is not None and release.claim.epsilon == pytest.approx(1.0, rel=1e-3)
    without = configure(DpTeacher, "smoke", features, "method").convert(teacher, "datalens", budget, context())
    assert len(taken) == 1 and len(without.ledger.entries()) == 2


@pytest.mark.parametrize("given", [{"moments_share": "0.3"}, {"typical": "off"}], ids=str)
@pytest.mark.parametrize("beside", [{"conversion": "transcribe"}, {"teacher": "private-features"}], ids=str)
def test_option_without_its_condition_is_refused(given: dict[str, str], beside: dict[str, str]) -> None:
    with pytest.raises(BenchError, match=r"teacher dp-sgd|conversion distil"):
        convert(**given, **beside)


@pytest.mark.thorough
def test_typical_queries_use_the_moment_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whitening that moves queries is the noisy one, of the one call whose noise is in the ledger."""
    made: list[Any] = []
    moved: list[Any] = []
    whitened, move = feature_training.private_whitening, dp_teacher.Typicality

    def whitening(*given: Any) -> Any:
        made.append((given[2], whitened(*given)))
        return made[-1][1]

    def typical(network: Any, white: Any, ctx: Any) -> Any:
        moved.append(white)
        return move(network, white, ctx)

    monkeypatch.setattr(feature_training, "private_whitening", whitening)
    monkeypatch.setattr(dp_teacher, "Typicality", typical)
    plain = _taught("private-features", "transcribe", typical="off")
    release = _taught("private-features", "transcribe")
    assert release.ledger.to_json() == plain.ledger.to_json() and release.claim == plain.claim
    assert len(made) == 2 and len(moved) == 1 and moved[0] is made[1][1]
    multiplier = release.ledger.entries()[0].event.noise_multiplier
    assert made[1][0] == pytest.approx(multiplier)
    assert not torch.equal(answers(release), answers(plain))


def test_typical_queries_of_colour_images_are_refused() -> None:
    method = DpTeacher(teacher="private-features", conversion="transcribe", typical="on")
    with pytest.raises(BenchError, match=r"typical on.*3x32x32"):
        method.check(Budget(1.0), "cifar10", 10)
    method.check(Budget(1.0), "fmnist", 10)


@pytest.mark.thorough
def test_ts_adp_equals_dp_sgd_with_tempered_sigmoids() -> None:
    assert torch.equal(answers(convert(teacher="ts-adp")), answers(convert(teacher="dp-sgd")))
    with pytest.raises(BenchError, match=r"relu-cnn.*tanh-cnn.*tanh-vgg"):
        convert(teacher="ts-adp", network="relu-cnn")


def test_added_noise_is_that_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The multipliers of the steps taken, spied on where noise is drawn."""
    from bench.dp_training import clipping

    calls = record_calls(monkeypatch, clipping, "add_noise")
    release = convert(Budget(4.0), records=toy(32))
    (entry,) = release.ledger.entries()
    assert [call.arguments[2] for call in calls] == [release.solved["sigma"]] * entry.count and entry.count == 3
    assert entry.event.event.noise_multiplier == release.solved["sigma"]


@pytest.mark.parametrize(("conversion", "arch"), [("distil", "datalens"), ("none", "relu-cnn")])
def test_release_can_be_rebuilt_for_either_conversion(conversion: str, arch: str) -> None:
    release = convert(conversion=conversion, network="relu-cnn", mean="0.0", std="1.0")
    assert release.arch == arch and (release.generator is None) == (conversion == "none")
    rebuilt = nets.build(release.arch, SHAPE, CLASSES)
    rebuilt.load_state_dict(release.student.state_dict())
    images = torch.rand(5, *SHAPE)
    assert torch.equal(rebuilt.eval()(images), release.student(images))


def test_conversion_uses_only_the_private_network(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, dp_teacher, "distil")
    convert()
    seen = calls[0].arguments
    assert isinstance(seen[0], nets.Classifier) and not any(
        isinstance(g, Teacher | Tensor | tuple) and g != SHAPE for g in seen
    )


@pytest.mark.thorough
def test_release_depends_on_records_and_seed() -> None:
    assert not torch.equal(answers(convert(records=toy(64))), answers(convert(records=toy(65))))
    assert not torch.equal(answers(convert(seed=1)), answers(convert(seed=2)))
    assert torch.equal(answers(convert(seed=1)), answers(convert(seed=1)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given",
    [
        {"clipping": "layer"},
        {"views": "2"},
        {"average": "0.9"},
        {"gradients": "func"},
        {"decay": "true"},
        {"generator": "strokes"},
    ],
    ids=lambda given: "-".join(given),
)
def test_every_option_changes_the_result(given: dict[str, str]) -> None:
    changed, plain = answers(convert(**given)), answers(convert())
    assert changed.isfinite().all()
    same = "gradients" in given
    assert torch.allclose(changed, plain, atol=1e-2) if same else not torch.equal(changed, plain)


def test_network_with_batch_norm_is_refused() -> None:
    with pytest.raises(BenchError, match="resnet18"):
        convert(network="resnet18")


def test_private_network_normalises_by_the_options() -> None:
    network = convert(conversion="none", mean="0.3", std="0.7").student
    assert network.mean.unique().tolist() == pytest.approx([0.3])
    assert network.std.unique().tolist() == pytest.approx([0.7])


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
        settings = Settings(
            method="dp-teacher",
            attack=None,
            out=tmp_path,
            budget=Budget(math.inf),
            method_options=(("conversion", conversion), ("steps", "200")),
        )
        return run.run(load_job(settings), 0).record.metrics["accuracy"]  # type: ignore[return-value]

    teacher = accuracy("none")
    assert teacher > 0.9 and accuracy("distil") > teacher - 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dp-sgd", "private-features"])
@pytest.mark.parametrize("conversion", ["distil", "transcribe"])
def test_conversion_of_either_teacher_is_free(kind: str, conversion: str) -> None:
    alone, taught = _taught(kind, "none"), _taught(kind, conversion)
    assert taught.arch == "datalens" and alone.arch != "datalens"
    assert taught.ledger.to_json() == alone.ledger.to_json() and taught.claim == alone.claim


def _taught(kind: str, conversion: str, **given: str) -> Release:
    torch.manual_seed(0)
    method = configure(DpTeacher, "smoke", {"teacher": kind, "conversion": conversion, **given}, "method", "printed")
    return method.convert(toy(), "datalens", Budget(3.0), context(0))


@pytest.mark.parametrize(
    "given", [{"clip": "1"}, {"multiplier": "0.5"}, {"views": "4"}, {"average": "0.9"}, {"rate": "0.5"}], ids=str
)
def test_unused_dp_sgd_options_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(BenchError, match=rf"{next(iter(given))} .*teacher private-features"):
        configure(DpTeacher, "smoke", {"teacher": "private-features", **given}, "method")


@pytest.mark.parametrize("name", [*dp_teacher.DISTILLATION, *dp_teacher.TRANSCRIPTION])
def test_options_of_the_other_conversion_are_refused(name: str) -> None:
    given = {name: {"generator": "strokes", "prior": "noise", "balanced": "false"}.get(name, "7")}
    needed, other = ("distil", "transcribe") if name in dp_teacher.DISTILLATION else ("transcribe", "distil")
    for conversion in (other, "none"):
        with pytest.raises(BenchError, match=rf"{name} .*conversion {conversion}.*{needed}"):
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
def test_few_queries_are_possible(queries: str) -> None:
    assert answers(_taught("private-features", "transcribe", queries=queries)).isfinite().all()
    with_moments = _taught("private-features", "transcribe", queries=queries, moments_share="0.3")
    assert answers(with_moments).isfinite().all()


def test_budget_too_small_is_refused_before_training() -> None:
    method = DpTeacher(teacher="private-features", conversion="none")
    with pytest.raises(BenchError, match="--solve steps"):
        method.check(Budget(0.05, solve="steps"), "mnist", 10)


def test_smoke_uses_few_prior_draws() -> None:
    small = configure(DpTeacher, "smoke", {"teacher": "private-features"}, "method")._features()
    assert (small.steps, small.drawings) == (3, 64)
    usual = configure(DpTeacher, "quick", {"teacher": "private-features"}, "method")._features()
    assert (usual.steps, usual.drawings) == (feature_training.FeatureTraining.steps, 6000)
