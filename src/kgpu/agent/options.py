"""The agent's command line options, checked as a whole before anything starts."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgpu.base.errors import ConfigError
from kgpu.base.http import Address
from kgpu.formats.config_choice import Fallback
from kgpu.formats.names import (
    CDI_DIR,
    DRIVER_INSTALL_DIR,
    KUBELET_SOCKET,
    NFD_FEATURE_FILE,
    POD_RESOURCES_SOCKET,
    SIMULATED_MACHINE,
    STATE_DIR,
)


class LabelsSink(enum.StrEnum):
    """Where labels go. AUTO: a NodeFeature when an API server is configured, otherwise nowhere."""

    AUTO = "auto"
    NODE_FEATURE = "nodefeature"
    FILE = "file"
    NODE = "node"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ConfigMapRef:
    """A ConfigMap whose keys are configuration names."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """All options of the agent. ``root`` is the driver root as this process sees it, None for its own ``/``.

    ``overrides`` are the flags of roles that were given, by role and then by the component's own names.
    ``host_root`` is the host's ``/`` as this process sees it. ``validations_dir`` holds the files that the device
    plugin waits for before it offers anything, None to wait for nothing. With ``toolkit_expected`` something on
    this node writes CDI specs, and the validator looks for them. ``foreign_nfd`` means that another node feature
    discovery works in this cluster; ``take_over_features`` that none does, and that what one has left is taken
    over. With ``feature_rules`` kgpu's operator labels Nodes, by what agents say in NodeFeatures. ``role_args`` are
    arguments of the first role in ``roles``, as the replaced program takes them, in a process that runs that role for
    the operator.
    """

    roles: tuple[str, ...] = ()
    auto: bool = False
    role_args: tuple[str, ...] = ()
    root: Path | None = None
    host_root: Path = Path("/")
    driver_install_dir: Path = Path(DRIVER_INSTALL_DIR)
    validations_dir: Path | None = None
    toolkit_expected: bool = True
    foreign_nfd: bool = False
    take_over_features: bool = False
    feature_rules: bool = False
    node_name: str = ""
    kubeconfig: str = ""
    namespace: str = ""
    kubelet_socket: Path = Path(KUBELET_SOCKET)
    config_file: Path | None = None
    config_map: ConfigMapRef | None = None
    default_config: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    labels_sink: LabelsSink = LabelsSink.AUTO
    labels_file: Path = Path(NFD_FEATURE_FILE)
    cdi_dir: Path = Path(CDI_DIR)
    health_address: Address | None = None
    state_dir: Path = Path(STATE_DIR)
    node_state_dir: Path | None = None
    shutdown_seconds: float = 10.0
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def overrides_of(self, role: str) -> Mapping[str, Any]:
        """The role's own flags that were given."""
        return self.overrides.get(role, {})

    @property
    def has_api_server(self) -> bool:
        """True if the API server's address is configured; it may still be unreachable."""
        return bool(self.kubeconfig) or self.in_pod

    @property
    def in_pod(self) -> bool:
        """True if this process is in a pod, by what the kubelet gives each container."""
        return bool(self.env.get("KUBERNETES_SERVICE_HOST"))

    @property
    def kubelet_folder(self) -> Path:
        """The kubelet's own folder, wherever it has its device plugins."""
        return self.kubelet_socket.parent.parent

    @property
    def pod_resources_socket(self) -> Path:
        """Where the kubelet says who holds which devices."""
        return self.kubelet_folder.joinpath(*Path(POD_RESOURCES_SOCKET).parts[-2:])

    @property
    def pci_roots(self) -> tuple[Path, ...]:
        """Roots under which a PCI bus may be, the host's first; simulated hardware has its own."""
        install = self.driver_install_dir
        below = self.host_root / str(install).lstrip("/")  # where the finder sees it
        simulated = self.host_root / SIMULATED_MACHINE.lstrip("/")
        return tuple(dict.fromkeys((self.host_root, below, install, self.root or self.host_root, simulated)))

    @property
    def sink(self) -> LabelsSink:
        """Where labels go, with AUTO resolved."""
        if self.labels_sink is not LabelsSink.AUTO:
            return self.labels_sink
        return LabelsSink.NODE_FEATURE if self.has_api_server and self.node_name else LabelsSink.NONE

    def check(self) -> None:
        """Raise ConfigError for options that are incomplete or contradict each other."""
        if self.config_file is not None and self.config_map is not None:
            raise ConfigError(
                "both --config-file and --config-map are given",
                "one source of the configuration",
                "leave one of them out (also CONFIG_FILE and CONFIG_MAP in the environment)",
            )
        if not self.kubelet_socket.name:
            raise ConfigError(
                "--kubelet-socket is empty",
                "the kubelet's socket: a device plugin that does not register serves nobody",
                f"leave it out, or give its path, usually {KUBELET_SOCKET}",
            )
        if self.role_args and not (self.auto and self.roles):
            raise ConfigError(
                f"there is no role for the arguments after --: {' '.join(self.role_args):.200}",
                "--auto and the role in --roles; without --auto the roles' flags are the agent's own",
                "give them before --, or leave them out",
            )
        needs_node = {
            "--config-map": self.config_map is not None,
            "--labels-sink nodefeature": self.labels_sink is LabelsSink.NODE_FEATURE,
            "--labels-sink node": self.labels_sink is LabelsSink.NODE,
            "--auto": self.auto,
        }
        for option, used in needs_node.items():
            if used and not self.node_name:
                raise ConfigError(
                    f"{option} needs to know which node this is",
                    "the node's name in --node-name or NODE_NAME",
                    "set NODE_NAME from the pod's spec.nodeName",
                )
        if self.auto and not self.namespace:
            raise ConfigError(
                "--auto needs to know where the operator's configuration is",
                "the operator's namespace in --namespace or NAMESPACE",
                "set NAMESPACE from the pod's metadata.namespace",
            )


def parse_config_map(text: str, namespace: str) -> ConfigMapRef:
    """Parse ``NAMESPACE/NAME``, or ``NAME`` in the agent's own namespace. Raises ConfigError."""
    first, slash, second = text.partition("/")
    ref = ConfigMapRef(first, second) if slash else ConfigMapRef(namespace, first)
    if not ref.namespace or not ref.name or "/" in ref.name:
        raise ConfigError(
            f'"{text}" does not name a ConfigMap', "NAMESPACE/NAME, for example gpu-operator/plugin-configs",
            "correct --config-map (CONFIG_MAP)",
        )  # fmt: skip
    return ref
