"""Who may ask for GPUs past the scheduler, and where the NRI plugin meets the runtime: checked settings.

Secure by default: pods of the operator's own namespace only. Whoever is allowed holds GPUs that the scheduler does not
count, so the list should stay short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.go_flags import bool_of, read_bool
from kgpu.formats.image_env import ALL, CAPABILITIES, parse_capabilities
from kgpu.formats.settings import NOTHING, FlagShape, Reader, Setting, read_list, read_words, resolve
from kgpu.formats.toolkit_config import ToolkitConfig

DEFAULT_INDEX: Final = 10
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE: Final = re.compile(_LABEL, re.ASCII)
_ACCOUNT: Final = re.compile(rf"({_LABEL})/([a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NriPolicy:
    """``namespaces`` and ``accounts`` (namespace, name) may ask for GPUs that nobody else holds.

    ``management`` are the namespaces whose pods may see every GPU, also those that others hold (what monitoring needs).
    Containers may ask ``by_env`` or ``by_mounts`` unless a variable or the toolkit's config.toml says no. The rest is
    what that file can say: which ``capabilities`` there are, whether ``requirements`` are checked, and which variables
    count ``instead`` of NVIDIA_VISIBLE_DEVICES.
    """

    namespaces: frozenset[str] = frozenset()
    accounts: frozenset[tuple[str, str]] = frozenset()
    management: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset(CAPABILITIES)
    requirements: bool = True
    by_env: bool = True
    by_mounts: bool = True
    instead: tuple[str, ...] = ()

    def needs_account(self, namespace: str) -> bool:
        """Whether only the pod's service account can tell if it may ask."""
        return namespace not in self.namespaces and any(one == namespace for one, _ in self.accounts)

    def allows(self, namespace: str, account: str) -> bool:
        """Whether a pod may ask at all; ``account`` is "" when it is not known."""
        return namespace in self.namespaces or (namespace, account) in self.accounts

    def manages(self, namespace: str) -> bool:
        """Whether a pod may have the devices of the management kind."""
        return namespace in self.management


@dataclass(frozen=True, slots=True, kw_only=True)
class NriConfig:
    """The runtime's NRI socket, the plugin's place among the plugins (0..99, lower ones first), and the policy."""

    policy: NriPolicy
    socket: Path = Path(names.NRI_SOCKET)
    index: int = DEFAULT_INDEX


def _read_namespace(value: Any, where: str) -> str:
    text = str(value).strip()
    if not _NAMESPACE.fullmatch(text):
        raise ConfigError(
            f'"{text[:80]}" is not the name of a namespace' if text else "no namespace of the operator's own is given",
            "lower-case letters, digits and dashes; a service account is namespace/name",
            f"correct {where}",
        )
    return text


def _read_namespaces(value: Any, where: str) -> frozenset[str]:
    return frozenset(_read_namespace(word, where) for word in read_list(value, where))


