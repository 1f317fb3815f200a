"""The options of one role under the operator: the agent's own options, the role's environment, and its arguments.

Arguments are flags as the replaced program takes them: ``--name=value`` or ``--name value``, with one dash or two, and
booleans without a value. An unknown flag is an error, as it was there. A process for one role has its environment and
arguments in its own container, and the document has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kgpu.agent.driver_place import DriverPlace
from kgpu.agent.host import DRIVER_PLACE, Role
from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from kgpu.formats.names import ENV_HW_STATE, VALIDATIONS_DIR
from kgpu.formats.settings import FlagShape, Setting
from kgpu.formats.simulated import state_file

VALIDATOR: Final = "validator"
TOOLKIT: Final = "toolkit"
# Flags of the replaced programs whose values come from another field of the policy, or from the operator.
_ELSEWHERE: Final = {
    "config-file": "devicePlugin.config names a ConfigMap of configs",
    "kubelet-socket": "hostPaths.kubeletRootDir says where the kubelet is",
    **dict.fromkeys(
        ("kubeconfig", "node-name", "namespace", "pod-name", "kube-api-qps", "kube-api-burst"),
        "the operator's pods know it by themselves",
    ),
}


def role_options(
    base: AgentOptions,
    role: Role,
    role_config: RoleConfig,
    config: AgentConfig,
    place: DriverPlace,
    *,
    files: Mapping[str, str] = MappingProxyType({}),
) -> AgentOptions:
    """The options of one role on this node; ``files`` are variables with paths. Raises ConfigError for arguments that
    the role does not have.
    """
    overrides: dict[str, Mapping[str, Any]] = dict(base.overrides)
    args = _args(base, role, role_config)
    if role.flags is not None:
        overrides[role.name] = {**base.overrides_of(role.name), **parse_args(args, role.flags(), role.name)}
    elif args:
        raise ConfigError(
            f"the role {role.name} takes no arguments, and was given {' '.join(args)}",
            "no args for this operand in the ClusterPolicy",
            "remove them there",
        )
    env = {**base.env, **files, **role_config.env}
    # An option that a role does not get can't restart it.
    ordered = _ordered(base, config)
    taken = {name: ordered[name] for name in role.orders}
    if role.hardware:
        state = state_file(str(place.seen))
        env = {**({ENV_HW_STATE: state} if state else {}), **env}
        taken["root"] = None if place.seen == Path("/") else place.seen
        found = {"container_driver_root": str(place.seen), "driver_root": place.host}
        overrides[DRIVER_PLACE] = {**found, **overrides.get(DRIVER_PLACE, {})}
    return dataclasses.replace(base, env=env, overrides=overrides, **taken)


def _ordered(base: AgentOptions, config: AgentConfig) -> dict[str, Any]:
    """The options that the document decides, for roles that take them (``Role.orders``)."""
    return {
        "driver_install_dir": Path(config.driver_install_dir),
        "foreign_nfd": config.other_discovery,
        "take_over_features": config.take_over_features,
        "feature_rules": config.feature_rules,
        "validations_dir": (base.validations_dir or Path(VALIDATIONS_DIR)) if _enabled(config, VALIDATOR) else None,
        "toolkit_expected": _enabled(config, TOOLKIT),
        "labels_sink": LabelsSink.NODE_FEATURE if config.node_feature_api else LabelsSink.NODE,
    }


def _args(base: AgentOptions, role: Role, role_config: RoleConfig) -> tuple[str, ...]:
    """The arguments of this process if it is the role's own, else those of the document."""
    own = base.role_args and base.roles[0] in (role.name, *role.aliases)
    return base.role_args if own else role_config.args


def _enabled(config: AgentConfig, role: str) -> bool:
    role_config = config.roles.get(role)
    return role_config is not None and role_config.enabled


def parse_args(args: Sequence[str], rows: Iterable[Setting], who: str) -> dict[str, Any]:
    """The flags' values as strings by the rows' attributes; the component checks them. Raises ConfigError."""
    by_name = {name.lstrip("-"): row for row in rows for name in (row.flag, *row.aliases)}
    values: dict[str, Any] = {}
    words = iter(args)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        row = by_name.get(name)
        if row is None or not word.startswith("-"):
            raise _unknown(word, name, by_name, who)
        if not equals:
            value = "true" if row.shape is FlagShape.SWITCH else next(words, "")
        values[row.attr] = [*values.get(row.attr, ()), value] if row.shape is FlagShape.LIST else value
    return values


def _unknown(word: str, name: str, known: Mapping[str, Setting], who: str) -> ConfigError:
    instead = _ELSEWHERE.get(name, "") if word.startswith("-") else ""
    hint = "" if instead else did_you_mean(name, list(known))
    return ConfigError(
        f'{who}: there is no flag "{word}"{"; " if hint else ""}{hint}',
        f"flags of this operand, such as --{next(iter(known), '')}=VALUE",
        f"remove it from args in the ClusterPolicy; {instead}" if instead else "correct args in the ClusterPolicy",
    )
