from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from inversion_made import Quadrants
from torch import Tensor, nn

from attacks.ami import ami, decoder
from attacks.ami.ami import Ami, encode
from attacks.ami.decoder import Decoder, build_decoder, decode, train_decoder
from bench.api import AccessDenied, AttackResult, Target
from bench.testing import context, toy_images

SHAPE = (1, 16, 16)
TINY: dict[str, Any] = {"width": 4, "epochs": 3, "decoder_batch": 16}
AUX = toy_images(64, 1)
VICTIMS = toy_images(6, 2)


def attack(seed: int = 0, victims: Tensor = VICTIMS, aux: Tensor = AUX, **changes: Any) -> tuple[AttackResult, Target]:
    target = Target(Quadrants(), "scores", SHAPE, 4, victims)
    return Ami(**{**TINY, **changes}).run(target, aux, context(seed)), target


def test_encoding_by_hand() -> None:
    p = torch.tensor([[0.7, 0.1, 0.2], [0.0, 1.0, 0.0]])
    full = encode(p, 3, -1000.0, 50.0)
    torch.testing.assert_close(full[0], torch.tensor([0.7, 0.1, 0.2]).log() + 50)
    assert full[1].tolist() == [0.0, 1000.0, 0.0]
    two = encode(p[:1], 2, -1000.0, 50.0)[0]
    torch.testing.assert_close(two, torch.tensor([math.log(0.7) + 50, 0.0, math.log(0.2) + 50]))
    raised = encode(p[:1], 2, -1000.0, 1.0)[0]
    torch.testing.assert_close(raised, torch.tensor([math.log(0.7 / 0.2), 0.0, 0.0]))
    one = encode(torch.tensor([[1e-3, 0.2, 0.799]]), 1, -5.0, 0.0)
    assert one.tolist() == [[0.0, 0.0, 0.0]]


def test_encode_inverts_softmax_up_to_a_constant() -> None:
    logits = 30 * torch.randn(200, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    encoded = encode(logits.softmax(1), 10, -1000.0, 50.0)
    assert encoded.min() >= 0
    shift = encoded - logits
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=1e-6)
    for keep in range(1, 11):
        kept = encode(logits.softmax(1), keep, -1000.0, 50.0)
        assert (kept > 0).sum(1).max() <= keep and kept.isfinite().all()
        assert torch.equal(kept.argmax(1), logits.argmax(1))


SIZES = {(1, 16, 16): [8, 4, 1], (1, 28, 28): [8, 4, 1], (3, 32, 32): [16, 8, 4, 3], (3, 64, 64): [32, 16, 8, 4, 3]}


@pytest.mark.parametrize(("shape", "channels"), SIZES.items())
def test_decoder_supports_all_sizes(shape: tuple[int, int, int], channels: list[int]) -> None:
    decoder = Decoder(10, shape, 4)
    grown = [layer.out_channels for layer in decoder.modules() if isinstance(layer, nn.ConvTranspose2d)]
    assert grown == channels
    images = decoder(50 * torch.rand(3, 10))
    assert images.shape == (3, *shape) and images.min() >= 0 and images.max() <= 1


def test_build_decoder_depends_only_on_the_seed() -> None:
    torch.manual_seed(0)
    first, state = build_decoder(4, SHAPE, 4, 7), torch.get_rng_state()
    torch.rand(3)
    again, other = build_decoder(4, SHAPE, 4, 7), build_decoder(4, SHAPE, 4, 8)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs) and not all(torch.equal(a, c) for a, _, c in pairs)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


def train(decoder: nn.Module, pairs: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], epochs: int) -> None:
    rng = torch.Generator().manual_seed(0)
    train_decoder(decoder, pairs, held, epochs=epochs, batch=16, lr=0.05, rng=rng, advance=lambda n: None)


def encoded(images: Tensor) -> tuple[Tensor, Tensor]:
    return encode(Quadrants()(images).softmax(1), 4, -1000.0, 50.0), images


NONE_HELD = torch.zeros(0, 4), torch.zeros(0, *SHAPE)


