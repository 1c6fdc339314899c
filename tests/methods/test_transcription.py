"""What DPSD, DPDFD and FedDPSD share: rates, images, updates, Bayes' rule, and that no step waits for the device."""

from __future__ import annotations

import copy
import math
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from bench.api import Teacher
from bench.config import configure
from bench.distillation.generator_training import make_generator
from bench.distillation.loop import SHARPEST, Players, Transcription, updates
from bench.distillation.losses import gradient_at_output, kd_loss
from bench.distillation.noisy_labels import Plan, posterior_of_response
from bench.nets import Ensemble
from bench.nets.generators import UpsampleGenerator
from bench.nets.stroke_generator import StrokeGenerator
from bench.testing import CLASSES, SHAPE, context, toy_teacher
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpsd.dpsd import Dpsd
from methods.fed_dpsd.fed_dpsd import FedDpsd

SMALL = Transcription(batch=8, latent=6, width=4, gamma_s=1e-2, replay_batch=5)
aten = torch.ops.aten
OURS = re.compile(r"/(methods|bench)/(?!.*site-packages)")


def players_of(settings: Transcription, rounds: int = 1, seed: int = 0) -> Players:
    torch.manual_seed(seed)
    return settings.players(toy_teacher(), "datalens", rounds, context())


def answered(settings: Transcription, players: Players) -> tuple[Tensor, Tensor]:
    images = settings.fresh(players, context())
    rng = torch.Generator().manual_seed(players.answers.batches)
    targets = torch.rand(len(images), CLASSES, generator=rng).softmax(1)
    players.answers.add(images, targets)
    return images, targets


def ignore(_: int) -> None:
    """No progress bar."""


def flat(module: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten().float() for value in module.state_dict().values()])


@pytest.mark.parametrize("decay", [True, False])
def test_the_students_rate_falls_along_a_cosine_to_0(decay: bool) -> None:
    settings = replace(SMALL, decay=decay, student_steps=5)
    players, rates = players_of(settings, rounds=2), []
    images, targets = answered(settings, players)

    def watch(_: int) -> None:
        rates.append(players.schedule.get_last_lr()[0])

    for _ in range(2):
        settings.update_student(players, images, targets, context(), watch)
    by_hand = [1e-2 * (1 + math.cos(math.pi * step / 10)) / 2 if decay else 1e-2 for step in range(1, 11)]
    assert rates == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("choose", [1, 3])
@pytest.mark.parametrize("kind", ["upsample", "strokes"])
def test_fresh_gives_a_batch_of_new_images(choose: int, kind: Any) -> None:
    settings = replace(SMALL, choose=choose, images=kind)
    players = players_of(settings)
    one, two = settings.fresh(players, context()), settings.fresh(players, context())
    assert one.shape == two.shape == (8, *SHAPE) and not one.requires_grad and one.dtype == torch.float32
    assert 0 <= one.min() < one.max() <= 1 and not torch.equal(one, two)
    assert not players.student.training or choose == 1


@pytest.mark.parametrize(
    ("images", "dataset", "kind"),
    [
        ("upsample", "digits", UpsampleGenerator),
        ("auto", "digits", StrokeGenerator),
        ("auto", "mnist", StrokeGenerator),
        ("auto", "fmnist", UpsampleGenerator),
        ("strokes", "fmnist", StrokeGenerator),
    ],
)
def test_strokes_on_glyphs_alone_unless_asked_for(images: str, dataset: str, kind: type[nn.Module]) -> None:
    made = make_generator(images, dataset, SHAPE, 6, 4)
    assert isinstance(made, kind)
    if isinstance(made, StrokeGenerator):
        z = torch.randn(3, made.latent)
        assert torch.equal(made.move(z), torch.zeros_like(z)), "an untrained pen draws random walks"


def test_networks_start_as_xavier_says() -> None:
    players = players_of(replace(SMALL, latent=100, width=32))
    for network in (players.student, players.generator):
        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
                bound = math.sqrt(6 / (fan_in + fan_out))
                assert float(layer.weight.detach().abs().max()) <= bound
                if layer.weight.numel() > 1000:
                    assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
                assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize("rounds", [(200, 1, 200), (7, 2, 4), (8, 2, 4), (1, 8, 1)])
def test_how_often_they_learn(rounds: tuple[int, int, int]) -> None:
    assert updates(rounds[0], rounds[1]) == rounds[2]


