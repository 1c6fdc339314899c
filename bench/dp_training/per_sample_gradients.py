"""Per-sample gradients, by Opacus hooks, by torch.func or by rules for each layer, with equal results.

A record may have several augmented views: its gradient is then their mean (`augmentation.py`).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from bench.dp_training.layer_rows import ROWS, Rows, is_supported, with_channels_last
from bench.errors import BenchError
from bench.nets import Classifier

ROUNDED = 1e-3
"""Allowed relative difference of a record's gradient between batches, which have different rounding errors."""
CANNOT, OTHERWISE = "--method.gradients layers cannot train the network", "use --method.gradients func"
"""Begin and end of the messages of `LayerGradients`."""


def mean_over_views(rows: Tensor, views: int) -> Tensor:
    """Map (n * views, *shape) gradients, those of a record adjacent, to the (n, *shape) mean over each record's views.

    The mean is taken before clipping, so that a record with any number of views is clipped once.
    """
    return rows.unflatten(0, (-1, views)).mean(1) if views > 1 else rows


class PerSampleGradients(Protocol):
    """Callable that computes per-sample gradients."""

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Map (n * views, c, h, w), (n,) to {parameter name: (n, *shape)}: mean gradients over each record's views."""
        ...

    def close(self) -> None:
        """Restore the network to its original state."""
        ...


