"""Training and evaluation of a classifier on labelled images."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.data import batch_size_for, query_batch, to_float
from bench.errors import RunFailed
from bench.nets import Classifier
from bench.ranks import Rank, Ranks
from bench.seeds import derive
from bench.teachers.recipes.standard import Recipe
from bench.teachers.shared_batches import SharedBatches


def fit(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    device: torch.device,
    seed: int,
    advance: Callable[[int], object] = lambda _steps: None,
    autocast: bool = False,
    ranks: Ranks | None = None,
) -> None:
    """Train a classifier in place by a recipe; it ends on `device`, in eval mode.

    All randomness (order, augmentation, the model's own dropout) comes from `seed`; the state of torch's global
    generators does not change. The images may be on another device: batches are moved.

    Args:
        images: (n, c, h, w) uint8, n at least 2.
        labels: (n,) int64.
        seed: any int.
        advance: called with 1 after each of the `recipe.steps(n)` steps.
        autocast: compute in bfloat16 where torch considers it safe.
        ranks: divide every batch among these; the result is the same except for rounding, and for random draws inside
            the network.

    Raises:
        BenchError: a network or a recipe that cannot be divided among ranks.
        RunFailed: the loss became NaN or infinite, there are fewer than two images, or a rank was lost.
    """
    total = recipe.steps(len(images))
    if total == 0:
        raise RunFailed(f"cannot train a classifier on {len(images)} image(s): at least two are needed")
    if ranks is None:
        _train(model.to(device), Training(model, images, labels, recipe, seed, autocast), device, advance)
    else:
        given = Training(copy.deepcopy(model).cpu(), images.cpu(), labels.cpu(), recipe, seed, autocast)
        state, *_ = ranks.run(train_share, [given] * ranks.count, advance, grouped=True)
        model.load_state_dict(state)
        model.to(device)
    model.eval()


@dataclass(frozen=True)
class Training:
    """The inputs of a training, as in `fit`, sent to the ranks."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    recipe: Recipe
    seed: int
    autocast: bool


def train_share(rank: Rank, given: Training) -> dict[str, Tensor]:
    """Train the model jointly with all other ranks; rank 0 returns its state on the CPU."""
    model = given.model.to(rank.device)
    _train(SharedBatches(model, rank), given, rank.device, rank.advance, rank.index)
    return {name: value.cpu() for name, value in model.state_dict().items()} if rank.index == 0 else {}


def _train(
    network: Callable[[Tensor], Tensor],
    given: Training,
    device: torch.device,
    advance: Callable[[int], object],
    rank: int = 0,
) -> None:
    """Train the model in place through `network`, its forward function.

    Ranks differ in random draws inside the network.
    """
    recipe, total = given.recipe, given.recipe.steps(len(given.images))
    given.model.train()
    weights = [weight for weight in given.model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=recipe.lr, fused=True)
    else:
        optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9, nesterov=True, fused=True)

    def forward(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=given.autocast):
            return network(images).float()

    augment = torch.Generator().manual_seed(derive(given.seed, "augmentation"))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(given.seed, "rank", rank) if rank else derive(given.seed, "model"))
        for step, chosen in enumerate(draw_batches(len(given.images), recipe, given.seed, total)):
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * schedule(step, total, recipe.warmup)
            x = recipe.augment(given.images[chosen.to(given.images.device)].to(device), augment)
            y = given.labels[chosen.to(given.labels.device)].to(device)
            loss = recipe.loss(forward, to_float(x), y, augment)
            if not torch.isfinite(loss):
                raise RunFailed(
                    f"training diverged at step {step + 1} of {total}, loss {loss.item()}; lower lr={recipe.lr}"
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            advance(1)


def predict(model: nn.Module, images: Tensor, device: torch.device, batch: int | None = None) -> Tensor:
    """Return (n, classes) float32 logits on the CPU, for (n, c, h, w) uint8 images; the model must be on `device`."""
    return _evaluate(model, model, images, device, batch)


def features(model: Classifier, images: Tensor, device: torch.device, batch: int | None = None) -> Tensor:
    """Return (n, d) float32 on the CPU: the input of the model's classification layer for (n, c, h, w) uint8 images."""
    return _evaluate(model, model.features, images, device, batch)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, device: torch.device) -> float:
    """Return the share, in [0, 1], of (n, c, h, w) uint8 images whose largest logit is at their label."""
    return (predict(model, images, device).argmax(1) == labels.cpu()).double().mean().item()


def schedule(step: int, total: int, warmup: float) -> float:
    """Return the factor in (0, 1] on the peak learning rate at step 0..total-1: a linear rise, then half a cosine to 0.

    >>> [round(schedule(step, 8, 0.5), 3) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    rising = int(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return 0.5 + 0.5 * math.cos(math.pi * (step - rising) / (total - rising))


def draw_batches(images: int, recipe: Recipe, seed: int, total: int) -> Iterator[Tensor]:
    """Yield the (at most `recipe.batch`,) int64 indices of `total` batches; every pass is a new permutation."""
    order = torch.Generator().manual_seed(derive(seed, "order"))
    per_epoch = recipe.steps_per_epoch(images)
    for step in range(total):
        position = step % per_epoch
        if position == 0:
            permutation = torch.randperm(images, generator=order)
        yield permutation[position * recipe.batch : (position + 1) * recipe.batch]


def _evaluate(
    model: nn.Module, function: Callable[[Tensor], Tensor], images: Tensor, device: torch.device, batch: int | None
) -> Tensor:
    """Apply a function of the model in eval mode to all images, in batches; the model's mode is restored."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = images.split(batch_size_for(images, batch or query_batch(device)))
        results = [function(to_float(part.to(device))).float() for part in parts]
    model.train(was_training)
    return torch.cat(results).cpu()  # once, as copying every part would synchronise with an accelerator
