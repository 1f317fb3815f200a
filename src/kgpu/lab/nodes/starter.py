"""Starts one container of a pod: environment, volumes, devices by CDI, then a process or a stand-in.

Trouble is a ``StartTroubleError`` with the kubelet's reason, so that the pod's status shows what a real one would.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError, KubeError, LabError
from kgpu.formats.cdi import Spec, parse_spec
from kgpu.formats.names import CDI_ANNOTATION_PREFIX, ENV_LAB_POD_ADDRESS, ENV_LAB_POD_IP
from kgpu.kube.port import Object
from kgpu.lab import samples
from kgpu.lab.nodes import boots, driver_image, environment, kgpu_image, persistent, volumes
from kgpu.lab.nodes.context import TOKEN_S, NodeContext
from kgpu.lab.nodes.folder import REBOOT
from kgpu.lab.nodes.oci import CdiError, OciConfig, allocate, cdi_names, inject
from kgpu.lab.nodes.podstate import PodContainer, PodState
from kgpu.lab.nodes.runtime import ContainerNetwork, Running, Runtime, StandIn, Start, StartError

LIGHT_LINE: Final = "this node is light: nothing runs in its pods; a node made without --light runs samples"
CONFIG_ERROR: Final = "CreateContainerConfigError"
CREATE_ERROR: Final = "CreateContainerError"
START_ERROR: Final = "StartError"
PULL_ERROR: Final = "ErrImagePull"
PULL_BACK_OFF: Final = "ImagePullBackOff"
CREATING: Final = "ContainerCreating"


class StartTroubleError(LabError):
    """A container that did not start; ``reason`` as in its status, ``what`` is the message."""

    def __init__(self, reason: str, message: str, *, event: str = "Failed", container_id: str = "") -> None:
        super().__init__(message, "a container that starts", "see the message")
        self.reason = reason
        self.event = event
        self.container_id = container_id


def folder_of(node: NodeContext, container_id: str) -> Path:
    """Where a container's own files are."""
    return node.folder / "c" / container_id[:16]


def volumes_of(node: NodeContext, state: PodState) -> Path:
    """Where a pod's volumes are."""
    return node.folder / "pods" / state.uid / "volumes"


def log_path(node: NodeContext, pod: Object, container: str, restarts: int) -> Path:
    """The log of one run of a container."""
    metadata = pod["metadata"]
    name = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
    return node.folder / "logs" / name / container / f"{restarts}.log"


def read_specs(folders: Sequence[Path]) -> list[Spec]:
    """The CDI specs of the folders, later folders last; what can't be read is left out, as engines do it."""
    specs = []
    with _reading:
        for folder in folders:
            if not folder.is_dir():
                continue
            for path in sorted(folder.iterdir()):
                if path.suffix in {".json", ".yaml"}:
                    try:
                        specs.append(parse_spec(path.read_bytes(), source=str(path)))
                    except (OSError, ConfigError):
                        continue
    return specs


_reading: Final = threading.Lock()
# msgspec (0.22) looks at a type when it is first decoded, and crashes when two threads do that at the same moment.


def facts_of(node: NodeContext, state: PodState) -> dict[str, str]:
    """Values of the downward API that are not in the pod's own fields."""
    return {
        "status.podIP": state.pod_ip,
        "status.podIPs": state.pod_ip,
        "status.hostIP": node.host_ip,
        "status.hostIPs": node.host_ip,
        "spec.nodeName": node.name,
    }


def pull_trouble(node: NodeContext, container: PodContainer) -> StartTroubleError | None:
    """Why an image can't be pulled, None for one that can; after the first attempt the kubelet takes its time."""
    missing = "" if node.light else driver_image.missing(container.image, node.machine.root)
    if not missing:
        return None
    if container.reason in {PULL_ERROR, PULL_BACK_OFF}:
        text = f'Back-off pulling image "{container.image}": {PULL_ERROR}: {missing}'
        return StartTroubleError(PULL_BACK_OFF, text, event="BackOff")
    return StartTroubleError(PULL_ERROR, missing)