def _read_allowed(value: Any, where: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """Namespaces, and service accounts as (namespace, name)."""
    words = read_list(value, where)
    accounts = {word: (match[1], match[2]) for word in words if (match := _ACCOUNT.fullmatch(word))}
    namespaces = (_read_namespace(word, where) for word in words if word not in accounts)
    return frozenset(namespaces), frozenset(accounts.values())


def _read_socket(value: Any, where: str) -> Path:
    text = str(value)
    path = Path(text.removeprefix("unix://") or names.NRI_SOCKET)
    if not path.is_absolute():
        raise ConfigError(
            f'the NRI socket "{text[:200]}" is not an absolute path', names.NRI_SOCKET, f"correct {where}"
        )
    return path


def _read_index(value: Any, where: str) -> int:
    word = str(value).strip()
    if not word:
        return DEFAULT_INDEX
    if not (word.isascii() and word.isdecimal() and int(word[:9]) <= 99):
        raise ConfigError(
            f'the NRI plugin\'s index "{word[:40]}" is no place in the order', "a number of 0 to 99",
            f"correct {where}",
        )  # fmt: skip
    return int(word)


def _read_enabled(value: Any, where: str) -> bool:
    text = str(value).strip().lower()
    enabled = bool_of(text)
    if enabled is None:
        raise ConfigError(f'{where} is "{text[:40]}"', "true or false", f"correct {where}")
    return enabled


ENABLED: Final = Setting(
    attr="enabled", envs=(names.ENV_NRI_ENABLED,), read=_read_enabled, default=False, help="Switches the plugin on."
)
_row = partial(Setting, reads_default=True)

ROWS: Final = (
    _row(attr="namespace", flag="--namespace", envs=(names.ENV_NRI_NAMESPACE,), read=_read_namespace,
         default=names.GPU_OPERATOR_NAMESPACE, metavar="NS",
         help="The operator's own namespace: its pods may ask, also for GPUs that others use."),
    _row(attr="allowed", flag="--allow", envs=(names.ENV_NRI_ALLOWED,), read=_read_allowed, shape=FlagShape.LIST,
         metavar="NS|NS/ACCOUNT",
         help="A namespace or service account whose pods may ask for GPUs that nobody holds; may be given several "
         "times."),
    _row(attr="management", flag="--management-namespace", envs=(names.ENV_NRI_MANAGEMENT_NAMESPACES,),
         read=_read_namespaces, shape=FlagShape.LIST, metavar="NS",
         help=f"A namespace whose pods may have {names.CDI_MANAGEMENT_KIND}: every GPU, whoever uses it."),
    _row(attr="socket", flag="--socket", envs=(names.ENV_NRI_SOCKET,), read=_read_socket, default=names.NRI_SOCKET,
         metavar="FILE", help="Where the container runtime takes NRI plugins."),
    _row(attr="index", flag="--index", envs=(names.ENV_NRI_INDEX,), read=_read_index, default=str(DEFAULT_INDEX),
         metavar="0..99", help="The place among NRI plugins; lower ones are asked first."),
    _row(attr="by_env", envs=(names.ENV_ACCEPT_BY_ENV,), read=read_bool, default=True,
         help="false: no variable of a container is heard."),
    _row(attr="by_mounts", envs=(names.ENV_ACCEPT_BY_MOUNTS,), read=read_bool, default=True,
         help="false: no mount of a container is heard."),
)  # fmt: skip


def nri_config(env: Mapping[str, str] = NOTHING, **flags: Any) -> NriConfig:
    """What the flags, by the rows' attributes, and the environment say. Raises ConfigError, which names both."""
    return _config([replace(row, read=_naming_both(row)) if row.flag else row for row in ROWS], flags, env)


def config_from_env(env: Mapping[str, str], *, namespace: str = "", socket: str = "") -> NriConfig | None:
    """The role's settings from the environment that the operator gives it; None where NRI is not switched on.

    ``namespace`` and ``socket`` count where the environment names none. Raises ConfigError.
    """
    if not resolve((ENABLED,), env=env).values[ENABLED.attr]:
        return None
    defaults = {"namespace": namespace, **({"socket": socket} if socket else {})}
    return _config([replace(row, flag="", default=defaults.get(row.attr, row.default)) for row in ROWS], NOTHING, env)


def _naming_both(row: Setting) -> Reader:
    """The row's reader, with the flag and the variable in its errors."""

    def read(value: Any, where: str) -> Any:
        del where
        return row.read(value, f"{row.flag} (or {row.envs[0]})")

    return read


def _config(rows: Iterable[Setting], flags: Mapping[str, Any], env: Mapping[str, str]) -> NriConfig:
    values = resolve(rows, flags=flags, env=env).values
    own, (namespaces, accounts) = values["namespace"], values["allowed"]
    policy = NriPolicy(
        namespaces=namespaces | {own},
        accounts=accounts,
        management=values["management"] | {own},
        by_env=values["by_env"],
        by_mounts=values["by_mounts"],
    )
    return NriConfig(policy=policy, socket=values["socket"], index=values["index"])


def honouring(policy: NriPolicy, toolkit: ToolkitConfig) -> NriPolicy:
    """The policy with what a config.toml of the replaced program sets; its defaults change nothing.

    Its default against mounts was for want of this plugin's rule that they only bring what the kubelet gave to the pod,
    or an allowed namespace asks for.
    """
    mounts = "accept-nvidia-visible-devices-as-volume-mounts"
    supported = toolkit.text("supported-driver-capabilities")
    return replace(
        policy,
        capabilities=policy.capabilities & parse_capabilities(supported or ALL),
        requirements=policy.requirements and not toolkit.flag("disable-require"),
        by_env=policy.by_env and toolkit.flag("accept-nvidia-visible-devices-envvar-when-unprivileged"),
        by_mounts=policy.by_mounts and (mounts not in toolkit.given or toolkit.flag(mounts)),
        instead=policy.instead or read_words(toolkit.text("swarm-resource"), "swarm-resource"),
    )
