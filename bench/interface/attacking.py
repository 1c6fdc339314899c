"""Attacks on a finished network."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from bench.config import EVALUATOR
from bench.data.own import OwnDataset
from bench.interface.process import Progress
from bench.interface.result import RunResult
from bench.interface.running import run
from bench.interface.values import Options, Scale

if TYPE_CHECKING:
    from torch import nn

UNCHANGED = "no-defence"
"""The baseline that releases the teacher unchanged."""


def attack(
    model: nn.Module,
    attack: str | type[Any] | object,
    dataset: str | OwnDataset = "digits",
    *,
    normalise: tuple[Scale, Scale] | None = None,
    split: str = "iid",
    seed: int = 0,
    tier: str = "quick",
    attack_variant: str | None = None,
    attack_options: Options | None = None,
    evaluator: str = EVALUATOR,
    evaluator_options: Options | None = None,
    unfit_attack: Literal["refuse", "record"] = "refuse",
    memory_check: Literal["refuse", "warn", "off"] = "refuse",
    device: str = "auto",
    data_root: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs",
    fresh: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Attack a trained network: nothing is converted, and no privacy is accounted.

    The attack is also run on an untrained network of the same architecture, to test its power. A membership attack
    compares records of the private part with others, so its result is valid only if the model was trained on the
    private part of `split` (`bench.data.private_part`) and on no other image of the data set.

    Args:
        model: maps (n, c, h, w) images in [0, 1] to (n, classes) logits.
        attack: a name of `bench.attacks()`, a class, or an instance of one.
        dataset: the data that the model was trained on, as for `bench.run`.
        normalise: (mean, std) that the model was trained with, unless it normalises images itself.
        split, seed, tier, attack_variant, attack_options, evaluator, evaluator_options: as for `bench.run`.
        unfit_attack, memory_check, device, data_root, out, fresh, progress: as for `bench.run`.

    Returns:
        A run of the baseline `no-defence`, whose student is the model: `result.attack.accuracy`, `result.attack.auc`,
        `result.attack.has_power`.

    Raises:
        BenchError: bad input, such as a model for other images or classes.
        Incompatible: an attack that cannot give a result on these data.
        RunFailed: a step failed; its record says why.
    """
    return run(
        UNCHANGED,
        attack,
        dataset,
        epsilon=None,
        teacher=model,
        teacher_normalise=normalise,
        split=split,
        seed=seed,
        tier=tier,
        attack_variant=attack_variant,
        attack_options=attack_options,
        evaluator=evaluator,
        evaluator_options=evaluator_options,
        unfit_attack=unfit_attack,
        memory_check=memory_check,
        device=device,
        data_root=data_root,
        out=out,
        fresh=fresh,
        progress=progress,
    )
