"""Methods, attacks and trained networks are passed as values; no cached step of another one is ever used for them."""

import copy
import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn

import bench
from attacks.loss_threshold import LossThreshold
from baselines.no_defence import NoDefence
from bench.api import Context, Release, Teacher
from bench.errors import BadOption, BadPlugin, BadWeights, BenchError
from bench.nets import Classifier
from bench.plugins import add_class
from bench.privacy import Budget, Ledger


@dataclass(frozen=True)
class Shrunk:
    """Releases the teacher with smaller weights."""

    version: ClassVar[int] = 1
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "none"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    releases_images: ClassVar[bool] = False
    trains_student: ClassVar[bool] = False
    unit: ClassVar[str] = "none"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {}

    factor: float = 0.5
    """What weights are multiplied by."""

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Any budget will do."""

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        network = copy.deepcopy(teacher.model)
        for weights in network.parameters():
            weights.data *= self.factor
        ledger = Ledger()
        ledger.spend(NonPrivateDpEvent(), why="the weights are released")
        return Release(network, teacher.arch, ledger, claim=None)


class Net(nn.Module):
    """A small network with one plain attribute that its answers depend on."""

    def __init__(self, seed: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 10))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layers(x)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


IMAGES = torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def released(out: Path, teacher: Any, method: Any = NoDefence, **given: Any) -> bench.RunResult:
    return bench.run(method, teacher=teacher, out=out, tier="smoke", **given)


def gives(result: bench.RunResult, expected: Tensor, atol: float = 1e-6) -> bool:
    """Whether the student of a run has these logits."""
    return torch.allclose(result.student(IMAGES), expected, atol=atol)


def test_trained_module_is_the_teacher_as_it_is(out: Path) -> None:
    net = Net(3).train()
    result = released(out, net)
    assert net.training and gives(result, net(IMAGES))
    assert result.record.spec.release.method == "no-defence" and result.record.spec.release.noise == "os"
    assert gives(released(out, net, teacher_normalise=(0.5, 0.25)), net((IMAGES - 0.5) / 0.25), 1e-5)


def test_every_other_module_is_another_teacher(out: Path) -> None:
    first = Net()
    nets = [first, Net(1), Net(scale=2.0), nn.Sequential(Net(), nn.Identity())]
    results = [released(out, net) for net in nets]
    assert len({result.record.hash for result in results}) == len(nets)
    assert all(gives(result, net(IMAGES)) for net, result in zip(nets, results, strict=True))
    assert released(out, copy.deepcopy(first)).is_cached
    first.layers[1].weight.data += 1  # type: ignore[operator, union-attr]
    changed = released(out, first)
    assert not changed.is_cached and gives(changed, first(IMAGES), 1e-5)


def test_student_of_a_run_can_be_a_teacher(out: Path) -> None:
    student = released(out, Classifier(Net(5), 0.3, 0.5)).student
    assert gives(released(out, student), student(IMAGES))


def test_wrapped_module_is_the_teacher_inside(out: Path) -> None:
    net = Net(6)
    hashes = {released(out, each).record.hash for each in (net, nn.DataParallel(net), torch.compile(net))}
    assert len(hashes) == 1


class Uncopied(Net):
    """A network that cannot be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Net:
        raise RuntimeError("not to be copied")


class Two(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 10)


