"""Per-sample gradients, by Opacus hooks or by torch.func with equal results.

A record may have several augmented views: its gradient is then their mean (`augmentation.py`).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.errors import BenchError
from bench.nets import Classifier

ROUNDED = 1e-3
"""Allowed relative difference of a record's gradient between batches, which have different rounding errors."""


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
}
