"""Simulators of Sim-PE, the images of a user and of a folder, embeddings, and drawings from latents."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import baseline_runs as runs
import numpy as np
import pytest
import torch
from baseline_runs import FREE, refused, rng, synthesise
from conftest import toy_job
from PIL import Image
from torch import Tensor

from baselines.sim_pe import text
from baselines.sim_pe.public_images import read_images
from baselines.sim_pe.sim_pe import SimPe
from baselines.sim_pe.simulator import Drawings, Moved, NearestImages, Population, UserSimulator
from baselines.sim_pe.text import ANGLE, FONTS, SIZE, STROKE, DrawText
from baselines.sim_pe.voting import LARGEST, LEVELS, make_embedding, principal_axes
from bench import boards, priors
from bench.errors import BadData, BadOption, BadPlugin, BenchError, NotFound
from bench.pipeline import run
from bench.pipeline.job import run_spec
from bench.priors.drawn import LatentDraws, LatentPlan
from bench.privacy import Budget
from bench.testing import CLASSES, SHAPE, context, toy_private, toy_teacher

GREY = (1, 28, 28)


def smoke(**given: Any) -> SimPe:
    return runs.smoke(SimPe, **given)


def test_latent_drawings_have_the_priors_distribution() -> None:
    """Means and deviations of pixels of drawings, and of variations of drawings, against the prior's own."""
    for name in ("pen", "shapes", "noise", "faces"):
        prior = priors.load(name)
        simulator = Drawings.of(prior, GREY)
        first = simulator.random(600, rng())
        for found in (first.images, simulator.vary(first, 0.6, rng(1)).images):
            own = prior.draw(600, GREY, rng(2))
            error = (found.mean((1, 2, 3)).std() ** 2 + own.mean((1, 2, 3)).std() ** 2).sqrt() / math.sqrt(600)
            assert abs(float(found.mean() - own.mean())) < 4 * error, name
            assert float(found.std()) == pytest.approx(float(own.std()), rel=0.1), name


@pytest.mark.parametrize("name", ["pen", "shapes", "noise", "faces"])
def test_drawing_depends_on_its_latents_only(name: str) -> None:
    """Also if the image is drawn with fewer others or in another order."""
    prior = priors.load(name)
    plan = LatentPlan.of(prior, (3, 32, 32))
    latents = torch.randn(40, plan.width, generator=rng())

    def draw(rows: Tensor) -> Tensor:
        return prior.draw_from(LatentDraws(plan, latents[rows]), len(rows), (3, 32, 32))

    together = draw(torch.arange(40))
    assert float(together.min()) >= 0 and float(together.max()) <= 1
    order = torch.randperm(40, generator=rng(1))
    assert torch.allclose(draw(order), together[order], atol=1e-5)
    for count in (1, 2, 4):
        assert torch.allclose(draw(torch.arange(count)), together[:count], atol=1e-5)


@pytest.mark.parametrize("name", ["pen", "shapes"])
def test_variation_grows_with_the_degree(name: str) -> None:
    simulator = Drawings.of(priors.load(name), GREY)
    first = simulator.random(300, rng())
    moved = [
        float((simulator.vary(first, degree, rng(1)).images - first.images).flatten(1).norm(dim=1).median())
        for degree in (0.0, 0.05, 0.2, 1.0)
    ]
    assert moved[0] < 1e-4 < moved[1] < moved[2] < moved[3]
    other = simulator.random(300, rng(2)).images
    assert moved[3] < float((other - first.images).flatten(1).norm(dim=1).median())


def test_mixture_is_varied_by_small_affine_maps() -> None:
    found = smoke(api="drawings", prior="pen+shapes")._simulator(toy_teacher(), rng())
    assert isinstance(found, Moved)
    first = found.random(50, rng())
    assert torch.allclose(found.vary(first, 0.0, rng()).images, first.images, atol=1e-5)
    near, far = (found.vary(first, degree, rng(1)).images for degree in (0.05, 0.8))
    assert (near - first.images).norm() < (far - first.images).norm()
    assert float(far.min()) >= 0 and float(far.max()) <= 1


def test_text_starts_with_any_character_and_keeps_it() -> None:
    simulator = DrawText.of("0123456789", GREY)
    first = simulator.random(2000, rng())
    font, character, size, stroke, angle = first.parameters.unbind(1)
    assert character.unique().tolist() == list(range(10)) and font.unique().tolist() == list(range(len(FONTS)))
    assert (size.min(), size.max()) == SIZE and (stroke.min(), stroke.max()) == STROKE
    assert ANGLE[0] <= angle.min() < -25 and 25 < angle.max() <= ANGLE[1]
    assert (first.images.amax((1, 2, 3)) > 0.3).all(), "every image shows something"
    varied = simulator.vary(first, 1.0, rng(1))
    assert torch.equal(varied.parameters[:, 1], character)


