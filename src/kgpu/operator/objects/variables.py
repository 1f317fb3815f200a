"""Checks which environment variables from a policy a container can have in this cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats.crd.common import EnvVar
from kgpu.operator.objects.common import Scene, env_values

# Kubernetes allows any printable ASCII but "=" since 1.32; before that, letters, digits, "-", "_" and ".".
_ANY_NAME: Final = re.compile("[ -<>-~]+")
_OLD_NAME: Final = re.compile(r"(?!\.\.)(?!\.$)[-._a-zA-Z][-._a-zA-Z0-9]*")
_ANY_SINCE: Final = (1, 32)


def check_names(path: str, env: Iterable[EnvVar], scene: Scene) -> None:
    """Raise ConfigError for the first name that no container can have in this cluster. ``path`` is the list's path."""
    for number, row in enumerate(env):
        if not _named(row, scene):
            raise ConfigError(
                f'{path}[{number}].name is "{row.name}"',
                "the name of an environment variable without `=`, such as LOG_LEVEL",
                f"correct the name in {path}; a value goes into value",
            )


def valid_env(env: Iterable[EnvVar], scene: Scene) -> dict[str, str]:
    """The variables by name, without those that no container can have."""
    return env_values(row for row in env if _named(row, scene))


def _named(row: EnvVar, scene: Scene) -> bool:
    form = _ANY_NAME if scene.observed.kube_version >= _ANY_SINCE else _OLD_NAME
    return form.fullmatch(row.name) is not None