def test_one_student_step_descends_the_cross_entropy_to_the_answers() -> None:
    """Plain steps of 0.1: theta_s moves by -0.1 d/d theta_s of -mean sum_j y_j log p_j."""
    settings = replace(SMALL, optimizer="sgd", gamma_s=0.1)
    torch.manual_seed(0)
    players = settings.players(toy_teacher(), "shard-cnn", 1, context())
    images, targets = answered(settings, players)
    student = copy.deepcopy(players.student)
    loss = -(targets * student(images).log_softmax(1)).sum(1).mean()
    gradient = torch.autograd.grad(loss, list(student.parameters()))
    settings.update_student(players, images, targets, context(), ignore)
    for before, after, g in zip(student.parameters(), players.student.parameters(), gradient, strict=True):
        assert torch.allclose(after, before - 0.1 * g, atol=1e-6)


@pytest.mark.parametrize("augment", [True, False])
def test_replayed_images_keep_their_answers(augment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SMALL, student_steps=4, augment=augment)
    players = players_of(settings)
    batches = [answered(settings, players) for _ in range(3)]
    stored = {tuple(t.tolist()): i for images, targets in batches for i, t in zip(images, targets, strict=True)}
    seen: list[Tensor] = []
    drawn: list[tuple[Tensor, Tensor]] = []
    sample = players.answers.sample

    def watched(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn.append(sample(count, rng))
        return drawn[-1]

    monkeypatch.setattr(players.answers, "sample", watched)
    ask = players.ask
    players.ask = lambda x: (seen.append(x), ask(x))[1]
    advanced: list[int] = []
    settings.update_student(players, *batches[-1], context(), advanced.append)
    assert advanced == [1] * 4 and len(seen) == 4
    for x, (images, targets) in zip(seen[-len(drawn) :], drawn, strict=True):
        assert len(images) == 5
        assert torch.equal(x, images) == (not augment)
        assert all(torch.equal(stored[tuple(t.tolist())], i) for i, t in zip(images, targets, strict=True))


@pytest.mark.parametrize("with_targets", [True, False])
@pytest.mark.parametrize("student", ["datalens", "evaluator-cnn"])
def test_the_generators_update_leaves_the_student_untouched(with_targets: bool, student: str) -> None:
    settings = replace(SMALL, generator_steps=3)
    torch.manual_seed(0)
    players = settings.players(toy_teacher(), student, 1, context())
    images, targets = answered(settings, players)
    settings.update_student(players, images, targets, context(), ignore)
    before, made = flat(players.student).clone(), flat(players.generator).clone()
    gradients = [None if p.grad is None else p.grad.clone() for p in players.student.parameters()]
    settings.update_generator(players, context(), players.student, targets if with_targets else None)
    assert torch.equal(flat(players.student), before), "weights and running statistics"
    assert all(p.requires_grad for p in players.student.parameters())
    for p, g in zip(players.student.parameters(), gradients, strict=True):
        assert (p.grad is None and g is None) or torch.equal(p.grad, g)
    assert not torch.equal(flat(players.generator), made)
    settings.update_student(players, images, targets, context(), ignore)
    assert not torch.equal(flat(players.student), before), "the student still learns"


@pytest.mark.parametrize("trained", [True, False])
def test_vectors_are_trained_only_where_asked_for(trained: bool) -> None:
    torch.manual_seed(0)
    players = SMALL.players(toy_teacher(), "datalens", 1, context(), trained_z=trained)
    before = players.z.detach().clone()
    SMALL.update_generator(players, context(), players.student, torch.full((8, CLASSES), 1 / CLASSES))
    assert torch.equal(players.z.detach(), before) != trained


@pytest.mark.parametrize("sigma", [1.0, 0.01])
def test_the_posterior_of_gradients_by_hand(sigma: float) -> None:
    """Teachers 90 % sure of one of 3 classes answer beta (p_s - p_r) / ||p_s - p_r||: Bayes' rule written out."""
    beta, p_s = 0.5, torch.tensor([[0.5, 0.3, 0.2]])
    answers = torch.tensor([[0.2, -0.4, 0.3]])
    sure = torch.full((3, 3), 0.05).fill_diagonal_(0.9)

    def expected(ours: Tensor, theirs: Tensor) -> Tensor:
        g = gradient_at_output(kd_loss, ours, theirs)
        return beta * g / g.norm(dim=1, keepdim=True)

    std = max(sigma, SHARPEST) * beta
    weights = []
    for r in range(3):
        g = (p_s - sure[r])[0]
        missed = [a - beta * x / float(g.norm()) for a, x in zip(answers[0].tolist(), g.tolist(), strict=True)]
        weights.append(math.exp(-sum(m * m for m in missed) / (2 * std**2)))
    by_hand = sum(w / sum(weights) * sure[r] for r, w in enumerate(weights))
    found = SMALL.posterior_of_gradients(answers, p_s.log(), expected, beta, sigma)
    assert torch.allclose(found[0], by_hand, atol=1e-5)


def test_the_posterior_of_gradients_is_calibrated() -> None:
    """Where teachers are as sure as Bayes' rule assumes, a class given probability p is right in p of all cases."""
    rng = torch.Generator().manual_seed(3)
    n, beta, sigma = 4000, 0.1, 0.4
    ours, r = torch.randn(n, 3, generator=rng), torch.randint(3, (n,), generator=rng)
    sure = torch.full((3, 3), 0.05).fill_diagonal_(0.9)

    def expected(ours: Tensor, theirs: Tensor) -> Tensor:
        g = gradient_at_output(kd_loss, ours, theirs)
        return beta * g / g.norm(dim=1, keepdim=True)

    noise = sigma * beta * torch.randn(n, 3, generator=rng)
    found = SMALL.posterior_of_gradients(expected(ours, sure[r].log()) + noise, ours, expected, beta, sigma)
    of_class = (found - 0.05) / 0.85
    right = (of_class.argmax(1) == r).float().mean()
    assert 0.5 < right < 0.99 and abs(float(of_class.amax(1).mean() - right)) < 0.02


def test_the_posterior_of_a_response_by_hand() -> None:
    """Candidates 2 and 0 of 3 classes, epsilon = ln 3: kept with 3/4, else 1/4; the class outside answers either."""
    found = posterior_of_response(torch.tensor([2]), torch.tensor([[2, 0]]), 3, math.log(3))
    weights = [1 / 4, 1 / 2, 3 / 4]
    assert found[0].tolist() == pytest.approx([w / sum(weights) for w in weights])


class HostSync(Exception):
    """A value would be copied from the device while the host waits."""


class NoHostSync(TorchDispatchMode):
    """Raises where an operation would make the host wait for an accelerator; a stand-in for CUDA's own check.

    Not seen by it: copies between host and device, `tolist`, and what an operation does inside itself. Let through:
    `one_hot`, whose range check runs on the CPU alone, and the check of candidates in `_located`, which does so too.
    """

    always = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten.unique_dim)
    where_boolean = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        boolean = packet in self.where_boolean and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if not self.paused and (packet in self.always or boolean):
            asker = next(f for f in reversed(traceback.extract_stack()[:-1]) if OURS.search(f.filename))
            if asker.name != "_located" and "one_hot(" not in (asker.line or ""):
                raise HostSync(f"{func} at {asker.filename}:{asker.lineno}: {asker.line}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Inside optimiser steps nothing is watched: on the CPU they read their step counts as numbers."""
    mode = NoHostSync()
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: setattr(mode, "paused", True)),
        register_optimizer_step_post_hook(lambda *_: setattr(mode, "paused", False)),
    ]
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: torch.equal(x, x),
        lambda x: x.index_put_((x > 0,), torch.zeros(())),
        lambda x: float(x[0]),
    ],
)
def test_the_watch_sees_what_waits(wait: Callable[[Tensor], Any]) -> None:
    with pytest.raises(HostSync), no_host_sync():
        _in_methods(wait, torch.tensor([1.0, -1.0]))


