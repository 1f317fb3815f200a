"""What the operator tells the agents: the key ``agent.json`` of the ConfigMap ``kgpu-agent``.

One document for all nodes; what differs per node is in the Node's labels: a role runs where its label is exactly
``true`` (or where it has none), so that a value such as ``paused-for-driver-upgrade`` stops it on that node alone.
Unknown fields are ignored: an agent may be older than its operator for a while.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kgpu.base import typed
from kgpu.base.errors import ConfigError
from kgpu.formats.names import DRIVER_INSTALL_DIR, LABEL_DEVICE_CONFIG, LABEL_VENDOR, NVIDIA
from kgpu.formats.operands import FINDERS


class ConfigKey(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A key of a ConfigMap in the agent's namespace."""

    config_map: str
    key: str


class RoleConfig(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """One role. ``label`` is the Node label that has to be ``true``, "" for every node; ``where`` is another, without
    which there is nothing for the role to do. ``env`` and ``args`` are what the replaced program would have been
    started with. ``files`` are further variables: the agent sets them to paths of files with what these keys have.
    """

    enabled: bool = True
    label: str = ""
    where: str = ""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    args: tuple[str, ...] = ()
    files: dict[str, ConfigKey] = msgspec.field(default_factory=dict)


class ConfigRef(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """A ConfigMap of named configurations in the agent's namespace; ``default`` is the key of nodes without a label."""

    name: str = ""
    default: str = ""


class NodeKind(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Nodes that are served in another way than most: ``title`` is what their accelerators are called for people,
    ``roles`` are the only ones that have something to do there.
    """

    title: str = ""
    roles: dict[str, RoleConfig] = msgspec.field(default_factory=dict)


class AgentConfig(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """All of it.

    ``roles`` by the agent's role names; a role that is not named does not run. ``kinds`` are those of nodes for which
    other roles are right, by the Node labels ``kgpu.dev/vendor`` and
    ``kgpu.dev/device-config`` (``kind_name``). ``leaving``: clean up what
    the agent has put on this host, then report the state ``left``. ``node_feature_api``: labels go into NodeFeature
    objects because a node feature discovery is there that turns them into labels; otherwise they are written to the
    Node.
    ``other_discovery``: a node feature discovery other than kgpu's works in this cluster. ``take_over_features``: none
    does, by the administrator's word, and the keys that one has left on a Node are kgpu's.
    ``feature_rules``: kgpu's operator labels Nodes, by its rules and by what agents say in NodeFeatures.
    ``own_pods``: operands have pods of their own, with environment, files and arguments there and not here, so that an
    agent of all roles goes on as it was told before until it is removed.
    ``driver_root`` is where the driver is on the host, "" to look: the install folder if a driver is there, else
    ``host_root``. Paths are the host's.
    """

    roles: dict[str, RoleConfig] = msgspec.field(default_factory=dict)
    kinds: dict[str, NodeKind] = msgspec.field(default_factory=dict)
    device_plugin_config: ConfigRef = msgspec.field(default_factory=ConfigRef)
    node_feature_api: bool = False
    other_discovery: bool = False
    take_over_features: bool = False
    feature_rules: bool = False
    leaving: bool = False
    own_pods: bool = False
    driver_root: str = ""
    driver_install_dir: str = DRIVER_INSTALL_DIR
    host_root: str = "/"
    generation: int = 0
    """The generation of the ClusterPolicy that this was made from."""


def vendor_of_node(labels: Mapping[str, str]) -> str:
    """Whose accelerators a node with these labels has, as far as roles are concerned."""
    return labels.get(LABEL_VENDOR) or NVIDIA


def kind_name(vendor: str, device_config: str = "") -> str:
    """The key of ``AgentConfig.kinds`` for a vendor's nodes, or for those that have this DeviceConfig."""
    return f"{vendor}/{device_config}" if device_config else vendor


def kind_of_node(config: AgentConfig, labels: Mapping[str, str]) -> NodeKind | None:
    """How a node with these labels is served, None if the document does not say it."""
    vendor, told = vendor_of_node(labels), labels.get(LABEL_DEVICE_CONFIG, "")
    return config.kinds.get(kind_name(vendor, told))


def of_node(config: AgentConfig, labels: Mapping[str, str]) -> AgentConfig:
    """The document as it is for a node with these labels. Where the operator has not said yet how its kind is served,
    only what looks for accelerators runs.
    """
    if vendor_of_node(labels) == NVIDIA:
        return config
    kind = kind_of_node(config, labels) or NodeKind()
    finders = {name: role for name, role in config.roles.items() if name in FINDERS}
    return msgspec.structs.replace(config, roles={**finders, **kind.roles})


def encode(config: AgentConfig) -> str:
    """As JSON with sorted keys: the same configuration is always the same text."""
    return msgspec.json.format(msgspec.json.encode(config, order="sorted"), indent=1).decode()


def decode(text: str | bytes, *, source: str) -> AgentConfig:
    """Raises ConfigError, which names ``source``."""
    try:
        return typed.decode(text, AgentConfig)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the agent's configuration in {source} can't be read: {error}",
            "the JSON document that the operator writes",
            "delete the ConfigMap: the operator writes it again",
        ) from error