def test_train_decoder_keeps_the_best_held_out_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A much too large step size makes the errors jump."""
    errors: list[float] = []
    decode = decoder.decode

    def watched(decoder: nn.Module, vectors: Tensor) -> Tensor:
        made = decode(decoder, vectors)
        errors.append(float((made - VICTIMS).square().mean()))
        return made

    monkeypatch.setattr(decoder, "decode", watched)
    built, held = build_decoder(4, SHAPE, 4, 0), encoded(VICTIMS)
    train(built, encoded(AUX), held, 12)
    kept = float((decode(built, held[0]) - VICTIMS).square().mean())
    assert len(errors) == 12 and errors.index(min(errors)) < 11
    assert kept == pytest.approx(min(errors), abs=1e-7)
    assert not built.training


class Shade(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shade = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, vectors: Tensor) -> Tensor:
        return self.shade.expand(len(vectors), *SHAPE)


def test_train_decoder_uses_amsgrad() -> None:
    """Adam with AMSGrad by hand: the gradient is largest at first, and steps stay divided by that."""
    shade = mean = square = largest = 0.0
    for step in range(1, 41):
        gradient = 2 * (shade - 0.5)
        mean, square = 0.5 * mean + 0.5 * gradient, 0.999 * square + 0.001 * gradient**2
        largest = max(largest, square)
        shade -= 0.05 * mean / (1 - 0.5**step) / ((largest / (1 - 0.999**step)) ** 0.5 + 1e-8)
    decoder = Shade()
    train(decoder, (torch.zeros(4, 4), torch.full((4, *SHAPE), 0.5, dtype=torch.float64)), NONE_HELD, 40)
    assert decoder.shade.item() == pytest.approx(shade, abs=1e-9)


def test_train_decoder_without_held_out_images_keeps_last() -> None:
    one, two = build_decoder(4, SHAPE, 4, 0), build_decoder(4, SHAPE, 4, 0)
    train(one, encoded(AUX), NONE_HELD, 3)
    train(two, encoded(AUX), NONE_HELD, 4)
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


def test_decode_is_independent_per_vector() -> None:
    decoder = build_decoder(4, SHAPE, 4, 0).eval()
    vectors = torch.rand(5, 4)
    torch.testing.assert_close(decode(decoder, vectors[2:3]), decode(decoder, vectors)[2:3])


def test_attack_reconstructs_every_victim_per_draw() -> None:
    found, _ = attack(draws=2)
    assert found.victims is not None and found.victims.tolist() == [*range(6), *range(6)]
    assert found.draws.tolist() == [0] * 6 + [1] * 6
    assert found.targets.tolist() == Quadrants()(VICTIMS).argmax(1).tolist() * 2
    assert not torch.equal(found.images[:6], found.images[6:])


def test_attack_uses_responses_not_victims() -> None:
    """Other victims with the same answers: the quadrants of each image are turned about, their means stay."""
    turned = VICTIMS.view(-1, 1, 2, 8, 2, 8).flip(3, 5).reshape(VICTIMS.shape)
    assert not torch.equal(turned, VICTIMS)
    torch.testing.assert_close(attack(victims=turned)[0].images, attack()[0].images, rtol=0, atol=1e-4)


def test_attack_does_not_train_on_victims_responses() -> None:
    """The decoder does not depend on the other victims: no epoch is selected on them."""
    others = torch.cat([VICTIMS[:2], torch.rand(20, *SHAPE)])
    torch.testing.assert_close(attack(victims=others)[0].images[:2], attack()[0].images[:2], rtol=0, atol=1e-5)


def test_truncation_removes_small_confidences() -> None:
    base = VICTIMS[:1].expand(2, -1, -1, -1).clone()
    base[1, 0, 8:, 8:] += 0.1
    answers = Quadrants()(base).softmax(1)
    assert answers.argmax(1).tolist() == [0, 0] and (answers[0] - answers[1]).abs().max() > 0
    whole = attack(victims=base)[0].images
    assert (whole[0] - whole[1]).abs().max() > 1e-4
    top, _ = attack(victims=base, truncate=1, shift=0.0)
    assert torch.equal(top.images[0], top.images[1])


@pytest.mark.thorough
def test_decoder_learns_to_invert() -> None:
    victims = toy_images(20, 9)
    found, _ = attack(victims=victims, aux=toy_images(160, 4), epochs=60, decoder_batch=16, lr=5e-3, width=8)
    error = (found.images - victims).square().mean()
    constant = (victims.mean(0) - victims).square().mean()
    assert error < 0.25 * constant
    rolled = (found.images - victims.roll(1, 0)).square().mean()
    assert rolled > 4 * error


def test_passes_respect_max_steps() -> None:
    assert Ami().passes(60_000) == 100
    limited = Ami(epochs=50, max_steps=2000, decoder_batch=32)
    assert [limited.passes(used) for used in (215, 9000, 9001, 10**6)] == [50, 7, 7, 1]
    assert limited.passes(32 * 200) == 10 and limited.passes(32 * 200 + 1) == 9


@pytest.mark.parametrize(("share", "held"), [(0.0, 0), (0.1, 7), (0.5, 32)])
def test_holdout_splits_the_auxiliary_images(share: float, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def spy(decoder: nn.Module, pairs: Any, held_out: Any, **rest: Any) -> None:
        both = torch.cat([pairs[1], held_out[1]]).flatten(1)
        assert len(both.unique(dim=0)) == len(AUX)
        for vectors, images in (pairs, held_out):
            torch.testing.assert_close(vectors, encoded(images)[0])
        sizes.append((len(pairs[0]), len(held_out[0])))
        decoder.eval()

    monkeypatch.setattr(ami, "train_decoder", spy)
    attack(holdout=share)
    assert sizes == [(64 - held, held)]


@pytest.mark.parametrize(
    "make", [lambda: Target(Quadrants(), "scores", SHAPE, 4), lambda: Target(Quadrants(), "label", SHAPE, 4, VICTIMS)]
)
def test_attack_without_scores_or_victims_is_denied(make: Callable[[], Target]) -> None:
    with pytest.raises(AccessDenied):
        Ami(**TINY).run(make(), AUX, context())
