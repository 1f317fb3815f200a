"""The MPS control daemons, for nodes on which something is shared by MPS. They share the device plugin's section,
account and configuration.

Feature discovery says in a label which nodes these are; where the policy switches it off, nobody does, and the role is
on every node that has a device plugin.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.formats.operands import BY_ROLE
from kgpu.operator.injection import mig_strategy
from kgpu.operator.model import Policy
from kgpu.operator.objects.containers import DRIVER_VOLUMES, MPS, NODE_STATE
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable
from kgpu.operator.operands.deviceplugin import config_maps, mps_root


def _where(policy: Policy) -> str:
    return "" if policy.spec.gfd.enabled is False else names.LABEL_MPS_CAPABLE


SPEC: Final = OperandSpec(
    operand=BY_ROLE["mps"],
    where=_where,
    per_node=True,
    env=(Variable("MPS_ROOT", mps_root), Variable("MIG_STRATEGY", mig_strategy)),
    pod=OperandPod(
        container="mps-control-daemon-ctr",
        volumes=(*DRIVER_VOLUMES, NODE_STATE, MPS),
        host_pid=lambda _: True,
    ),
    config_maps=config_maps,
)
