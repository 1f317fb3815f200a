"""What a container of kgpu's image is for when its manifest names no command, but flags alone or nothing at all.

NVIDIA's exporter chart and its static manifests leave the command to the image: each of the replaced images starts its
own program. kgpu's one image tells them apart by what they set: a flag that only one of the programs has decides, then
a variable of the exporter's, then one of the plugin's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats.programs import PROGRAMS

EXPORTER: Final = "dcgm-exporter"
PLUGIN: Final = "nvidia-device-plugin"


def meant(arguments: Sequence[str], env: Mapping[str, str]) -> str:
    """The replaced program whose manifest gives these flags and variables. Raises ConfigError where it is none."""
    flags = {word.lstrip("-").partition("=")[0] for word in arguments if word.startswith("-")}
    known = {EXPORTER: set(_exporter_flags()), PLUGIN: set(_plugin_flags())}
    programs = [program for program, names in known.items() if flags & names]
    if len(programs) == 1:
        return programs[0]
    for program, variables in ((EXPORTER, _exporter_variables()), (PLUGIN, _plugin_variables())):
        if not env.keys().isdisjoint(variables) and not programs:
            return program
    shown = f", its arguments are {' '.join(arguments):.200}" if arguments else " and no arguments"
    raise ConfigError(
        f"the container has no command{shown}, and nothing in its environment says which program it is for",
        f"a command of kgpu's such as agent, or a program that kgpu stands for: {', '.join(PROGRAMS)}",
        f"name it in the container's command, for example command: [{EXPORTER}]",
    )


def _exporter_flags() -> Iterator[str]:
    from kgpu.exporter.options import OPTIONS
    from kgpu.formats.exporter_flags import REFUSED, WITHOUT

    for row in (*OPTIONS, *WITHOUT, *REFUSED):
        yield from (name.lstrip("-") for name in (row.flag, *row.aliases))


def _exporter_variables() -> Iterator[str]:
    from kgpu.exporter.options import OPTIONS
    from kgpu.formats.exporter_flags import REFUSED, WITHOUT

    yield from (name for row in (*OPTIONS, *WITHOUT, *REFUSED) for name in row.envs if name.startswith("DCGM_"))


def _plugin_flags() -> Iterator[str]:
    from kgpu.deviceplugin.config import FLAGS

    for row in FLAGS:
        yield from (name.lstrip("-") for name in (row.flag, *row.aliases))


def _plugin_variables() -> Iterator[str]:
    from kgpu.deviceplugin.config import FLAGS

    yield from (name for row in FLAGS for name in row.envs)
