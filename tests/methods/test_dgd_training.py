"""DGD's own training: rates, which images get responses, and triples by a known decoder."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from dgd_made import learning, printed, teacher
from methods_made import convert, rng
from scipy import stats
from torch import Tensor, nn

from bench import nets
from bench.distillation.votes.noisy_votes import Aggregation, VotePlan
from bench.nets.vae import VAE
from bench.testing import CLASSES, SHAPE, context
from methods.dgd import dgd
from methods.dgd.dgd import Dgd, adam_with_linear_decay
from methods.dgd.working import DgdWorking


def nothing(_: int) -> None:
    """Progress without output."""


# Rates


def test_generator_rate_falls_tenfold_every_80_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    monkeypatch.setattr(dgd, "descend", lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"]))
    monkeypatch.setattr(Dgd, "generator_loss", lambda *_: torch.zeros(()))
    printed(generator_steps="161", batch="2").learn_generator(teacher(), rng(), context(), nothing)
    assert rates == pytest.approx([0.2] * 80 + [0.02] * 80 + [0.002])


def test_adam_with_linear_decay_falls_to_zero() -> None:
    weight = nn.Linear(1, 1, bias=False)
    optimizer, schedule = adam_with_linear_decay(weight, 0.4, 4)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])


# The networks


def test_generator_training_uses_the_right_modes() -> None:
    """phi_b in evaluation mode and fixed; phi_g in training mode, while it learns and while D^ is drawn."""
    made = nets.build("datalens", SHAPE, CLASSES).train()
    modes = []
    made.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    phi_g = printed().learn_generator(teacher(model=made), rng(), context(), nothing)
    assert modes == [False] * 3 and made.training and all(p.grad is None for p in made.parameters())
    phi_g.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    dgd.draw_images(phi_g, 5, rng())
    assert modes[3:] == [True]


def test_learn_vae_uses_all_synthetic_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    loss = VAE.loss

    def watched(self: VAE, x: Tensor, rng: torch.Generator) -> Tensor:
        seen.append(x)
        return loss(self, x, rng)

    monkeypatch.setattr(VAE, "loss", watched)
    images = (torch.arange(20) / 20).view(-1, 1, 1, 1).expand(-1, *SHAPE)
    vae = printed(steps="20").learn_vae(images, rng(), context(), nothing)
    assert len(torch.cat(seen)[:, 0, 0, 0].unique()) == 20 and not vae.training


# Which images


def test_queried_and_other_images_partition_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """D^_s and D^_u have no image in common, and together they are D^."""
    parts: dict[str, Tensor] = {}
    label, triples = Dgd.label, Dgd.triples
    monkeypatch.setattr(Dgd, "label", lambda self, plan, x, *rest: (parts.update(s=x), label(self, plan, x, *rest))[1])
    monkeypatch.setattr(Dgd, "triples", lambda self, x, *rest: (parts.update(u=x), triples(self, x, *rest))[1])
    convert(printed(), teacher())
    assert [len(parts["s"]), len(parts["u"])] == [6, 34]
    assert len(torch.cat([parts["s"], parts["u"]]).unique(dim=0)) == 40


def test_private_images_are_a_random_subset() -> None:
    pixels = torch.arange(100, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *SHAPE)
    of = teacher(private=(pixels, torch.zeros(100, dtype=torch.long)))
    found = (255 * printed(images="private").private_images(of, rng())[:, 0, 0, 0]).round().int().tolist()
    assert len(found) == len(set(found)) == 40 and max(found) < 100 and found != sorted(found)


# Triples


class Known(nn.Module):
    """Codes are the first three pixels; a decoder that stretches them by 4, 2 and 1."""

    log_variance = -60.0

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes = x.flatten(1)[:, :3]
        return codes, torch.full_like(codes, self.log_variance)

    def decode(self, codes: Tensor) -> Tensor:
        return (codes * torch.tensor([4.0, 2.0, 1.0])).view(-1, 1, 1, 3)


STRETCH = torch.tensor([4.0, 2.0, 1.0])


def triples(vae: Known, pixels: Tensor, **given: str) -> Tensor:
    """Codes behind the three images of each triple: (3, n, 3)."""
    images = pixels.view(-1, 1, 1, 3)
    return printed(**given).triples(images, cast(VAE, vae), rng()).flatten(2) / STRETCH


def test_tangent_share_is_nine_tenths() -> None:
    """Of 16, 4 and 1 the first two are 95 % and the first one is 76 %: the third direction is the normal one."""
    pixels = torch.rand(30, 3, generator=rng(1))
    code, across, along = triples(Known(), pixels, step_size="0.5")
    assert torch.allclose(code, pixels, atol=1e-5)
    assert torch.allclose((across - code).abs(), torch.tensor([0.0, 0.0, 0.5]).expand(30, 3), atol=1e-5)
    moved = along - code
    assert torch.allclose(moved.norm(dim=1), torch.full((30,), 0.5), atol=1e-5) and moved[:, 2].abs().max() < 1e-5
    assert (moved[:, :2].abs() > 0.01).any(0).all(), "in both tangent directions"


def test_triples_sample_the_encoders_distribution() -> None:
    vae = Known()
    vae.log_variance = 0.0
    drawn = triples(vae, torch.zeros(2000, 3))[0].flatten().double().numpy()
    assert stats.kstest(drawn, stats.norm(0, 1).cdf).pvalue > 0.01


def test_code_noise_is_laplace_of_the_printed_scale() -> None:
    """c is 4 in this tier; with hardly any noise a code is itself over its own largest entry."""
    pixels = torch.tensor([[0.1, 0.2, 0.4], [0.9, 0.3, 0.0]])
    silent = triples(Known(), pixels, code_epsilon="1e4")[0]
    assert torch.allclose(silent, torch.tensor([[0.25, 0.5, 1.0], [1.0, 1 / 3, 0.0]]), atol=0.02)
    noise = triples(Known(), torch.full((3000, 3), 0.5), code_epsilon="0.01")[0].flatten().double().numpy()
    assert stats.kstest(noise, stats.laplace(0, 800).cdf).pvalue > 0.01
    for wrong in (1 / 2, 1 / 1.2, 1.2, 2):
        assert stats.kstest(noise, stats.laplace(0, 800 * wrong).cdf).pvalue < 1e-6, wrong


# The student


def test_learn_student_descends_equation_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """E_s by the network in training mode and the label of each image; E_u, of other rows, in evaluation mode."""
    modes: list[bool] = []
    asked, labels = torch.rand(CLASSES, *SHAPE, generator=rng(1)), torch.eye(CLASSES)
    others = torch.rand(3, 9, *SHAPE, generator=rng(2))
    phi_s = nets.build("datalens", SHAPE, CLASSES)
    phi_s.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    terms: list[Tensor] = []
    cross_entropy, energy = F.cross_entropy, Dgd.unsupervised_energy

    def supervised(logits: Tensor, targets: Tensor) -> Tensor:
        terms.append(cross_entropy(logits, targets))
        pairs.append(targets)
        return terms[-1]

    def unsupervised(self: Dgd, phi_s: Any, triples: Tensor) -> Tensor:
        terms.append(energy(self, phi_s, triples))
        return terms[-1]

    def stepped(_: Any, loss: Tensor) -> None:
        assert float(loss.detach()) == pytest.approx(float(terms[-2] + terms[-1]), rel=1e-6)

    pairs: list[Tensor] = []
    phi_s.register_forward_pre_hook(lambda _, x: shown.append(x[0]))
    shown: list[Tensor] = []
    monkeypatch.setattr(dgd.F, "cross_entropy", supervised)
    monkeypatch.setattr(Dgd, "unsupervised_energy", unsupervised)
    monkeypatch.setattr(dgd, "descend", stepped)
    printed(steps="2").learn_student(phi_s, asked, labels, others, rng(), context(), nothing)
    assert modes[0] and not any(modes[1 : len(modes) // 2]) and modes[len(modes) // 2]
    assert torch.equal(asked[pairs[0].argmax(1)], shown[0])


# The working variant


def test_working_training_sizes() -> None:
    """300 steps and one for every 15 queries; teachers of section III-C on small moved batches; early as given."""
    plan = VotePlan(Aggregation("gaussian", 1.0), 150, 150, 3)
    method = learning(student_steps="0", early="0.7")
    assert method.training(plan).steps == 310 and method.training(plan).early == 0.7
    shards = DgdWorking().shards("resnet18", "mnist")
    assert (shards.batch, shards.lr, shards.shift) == (16, 0.003, 1)


@pytest.mark.parametrize("method", [printed(teachers="7"), learning(teachers="7")])
def test_label_uses_the_actual_number_of_teachers(method: Dgd | DgdWorking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of the seven requested ones had data."""
    told: list[int] = []
    label = type(method).label

    def watched(self: Any, plan: VotePlan, *rest: Any) -> Tensor:
        told.append(plan.teachers)
        return label(self, plan, *rest)

    monkeypatch.setattr(type(method), "label", watched)
    convert(method, teacher())
    assert set(told) == {3}
