"""GS-WGAN step by step: the critic's loss, the generator's gradient, averages, the networks by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.gs_wgan import gs_wgan
from baselines.gs_wgan.gs_wgan import Critic, GsWgan
from baselines.gs_wgan.networks import Block, ProjectionCritic, pixel_norm
from bench.dp_training.synthetic_data import Synthesis
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

SMALL = GsWgan(
    mode="certified", steps=6, critics=3, critic_steps=1, batch=4, width=2, critic_width=2, warm=0, latent=4, sigma=1.0
)


def synthesise(method: GsWgan) -> Synthesis:
    torch.manual_seed(0)
    return method.synthesise(*toy_private(), toy_teacher(), Budget(None, solve="none"), context())


def weights(made: Synthesis) -> Tensor:
    assert made.generator is not None
    return torch.cat([value.detach().flatten() for value in made.generator.state_dict().values()])


class Bright(nn.Module):
    """A critic that adds brightness and label."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.weight * (x.mean((1, 2, 3)) + y)


def shades(z: Tensor, y: Tensor) -> Tensor:
    """A generator of one shade for each label."""
    return (0.5 + 0.1 * y)[:, None, None, None].expand(-1, *SHAPE)


def learning(
    monkeypatch: pytest.MonkeyPatch, records: int, steps: int, batch: int
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Losses of a critic on single-shade records, number i of shade i / 100, and the batches that it distinguished."""
    losses: list[Tensor] = []
    between: list[tuple[Tensor, Tensor]] = []

    def penalty(critic: Any, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
        between.append((real, fake))
        return torch.tensor(0.25)

    monkeypatch.setattr(gs_wgan, "gradient_penalty", penalty)
    monkeypatch.setattr(gs_wgan, "descend", lambda optimiser, loss: losses.append(loss.detach()))
    images = (torch.arange(records) / 100)[:, None, None, None].expand(-1, *SHAPE)
    critic = Critic(
        replace(SMALL, batch=batch),
        Bright(),
        (images, torch.arange(records) % CLASSES),
        torch.Generator().manual_seed(0),
    )
    for _ in range(steps):
        critic.learn(shades)  # type: ignore[arg-type]
    return losses, between


def test_critic_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """mean f(x~, y) - mean f(x, y) + lambda / 4 + 0.001 mean f(x, y)^2, lambda = 10; x~ are of the records' labels."""
    (loss,), ((real, fake),) = learning(monkeypatch, records=8, steps=1, batch=6)
    shade = real[:, 0, 0, 0]
    y = (100 * shade).round() % CLASSES
    assert len(y) == 6 and len(y.unique()) > 1
    torch.testing.assert_close(fake[:, 0, 0, 0], 0.5 + 0.1 * y)
    of_real, of_fake = shade + y, 0.5 + 0.1 * y + y
    expected = of_fake.mean() - of_real.mean() + 10 * 0.25 + 0.001 * of_real.square().mean()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_critic_draws_from_all_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    _, between = learning(monkeypatch, records=12, steps=40, batch=4)
    assert len(torch.cat([real[:, 0, 0, 0] for real, _ in between]).unique()) == 12


def test_records_keep_labels_and_critics_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three critics is made once, for all of its turns, of records with the labels that they came with."""
    used: dict[int, set[int]] = {}
    made: list[Critic] = []
    critic, init = gs_wgan.Training.critic, Critic.__init__

    def recorded(self: Critic, *given: Any) -> None:
        init(self, *given)
        made.append(self)

    def spy(self: Any, k: int) -> Critic:
        found = critic(self, k)
        used.setdefault(k, set()).add(id(found))
        return found

    monkeypatch.setattr(Critic, "__init__", recorded)
    monkeypatch.setattr(gs_wgan.Training, "critic", spy)
    synthesise(SMALL)
    assert len(made) == 3 and all(len(each) == 1 for each in used.values())
    images, labels = toy_private()
    label_of = {image.numpy().tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    for each in made:
        pixels = (each.images * 255).round().to(torch.uint8)
        assert [label_of[image.numpy().tobytes()] for image in pixels] == each.labels.tolist()


def test_generator_descends_sanitised_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loss is (1 / B) sum_i <x~_i, g_i>, whose gradient in theta is (1 / B) sum_i J_i^T g_i."""
    losses: list[float] = []
    made: list[Tensor] = []
    labels: list[Tensor] = []

    def gradients(self: Critic, images: Tensor, y: Tensor) -> Tensor:
        made.append(images.detach())
        labels.append(y)
        return torch.zeros_like(images)

    monkeypatch.setattr(Critic, "learn", lambda critic, generator: None)
    monkeypatch.setattr(Critic, "gradients", gradients)
    monkeypatch.setattr(gs_wgan, "sanitise", lambda found, *given: torch.full_like(found, 0.5))
    monkeypatch.setattr(gs_wgan, "descend", lambda optimiser, loss: losses.append(float(loss.detach())))
    synthesise(replace(SMALL, steps=12))
    assert losses == pytest.approx([0.5 * float(x.sum()) / 4 for x in made], rel=1e-5)
    assert torch.cat(labels).unique().tolist() == list(range(CLASSES))


def test_average_begins_after_the_first_step() -> None:
    """After one step the average is that step's weights, after two steps it differs from the last ones."""
    for steps, same in ((1, True), (2, False)):
        averaged, last = (weights(synthesise(replace(SMALL, steps=steps, average=decay))) for decay in (0.5, 0.0))
        assert torch.allclose(averaged, last, atol=1e-6) == same


def test_critic_projection_by_hand() -> None:
    """w h(x) + <embedding of y, h(x)>."""
    torch.manual_seed(0)
    critic, x, y = ProjectionCritic(SHAPE, CLASSES, 2).eval(), torch.rand(3, *SHAPE), torch.tensor([2, 0, 3])
    h = x
    for layer in critic.layers:
        h = F.relu(layer(h))
    h = h.flatten(1)
    pairs = zip(critic.plain(h)[:, 0], critic.of_label(y), h, strict=True)
    expected = torch.stack([plain + of_label @ row for plain, of_label, row in pairs])
    torch.testing.assert_close(critic(x, y), expected)


def test_block_shortcut_keeps_its_scale() -> None:
    """Ten times the map: the inner path is normalised and stays, the path around it is ten times as large."""
    torch.manual_seed(0)
    block, x = Block(4).eval(), torch.randn(2, 4, 5, 5)

    def doubled(of: Tensor) -> Tensor:
        return of.repeat_interleave(2, 2).repeat_interleave(2, 3)

    inner = block.second(F.relu(pixel_norm(block.first(doubled(pixel_norm(x))))))
    for size in (1.0, 10.0):
        torch.testing.assert_close(block(size * x), inner + block.around(doubled(size * x)), rtol=1e-4, atol=1e-5)
