"""The RuntimeClasses that users' pods name."""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.operator.injection import cdi_on, nri_on
from kgpu.operator.model import Object
from kgpu.operator.objects.common import Scene

STATE: Final = "pre-requisites"
WITH_CDI: Final = ("nvidia-legacy", "nvidia-cdi")


def objects(scene: Scene) -> list[Object]:
    """``operator.runtimeClass``, and two more if CDI is on; none if an NRI plugin injects devices."""
    spec = scene.policy.spec
    if nri_on(spec):
        return []
    wanted = dict.fromkeys((spec.operator.runtime_class or names.RUNTIME_CLASS, *(WITH_CDI if cdi_on(spec) else ())))
    return [
        scene.new_object(
            "RuntimeClass", name, state=STATE, labels={names.COMPONENT_LABEL: "gpu-operator"}, handler=name
        )
        for name in wanted
    ]
