"""All that the author of a plug-in reads: what a method or an attack is given, and what it must return.

A plug-in is one frozen dataclass in one file. Its fields are public hyper-parameters, shown by `--help`, written into
the record and hashed; the string under a field is its help line. Private data, devices and random generators come
only as arguments. Images are (n, c, h, w) float32 in [0, 1] everywhere; a model's own normalisation lives inside
the model.

`methods` has what a method is given and returns, `attacks` the same of an attack, `access` what an attack sees of its
target, `sampler` how a generator is drawn from, `context` how a step runs. All of it is imported from here.
"""

from bench.api.access import ACCESS_LEVELS, RELEASE_LEVELS, Access, AccessDenied, ReleasedImages, Target
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
    PublicDataMethod,
    Release,
    SamplingMethod,
    Shards,
    Teacher,
    releases_images,
    trains_student,
)
from bench.api.sampler import Latents, Sampler, Shape, gaussian_latents, uniform_latents

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
    "releases_images",
    "trains_student",
    "uniform_latents",
]
