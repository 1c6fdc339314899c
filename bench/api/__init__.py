"""The plug-in interface: the inputs of a method or an attack, and the results that it must return.

A plug-in is one frozen dataclass in one file. Its fields are public hyper-parameters: `--help` shows them, the record
of a run stores them, and they determine the run's hash. The string under a field is its help line. Private data,
devices and random generators are passed only as arguments. Images are (n, c, h, w) float32 in [0, 1] unless stated
otherwise (private and public records are uint8); a model contains its own normalisation.

`methods` holds the inputs and results of a method, `attacks` those of an attack, `access` the views that an attack has
of its target, `sampler` the way to draw from a generator, and `context` the device, seeds and precision of a step.
Import all of them from here.
"""

from bench.api.access import (
    ACCESS_LEVELS,
    RELEASE_LEVELS,
    Access,
    AccessDenied,
    Latents,
    ReleasedImages,
    Sampler,
    Shape,
    Target,
    gaussian_latents,
    uniform_latents,
)
from bench.api.attacks import (
    Attack,
    AttackerKnowledge,
    AttackResult,
    DecodingAttack,
    GenerativeAttack,
    MembershipAttack,
    MembershipResult,
    Reference,
    ReleaseAttack,
)
from bench.api.context import Advance, Artifacts, Context, Network, Tensors
from bench.api.methods import (
    AuditableMethod,
    EnsembleMethod,
    Method,
    PretrainedMethod,
    PublicDataMethod,
    Release,
    SamplingMethod,
    Shards,
    Teacher,
    refuse_groups,
    releases_images,
    trains_student,
)

__all__ = [
    "ACCESS_LEVELS",
    "RELEASE_LEVELS",
    "Access",
    "AccessDenied",
    "Advance",
    "Artifacts",
    "Attack",
    "AttackResult",
    "AttackerKnowledge",
    "AuditableMethod",
    "Context",
    "DecodingAttack",
    "EnsembleMethod",
    "GenerativeAttack",
    "Latents",
    "MembershipAttack",
    "MembershipResult",
    "Method",
    "Network",
    "PretrainedMethod",
    "PublicDataMethod",
    "Reference",
    "Release",
    "ReleaseAttack",
    "ReleasedImages",
    "Sampler",
    "SamplingMethod",
    "Shape",
    "Shards",
    "Target",
    "Teacher",
    "Tensors",
    "gaussian_latents",
    "refuse_groups",
    "releases_images",
    "trains_student",
    "uniform_latents",
]
