"""What happens to a container before it is created: pure decisions from who asks, who may, and who holds what.

A pod gets GPUs past the scheduler only when the policy allows its namespace or service account, or when they are those
that the kubelet gave to the pod anyway. A GPU that another pod holds is never given, except as a device of the
management kind. What a container has is cut down to the capabilities that it names, and refused when the driver is not
what its image requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kgpu.base.errors import ConfigError, HostError, UserError
from kgpu.formats import image_env, names
from kgpu.formats.cdi import ALL_DEVICE, qualified_name
from kgpu.formats.image_env import ImageEnv, Visible
from kgpu.formats.requirements import GpuFacts, unmet
from kgpu.kubelet.nri.model import ContainerAdjustment, NriContainer, NriPod
from kgpu.kubelet.pod_resources import Holding
from kgpu.toolkit.nri.config import NriPolicy
from kgpu.toolkit.nri.devices import REPLICA, Units, is_management, is_nvidia_kind, units_of_nodes
from kgpu.toolkit.nri.model import Adjust, Ask, ContainerRefusal, Facts, Nothing, Outcome, Wanted

_NODE_PREFIX: Final = "/dev/nvidia"
_ALL_GPUS: Final = qualified_name(names.CDI_NVIDIA_KIND, ALL_DEVICE)
_NO_GPU: Final = qualified_name(names.CDI_NVIDIA_KIND, image_env.NONE)
_ALL_MANAGED: Final = qualified_name(names.CDI_MANAGEMENT_KIND, ALL_DEVICE)
_SHOWN: Final = 5


def read(policy: NriPolicy, pod: NriPod, container: NriContainer) -> Ask | None:
    """What the container asks for; None when it does not concern the plugin, as nearly every container.

    The annotation for the container beats the pod's, that one without a scope, then mounts, then the variable.
    """
    env = ImageEnv.of(container.env)
    touched = any(path.startswith(_NODE_PREFIX) for path in container.devices) or bool(container.cdi_devices)
    source, annotated, visible = "", False, Visible()
    extra: tuple[str, ...] = ()
    problem: UserError | None = None
    key = next((key for key in _keys(container) if key in pod.annotations), "")
    try:
        if key:
            source, annotated = key, True
            visible = Visible(ids=tuple(dict.fromkeys(image_env.split(pod.annotations[key], key))))
        else:
            source, visible = _asked_plainly(policy, env, container)
            extra = env.extra_devices() if policy.by_env else ()
    except UserError as found:
        problem = found
    if not visible and not extra and problem is None:
        return Ask(pod=pod, container=container, env=env) if touched else None
    return Ask(
        pod=pod, container=container, env=env, source=source, annotated=annotated, visible=visible, extra=extra,
        problem=problem,
    )  # fmt: skip


def needs_holdings(policy: NriPolicy, ask: Ask, account: str) -> bool:
    """Whether the answer depends on what the kubelet has given to whom."""
    if ask.problem is not None:
        return False
    if ask.visible.all:
        return policy.allows(ask.pod.namespace, account)
    return any(not is_management(name) for name in ask.visible.ids)


def decide(policy: NriPolicy, ask: Ask, facts: Facts, *, wanted: Wanted) -> Outcome:
    """What happens to the container."""
    try:
        devices, why = _given(policy, ask, facts)
        return _outcome(policy, ask, facts, devices, why, wanted=wanted)
    except UserError as problem:
        return ContainerRefusal(problem)


def _asked_plainly(policy: NriPolicy, env: ImageEnv, container: NriContainer) -> tuple[str, Visible]:
    """What asks without an annotation, and for what. Raises ConfigError."""
    mounts = [(mount.source, mount.destination) for mount in container.mounts] if policy.by_mounts else []
    visible = image_env.devices_of_mounts(mounts)
    if visible or not policy.by_env:
        return names.VOLUME_MOUNTS_DIR, visible
    return names.ENV_VISIBLE_DEVICES, env.visible_devices(instead=policy.instead)


def _keys(container: NriContainer) -> tuple[str, ...]:
    base = names.NRI_CDI_ANNOTATION
    return f"{base}/container.{container.name}", f"{base}/pod", base


def _outcome(
    policy: NriPolicy, ask: Ask, facts: Facts, devices: tuple[str, ...], why: str, *, wanted: Wanted
) -> Outcome:
    entries = [facts.index.entries[name] for name in devices]
    # What the kubelet's CDI devices have brought stands in the container already.
    brought = facts.index.mounts & {(mount.destination, mount.source) for mount in ask.container.mounts}
    if not entries and not brought:
        return Nothing(why)
    gpus = units_of_nodes(ask.container.devices).gpus.union(*(entry.units.gpus for entry in entries))
    if policy.requirements:
        refused = unmet(ask.env.requirements(), _facts(facts, gpus))
        if refused is not None:
            raise refused
    capabilities = ask.env.capabilities(supported=policy.capabilities)
    dropped: tuple[str, ...] = ()
    if capabilities is not None:
        mounts = brought.union(*(entry.mounts for entry in entries))
        dropped = tuple(sorted({path for path, _ in mounts if not wanted(path, capabilities)}))
    new = tuple(name for name in devices if name not in ask.container.cdi_devices)
    if not new and not dropped:
        return Nothing(why)
    parts = [f"{', '.join(new)} as {ask.source} asks"] if new else []
    if dropped:
        files = "1 driver file" if len(dropped) == 1 else f"{len(dropped)} driver files"
        parts.append(f"without {files} of other capabilities than {', '.join(sorted(capabilities or ()))}")
    return Adjust(ContainerAdjustment(cdi_devices=new, without_mounts=dropped), "; ".join(parts))


def _facts(facts: Facts, gpus: Iterable[int]) -> list[GpuFacts]:
    return [facts.gpus.get(number, facts.node) for number in sorted(gpus)] or [facts.node]


def _given(policy: NriPolicy, ask: Ask, facts: Facts) -> tuple[tuple[str, ...], str]:
    """The devices to give, and why there are none. Raises UserError to refuse."""
    allowed = policy.allows(ask.pod.namespace, facts.account)
    if ask.problem is not None:
        if ask.annotated or allowed:
            raise ask.problem
        return (), _not_allowed(ask)
    if ask.annotated:
        return _annotated(policy, ask, facts, allowed=allowed), ""
    devices: tuple[str, ...] = ()
    why = ""
    if ask.visible.none and not allowed:
        why = _not_allowed(ask)
    elif ask.visible.none:
        # The driver without a GPU; where no spec has that, nothing is what comes nearest.
        devices = tuple(name for name in (_NO_GPU,) if name in facts.index.entries)
    elif ask.visible.all:
        devices, why = _all(policy, ask, facts, allowed=allowed)
    elif ask.visible.ids:
        devices, why = _ids(policy, ask, facts, allowed=allowed)
    if allowed:
        _check_resolvable(ask, facts, ask.extra)
        devices += tuple(name for name in ask.extra if name not in devices)
    return devices, why


def _annotated(policy: NriPolicy, ask: Ask, facts: Facts, *, allowed: bool) -> tuple[str, ...]:
    for name in ask.visible.ids:
        kind, sign, device = name.partition("=")
        if not (sign and device and "/" in kind):
            raise ConfigError(
                f'annotation {ask.source} has "{name[:80]}", which is no CDI device',
                f"vendor/class=name, such as {_ALL_GPUS}",
                "correct the annotation",
            )
        if not is_nvidia_kind(kind):
            raise ConfigError(
                f"annotation {ask.source} asks for {name[:80]}",
                "devices of NVIDIA's kinds; for others this plugin does not speak",
                "use the annotation of that vendor's own plugin",
            )
        if is_management(name):
            if not policy.manages(ask.pod.namespace):
                raise _denied(ask, name, policy.management, names.ENV_NRI_MANAGEMENT_NAMESPACES)
        elif not allowed and not _own(ask, facts, name):
            raise _denied(ask, name, policy.namespaces, names.ENV_NRI_ALLOWED)
    _check_resolvable(ask, facts, ask.visible.ids)
    _check_free(ask, facts, ask.visible.ids)
    return ask.visible.ids


def _all(policy: NriPolicy, ask: Ask, facts: Facts, *, allowed: bool) -> tuple[tuple[str, ...], str]:
    if policy.manages(ask.pod.namespace) and _ALL_MANAGED in facts.index.entries:
        return (_ALL_MANAGED,), ""
    if not allowed:
        return (), _not_allowed(ask)
    if _ALL_GPUS not in facts.index.entries:
        return (), f"no CDI spec on this node has {_ALL_GPUS}"
    members = facts.index.members(_ALL_GPUS)
    holders = {name: holder for name in members for holder in _holders(ask, facts, name) if not _own(ask, facts, name)}
    free = tuple(name for name in members if name not in holders)
    if not holders:
        return (_ALL_GPUS,), ""
    if not free:
        raise _taken(ask, holders)
    return free, ""


def _ids(policy: NriPolicy, ask: Ask, facts: Facts, *, allowed: bool) -> tuple[tuple[str, ...], str]:
    devices = tuple(dict.fromkeys(facts.index.bare(word) or word for word in ask.visible.ids))
    for name in devices:
        if is_management(name) and not policy.manages(ask.pod.namespace):
            raise _denied(ask, name, policy.management, names.ENV_NRI_MANAGEMENT_NAMESPACES)
    if not allowed:
        mine = {device.partition(REPLICA)[0] for holding in _mine(ask, facts) for device in holding.devices}
        lost = [word for word in ask.visible.ids if word in mine and word in devices]
        if lost:  # the kubelet gave it, but no spec has it
            _check_resolvable(ask, facts, lost)
        if not all(_own(ask, facts, name) for name in devices):
            return (), _not_allowed(ask)
    _check_resolvable(ask, facts, devices)
    _check_free(ask, facts, devices)
    return devices, ""


def _check_resolvable(ask: Ask, facts: Facts, wanted: Iterable[str]) -> None:
    missing = [name for name in wanted if name not in facts.index.entries]
    if missing:
        known = sorted(facts.index.entries)
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        raise HostError(
            f"{ask.source} asks for {', '.join(missing)[:200]}, which no CDI spec on this node has",
            f"one of {', '.join(known[:_SHOWN])}{more}" if known else "a CDI spec in the runtime's folders",
            "correct it, or see with `kgpu cdi list` and `kgpu cdi validate` what this node has",
        )


def _check_free(ask: Ask, facts: Facts, wanted: Iterable[str]) -> None:
    holders = {
        member: holder
        for name in wanted
        if not is_management(name)
        for member in facts.index.members(name)
        if not _own(ask, facts, member)  # a share of a GPU: the kubelet gave it to both
        for holder in _holders(ask, facts, member)
    }
    if holders:
        raise _taken(ask, holders)


def _holders(ask: Ask, facts: Facts, name: str) -> Iterator[str]:
    """Other pods that hold what is behind the name."""
    units = facts.index.entries[name].units
    for holding in _known(ask, facts):
        if units and (holding.namespace, holding.pod) != (ask.pod.namespace, ask.pod.name):
            theirs = facts.index.held(holding)
            if theirs is None:
                raise HostError(
                    f"pod {holding.namespace}/{holding.pod} holds {', '.join(holding.devices)[:200]}, "
                    "which no CDI spec on this node has, so nobody can say what is free",
                    "specs that name every GPU of this node",
                    "write the specs again: `kgpu cdi generate`",
                )
            if any(units.meets(held) for held in theirs):
                yield f"{holding.namespace}/{holding.pod}"


def _own(ask: Ask, facts: Facts, name: str) -> bool:
    """Whether the kubelet gave the pod all that is behind the name."""
    if name not in facts.index.entries or is_management(name):
        return False
    mine: set[Units] = set()
    for holding in _mine(ask, facts):
        mine.update(facts.index.held(holding) or ())
    units = [facts.index.entries[member].units for member in facts.index.members(name)]
    return all(one and one in mine for one in units)


def _mine(ask: Ask, facts: Facts) -> Iterator[Holding]:
    for holding in _known(ask, facts):
        if (holding.namespace, holding.pod) == (ask.pod.namespace, ask.pod.name):
            yield holding


def _known(ask: Ask, facts: Facts) -> tuple[Holding, ...]:
    if isinstance(facts.holdings, tuple):
        return facts.holdings
    why = facts.holdings.what if facts.holdings is not None else "it was not asked"
    raise HostError(
        f"{ask.source} asks for GPUs, and the kubelet does not say who holds which: {why}",
        "the kubelet's pod-resources socket",
        "nothing if the kubelet is just starting, it is tried again; else mount /var/lib/kubelet/pod-resources",
    )


def _taken(ask: Ask, taken: dict[str, str]) -> HostError:
    said = ", ".join(f"{name} ({holder})" for name, holder in sorted(taken.items())[:_SHOWN])
    return HostError(
        f"{ask.source} asks for GPUs that other pods hold: {said}",
        "GPUs that the kubelet gave to nobody else",
        f"request {names.GPU_RESOURCE} in the container's resources and let the scheduler choose",
    )


def _not_allowed(ask: Ask) -> str:
    return f"{ask.source} asks for GPUs, but pods of namespace {ask.pod.namespace} must request them as a resource"


def _denied(ask: Ask, name: str, namespaces: frozenset[str], setting: str) -> ConfigError:
    return ConfigError(
        f"{ask.source} asks for {name[:80]}, which pods of namespace {ask.pod.namespace} may not have in this way",
        f"a pod in {', '.join(sorted(namespaces)) or 'an allowed namespace'}",
        f"request {names.GPU_RESOURCE} in the container's resources, or have the namespace added to {setting}",
    )
