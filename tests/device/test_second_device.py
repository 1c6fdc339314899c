"""The second device itself: its refusals and counts, and that its results equal those of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from second_device import NAME, Generator, SecondDevice, register
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this release of torch has no devices in Python",
)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch, "Generator", Generator)
    return register()


@pytest.fixture
def on(device: torch.device) -> Iterator[SecondDevice]:
    with SecondDevice(ROOT) as mode:
        yield mode


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    return nn.Sequential(*layers)


def trained(place: torch.device) -> tuple[list[Tensor], Tensor]:
    model, rng = network().to(place), torch.Generator("cpu").manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(5):
        images, labels = torch.rand(6, 1, 8, 8, generator=rng), torch.randint(0, 3, (6,), generator=rng)
        loss = F.cross_entropy(model(images.to(place)), labels.to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [weight.detach().cpu() for weight in model.state_dict().values()], loss.detach().cpu()


def test_training_on_it_gives_the_weights_of_the_cpu(on: SecondDevice, device: torch.device) -> None:
    (here, loss), (there, other) = trained(torch.device("cpu")), trained(device)
    assert torch.equal(loss, other) and all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_a_planted_tensor_of_the_host_in_a_loss_is_refused(on: SecondDevice, device: torch.device) -> None:
    scores = torch.ones(2, 3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="same device"):
        (scores * torch.ones(3)).sum()
    with pytest.raises(RuntimeError, match="same device"):
        F.cross_entropy(scores, torch.tensor([0, 1]))
    (scores * torch.tensor(2.0)).sum().backward()
    assert scores.grad is not None and scores.grad.device.type == NAME


def test_a_generator_draws_on_its_own_device_alone(on: SecondDevice, device: torch.device) -> None:
    for place, other in (("cpu", device), (device, "cpu")):
        rng = torch.Generator(place).manual_seed(0)
        assert torch.randn(3, generator=rng, device=place).device.type == torch.device(place).type
        with pytest.raises(RuntimeError):
            torch.randn(3, generator=rng, device=other)


def test_it_counts_what_a_host_waits_for(on: SecondDevice, device: torch.device) -> None:
    values = torch.arange(6.0, device=device)
    for wait in (
        lambda: float(values[2]),
        lambda: bool(values.sum() > 1),
        lambda: values.tolist(),
        lambda: values.cpu(),
        lambda: values.nonzero(),
        lambda: values[values > 2],
        lambda: torch.zeros(6).copy_(values),
    ):
        before = on.waits.total()
        wait()
        assert on.waits.total() == before + 1
    before = on.waits.total()
    values[torch.tensor([0, 1])], values[values.argsort()], torch.where(values > 2, values, 0.0), values.sum() + 1
    assert on.waits.total() == before


def test_it_counts_what_is_sent_to_it(on: SecondDevice, device: torch.device) -> None:
    torch.ones(3).to(device), torch.tensor([1, 2], device=device), torch.zeros(3, device=device).copy_(torch.ones(3))
    assert on.transfers.total() == 3
    torch.zeros(3, device=device).to(device), torch.rand(3, generator=torch.Generator(device), device=device)
    assert on.transfers.total() == 3 and not on.waits


def test_autocast_computes_in_bfloat16(on: SecondDevice, device: torch.device) -> None:
    model = network().to(device)
    with torch.autocast(NAME, torch.bfloat16):
        assert model(torch.rand(2, 1, 8, 8, device=device)).dtype == torch.bfloat16
    assert model(torch.rand(2, 1, 8, 8, device=device)).dtype == torch.float32


def test_per_sample_gradients_pass_through_it(on: SecondDevice, device: torch.device) -> None:
    model = nn.Linear(4, 3).to(device)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(given: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, given, (x[None],)), y[None])

    x, y = torch.rand(5, 4, device=device), torch.tensor([0, 1, 2, 0, 1], device=device)
    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
    assert found["weight"].shape == (5, 3, 4) and found["weight"].device.type == NAME


def test_outside_of_it_its_tensors_are_of_no_use(device: torch.device) -> None:
    with SecondDevice(ROOT):
        values = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match="outside of"):
        values + 1
