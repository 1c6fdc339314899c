"""The options of DGD, with the paper's values as defaults (`methods.dgd.dgd`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class DgdOptions:
    """Section IV's settings, the symbols of section III, and the choices the paper leaves open.

    Raises:
        ValueError: a value out of its range, or values that exclude each other; the sentence names them.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"teacher", "teacher_ensemble"})

    teachers: int = 250
    """n, teachers on disjoint parts of the private data; 0 = 48 on digits, 100 on larger data sets."""
    teacher_net: str = "dgd-cnn"
    """Network of the n teachers, a name as for --teacher, or `same` for the run's own --teacher."""
    teacher_steps: int = 3000
    """Rounds of the teachers' training."""
    teacher_batch: int = 128
    """Images of a teacher's part per step."""
    teacher_lr: float = 0.05
    """First learning rate of the teachers (Adam), falling linearly to 0."""
    teacher_shift: int = 0
    """Teachers see their images moved by up to so many pixels."""
    aggregation: Literal["laplace", "gaussian"] = "laplace"
    """Noise on the vote counts: Laplace (Eq. 3) or Gaussian (DGD+, section IV-B)."""
    scale: float = 40.0
    """Noise scale 2 / epsilon_0 of Eq. 3, or sigma of Gaussian votes; solved from the budget unless --solve steps."""
    queries: int = 0
    """|D^_s|, images put to the ensemble; 0 = the paper's: 27 up to epsilon 1, 1300 above."""
    threshold: float = 0.0
    """Gaussian votes: a query is answered only if its noisy largest count reaches this share of n; 0 = all are."""
    threshold_noise: float = 3.0
    """Standard deviation of the threshold's noise, over that of the counts."""
    candidates: float = 2.0
    """Images put to the threshold, per query to be answered."""
    reading: Literal["argmax", "posterior"] = "argmax"
    """Target from noisy counts: their arg-max (Eq. 3), or each class's probability given all counts (Bayes)."""
    images: Literal["synthetic", "private"] = "synthetic"
    """D^ is generated, or the private images themselves, unprotected (PATE and DGD of Fig. 7)."""
    discriminator: Literal["baseline", "student", "none"] = "baseline"
    """Who trains the generator: phi_b (Eq. 2; unprotected), the student between rounds of queries, or nobody."""
    rounds: int = 1
    """Parts in which the queries are asked; discriminator student needs at least 2."""
    alpha: float = 5.0
    """alpha of Eq. 2."""
    beta: float = 0.1
    """beta of Eq. 2."""
    balance: Literal["batch", "sample"] = "batch"
    """Second term of Eq. 2 of the batch mean (class balance) or per sample (as printed)."""
    activation: Literal["up", "down"] = "up"
    """Third term of Eq. 2 rewards large activations (the text), or small ones (the printed sign)."""
    generator: Literal["upsample", "strokes", "auto"] = "upsample"
    """Upsampling convolutions, pen strokes (a prior for glyphs), or strokes on digits and mnist alone."""
    generator_steps: int = 200
    """Rounds of the generator's training."""
    generator_lr: float = 0.2
    """Learning rate of the generator (Adam)."""
    generator_decay: int = 80
    """The generator's learning rate falls tenfold every so many rounds; 0 = never."""
    latent: int = 100
    """Length of a random vector z."""
    width: int = 32
    """Channels of the generator's last hidden map."""
    synthetic: int = 60_000
    """|D^|, synthetic images."""
    choose: Literal["random", "spread"] = "random"
    """Images to query: at random, or nearest to k-means centres in code space."""
    vae: bool = True
    """The VAE and the unsupervised energy E_u; off is PATE's plain supervised student (Fig. 7)."""
    code: int = 32
    """c, length of a latent code."""
    vae_width: int = 32
    """Channels of the VAE's first convolution."""
    vae_steps: int = 500
    """Rounds of the VAE's training."""
    tangent_share: float = 0.9
    """Share of the decoder's squared Jacobian norm that spans the tangent space."""
    step_size: float = 1.0
    """Length of the steps n of Eq. 4, in code units (codes are about standard normal)."""
    code_noise: bool = False
    """Laplace noise of scale 2c / epsilon_1 on normalised codes, as printed (section III-E)."""
    code_epsilon: float = 0.01
    """epsilon_1."""
    normal_weight: float = 1.0
    """Weight of the first term of Eq. 6."""
    tangent_weight: float = 1.0
    """Weight of the second term of Eq. 6."""
    entropy_weight: float = 1.0
    """Weight of the third term of Eq. 6."""
    entropy: Literal["down", "up"] = "down"
    """Third term makes outputs more determinate (the text), or flatter (the printed sign)."""
    steps: int = 500
    """Rounds of the student's training, in every round of queries."""
    batch: int = 128
    """Images per step of generator, VAE and student (E_s and E_u each)."""
    lr: float = 1e-3
    """First learning rate of VAE and student (Adam), falling linearly to 0."""
    augment: bool = False
    """Answered images are turned, scaled, sheared and moved a little at random in E_s."""

    def __post_init__(self) -> None:
        for name in ("teacher_steps", "teacher_batch", "rounds", "latent", "width", "vae_width", "steps"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("batch", "code"):
            _require(name, getattr(self, name), getattr(self, name) >= 2, "at least 2")
        for name in ("teacher_lr", "generator_lr", "lr", "code_epsilon", "step_size"):
            _require(name, getattr(self, name), getattr(self, name) > 0, "more than 0")
        for name in ("teachers", "scale", "queries", "threshold", "threshold_noise",
                     "generator_steps", "generator_decay", "vae_steps", "teacher_shift"):  # fmt: skip
            _require(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        _require("tangent_share", self.tangent_share, 0 < self.tangent_share < 1, "between 0 and 1")
        _require("candidates", self.candidates, self.candidates >= 1, "at least 1, per query")
        _require("synthetic", self.synthetic, self.synthetic > self.queries, "more than the queries")
        if self.threshold and self.aggregation == "laplace":
            raise ValueError("threshold belongs to Gaussian votes; expected aggregation gaussian, or threshold 0")
        if self.discriminator == "student" and self.rounds < 2:
            raise ValueError("discriminator student learns between rounds of queries; expected rounds of at least 2")
        if self.choose == "spread" and not self.vae:
            raise ValueError("choose spread looks at the VAE's codes; expected vae true")
        if self.images == "private":
            object.__setattr__(self, "needs", type(self).needs | {"private_data"})


def _require(name: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}; expected {expected}")