class OpacusGradients:
    """Per-sample gradients by Opacus hooks on the layers: one backward pass for all records."""

    def __init__(self, model: Classifier, views: int) -> None:
        try:
            from opacus import GradSampleModule
        except ImportError:
            raise BenchError("private training needs opacus: pip install opacus, or --method.gradients func") from None
        self.model, self.views = model, views
        self.wrapped = GradSampleModule(model.body, loss_reduction="sum")

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Implement `PerSampleGradients`."""
        inputs = (images - self.model.mean) / self.model.std
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            logits = self.wrapped(inputs)
            F.cross_entropy(logits, labels.repeat_interleave(self.views), reduction="sum").backward()
        found = {}
        for name, parameter in self.model.named_parameters():
            rows: Tensor = parameter.grad_sample  # type: ignore[attr-defined]
            if len(rows) != len(images):
                raise BenchError(
                    f"the network cannot be trained privately with --method.gradients opacus: {name} has {len(rows)} "
                    f"gradients of {len(images)} images, so that none is one record's; use --method.gradients func or "
                    "another network, such as tanh-cnn"
                )
            found[name] = mean_over_views(rows, self.views)
            parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
        return found

    def close(self) -> None:
        """Remove the hooks."""
        self.wrapped.to_standard_module()


class FuncGradients:
    """Per-sample gradients by torch.func: the gradient of one record's loss, vectorised over the batch."""

    def __init__(self, model: Classifier, views: int) -> None:
        self.model, self.views = model, views
        self.each = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0), randomness="different")

    def _loss(self, parameters: dict[str, Tensor], images: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(self.model, parameters, (images,))
        return F.cross_entropy(logits, label.expand(self.views))

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Implement `PerSampleGradients`."""
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        if not len(labels):
            return {name: p.new_zeros(0, *p.shape) for name, p in parameters.items()}
        return self.each(parameters, images.unflatten(0, (len(labels), self.views)), labels)

    def close(self) -> None:
        """Do nothing, as the network was not changed."""


@dataclass(frozen=True)
class Call:
    """One call of a layer: its input, the input's version at that time, and the place of its output in the graph."""

    layer: nn.Module
    inputs: Tensor
    version: int
    output: GradientEdge


class LayerGradients:
    """Per-sample gradients by a rule for each kind of layer (`ROWS`), from one backward pass.

    Hooks store the layers' inputs, and the backward pass computes gradients of outputs only: the gradients of the
    weights summed over the batch, which Opacus' hooks compute as well, are not formed. Images are processed with
    channels last, in which torch pools several times faster on a CPU.

    A layer may be called several times, and layers may share parameters: a record's gradient is the sum over all calls.

    Args:
        model: the network; all its parameters belong to supported layers.
        views: number of augmented copies of each record.

    Raises:
        BenchError: a parameter of an unsupported layer.
    """

    def __init__(self, model: Classifier, views: int) -> None:
        self.model, self.views, self.is_checked = model, views, False
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.calls: list[Call] = []
        self.hooks: list[RemovableHandle] = []
        for path, layer in model.named_modules():
            own = list(layer.named_parameters(recurse=False))
            if own and not is_supported(layer):
                raise BenchError(f"{CANNOT}: it has no rule for {type(layer).__name__} at {path}; {OTHERWISE}")
        for layer in model.modules():
            if type(layer) in ROWS:
                self.hooks.append(layer.register_forward_hook(self._store))

    def _store(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            given = inputs[0].detach()
            self.calls.append(Call(layer, given, given._version, get_gradient_edge(output)))

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Implement `PerSampleGradients`.

        Raises:
            BenchError: the network uses its parameters, or changes a layer's input, outside the layers' calls.
        """
        if not len(images):
            return {name: p.new_zeros(0, *p.shape) for name, p in self.model.named_parameters()}
        self.calls = []
        with torch.enable_grad():
            inputs = with_channels_last((images - self.model.mean) / self.model.std)
            logits = self.model.body(inputs)
            loss = F.cross_entropy(logits, labels.repeat_interleave(self.views), reduction="sum")
        calls, self.calls = self.calls, []
        for call in calls:
            if call.inputs._version != call.version:
                changed = type(call.layer).__name__
                raise BenchError(f"{CANNOT}: the input of a {changed} is changed in place after its call; {OTHERWISE}")
        parameters = dict(self.model.named_parameters())
        wanted = [] if self.is_checked else list(parameters.values())
        places: list[Any] = [*(call.output for call in calls), *wanted]
        found = torch.autograd.grad(loss, places, allow_unused=True)
        rows = self._rows(calls, found[: len(calls)])
        if wanted:
            self._check(rows, dict(zip(parameters, found[len(calls) :], strict=True)))
        return {
            name: mean_over_views(rows[name], self.views) if name in rows else p.new_zeros(len(labels), *p.shape)
            for name, p in parameters.items()
        }

    def _rows(self, calls: list[Call], gradients: tuple[Tensor | None, ...]) -> Rows:
        """Return {parameter name: (n * views, *shape)}, summed over the calls."""
        total: Rows = {}
        for call, gradient in zip(calls, gradients, strict=True):
            if gradient is None:  # the loss does not depend on this call
                continue
            for own, rows in ROWS[type(call.layer)](call.layer, call.inputs, gradient).items():
                name = self.names[id(getattr(call.layer, own))]
                total[name] = total[name] + rows if name in total else rows
        return total

    def _check(self, rows: Rows, sums: dict[str, Tensor | None]) -> None:
        """Compare the first batch's rows with the gradients that autograd sums over the batch.

        Differences are relative to all rows: a gradient may be zero except for rounding, as of a scale before a
        normalisation.
        """
        whole = torch.stack([each.flatten(1).norm(dim=1).sum() for each in rows.values()]).norm()
        for name, expected in sums.items():
            found = rows[name].sum(0) if name in rows else torch.zeros_like(whole)
            apart = (found if expected is None else found - expected).norm()
            if not bool(apart <= ROUNDED * whole):
                raise BenchError(f"{CANNOT}: {name} is also used outside its layer; {OTHERWISE}")
        self.is_checked = True

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self.hooks:
            hook.remove()


def refuse_shared_rows(
    gradients: PerSampleGradients, model: Classifier, arch: str, shape: Sequence[int], views: int
) -> None:
    """Refuse a network in which a record's gradient depends on the other records of the batch.

    Raises:
        BenchError: one line that names the parameter.
    """
    device = next(model.parameters()).device
    drawn = torch.linspace(0, 50, 2 * math.prod(shape), device=device).sin().add(1).div(2).view(2, *shape)
    images, labels = drawn.repeat_interleave(views, 0), torch.arange(2, device=device)
    together = gradients(images, labels)
    for record in range(2):
        alone = gradients(images[record * views : (record + 1) * views], labels[record : record + 1])
        whole = torch.stack([rows.norm() for rows in alone.values()]).norm()
        moved = torch.stack([(together[name][record] - rows[0]).norm() for name, rows in alone.items()])
        is_far = (moved > ROUNDED * whole).tolist()  # one wait for the device, not one for every parameter
        for name in itertools.compress(alone, is_far):
            raise BenchError(
                f"the network '{arch}' cannot be trained privately: a record's gradient of {name} depends "
                "on the rest of the batch; use another network, such as tanh-cnn, or --method.gradients func"
            )


GRADIENTS: dict[str, Callable[[Classifier, int], PerSampleGradients]] = {
    "opacus": OpacusGradients,
    "func": FuncGradients,
    "layers": LayerGradients,
}
