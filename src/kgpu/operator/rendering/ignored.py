"""What a policy asks for that kgpu does not do, or does differently than users may expect: one record each.

Each is a Warning Event on the ClusterPolicy and a line in the operator's log; none of them delays anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats.crd.clusterpolicy import DcgmExporter
from kgpu.formats.crd.common import OperandContainer
from kgpu.operator.injection import cdi_on, nri_on
from kgpu.operator.model import NodeLayout, OperatorSettings
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.images import is_own
from kgpu.operator.operand_args import idle_args
from kgpu.operator.operand_env import section
from kgpu.operator.operand_spec import OperandSpec
from kgpu.operator.operands import OF_ROLE, SPECS
from kgpu.operator.rendering.overruled import overruled

SANDBOX: Final = "SandboxNotProvided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """Fields that do not always take effect, for the reference: which, when they do not, and what happens then.
    ``why`` is the reason alone, for advice.
    """

    field: str
    when: str
    does: str
    why: str = ""


NO_CDI: Final = Conditional(
    field="`cdi.enabled`", when="when it is false",
    does="containers get device files, but the driver's libraries only where a container runtime on the host adds them",
)  # fmt: skip
_ONE_POD: Final = "one pod, kgpu-agent, does the work of all operands"
_OWN_PROGRAM: Final = "its pod runs kgpu's image"
OWN_PODS: Final = Conditional(
    field="`resources`, `hostNetwork`, `imagePullPolicy`, `imagePullSecrets` of an operand, `dcgmExporter.annotations`",
    when="in the layout `agent`", does=f"nothing, as {_ONE_POD}", why=_ONE_POD,
)  # fmt: skip
# This is not reported, as NVIDIA's chart writes false into every policy.
HOST_PID: Final = Conditional(
    field="`dcgmExporter.hostPID`", when="when it is false, in the layout `agent`",
    does="nothing, as kgpu-agent always sees the host's processes",
)  # fmt: skip
OWN_IMAGE: Final = Conditional(
    field="`imagePullPolicy`, `imagePullSecrets` of an operand",
    when="in the layout `operands`, unless the operand's `image` is named kgpu",
    does=f"nothing, as {_OWN_PROGRAM}; the chart's `image.pullPolicy` and `imagePullSecrets` are for that",
    why=_OWN_PROGRAM,
)  # fmt: skip
# Not a Warning either, as NVIDIA's chart writes images into every policy.
IMAGES: Final = Conditional(
    field="`repository`, `image`, `version` of an operand",
    when="in the layout `agent`, and in `operands` unless `image` is named kgpu",
    does="nothing, as one image of kgpu does the work of all operands; the chart's `image` says which",
)  # fmt: skip
SHELL_ARGS: Final = Conditional(
    field="`args` of `toolkit`, `nodeStatusExporter`, `validator`", when="always",
    does="nothing, as the replaced operator gives them to a shell, and kgpu's pods have none",
)  # fmt: skip
# Of these, what the chart writes into every policy (images, the timing of probes) is not reported.
BY_CRD: Final = Conditional(
    field="`driver` (but for `enabled` and `useNvidiaDriverCRD`), `gds`, `gdrcopy`",
    when="when `driver.useNvidiaDriverCRD` is true", does="nothing, as NVIDIADriver objects say what drivers are like",
)  # fmt: skip
NO_LABELS: Final = Conditional(
    field="`dcgmExporter.podLabelAllowlistRegex`", when="unless `dcgmExporter.enablePodLabels` is true",
    does="nothing, as metrics have no labels of pods",
)  # fmt: skip
ON_DELETE: Final = Conditional(
    field="`daemonsets.rollingUpdate`", when="when `daemonsets.updateStrategy` is `OnDelete`",
    does="nothing, as pods are made anew when somebody deletes them",
)  # fmt: skip
DRAINED: Final = Conditional(
    field="`driver.upgradePolicy.podDeletion`", when="when `driver.upgradePolicy.drain.enable` is true",
    does="nothing, as the drain's settings are for pods with GPUs, too",
)  # fmt: skip
NO_OPENSHIFT: Final = Conditional(
    field="`operator.use_ocp_driver_toolkit`", when="on other clusters than OpenShift",
    does="nothing, as only RHCOS has a driver toolkit",
)  # fmt: skip
CONDITIONAL: Final = (
    DRAINED, NO_CDI, OWN_PODS, HOST_PID, OWN_IMAGE, IMAGES, SHELL_ARGS, BY_CRD, NO_LABELS, ON_DELETE, NO_OPENSHIFT,
)  # fmt: skip


def ignored(scene: Scene) -> Iterator[Advice]:
    """All advice, in a stable order."""
    spec = scene.policy.spec
    workloads = spec.sandbox_workloads
    if workloads is not None and workloads.enabled:
        yield _told(
            scene,
            what="sandboxWorkloads is enabled, and kgpu has nothing for virtual machines",
            why="nodes for virtual machines get no operands",
            remedy="set sandboxWorkloads.enabled: false; keep NVIDIA's operator where GPUs go to virtual machines",
            reason=SANDBOX,
        )
    # With the NRI plugin this combination can't work, which is reported elsewhere.
    if not cdi_on(spec) and not nri_on(spec):
        yield _told(
            scene,
            what=f"cdi.enabled is false: {NO_CDI.does}",
            why="kgpu gives libraries to containers by CDI alone and installs no container runtime",
            remedy="set cdi.enabled: true, unless NVIDIA's container runtime is set up on every GPU node",
            reason="CDISwitchedOff",
        )
    if spec.operator.use_ocp_driver_toolkit and scene.observed.openshift is None:
        yield _told(
            scene,
            what="without effect in the policy: operator.use_ocp_driver_toolkit",
            why="this cluster is not OpenShift, whose RHCOS alone has a driver toolkit",
            remedy="remove it",
            reason="SettingIgnored",
        )
    yield from _arguments(scene)
    yield from _of_own_pods(scene)
    for one in overruled(spec):
        yield _told(
            scene,
            what=f"without effect in the policy: {_listed(list(one.fields))}",
            why=one.why,
            remedy=one.remedy,
            reason="SettingIgnored",
        )


def _has_section(spec: OperandSpec) -> bool:
    """Whether the section of the policy is the operand's: of several that have one it is the first's."""
    return spec is next(other for other in SPECS.values() if other.operand.section == spec.operand.section)


def _arguments(scene: Scene) -> Iterator[Advice]:
    """Arguments that have no effect, in either layout."""
    for spec in OF_ROLE.values():
        if spec.is_enabled(scene.policy, scene.settings) and _has_section(spec):
            for idle in idle_args(spec, scene.policy):
                shown = f"{' '.join(idle.args):.200}"
                yield _told(
                    scene,
                    what=f"without effect in the policy's section of the {spec.operand.title}: args {shown}",
                    why=idle.why,
                    remedy=idle.remedy,
                    reason="ArgumentsIgnored",
                )


def _of_own_pods(scene: Scene) -> Iterator[Advice]:
    """Settings of an operand's pod that are ignored because it has no pod, or because that runs kgpu's own image."""
    in_agent = scene.settings.layout is NodeLayout.AGENT
    for spec in SPECS.values():
        container = section(spec.operand, scene.policy.spec)
        if not isinstance(container, OperandContainer) or not _has_section(spec):
            continue
        if not spec.is_enabled(scene.policy, scene.settings):
            continue
        fields = [*(_of_pod(container) if in_agent else ()), *_of_pull(container, scene.settings, in_agent=in_agent)]
        if not fields:
            continue
        remedy = "remove it, or install the chart with layout=operands, where each operand has a pod of its own"
        if not in_agent:
            remedy = "remove it, or set the chart's image.pullPolicy and imagePullSecrets"
        yield _told(
            scene,
            what=f"without effect in the policy's section of the {spec.operand.title}: {_listed(fields)}",
            why=(OWN_PODS if in_agent else OWN_IMAGE).why,
            remedy=remedy,
            reason="SettingIgnored",
        )


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _of_pod(container: OperandContainer) -> list[str]:
    fields: dict[str, object] = {"resources": container.resources, "hostNetwork": container.host_network}
    if isinstance(container, DcgmExporter):
        fields["annotations"] = container.annotations
    return [name for name, value in fields.items() if value]


def _of_pull(container: OperandContainer, settings: OperatorSettings, *, in_agent: bool) -> list[str]:
    """Image pull settings that differ from the chart's, which apply whatever the policy says."""
    if not in_agent and is_own(container):
        return []
    other_policy = container.image_pull_policy not in (None, "", settings.image_pull_policy)
    other_secrets = not set(container.image_pull_secrets) <= set(settings.image_pull_secrets)
    return ["imagePullPolicy"] * other_policy + ["imagePullSecrets"] * other_secrets


def _told(scene: Scene, *, what: str, why: str, remedy: str, reason: str) -> Advice:
    return Advice(
        subject=f"ClusterPolicy/{scene.policy.name}",
        what=what,
        why=why,
        severity=Severity.WARNING,
        remedy=remedy,
        reason=reason,
    )
