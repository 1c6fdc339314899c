"""An ensemble: several classifiers of the same task, evaluated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from bench.nets.small_net import SmallNet
from bench.nets.zoo import Classifier, Shape, build
from bench.validate import instance

State = dict[str, Tensor]
"""Parameters or buffers of stacked networks, name to tensor with a leading member axis."""


class Ensemble(nn.Module):
    """m classifiers of the same images and classes; their architectures may differ.

    Members with equal fixed features share them, so that features are computed once for all.

    Attributes:
        members: the classifiers.
        classes: number of classes.
        fixed_features: True if all members are linear layers on the same fixed features.
    """

    def __init__(self, members: Iterable[Classifier], classes: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.classes = classes
        bodies = [member.get_submodule("body") for member in self.members]
        linear = [body for body in bodies if isinstance(body, SmallNet) and not list(body.trunk.parameters())]
        self.fixed_features = len(linear) == len(bodies) and len({type(body) for body in linear}) == 1
        if self.fixed_features:
            for body in linear[1:]:
                body.trunk = linear[0].trunk

    @classmethod
    def build(cls, archs: Sequence[str], count: int, shape: Shape, classes: int, seeds: Sequence[int]) -> Ensemble:
        """Build `count` untrained members, cycling through `archs`; member j draws its weights from `seeds[j]`.

        Raises:
            BenchError: as `bench.nets.build`.
        """
        members = []
        with torch.random.fork_rng(devices=[]):
            for j in range(count):
                torch.manual_seed(seeds[j])
                members.append(build(archs[j % len(archs)], shape, classes))
        return cls(members, classes)

    def __len__(self) -> int:
        return len(self.members)

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to (m, n, classes) logits, one slice per member."""
        if self.fixed_features:
            heads = [member.get_submodule("body.head") for member in self.members]
            weight, bias = (torch.stack([head.get_parameter(name) for head in heads]) for name in ("weight", "bias"))
            return torch.einsum("nd,mcd->mnc", self.features(images), weight) + bias[:, None]
        return torch.stack([member(images) for member in self.members])

    def votes(self, images: Tensor) -> Tensor:
        """Return (n, classes) float32 vote counts: the number of members that predict each class; rows sum to m.

        A change of one member changes a row by at most sqrt(2) in L2 and 2 in L1.
        """
        with torch.no_grad():
            counts = images.new_zeros(len(images), self.classes, dtype=torch.float32)
            each = self(images) if self.fixed_features else (member(images) for member in self.members)
            for logits in each:
                predicted = logits.argmax(1, keepdim=True)
                counts.scatter_add_(1, predicted, torch.ones_like(predicted, dtype=torch.float32))
        return counts

    def features(self, images: Tensor) -> Tensor:
        """Return the (n, d) fixed features that all members share.

        Raises:
            RuntimeError: the members do not share features (`fixed_features` is False).
        """
        if not self.fixed_features:
            raise RuntimeError("the members share no features; expected linear layers on the same fixed features")
        return instance(self.members[0], Classifier, "member").features(images)

    def is_stackable(self) -> bool:
        """Return whether all members have the same parameter names and shapes, so that they can be stacked."""
        layouts = [[(name, p.shape) for name, p in member.state_dict().items()] for member in self.members]
        return all(layout == layouts[0] for layout in layouts)


def stacked(members: Sequence[nn.Module]) -> tuple[State, State, Callable[[State, State, Tensor], Tensor]]:
    """Stack equal networks: parameters and buffers with a leading member axis, and one function that evaluates all.

    Returns:
        parameters, buffers, and call(parameters, buffers, (m, n, c, h, w) images) -> (m, n, classes) logits, where
        member j processes images[j]. In training mode the buffers are updated in place; dropout differs between
        members.
    """
    parameters, buffers = stack_module_state(list(members))
    shell = members[0]

    def one(parameters: State, buffers: State, images: Tensor) -> Tensor:
        return functional_call(shell, (parameters, buffers), (images,))

    return parameters, buffers, vmap(one, randomness="different")
