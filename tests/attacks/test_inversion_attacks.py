"""All inversion attacks: the papers' settings, refused options, skip reasons, access, results, seeds and queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from attacks.ami.ami import Ami
from attacks.brep_mi import BrepMi
from attacks.dafl import Dafl
from attacks.deepinversion.deepinversion import DeepInversion
from attacks.eigen_gan import EigenGan
from attacks.gmi import Gmi
from attacks.if_gmi import IfGmi
from attacks.ked_mi.ked_mi import KedMi
from attacks.lokt import Lokt
from attacks.lomma import Lomma
from attacks.mi_face.mi_face import MiFace
from attacks.pca_mi import PcaMi
from attacks.plg_mi import PlgMi
from attacks.ppa import Ppa
from attacks.random_guess import RandomGuess
from attacks.rlb_mi.rlb_mi import RlbMi
from attacks.vmi.vmi import Vmi
from bench.api import Access, AccessDenied, AttackResult, Context, Target
from bench.config import TIERS, configure
from bench.errors import BenchError
from bench.testing import CLASSES, SHAPE, context, toy_aux, toy_images, toy_teacher

PAPERS: dict[type[Any], dict[str, float | str]] = {
    Ami: {"shift": 50, "floor": -1000, "epochs": 100, "decoder_batch": 128, "lr": 2e-4, "width": 128}
    | {"truncate": 0, "draws": 1, "max_steps": 0},
    BrepMi: {"sphere_points": 32, "radius": 2, "growth": 1.3, "inside": 0.875, "max_step": 3, "latent_clip": 1.5}
    | {"patience": 1000, "start_batch": 256},
    Dafl: {"steps": 24_000, "gen_batch": 512, "lr": 0.2, "latent": 100, "one_hot": 1, "activation": 0.1, "balance": 5}
    | {"log": "log10"},
    DeepInversion: {"iterations": 2000, "lr": 0.05, "bn_weight": 10, "tv_weight": 2.5e-5, "l2_weight": 0, "jitter": 2}
    | {"first_bn": 1, "bn_batch": 256},
    Gmi: {"iterations": 1500, "lr": 0.01, "momentum": 0.9, "identity_weight": 100, "ref_batch": 5, "gan_lr": 2e-4}
    | {"gan_batch": 64, "n_critic": 5, "penalty": 10, "latent": 100},
    KedMi: {"gan_lr": 2e-4, "gan_batch": 64, "n_critic": 5, "entropy_weight": 1e-4, "kernels": 64, "kernel_length": 50}
    | {"latent": 100, "iterations": 2400, "lr": 0.02, "identity_weight": 100, "initial_logvar": 1},
    Lokt: {"warm_up": 1000, "iterations": 19_000, "n_critic": 5, "class_weight": 1.5, "gan_batch": 128, "gan_lr": 2e-4}
    | {"latent": 128, "surrogate_images": 500, "surrogate_lr": 0.1, "steps": 600, "lr": 0.1, "draws": 5},
    Lomma: {"iterations": 2400, "lr": 0.02, "identity_weight": 100, "reg_weight": 1, "latent_clip": 1}
    | {"reg_images": 5000, "student_lr": 0.01, "ref_batch": 60, "students": "datalens,dgd-cnn,shard-cnn"},
    MiFace: {"iterations": 5000, "patience": 100, "gamma": 0.99, "lr": 0.1, "loss": "probability", "process": "clip"}
    | {"start": "zero", "draws": 1, "images_per_class": 1},
    PlgMi: {"top_n": 30, "gan_lr": 2e-4, "gan_batch": 64, "margin_weight": 0.2, "latent": 128, "gan_steps": 150_000}
    | {"n_critic": 5, "iterations": 600, "lr": 0.1, "crop": 0.8, "rotation": 5, "jitter": 0.2, "mirror": False},
    IfGmi: {"latents": 5000, "candidates_per_class": 50, "steps": 70, "lr": 0.005, "layer_steps": 25, "layers": 4}
    | {"transformations": 100, "images_per_class": 50, "draws": 1, "centred": False, "mirror": "always"},
    Ppa: {"latents": 5000, "candidates_per_class": 200, "steps": 70, "lr": 0.005, "transformations": 100}
    | {"images_per_class": 50, "draws": 1, "centred": False, "mirror": "always"},
    RlbMi: {"episodes": 40_000, "episode_steps": 1, "alpha": 0, "state_weight": 2, "action_weight": 2}
    | {"margin_weight": 8, "hidden": 256, "sac_lr": 5e-4, "sac_batch": 256, "discount": 0.99, "tau": 0.01}
    | {"memory": 1_000_000},
    Vmi: {"optimiser": "sgd", "lr": 1e-4, "kl_weight": 1e-3, "samples": 64, "iterations": 4836, "hidden": 100}
    | {"label_smoothing": 0},
}
"""Settings of the papers or of their authors' code."""

