"""The operator's side of one operand, as the modules of ``kgpu.operator.operands`` declare it.

What users call it, and its names in the cluster, are its row in ``kgpu.formats.operands``; what runs on the node is the
role of the same name in ``kgpu.agent.roles``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.base.advice import Advice
from kgpu.formats import names
from kgpu.formats.agent_config import ConfigKey
from kgpu.formats.operands import Operand
from kgpu.operator.causes import Cause, CauseView
from kgpu.operator.checks import role_cause
from kgpu.operator.model import ClusterNode, Object, OperatorSettings, Policy
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.containers import RESOURCES
from kgpu.operator.objects.rbac import NODES, read_config_maps
from kgpu.operator.verdict import NodeCause, OperandVerdict

Value: TypeAlias = str | Callable[[Scene], str | None]
Rules: TypeAlias = tuple[Object, ...]

SWITCHED_OFF: Final = "switched off in the ClusterPolicy"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a role's environment. ``value`` is the text or a function of it; None leaves the variable out."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class IdleArguments:
    """Arguments of the policy without effect, why, and what to do."""

    args: tuple[str, ...]
    why: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFolder:
    """A ConfigMap as a folder of a pod, which starts without it, too: that it is missing is told as a condition."""

    volume: str
    config_map: str
    folder: str

    @property
    def as_volume(self) -> Object:
        return {"name": self.volume, "configMap": {"name": self.config_map, "optional": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandPod:
    """The pod of an operand that has pods of its own: what differs between operands.

    ``container`` is the name as users know it. ``volumes`` are names of ``host_access``; ``labels`` are further labels
    of pods that live selectors have. ``env`` is for these pods alone. With ``host_pid`` the pod sees the host's
    processes. ``config_folders`` are ConfigMaps that it sees as folders; ``tolerations`` come to the policy's.
    """

    container: str
    volumes: tuple[str, ...]
    env: tuple[Variable, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    port: tuple[str, int] | None = None
    host_pid: Callable[[Policy], bool] = lambda _: False
    config_folders: Callable[[Scene], tuple[ConfigFolder, ...]] = lambda _: ()
    annotations: Callable[[Policy], dict[str, str]] = lambda _: {}
    tolerations: tuple[Object, ...] = ()
    privileged: bool = True
    resources: Object = field(default_factory=lambda: RESOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSpec:
    """One operand.

    ``enabled`` says whether a policy asks for it, in place of ``enabled`` in its section. ``where`` is a further Node
    label that has to be ``true``, "" for none: on other nodes there is nothing for it to do. With ``per_node`` its own
    label is only on nodes that can have it. One that ``lingers`` has its pod also where that label is ``leaving``.
    ``env`` is what the replaced operator would give the program of the same name; ``files`` are variables with the path
    of a file that has what a key of a ConfigMap has, for the agent; a pod of its own mounts these. ``env_blocks`` are
    blocks of its section with an ``env`` of their own. ``instead_of_args`` says what to set where the replaced
    container gave ``args`` to a shell; ``idle_args`` finds those that change nothing. ``rules`` are its account's
    rights in all namespaces; in the operator's it reads the agents' ConfigMap and ``config_maps``, those that the
    policy names for it. ``shared`` are objects of both layouts, ``objects`` stand beside its pods, ``metrics`` are how
    Prometheus finds its metrics; ``made_by`` makes all objects of an operand that is no role of the agent.

    ``check`` judges it on one node, ``general`` for the whole cluster. ``wanted``, ``why_off``, ``missed`` and
    ``verdict`` replace the common rules: whether it is judged, the note where it isn't, what is wrong all the same, and
    the whole verdict.
    """

    operand: Operand
    enabled: Callable[[Policy, OperatorSettings], bool] | None = None
    where: Callable[[Policy], str] = lambda _: ""
    per_node: bool = False
    lingers: bool = False
    env: tuple[Variable, ...] = ()
    env_blocks: tuple[str, ...] = ()
    files: Callable[[Scene], Mapping[str, ConfigKey]] = lambda _: {}
    instead_of_args: str = ""
    idle_args: Callable[[Sequence[str]], Iterator[IdleArguments]] = lambda _: iter(())
    pod: OperandPod | None = None
    has_pods: Callable[[Scene], bool] | None = None
    rules: Callable[[Scene], Rules] = lambda _: (NODES,)
    config_maps: Callable[[Scene], tuple[str, ...]] = lambda _: ()
    shared: Callable[[Scene], list[Object]] = lambda _: []
    objects: Callable[[Scene], list[Object]] = lambda _: []
    metrics: Callable[[Scene], list[Object]] | None = None
    made_by: Callable[[Scene], list[Object]] | None = None
    advice: Callable[[Scene], Iterator[Advice]] = lambda _: iter(())
    check: Callable[[CauseView, Operand, ClusterNode], Cause | None] = role_cause
    general: Callable[[CauseView], Cause | None] = lambda _: None
    wanted: Callable[[CauseView], bool] | None = None
    why_off: Callable[[CauseView], str] = lambda _: SWITCHED_OFF
    missed: Callable[[CauseView], Iterable[NodeCause]] = lambda _: ()
    verdict: Callable[[CauseView], OperandVerdict] | None = None

    def namespace_rules(self, scene: Scene) -> Rules:
        """Its account's rights in the operator's namespace."""
        return (read_config_maps(names.AGENT_CONFIG_MAP, *self.config_maps(scene)),)

    def is_enabled(self, policy: Policy, settings: OperatorSettings) -> bool:
        """Whether the policy asks for it: by ``enabled``, else by its section."""
        if self.enabled is not None:
            return self.enabled(policy, settings)
        return section_enabled(self.operand, policy)


def section_enabled(operand: Operand, policy: Policy) -> bool:
    """``enabled`` of the operand's section in the policy, the row's default where that is not given."""
    enabled: bool | None = getattr(policy.spec, operand.section).enabled
    return operand.on_when_nil if enabled is None else enabled
