"""Every object that a ClusterPolicy asks for, as plain dictionaries to be applied: ``render`` and ``agent_config``.

Pure: the same policy, settings and cluster give the same objects in the same order. What is wrong with one operand is
in ``Rendered.errors`` under its name and never stops the others.
"""

from __future__ import annotations

from kgpu.operator.objects.agent_settings import agent_config
from kgpu.operator.objects.common import Rendered
from kgpu.operator.objects.render import render

__all__ = ["Rendered", "agent_config", "render"]