REFUSED: dict[type[Any], str] = {
    Ami: "truncate=-1 holdout=0.6 epochs=0 lr=0 floor=0",
    BrepMi: "growth=1 radius=0 inside=1 query_cap=32 start_cap=255 patience=0",
    Dafl: "steps=0 gen_batch=1 lr=0 balance=-1 pool=19 log=e",
    DeepInversion: "iterations=0 lr=0 pixel_std=-1 jitter=-1 bn_weight=-2",
    EigenGan: "gan_batch=1 redraw=-1",
    Gmi: "draws=0 lr=0 latent_clip=-1 momentum=1 penalty=-1 ref_batch=0 gan_batch=1",
    KedMi: "gan_batch=1 draws=0 lr=0 latent_clip=-1 entropy_weight=-1",
    Lokt: "surrogates=shard-cnn,no-such-net surrogate_batch=1 gan_batch=1 warm_up=-1 iterations=0 class_weight=-1 lr=0",
    Lomma: "students=shard-cnn,no-such-net students= student_batch=1 student_steps=0 lr=0 reg_weight=-1 momentum=1",
    MiFace: "iterations=0 patience=0 gamma=0 gamma=1.01 lr=0 draws=2",
    PcaMi: "images=2",
    PlgMi: "top_n=0 crop=0 crop=1.1 jitter=2 lr=0 rotation=-1",
    IfGmi: "latents=49 candidates_per_class=49 steps=0 lr=0 layer_steps=0 layers=-1 radius=-0.1",
    Ppa: "latents=199 candidates_per_class=49 steps=0 lr=0 transformations=0 images_per_class=0 mirror=no",
    RandomGuess: "draws=0",
    RlbMi: "episodes=19 alpha=1 sac_lr=0 memory=255 tau=0 margin_weight=-1",
    Vmi: "samples=0 lr=0 kl_weight=-1 label_smoothing=1 family=cauchy latent=1",
}
"""Options out of range."""

