"""Creating and deleting pods for an owner, with the Events that kube-controller-manager writes about it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from kgpu.base.errors import KubeError
from kgpu.kube.port import PODS, KubeRefusedError, Object, name_of
from kgpu.lab.embedded.controllers.controller import ObjectController, refusal_text

BURST = 500  # pods created or deleted in one go


def namespace_is_ending(error: KubeError) -> bool:
    """The create was refused because the namespace is being deleted: nothing to complain about."""
    return getattr(error, "code", 0) == 403 and "because it is being terminated" in refusal_text(error)


async def create_pods(
    controller: ObjectController, owner: Object, pods: Sequence[Object]
) -> tuple[int, KubeError | None]:
    """Create in batches of 1, 2, 4, ...: a batch with an error is the last. Returns how many, and the first error."""
    created, size, rest = 0, 1, list(pods[:BURST])
    while rest:
        batch, rest = rest[:size], rest[size:]
        errors = []
        for pod in batch:
            error = await create_pod(controller, owner, pod)
            if error is None:
                created += 1
            elif not namespace_is_ending(error):
                errors.append(error)
            await asyncio.sleep(0)
        if errors:
            return created, errors[0]
        size *= 2
    return created, None


async def create_pod(controller: ObjectController, owner: Object, pod: Object) -> KubeError | None:
    """Create one pod and write the Event."""
    try:
        created = await controller.cluster.create(PODS, pod)
    except KubeError as error:
        if not namespace_is_ending(error):
            controller.emit(owner, "Warning", "FailedCreate", f"Error creating: {refusal_text(error)}")
        return error
    controller.emit(owner, "Normal", "SuccessfulCreate", f"Created pod: {name_of(created)}")
    return None


async def delete_pods(controller: ObjectController, owner: Object, pods: Iterable[Object]) -> KubeError | None:
    """Delete all of them; returns the first error."""
    first = None
    for pod in pods:
        try:
            gone = not await controller.cluster.delete(PODS, pod)
        except KubeRefusedError as error:
            if error.code == 409:
                continue  # another pod of that name
            controller.emit(owner, "Warning", "FailedDelete", f"Error deleting: {refusal_text(error)}")
            first = first or error
        else:
            if not gone:
                controller.emit(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")
        await asyncio.sleep(0)
    return first
