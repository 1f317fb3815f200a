"""The validator's repeated tests beside a role ``usage`` that would take them for somebody's work."""

from __future__ import annotations

import dataclasses

import pytest

from kgpu.formats import names
from kgpu.operator.model import NodeLayout
from kgpu.operator.objects.common import Scene
from kgpu.operator.operand_env import role_env
from kgpu.operator.operands import OF_ROLE
from tests.operator.objects.scenes import Case, policy

OWN = 'validator: {cuda: {env: [{name: RECHECK_SECONDS, value: "900"}]}}'


@pytest.mark.parametrize(
    ("spec", "layout", "usage", "seconds"),
    [
        ("{}", NodeLayout.OPERANDS, True, "0"),
        ("{}", NodeLayout.OPERANDS, False, None),
        ("{}", NodeLayout.AGENT, True, None),  # one process, whose roles know of each other
        (OWN, NodeLayout.OPERANDS, True, "900"),
    ],
)
def test_they_are_left_out_where_nobody_would_know_them(
    spec: str, layout: NodeLayout, usage: bool, seconds: str | None
) -> None:
    case = Case(policy=policy(spec))
    settings = dataclasses.replace(case.settings, layout=layout, usage=usage)
    env = role_env(OF_ROLE["validator"], Scene(case.policy, settings, case.observed))
    assert env.get(names.ENV_CUDA_RECHECK) == seconds
