"""Contract tests that every plug-in must pass, and toy inputs for them.

To test your own plug-in with pytest:

    class TestMine(MethodContract):
        plugin = MyMethod
"""

from __future__ import annotations

from bench.testing.attacks import AttackContract, MembershipContract, ReleaseContract
from bench.testing.methods import MethodContract
from bench.testing.parts import (
    DatasetContract,
    MetricContract,
    NetworkContract,
    PriorContract,
    TeacherRecipeContract,
)
from bench.testing.plugins import PluginContract, expect
from bench.testing.toys import (
    CLASSES,
    CPU,
    SHAPE,
    MemoryArtifacts,
    context,
    recording_context,
    silent,
    sure_network,
    toy_aux,
    toy_images,
    toy_knowledge,
    toy_private,
    toy_reconstructions,
    toy_sampler,
    toy_teacher,
    weights,
)

__all__ = [
    "CLASSES",
    "CPU",
    "SHAPE",
    "AttackContract",
    "DatasetContract",
    "MembershipContract",
    "MemoryArtifacts",
    "MethodContract",
    "MetricContract",
    "NetworkContract",
    "PluginContract",
    "PriorContract",
    "ReleaseContract",
    "TeacherRecipeContract",
    "context",
    "expect",
    "recording_context",
    "silent",
    "sure_network",
    "toy_aux",
    "toy_images",
    "toy_knowledge",
    "toy_private",
    "toy_reconstructions",
    "toy_sampler",
    "toy_teacher",
    "weights",
]