async def start(node: NodeContext, state: PodState, container: PodContainer, claims: Sequence[str] = ()) -> Running:
    """Start one run. Raises StartTroubleError; KubeError when the API server can't be asked."""
    pod, spec = state.pod, container.spec
    sample = None if node.light else find_sample(container.image)
    namespace = pod["metadata"]["namespace"]
    facts = facts_of(node, state)
    try:
        refs = environment.needed(spec)
        fetched = await node.objects(namespace, refs)
        env = environment.build(
            pod,
            spec,
            base={**node.service_env, **(sample.env if sample else {}), "HOSTNAME": hostname(pod)},
            objects=fetched,
            facts=facts,
            allocatable=node.allocatable(),
        )
    except environment.MissingReferenceError as error:
        raise StartTroubleError(CONFIG_ERROR, error.what) from error
    container_id = boots.container_id(node.boot())
    log = log_path(node, pod, container.name, container.restarts)
    args = environment.command(spec, sample.entrypoint, sample.command, env) if sample else []
    if sample is None or not node.runtime.runs(sample, args):
        if sample is None or not node.light:
            log.parent.mkdir(parents=True, exist_ok=True)
        return StandIn(container_id, node.now(), None if node.light else log, stands_in(node, container.image))
    answers = tuple(node.devices.answers(state.uid, container.name).values())
    config = allocate(OciConfig(env=env), answers)
    wanted = [*cdi_names(answers, CDI_ANNOTATION_PREFIX), *claims]
    try:
        config = inject(config, await asyncio.to_thread(read_specs, node.specs) if wanted else (), wanted)
    except CdiError as error:
        text = f'failed to generate container "{container_id}" spec: failed to apply OCI options: {error.what}'
        raise StartTroubleError(CREATE_ERROR, text) from error
    places = await make_volumes(node, state, facts)
    config = node.machine.applied(config)
    if driver_image.has_machine(container.image):
        config = driver_image.on(config, node.machine.root, container.image)
    network_env = {ENV_LAB_POD_ADDRESS: node.loopback(state.pod_ip), ENV_LAB_POD_IP: state.pod_ip}
    config = replace(config, env={**kgpu_image.without_machines_own(config.env), **network_env})
    try:
        mounts = volumes.mounts(spec, places, config.env, volumes.read_only(state.pod))
    except (volumes.VolumeError, OSError) as error:
        raise StartTroubleError(CONFIG_ERROR, error.what if isinstance(error, LabError) else str(error)) from error
    args = environment.command(spec, sample.entrypoint, sample.command, config.env)
    folder = folder_of(node, container_id)
    if sample is kgpu_image.SAMPLE:
        kubeconfig = folder / "kubeconfig"
        run = kgpu_image.command(
            tuple(args), config.env, mounts=mounts, address=node.loopback(state.pod_ip), kubeconfig=kubeconfig,
            boot=node.boot(), reboot=node.folder / REBOOT if pod["spec"].get("hostPID") else None,
            private=[one for one in mounts if str(node.machine.find(one.container_path)) != one.host_path],
        )  # fmt: skip
        args, config = list(run.args), replace(config, env=run.env)
        folder.mkdir(parents=True, exist_ok=True)
        kgpu_image.write_connection(kubeconfig, mounts, config.env)
    wanted_start = Start(
        id=container_id,
        folder=folder,
        sample=sample,
        outside=sample is kgpu_image.SAMPLE,
        args=tuple(args),
        config=config,
        cwd=str(spec.get("workingDir") or sample.workdir),
        hostname=hostname(pod),
        log=log,
        volumes=mounts,
        termination_log=str(spec.get("terminationMessagePath") or ""),
        pod=state.uid,
        container=container.name,
        attempt=container.restarts,
    )
    if sample.needs_network(args):
        network = ContainerNetwork(inside=state.pod_ip, outside=node.loopback(state.pod_ip))
        wanted_start = replace(wanted_start, network=network)
    try:
        return await node.runtime.start(wanted_start)
    except StartError as error:
        raise StartTroubleError(START_ERROR, error.what, container_id=container_id) from error


async def make_volumes(node: NodeContext, state: PodState, facts: dict[str, str]) -> dict[str, Path]:
    """The pod's volumes. Raises StartTroubleError, KubeError."""
    pod = state.pod
    namespace = pod["metadata"]["namespace"]
    fetched = await node.objects(namespace, volumes.needed(pod))
    token = ""
    if volumes.wants_token(pod):
        try:
            token = await node.token(pod)
        except KubeError:
            token = ""  # a program that uses it is told so by the API server
    folder = volumes_of(node, state)
    try:
        return volumes.write(
            pod, folder, objects=fetched, facts=facts, allocatable=node.allocatable(), token=token,
            host=node.machine.find, persistent=await persistent.places(node, pod),
        )  # fmt: skip
    except volumes.VolumeError as error:
        raise StartTroubleError(CREATING, error.what, event="FailedMount") from error
    except OSError as error:
        raise StartTroubleError(CREATING, f"{error}", event="FailedMount") from error


async def keep_tokens(node: NodeContext, state: PodState) -> None:
    """Write the pod's volumes anew before the tokens in them expire; until cancelled."""
    if node.light or not volumes.wants_token(state.pod):
        return
    while True:
        with contextlib.suppress(StartTroubleError, KubeError):
            if volumes_of(node, state).exists():
                await make_volumes(node, state, facts_of(node, state))
        await asyncio.sleep(TOKEN_S * 0.8)


def is_process(runtime: Runtime, container: Object) -> bool:
    """Whether the container is a local process on a full node."""
    sample = find_sample(str(container.get("image") or ""))
    if sample is None:
        return False
    return runtime.runs(sample, environment.command(container, sample.entrypoint, sample.command, {}))


def stands_in(node: NodeContext, image: str) -> str:
    """What its log says of a container that only pretends; "" for an image that really runs nothing."""
    if node.light:
        return LIGHT_LINE
    sample = find_sample(image)
    if sample is not None and sample.pause:
        return ""
    why = "it would need programs or a network that are not there" if sample else "the lab does not know this image"
    return f"{image}: {why}; a stand-in runs in its place"


def find_sample(image: str) -> samples.SampleImage | None:
    """What is known of an image, kgpu's own or a sample; None for others."""
    return kgpu_image.SAMPLE if kgpu_image.is_own(image) else samples.find(image)


def hostname(pod: Object) -> str:
    """The pod's host name."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]
