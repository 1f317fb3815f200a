"""Defaults of the real API's types: one table, type name -> what fills in its unset fields, in place.

Every function looks at one type; ``shape`` walks an object and calls the parents' functions first. Objects are settled
before, so an unset field is absent (or zero where Go always prints it). Source: Kubernetes' defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.defaults import core, other_groups, pod, workloads

DEFAULTS: Final[dict[str, Callable[[Object], None]]] = {
    f"io.k8s.api.{name}": function
    for table in (pod.DEFAULTS, core.DEFAULTS, workloads.DEFAULTS, other_groups.DEFAULTS)
    for name, function in table.items()
}
