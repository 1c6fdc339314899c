"""DPDFD, section 4.4, direct training: lines 4 to 12 of Algorithm 1 on private images with their labels (Table 4).

The student's update multiplies the noisy gradients by the Jacobian at the private images, so the accounted epsilon is
infinite. The paper's claim is reported next to it; its proof treats an example as a query. Batches are drawn without
amplification by sampling; the paper does not mention any.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from bench import nets
from bench.api import Context, Release, Teacher
from bench.data import to_float
from bench.distillation.noisy_labels import AnnotationMechanism, AnnotationParameters
from bench.distillation.training import descend, train_without_dropout
from bench.errors import BenchError
from bench.nets.small_net import xavier
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.events import unprotected_event
from bench.validate import present

Sanitise = Callable[[Tensor], Tensor]
"""(B, c) gradients -> (B, c) bounded and noisy gradients: lines 7 to 9."""


def check(budget: Budget) -> None:
    """Raise BenchError for a budget whose unit or account direct training cannot meet."""
    if budget.account == "accounted":
        raise BenchError(
            "--account accounted --method.data private: direct training has no finite accounted epsilon; "
            "use --account claimed, or --method.data synthetic with --method.teachers N"
        )
    if budget.unit != Unit.EXAMPLE:
        raise BenchError(
            f"--unit {budget.unit} --method.data private: direct training is accounted per example; use --unit example"
        )


def train_directly(
    teacher: Teacher,
    student: str,
    sanitise: Sanitise,
    ctx: Context,
    *,
    batch: int,
    gamma: float,
    gamma_s: float,
    falling: bool,
    mechanism: AnnotationMechanism,
    parameters: AnnotationParameters,
    delta: float,
) -> Release:
    """Train a student on the private images and their labels; the teacher is not queried.

    Args:
        sanitise: bounds the gradients of a batch and adds noise.
        batch: images per iteration.
        gamma: step of line 10.
        gamma_s: learning rate of the student's Adam.
        falling: whether that rate falls to 0 along a cosine; otherwise it is constant.
        mechanism, parameters, delta: determine the paper's claim (Theorem 3) and the number of iterations.

    Raises:
        RuntimeError: the method's `needs` does not contain the private data.
    """
    if teacher.private is None:
        raise RuntimeError("direct training did not receive the private images; `needs` must contain private_data")
    (private, labels), iterations = teacher.private, parameters.iterations
    phi_s = ctx.prepared(xavier(nets.build(student, teacher.shape, teacher.classes)))
    step_s = torch.optim.Adam(phi_s.parameters(), lr=gamma_s)
    schedule = CosineAnnealingLR(step_s, iterations) if falling else LambdaLR(step_s, lambda _: 1.0)
    call_s, rng = ctx.compiled(phi_s), ctx.generator("transcription")
    with ctx.track("DPDFD: training on private images", iterations) as advance:
        for _ in range(iterations):
            chosen = torch.randint(len(private), (batch,), generator=rng, device=ctx.device)
            x = to_float(private[chosen.to(private.device)]).to(ctx.device)
            y = labels[chosen.to(labels.device)].to(ctx.device)
            with torch.no_grad():
                p_s = phi_s.eval()(x).softmax(1)
            # 4-6: gradient of the cross-entropy at the logits; 7-9: bounded, with noise; 10: new outputs
            y_s = p_s - gamma * sanitise(p_s - F.one_hot(y, teacher.classes))
            # 11-12: without dropout, which would change the output by more than the step to y_s
            train_without_dropout(phi_s)
            with ctx.precision():
                loss = F.cross_entropy(call_s(x).float(), y_s)
            descend(step_s, loss)
            schedule.step()
            advance(1)
    ledger = Ledger()
    ledger.spend(unprotected_event(), why="the noisy gradients are multiplied by the Jacobian at private images")
    claim = present(mechanism.claim(parameters, delta), "claim of Theorem 3, which is for one teacher")
    return Release(
        student=phi_s.eval(),
        arch=student,
        ledger=ledger,
        claim=Claim(claim.epsilon, claim.delta, Unit.EXAMPLE, f"{mechanism.theorem}, on private images"),
        solved={"norm_bound": parameters.beta, "iterations": parameters.iterations, "sigma": parameters.sigma},
    )
