"""Who may ask for GPUs past the scheduler, and where the NRI plugin meets the runtime: checked settings.

Secure by default: pods of the operator's own namespace only. Whoever is allowed holds GPUs that the scheduler does not
count, so the list should stay short.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.image_env import ALL, CAPABILITIES, parse_capabilities
from kgpu.formats.toolkit_config import ToolkitConfig

DEFAULT_INDEX: Final = 10
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE: Final = re.compile(_LABEL, re.ASCII)
_ACCOUNT: Final = re.compile(rf"({_LABEL})/([a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NriPolicy:
    """``namespaces`` and ``accounts`` (namespace, name) may ask for GPUs that nobody else holds.

    ``management`` are the namespaces whose pods may see every GPU, also those that others hold (what monitoring needs).
    The rest is what the toolkit's config.toml can say: which ``capabilities`` there are, whether ``requirements`` are
    checked, whether containers may ask ``by_env`` or ``by_mounts``, and which variables count ``instead`` of
    NVIDIA_VISIBLE_DEVICES.
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


def nri_config(
    *,
    namespace: str,
    allowed: str = "",
    management: str = "",
    socket: str = "",
    index: str = "",
    said: Mapping[str, str] | None = None,
) -> NriConfig:
    """Settings from text. ``namespace`` is the operator's own; the lists are separated by commas.

    ``allowed`` has namespaces, and service accounts as ``namespace/name``. ``said`` is how errors name what to correct,
    by variable; the variable itself where it says nothing. Raises ConfigError.
    """
    call = dict(said or {})
    own = _namespace(namespace.strip(), call.get(names.ENV_NRI_NAMESPACE, names.ENV_NRI_NAMESPACE))
    namespaces, accounts = {own}, set()
    for word in _words(allowed):
        account = _ACCOUNT.fullmatch(word)
        if account:
            accounts.add((account[1], account[2]))
        else:
            namespaces.add(_namespace(word, call.get(names.ENV_NRI_ALLOWED, names.ENV_NRI_ALLOWED)))
    where = call.get(names.ENV_NRI_MANAGEMENT_NAMESPACES, names.ENV_NRI_MANAGEMENT_NAMESPACES)
    managing = {own, *(_namespace(word, where) for word in _words(management))}
    policy = NriPolicy(namespaces=frozenset(namespaces), accounts=frozenset(accounts), management=frozenset(managing))
    return NriConfig(
        policy=policy,
        socket=_socket(socket, call.get(names.ENV_NRI_SOCKET, names.ENV_NRI_SOCKET)),
        index=_index(index, call.get(names.ENV_NRI_INDEX, names.ENV_NRI_INDEX)),
    )


def config_from_env(env: Mapping[str, str], *, namespace: str = "", socket: str = "") -> NriConfig | None:
    """The role's settings from the environment that the operator gives it; None where NRI is not switched on.

    ``namespace`` and ``socket`` count where the environment names none. Raises ConfigError.
    """
    if not enabled(env):
        return None
    return nri_config(
        namespace=env.get(names.ENV_NRI_NAMESPACE, "") or namespace,
        allowed=env.get(names.ENV_NRI_ALLOWED, ""),
        management=env.get(names.ENV_NRI_MANAGEMENT_NAMESPACES, ""),
        socket=env.get(names.ENV_NRI_SOCKET, "") or socket,
        index=env.get(names.ENV_NRI_INDEX, ""),
    )


def honouring(policy: NriPolicy, toolkit: ToolkitConfig) -> NriPolicy:
    """The policy with what a config.toml of the replaced program sets; its defaults change nothing.

    Its default against mounts was for want of this plugin's rule that they only bring what the kubelet gave to the pod,
    or an allowed namespace asks for.
    """
    mounts = "accept-nvidia-visible-devices-as-volume-mounts"
    supported = toolkit.text("supported-driver-capabilities")
    return dataclasses.replace(
        policy,
        capabilities=policy.capabilities & parse_capabilities(supported or ALL),
        requirements=policy.requirements and not toolkit.flag("disable-require"),
        by_env=policy.by_env and toolkit.flag("accept-nvidia-visible-devices-envvar-when-unprivileged"),
        by_mounts=policy.by_mounts and (mounts not in toolkit.given or toolkit.flag(mounts)),
        instead=policy.instead or tuple(_words(toolkit.text("swarm-resource"))),
    )


def enabled(env: Mapping[str, str]) -> bool:
    """Whether the environment switches the NRI plugin on. Raises ConfigError for what is no yes or no."""
    text = env.get(names.ENV_NRI_ENABLED, "").strip().lower()
    if text in {"1", "t", "true"}:
        return True
    if text in {"", "0", "f", "false"}:
        return False
    raise ConfigError(f'{names.ENV_NRI_ENABLED} is "{text[:40]}"', "true or false", f"correct {names.ENV_NRI_ENABLED}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _namespace(text: str, where: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ConfigError(
            f'"{text[:80]}" is not the name of a namespace' if text else "no namespace of the operator's own is given",
            "lower-case letters, digits and dashes; a service account is namespace/name",
            f"correct {where}",
        )
    return text


def _socket(text: str, where: str) -> Path:
    path = Path(text.removeprefix("unix://") or names.NRI_SOCKET)
    if not path.is_absolute():
        raise ConfigError(
            f'the NRI socket "{text[:200]}" is not an absolute path',
            names.NRI_SOCKET,
            f"correct {where}",
        )
    return path


def _index(text: str, where: str) -> int:
    word = text.strip()
    if not word:
        return DEFAULT_INDEX
    if not (word.isascii() and word.isdecimal() and int(word[:9]) <= 99):
        raise ConfigError(
            f'the NRI plugin\'s index "{word[:40]}" is no place in the order', "a number of 0 to 99",
            f"correct {where}",
        )  # fmt: skip
    return int(word)