@pytest.mark.parametrize(
    ("degree", "fonts", "size", "angle", "stroke"),
    [(1.0, 1.0, 6, 11.0, 1), (0.5, 0.5, 4, 7.0, 1), (0.0, 0.0, 2, 3.0, 0)],
)
def test_text_varies_by_the_papers_numbers(degree: float, fonts: float, size: int, angle: float, stroke: int) -> None:
    """Of its schedule: font probability, size, angle and stroke, in the first round, halfway, and the last one."""
    simulator = DrawText.of("0", GREY)
    start = torch.tensor([[3.0, 0.0, 20.0, 1.0, 0.0]]).expand(2000, -1)
    change = simulator.vary(Population(torch.zeros(2000, *GREY), start), degree, rng()).parameters - start
    share = float((change[:, 0] != 0).double().mean())
    assert share == pytest.approx(fonts * (1 - 1 / len(FONTS)), abs=0.04)
    assert change[:, 2].abs().max() == size and change[:, 3].abs().max() == stroke
    assert 0.95 * angle < change[:, 4].abs().max() <= angle


def test_text_grows_with_the_image() -> None:
    small, large = (text.render("8", text.find_fonts("8")[0], round(20 * s / 28), 1, 0.0, s, s) for s in (28, 56))
    assert (small > 0).mean() == pytest.approx((large > 0).mean(), abs=0.08)
    assert DrawText.of("8", (3, 32, 32)).random(2, rng()).images.shape == (2, 3, 32, 32)


def test_missing_fonts_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with refused("characters", BadOption):
        text.find_fonts("0 ")
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with refused("matplotlib", BadOption):
        smoke().check(Budget(1.0), "toy", CLASSES)
    monkeypatch.setattr("PIL.features.check", lambda _: False)
    with refused("FreeType", BadOption):
        smoke().check(Budget(1.0), "toy", CLASSES)
    smoke(api="drawings").check(Budget(1.0), "toy", CLASSES)


def test_nearest_images_are_public_ones() -> None:
    images = torch.arange(50.0).view(50, 1, 1, 1) / 50
    simulator = NearestImages(images, torch.arange(50.0)[:, None])
    first = simulator.random(500, rng())
    assert len(first.parameters.unique()) == 50 and torch.equal(first.images, images[first.parameters[:, 0]])
    for degree, m in ((0.0, 2), (0.5, 6), (1.0, 50)):
        varied = simulator.vary(first, degree, rng(1))
        moved = (varied.parameters - first.parameters).abs().flatten()
        assert len(moved.unique()) > m / 2 and (moved <= m // 2).double().mean() > 0.7
        assert int(moved.max()) <= m - 1, "at the ends of the line all nearest ones are on one side"
        assert torch.equal(varied.images, images[varied.parameters[:, 0]])


class Wrong:
    def __init__(self, made: Any) -> None:
        self.made = made

    def random(self, count: int, rng: torch.Generator) -> Any:
        return self.made

    def vary(self, images: Tensor, degree: float, rng: torch.Generator) -> Any:
        return self.made


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (torch.zeros(3, 1, 28, 27), r"\(3, 1, 28, 27\)"),
        (torch.zeros(2, *GREY), r"\(2, 1, 28, 28\)"),
        (torch.full((3, *GREY), float("nan")), "NaN"),
        (torch.full((3, *GREY), 1.5), "1.5"),
        (torch.full((3, *GREY), -0.25), "-0.25"),
        (torch.zeros(3, *GREY, dtype=torch.uint8), "uint8"),
        (np.zeros((3, *GREY)), "ndarray"),
        (None, "NoneType"),
    ],
)
def test_users_images_are_checked(made: Any, says: str) -> None:
    simulator = UserSimulator(Wrong(made), GREY)
    with refused(says, BadPlugin):
        simulator.random(3, rng())
    with refused(f"Wrong.vary.*{says}", BadPlugin):
        simulator.vary(Population(torch.zeros(3, *GREY), torch.empty(3, 0)), 0.5, rng())


def test_users_object_without_functions_is_refused() -> None:
    with refused("vary", BadPlugin):
        UserSimulator(object(), GREY)  # type: ignore[arg-type]


# Embeddings


def test_pixels_are_embedded_exactly() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    embed = make_embedding("pixels", 1, torch.zeros(1, 1, 16, 16))
    assert torch.equal(embed(images)[0], torch.arange(256.0))


def test_principal_axes_are_those_of_the_rows() -> None:
    """Rows vary along two directions, by 3 and 1: distances between them are kept, a third direction is not seen."""
    basis = torch.linalg.qr(torch.randn(256, 3, generator=rng())).Q.T
    rows = torch.randn(200, 2, generator=rng(1)) * torch.tensor([3.0, 1.0]) @ basis[:2] + 0.5
    mean, axes = principal_axes(rows, 2)
    assert torch.allclose(mean, rows.mean(0), atol=1e-5)
    assert abs(float(axes[0] @ basis[0])) > 0.98
    seen = (torch.stack([rows[0], rows[1], rows[0] + basis[2]]) - mean) @ axes.T
    assert float((seen[0] - seen[1]).norm()) == pytest.approx(float((rows[0] - rows[1]).norm()), abs=1e-4)
    assert float((seen[0] - seen[2]).norm()) < 1e-4


