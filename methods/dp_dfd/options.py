"""The options of DP-DFD, with the paper's values as defaults (`methods.dp_dfd.dp_dfd`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DpDfdOptions:
    """Section III-A's settings, the symbols of Algorithm 1, and the choices the paper leaves open.

    Raises:
        ValueError: a value out of its range, or values that exclude each other; the sentence names them.
    """

    stages: int = 320
    """T, number of stages (Fig. 3)."""
    amount: int = 0
    """Synthetic images answered in all stages together (Fig. 2); 0 = the paper's for the data set."""
    answer_epsilon: float = 1.0
    """epsilon of one selective randomised response; solved from the budget unless --solve steps or --epsilon none."""
    threshold: float = 0.0
    """t of Alg. 1, line 5, a probability; 0 = 1/(2c) for c classes."""
    answers: Literal["onehot", "soft"] = "onehot"
    """What the teacher's class is answered by: a one-hot vector, or y_t as printed, which no epsilon covers."""
    discriminator: Literal["teacher", "student"] = "teacher"
    """Who trains the generator: the teacher and then the student (Alg. 1), or the student alone, which is free."""
    ce_weight: float = 1.0
    """Weight of the first term of Eq. 2 (Tab. III, CE); 0 switches it off."""
    alpha: float = 5.0
    """alpha of Eq. 2, of the information entropy (Tab. III, IE); 0 switches it off."""
    beta: float = 10.0
    """beta of Eq. 2, of the BatchNorm statistics (Tab. III, Norm); 0 switches it off."""
    entropy: Literal["batch", "sample"] = "batch"
    """Second term of the batch mean (class balance) or per sample (as printed)."""
    labels: Literal["all", "stage"] = "all"
    """A stage trains the student on all answers so far, or on its own (Eq. 3)."""
    reading: Literal["answer", "likelihood"] = "answer"
    """Divergence to the answer (Eq. 3), or the answer's likelihood under the student and the law of the response."""
    pretrain_steps: int = 2000
    """Generator steps against the teacher (Alg. 1, line 1)."""
    finetune_steps: int = 10
    """Generator steps against the student, per stage (Alg. 1, line d)."""
    student_steps: int = 200
    """Student steps per stage."""
    batch: int = 256
    """Images per step of generator and student."""
    gamma_s: float = 1e-3
    """Learning rate of the student (Adam)."""
    gamma_g: float = 1e-3
    """Learning rate of the generator (Adam)."""
    decay: bool = False
    """The student's learning rate falls to 0 along a cosine."""
    augment: bool = False
    """Images are turned, scaled, sheared and moved a little at random when the student sees them again."""
    choose: int = 1
    """Images generated per image asked about; the student's classes are balanced among those kept (post-processing)."""
    images: Literal["upsample", "strokes", "auto"] = "upsample"
    """Generator: upsampling convolutions, pen strokes (a prior for glyphs), or strokes on digits and mnist alone."""
    latent: int = 100
    """Length of a random vector z."""
    width: int = 32
    """Channels of the generator's last hidden map."""

    def __post_init__(self) -> None:
        least = {"stages": 1, "student_steps": 1, "batch": 2, "choose": 1, "latent": 1, "width": 1}
        for name, low in {**least, "pretrain_steps": 0, "finetune_steps": 0, "amount": 0}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {low}")
        for name in ("answer_epsilon", "gamma_s", "gamma_g"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("ce_weight", "alpha", "beta"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}; expected 0 (for 1/(2c)) or a probability below 1")
        if self.answers == "soft" and self.reading == "likelihood":
            raise ValueError("reading likelihood needs answers with a law; expected answers onehot")