def nan() -> nn.Module:
    net = Net()
    net.layers[1].bias.data[0] = torch.nan  # type: ignore[operator, union-attr]
    return net


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"teacher": Two()}, BadWeights),
        ({"teacher": nan()}, BadWeights),
        ({"teacher": Uncopied()}, BadPlugin),
        ({"teacher": nn.Sequential(nn.Flatten(), nn.Linear(256, 3))}, BenchError),
        ({"teacher": nn.Linear(784, 10)}, BenchError),
        ({"teacher": 3}, BadOption),
        ({"teacher": Net(), "teacher_weights": "file.pt"}, BadOption),
        ({"teacher": Net(), "teacher_normalise": (0.5, 0.0)}, BadOption),
        ({"teacher": Net(), "teacher_normalise": 0.5}, BadOption),
        ({"teacher": Classifier(Net()), "teacher_normalise": (0.5, 0.5)}, BadOption),
        ({"teacher": "datalens", "teacher_normalise": (0.5, 0.5)}, BadOption),
    ],
    ids=range(11),
)
def test_bad_teacher_is_refused(given: dict[str, Any], kind: type[BenchError], tmp_path: Path) -> None:
    with pytest.raises(kind):
        released(tmp_path, **given)
    assert not list(tmp_path.rglob("record.json"))


def test_class_and_instance_are_methods(out: Path) -> None:
    net = Net(7)
    usual, given = released(out, net, Shrunk), released(out, net, Shrunk(factor=1.0))
    assert [each.record.spec.release.options for each in (usual, given)] == [{"factor": 0.5}, {"factor": 1.0}]
    assert gives(given, net(IMAGES)) and usual.record.spec.release.method.startswith("shrunk-")
    assert released(out, net, Shrunk, method_options={"factor": 1.0}).is_cached


CELL = """
from dataclasses import dataclass
from test_values_as_code import Shrunk

POWER = {power}

@dataclass(frozen=True)
class InACell(Shrunk):
    factor: float = 1.0
    "What weights are multiplied by."

    def convert(self, teacher, student, budget, ctx):
        release = super().convert(teacher, student, budget, ctx)
        for weights in release.student.parameters():
            weights.data *= POWER
        return release
"""


def cell(number: int, power: float) -> type:
    """A class as IPython defines it: in `__main__`, its text only in `linecache`."""
    text, name = CELL.format(power=power), f"<ipython-input-{number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), namespace)
    return namespace["InACell"]


def test_edited_class_of_a_notebook_is_another_method(out: Path) -> None:
    net = Net(8)
    one, other = (released(out, net, cell(number, number)) for number in (1, 2))
    assert one.record.hash != other.record.hash and released(out, net, cell(3, 1)).is_cached
    weights = [next(result.student.parameters()) for result in (one, other)]
    assert torch.allclose(weights[0] * 2, weights[1])


@dataclass(frozen=True)
class Mine(LossThreshold):
    """An attack of another name."""


def test_class_is_an_attack(out: Path) -> None:
    net = Net(9)
    given = bench.attack(net, Mine, tier="smoke", out=out)
    named = bench.attack(net, "loss-threshold", tier="smoke", out=out)
    assert given.attack is not None and named.attack is not None
    assert given.attack.name.startswith("mine-") and given.attack.student == named.attack.student
    assert named.attack.student["auc"].value == named.attack.teacher["auc"].value


def test_class_of_a_plugin_is_that_plugin() -> None:
    from methods.dpsd.working import WorkingDpsd

    assert add_class("method", NoDefence) == ("no-defence", None)
    assert add_class("method", WorkingDpsd) == ("dpsd", "working")


@dataclass(frozen=True)
class WithoutMembers:
    """A dataclass with the two variables of a plug-in and no methods."""

    version: ClassVar[int] = 1
    tiers: ClassVar[dict[str, Any]] = {}


@pytest.mark.parametrize(
    ("method", "given", "kind"),
    [
        (Net, {}, BadPlugin),
        (WithoutMembers, {}, BadPlugin),
        (WithoutMembers(), {}, BadPlugin),
        (3, {}, BadOption),
        (None, {}, BadOption),
        (Shrunk(factor=0.25), {"method_options": {"factor": 1.0}}, BadOption),
    ],
    ids=["no dataclass", "class", "instance", "number", "none", "option given twice"],
)
def test_bad_method_is_refused(method: Any, given: dict[str, Any], kind: type[BenchError], tmp_path: Path) -> None:
    with pytest.raises(kind):
        bench.run(method, out=tmp_path, tier="smoke", **given)