def test_principal_components_depend_on_public_images_only() -> None:
    public, private = torch.rand(50, *SHAPE, generator=rng()), torch.rand(20, *SHAPE, generator=rng(1))
    found = make_embedding("pca", 8, public)(private)
    assert found.shape == (20, 8)
    assert torch.equal(make_embedding("pca", 8, public)(private[:5]), found[:5])
    waves = make_embedding("scattering", 8, public)
    mean, axes = principal_axes(waves.exact(public), 8)
    assert torch.allclose(found / LEVELS["pca"], (waves.exact(private) - mean) @ axes.T, atol=1e-3)


@pytest.mark.parametrize("name", ["pixels", "scattering", "pca"])
def test_embedding_has_whole_numbers_within_the_limit(name: Any) -> None:
    images = torch.rand(20, 3, 32, 32, generator=rng())
    found = make_embedding(name, 5, images)(images)
    assert torch.equal(found, found.round()) and 10 < found.abs().max() < LARGEST / 2


# Public images of a folder


def write_images(folder: Path, count: int = 5) -> Tensor:
    images = toy_private(3, count)[0]
    (folder / "below").mkdir(parents=True)
    for row, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(folder / ("below" if row % 2 else ".") / f"{row}.png")
    return images


def test_folder_and_archive_are_the_simulators_images(tmp_path: Path) -> None:
    images = write_images(tmp_path / "a")
    np.savez(tmp_path / "b.npz", x=images.numpy(), other=np.zeros(3))
    np.save(tmp_path / "c.npy", images[:, 0].numpy())
    for place in ("a", "b.npz", "c.npy"):
        method = smoke(api="folder", folder=tmp_path / place, last_degree=0.3)
        assert method.needs == {"private_data"}
        made, _ = synthesise(method).draw(40, rng())
        known = {image.numpy().tobytes() for image in images}
        assert {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in made} <= known, place
    sources = {smoke(api="folder", folder=tmp_path / place).public_source() for place in ("a", "b.npz", "c.npy")}
    assert len(sources) == 3 and all(str(source).startswith("images:") for source in sources)
    assert smoke().public_source() is None and smoke(api="folder").public_source() is None


def test_public_part_is_used_without_a_folder() -> None:
    method = smoke(api="folder")
    assert method.needs == {"private_data", "public_data"} and method.least_public() == 2
    teacher = replace(toy_teacher(), public=toy_private(1, 30)[0])
    made = method.synthesise(*toy_private(), teacher, FREE, context())
    known = {image.numpy().tobytes() for image in teacher.public_images()}
    assert {(image * 255).round().to(torch.uint8).numpy().tobytes() for image in made.draw(40, rng())[0]} <= known


@pytest.mark.thorough
def test_row_with_public_images_has_the_flag(toy: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    flagged = []
    for options in ((), (("api", "folder"),), (("api", "folder"), ("folder", str(tmp_path / "a")))):
        job = toy_job(toy, "sim-pe", method_options=options, attack=None, out=toy / "flags")
        flagged.append("public-data" in boards.flags(run.run(job, 0).record))
    assert flagged == [False, True, True]


def test_spec_covers_the_folders_images(toy: Path, tmp_path: Path) -> None:
    def public() -> str | None:
        read_images.cache_clear()
        options = (("api", "folder"), ("folder", str(tmp_path / "a.npy")))
        return run_spec(toy_job(toy, "sim-pe", method_options=options, attack=None), 0).release.public

    np.save(tmp_path / "a.npy", toy_private(1, 9)[0].numpy())
    first = public()
    np.save(tmp_path / "a.npy", toy_private(2, 9)[0].numpy())
    assert first is not None and first != public()


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no image")
    np.savez(tmp_path / "named.npz", pixels=np.zeros((3, 8, 8)))
    np.save(tmp_path / "one.npy", np.zeros((1, 8, 8), dtype=np.uint8))
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    (tmp_path / "text.txt").write_text("no image")
    with refused("absent", NotFound):
        read_images(str(tmp_path / "absent"))
    for place, says in (
        ("empty", "0 images"), ("broken", "a.png"), ("named.npz", "x_train"), ("one.npy", "1 images"),
        ("bad.npz", "bad.npz"), ("text.txt", "text.txt"),
    ):  # fmt: skip
        with refused(says, BadData):
            read_images(str(tmp_path / place))


def test_too_small_population_is_refused() -> None:
    with refused("population", BenchError):
        smoke(population=CLASSES - 1).check(Budget(1.0), "toy", CLASSES)