def _in_methods(wait: Callable[[Tensor], Any], x: Tensor) -> Any:
    return wait(x)


def rounds(method: Any, teacher: Teacher, annotate: Callable[[Players, Tensor], Tensor]) -> None:
    """Two rounds of a conversion under watch; what is made once before them is not."""
    ctx = context()
    players = method.players(teacher, "datalens", 2, ctx)
    with no_host_sync():
        for _ in range(2):
            images = method._generate(players, ctx)
            targets = annotate(players, images)
            players.answers.add(images, targets)
            method.update_student(players, images, targets, ctx, ignore)
            method.update_generator(players, ctx, players.student)
            method.update_generator(players, ctx, players.student, targets)


REPLAYED = {"student_steps": "3", "augment": "true", "decay": "true", "generator_steps": "2"}
CHOSEN = REPLAYED | {"choose": "2", "reading": "posterior", "loss": "kd"}
PLAN = Plan(k=2, beta=0.1, sigma=1.0, answer_epsilon=1.0, iterations=2)


def toy_ensemble(teacher: Teacher, count: int = 2) -> Ensemble:
    return Ensemble.build(["shard-cnn"], count, teacher.shape, teacher.classes, range(count)).eval()


@pytest.mark.parametrize("mode", ["data", "label"])
@pytest.mark.parametrize("noise", ["row", "batch"])
@pytest.mark.parametrize("given", [REPLAYED, CHOSEN | {"latents": "fresh"}], ids=["printed", "quick"])
def test_dpsd_never_waits_for_the_device(mode: str, noise: str, given: dict[str, str]) -> None:
    if noise == "batch" and mode == "data":
        given = given | {"reading": "step"}
    method, teacher = configure(Dpsd, "smoke", given | {"mode": mode, "noise": noise}, "method"), toy_teacher()
    rng = torch.Generator()
    rounds(method, teacher, lambda p, images: method._annotate(images, p.student, teacher, PLAN, rng, PLAN.k))


