"""The result of an assessment as typed values; `assessment.json` is written from it and read back into it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Final = 1
Decision = Literal["release", "do not release", "cannot tell"]
STATUS: dict[Decision, int] = {"release": 0, "do not release": 1, "cannot tell": 3}
"""Exit status of `bench assess`; 2 is bad input."""
Share = Annotated[float, Field(ge=0, le=1)]


class Value(BaseModel):
    """Plain data: no conversions, no unknown fields, no NaN."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Interval(Value):
    """A number with its confidence limits; `Assessment.levels` has the error probability of each limit."""

    value: float
    low: float
    high: float


class Rate(Value):
    """The true positive rate at a false positive rate.

    Attributes:
        fpr: the false positive rate that is allowed.
        tpr: None where it cannot be measured with these non-members.
        needed: the number of non-members from which on it can be measured.
    """

    fpr: Share
    tpr: Interval | None
    needed: int


class AttackResult(Value):
    """One attack.

    Attributes:
        name: the attack's name, as in the policy's `require`.
        source: the paper.
        reads: the part of the model's outputs that the attack reads.
        auc: area under the ROC curve; 0.5 is chance.
        rates: true positive rates at false positive rates of 10, 1 and 0.1 %.
        epsilon_lower: the empirical lower bound at the assessment's delta, corrected for all attacks.
        has_power: whether it finds a leak in the unprotected control; None if there is no control.
        control_auc: its AUC on the control.
        note: a remark for the reader, such as a smaller number of records.
    """

    name: str
    source: str
    reads: str
    members: int
    others: int
    auc: Interval
    rates: tuple[Rate, ...]
    epsilon_lower: float
    has_power: bool | None = None
    control_auc: Interval | None = None
    note: str = ""


class Skipped(Value):
    """A test that was not made, and why."""

    name: str
    reason: str


class Copies(Value):
    """Duplicates between the two sets: exact, near, and the number of non-members that were removed as copies."""

    exact: int
    near: int
    removed: int
    method: str


class Blind(Value):
    """The baseline without the model.

    Attributes:
        auc: cross-validated AUC of the better of two classifiers.
        p: permutation p-value.
        differs: whether the sets can be separated without the model.
        clues: the features that separate the sets best, the best first.
    """

    auc: Share
    p: Share
    differs: bool
    clues: tuple[str, ...]
    features: int
    method: str


class Inversion(Value):
    """Class inversion: whether reconstructions of classes show more than the baseline does.

    Shares are means over classes of the share of images that the evaluator assigns to their class.

    Attributes:
        attack, source: name and paper of the attack.
        baseline: the images that reconstructions are compared with.
        are_classes_private: whether the attacker has records of other classes only.
        classes: number of reconstructed classes.
        images: number of reconstructions of one network.
        shown, baseline_shown: shares of the model's reconstructions and of its baseline.
        control_shown, control_baseline_shown: the same on the unprotected control.
        gain: `shown` minus `baseline_shown`, with limits at the level of a policy's numbers.
        p: p-value of a gain above 0; None with too few classes for the test.
        control_gain, control_p: the same on the control.
        evaluator: accuracy of the evaluator on non-members.
        beats_chance: whether the attack beats chance on the control, and not on an untrained network.
        has_power: whether, besides, it finds a gain on the control that the policy forbids.
        reason: why it has no power; "" if it has.
    """

    attack: str
    source: str
    baseline: str
    are_classes_private: bool
    classes: int
    images: int
    shown: Share
    baseline_shown: Share
    control_shown: Share
    control_baseline_shown: Share
    gain: Interval
    p: float | None
    control_gain: Interval
    control_p: float | None
    evaluator: Interval
    beats_chance: bool
    has_power: bool = False
    reason: str = ""


class Accuracy(Value):
    """Accuracy on members and non-members, with 95 % limits."""

    members: Interval
    others: Interval


Finding = Literal["refuted", "not refuted", "not comparable"]


class Claim(Value):
    """A claimed epsilon, and whether the lower bound refutes it."""

    epsilon: float
    delta: float
    unit: str
    finding: Finding
    p: float | None
    sentence: str


class Canaries(Value):
    """The audit of one training run with canaries, at 95 % confidence.

    Attributes:
        canaries, guesses, correct: number of canaries, of guesses and of right guesses.
        epsilon_lower: bound of Steinke et al. (2023), for any mechanism.
        epsilon_lower_gaussian: bound of Mahloujifar et al. (2024), for Gaussian mechanisms only; None at delta 0.
    """

    canaries: int
    guesses: int
    correct: int
    epsilon_lower: float
    epsilon_lower_gaussian: float | None
    delta: float


class Limits(Value):
    """Detection limits for these numbers of records, computed before anything runs.

    Attributes:
        highest_epsilon: the largest lower bound, that of a perfect attack.
        smallest_epsilon: the smallest epsilon of randomised response that is detected with a probability of 80 %.
        smallest_auc: the smallest AUC that is found to be above 0.5 with a probability of 80 %.
        rates: false positive rate, and the smallest true positive rate that is detected; None = not measurable.
        largest_auc_without_leak: the upper confidence limit of the AUC for a model without any leak.
    """

    members: int
    others: int
    highest_epsilon: float
    smallest_epsilon: float
    smallest_auc: float
    rates: tuple[tuple[float, float | None], ...]
    largest_auc_without_leak: float


class PolicyValues(Value):
    """A policy as it was applied; see `bench.assess.policy.Policy`."""

    name: str
    auc_max: Share
    tpr_at_fpr_1pct_max: Share
    inversion_gain_max: Share | None = None
    epsilon_lower_max: float | None
    epsilon_claim_must_hold: bool
    require: tuple[str, ...]
    min_members: int
    unit: str


class Verdict(Value):
    """The decision with its reasons, the most important first."""

    decision: Decision
    reasons: tuple[str, ...]


class Curve(Value):
    """Points of an ROC curve, from the smallest false positive rate."""

    name: str
    fpr: tuple[Share, ...]
    tpr: tuple[Share, ...]


class Levels(Value):
    """Error probabilities: of an upper limit; of a lower limit, shared by all attacks; of all bounds on epsilon."""

    upper: float
    lower: float
    epsilon: float
    correction: str


class Assessment(Value):
    """A finished assessment."""

    format: Literal[1] = FORMAT
    version: str
    created: str
    command: str
    kind: Literal["scores", "model", "samples"]
    unit: str
    delta: float
    seed: int
    verdict: Verdict
    claim: Claim | None
    policy: PolicyValues
    members: int
    others: int
    limits: Limits
    accuracy: Accuracy | None
    copies: Copies | None
    blind: Blind | None
    canaries: Canaries | None
    inversion: Inversion | None = None
    attacks: tuple[AttackResult, ...]
    not_tested: tuple[Skipped, ...]
    levels: Levels
    curves: tuple[Curve, ...]
    notes: tuple[str, ...]
    hashes: dict[str, str]
    seconds: dict[str, float]

    @property
    def status(self) -> int:
        """Exit status of the command: 0 release, 1 do not release, 3 cannot tell."""
        return STATUS[self.verdict.decision]