SMALL, ODD = (1, 16, 16), (1, 30, 30)
SKIPPED: list[tuple[Any, tuple[int, int, int], int, str]] = [
    (Ami(truncate=3), ODD, 99, "30x30"),
    (Ami(truncate=3), SMALL, 15, "16"),
    (Ami(truncate=11), SMALL, 99, "11"),
    (Dafl(), ODD, 1000, "30x30"),
    (EigenGan(), (1, 8, 12), 1000, "8x12"),
    (EigenGan(), (1, 8, 8), 100, "128"),
    (Gmi(), ODD, 1000, "30x30"),
    (Gmi(), (3, 224, 224), 1000, "224x224"),
    (Gmi(), (1, 28, 28), 127, "128"),
    (KedMi(), ODD, 1000, "30x30"),
    (KedMi(), (1, 28, 28), 127, "128"),
    (Lokt(), ODD, 1000, "30x30"),
    (Lokt(), SMALL, 255, "256"),
    (Lokt(surrogates="datalens"), (1, 8, 8), 1000, "datalens"),
    (Lomma(), ODD, 239, "30x30"),
    (Lomma(), SMALL, 127, "128"),
    (Lomma(), (1, 8, 8), 1000, "datalens"),
    (MiFace(start="aux"), SMALL, 0, "start"),
    (PcaMi(), SMALL, 2, "2"),
    (PlgMi(), ODD, 1000, "30x30"),
    (PlgMi(), SMALL, 29, "30"),
    (IfGmi(), ODD, 1000, "30x30"),
    (Ppa(), ODD, 1000, "30x30"),
    (Ppa(), (1, 28, 28), 127, "128"),
    (RandomGuess(), SMALL, 0, "0"),
    (Vmi(), ODD, 239, "30x30"),
]
"""Attack, image shape, number of auxiliary images; a value in the reason."""
POSSIBLE: list[tuple[Any, int]] = [
    (Ami(truncate=3), 16),
    (Dafl(), 0),
    (EigenGan(), 128),
    (KedMi(), 128),
    (MiFace(), 0),
    (MiFace(start="aux-mean"), 1),
    (PcaMi(), 3),
    (PlgMi(), 30),
]
"""Attack and the smallest number of auxiliary images that it needs."""