@pytest.mark.parametrize("noise", ["row", "batch"])
@pytest.mark.parametrize("given", [REPLAYED | {"bound": "clip", "norm_of": "outputs"}, CHOSEN | {"loss_s": "false"}])
def test_dpdfd_never_waits_for_the_device(noise: str, given: dict[str, str]) -> None:
    if noise == "batch":
        given = given | {"reading": "step"}
    method, teacher = configure(Dpdfd, "smoke", given | {"noise": noise}, "method"), toy_teacher()
    rng = torch.Generator()
    rounds(method, teacher, lambda p, images: method._annotate(images, p.student, teacher, PLAN, rng))


@pytest.mark.parametrize("aggregate", ["votes", "gradients"])
@pytest.mark.parametrize("reading", ["step", "posterior"])
def test_an_ensemble_never_waits_for_the_device(aggregate: str, reading: str) -> None:
    given = REPLAYED | {"aggregate": aggregate, "reading": reading, "teachers": "2"}
    method, teacher = configure(Dpdfd, "smoke", given, "method"), toy_teacher()
    clients, rng, bounded = toy_ensemble(teacher), torch.Generator(), method._bounded_gradient
    rounds(method, teacher, lambda p, x: method._answer(x, None, p.student, clients, PLAN, bounded, rng))


@pytest.mark.parametrize("mode", ["data", "label"])
@pytest.mark.parametrize("noise", ["server", "client"])
@pytest.mark.parametrize("given", [REPLAYED, CHOSEN | {"loss_s": "false"}], ids=["printed", "quick"])
def test_fed_dpsd_never_waits_for_the_device(mode: str, noise: str, given: dict[str, str]) -> None:
    method, teacher = configure(FedDpsd, "smoke", given | {"mode": mode, "noise": noise}, "method"), toy_teacher()
    clients, rng = toy_ensemble(teacher), torch.Generator()
    rounds(method, teacher, lambda p, x: method._annotate(x, p.student, clients, PLAN, rng, PLAN.k))


@pytest.mark.parametrize("method", [Dpsd, Dpdfd, FedDpsd])
def test_the_papers_tier_prints_the_papers_settings(method: type[Transcription]) -> None:
    paper = configure(method, "paper", {}, "method")
    assert (paper.batch, paper.iterations, paper.sigma, paper.stability) == (256, 200, 100.0, 1e-4)
    assert (paper.gamma_s, paper.gamma_g, paper.non_target_weight) == (0.1, 0.01, 8.0)
    assert (paper.ce_weight, paper.ie_weight, paper.norm_weight) == (1.0, 1.0, 1.0)
    assert (paper.loss, paper.bound, paper.reading, paper.student_steps) == ("dkd", "normalise", "step", 1)


@pytest.mark.parametrize("given", [{"choose": 0}, {"gamma_g": 0.0}, {"replay_batch": 0}, {"generator_steps": -1}])
def test_impossible_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        replace(SMALL, **given)


@pytest.mark.parametrize(("reading", "dropout"), [("step", False), ("posterior", True)])
def test_no_dropout_while_targets_are_the_students_own_outputs_moved(reading: str, dropout: bool) -> None:
    method = replace(SMALL, reading=reading)  # type: ignore[arg-type]
    players = method.players(toy_teacher(), "datalens", 1, context())
    images = torch.rand(8, *SHAPE)
    seen: list[bool] = []
    layers = [layer for layer in players.student.modules() if isinstance(layer, nn.Dropout)]
    layers[0].register_forward_hook(lambda layer, _inputs, _output: seen.append(layer.training))
    method.update_student(players, images, torch.full((8, CLASSES), 1 / CLASSES), context(), lambda _: None)
    assert seen == [dropout] and players.student.training