QUERIES: dict[type[Any], Callable[[Any, int], int]] = {
    Ami: lambda a, n: 64,
    Dafl: lambda a, n: a.draws * (a.steps * a.gen_batch + a.pool),
    DeepInversion: lambda a, n: n * a.iterations,
    EigenGan: lambda a, n: n * a.steps,
    Gmi: lambda a, n: n * (a.iterations + 1),
    KedMi: lambda a, n: 64 + a.draws * CLASSES * a.iterations,
    Lokt: lambda a, n: a.iterations * a.n_critic * a.gan_batch + CLASSES * a.surrogate_images,
    Lomma: lambda a, n: 2 * 64 + n * a.iterations,
    MiFace: lambda a, n: n * (a.iterations + 1),
    PcaMi: lambda a, n: n * a.steps,
    PlgMi: lambda a, n: 64 + a.gan_batch * (a.gan_steps // a.n_critic) + 2 * n * a.iterations,
    IfGmi: lambda a, n: (
        a.draws * (a.latents + CLASSES * a.candidates_per_class * (a.steps + 2 * a.layer_steps + 3 * a.transformations))
    ),
    Ppa: lambda a, n: a.draws * (a.latents + CLASSES * a.candidates_per_class * (a.steps + a.transformations)),
    RandomGuess: lambda a, n: 0,
    RlbMi: lambda a, n: 2 * a.episodes * a.draws * CLASSES,
    Vmi: lambda a, n: a.draws * CLASSES * a.samples * a.iterations,
}
"""Number of queries of an attack for n images, with 64 auxiliary images."""
ACCESS: dict[type[Any], Access] = {Ami: "label", RlbMi: "label"} | {
    cls: "scores" for cls in (Dafl, DeepInversion, EigenGan, Gmi, IfGmi, KedMi, Lomma, MiFace, PcaMi, PlgMi, Ppa, Vmi)
}
"""The strongest access that is not enough."""


def smoke(cls: type[Any], **changes: str) -> Any:
    return configure(cls, "smoke", changes, "attack")


def run(attack: Any, ctx: Context, access: Access = "weights") -> tuple[AttackResult, Target]:
    victims = toy_images(6) if attack.observes else None
    target = Target(toy_teacher().model, access, SHAPE, CLASSES, victims)
    return attack.run(target, toy_aux(), ctx), target


@pytest.mark.parametrize(("cls", "settings"), PAPERS.items())
def test_attack_defaults_are_the_papers(cls: type[Any], settings: Mapping[str, float | str]) -> None:
    assert {name: getattr(cls(), name) for name in settings} == settings


@pytest.mark.parametrize(("cls", "option"), [(cls, option) for cls in REFUSED for option in REFUSED[cls].split()])
def test_option_out_of_range_is_refused(cls: type[Any], option: str) -> None:
    name, text = option.split("=")
    with pytest.raises(BenchError, match=name):
        configure(cls, "paper", {name: text}, "attack", "printed")


@pytest.mark.parametrize(("attack", "shape", "aux", "value"), SKIPPED)
def test_impossible_input_has_a_skip_reason(attack: Any, shape: tuple[int, int, int], aux: int, value: str) -> None:
    assert value in (attack.skip_reason(shape, 10, aux) or "")


@pytest.mark.parametrize(("attack", "aux"), POSSIBLE)
def test_enough_images_have_no_skip_reason(attack: Any, aux: int) -> None:
    assert attack.skip_reason(SMALL, 10, aux) is None


@pytest.mark.parametrize("cls", [Dafl, Gmi, Lomma, Vmi])
@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_supports_the_usual_sizes(cls: type[Any], tier: str) -> None:
    attack = configure(cls, tier, {}, "attack")
    for shape in (SMALL, (1, 28, 28), (3, 32, 32)):
        assert attack.skip_reason(shape, 10, 239) is None


@pytest.mark.parametrize(("cls", "access"), ACCESS.items())
def test_insufficient_access_is_denied(cls: type[Any], access: Access) -> None:
    with pytest.raises(AccessDenied):
        run(smoke(cls), context(), access)


@pytest.mark.parametrize("cls", QUERIES)
def test_result_has_all_cells_and_queries_are_counted(cls: type[Any]) -> None:
    attack = smoke(cls)
    found, target = run(attack, context())
    cells = CLASSES * getattr(attack, "images_per_class", 1) if found.victims is None else 6
    assert found.images.shape == (attack.draws * cells, *SHAPE) and found.images.dtype == torch.float32
    assert not found.images.requires_grad and 0 <= found.images.min() <= found.images.max() <= 1
    assert found.draws.bincount().tolist() == [cells] * attack.draws
    if found.victims is None:
        assert (found.draws * CLASSES + found.targets).bincount().unique().tolist() == [cells // CLASSES]
    assert target.queries == QUERIES[cls](attack, len(found.images))


@pytest.mark.parametrize(
    "cls", [Ami, BrepMi, Dafl, DeepInversion, Gmi, IfGmi, KedMi, Lokt, Lomma, MiFace, PlgMi, Ppa, RlbMi, Vmi]
)
def test_seeds_repeat_and_differ(cls: type[Any]) -> None:
    torch.manual_seed(0)
    images = []
    for seed in (0, 0, 1):
        torch.rand(1)  # torch's global generator has no effect
        images.append(run(smoke(cls), context(seed))[0].images)
    assert torch.equal(images[0], images[1]) and not torch.equal(images[0], images[2])


@pytest.mark.parametrize("cls", [EigenGan, Gmi, IfGmi, KedMi, Lokt, MiFace, PlgMi, Ppa])
def test_autocast_gives_finite_float32_images(cls: type[Any]) -> None:
    found, _ = run(smoke(cls), replace(context(), autocast=True))
    assert found.images.dtype == torch.float32 and found.images.isfinite().all()


@pytest.mark.parametrize("cls", [Gmi, Lomma])
def test_ref_batch_scales_the_steps(cls: type[Any]) -> None:
    one, other = (run(smoke(cls, ref_batch=size), context())[0].images for size in ("5", "24"))
    assert (one - other).abs().max() > 1e-4


def test_plain_gan_is_trained_once_for_all_attacks() -> None:
    ctx = context()
    for seed, cls in enumerate((Gmi, Lomma, Vmi, BrepMi, RlbMi, Ppa, IfGmi)):
        run(smoke(cls), replace(ctx, seed=seed))
    assert ctx.artifacts.made == ["gmi-gan"]  # type: ignore[attr-defined]
