"""Writes labels to a NodeFeature object, a feature file, the Node itself, or a stream, and reads them back.

Promises: a publisher writes the whole set, so that unwanted labels are removed; writing the same set changes nothing;
labels of others are never touched; published labels survive this process, so that a restart does not remove labels on
which pods depend.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any, Final, Protocol, TypeAlias

from kgpu.base.errors import HostError, KubeError
from kgpu.base.files import write_atomic
from kgpu.base.threads import beside
from kgpu.discovery.lines import as_lines, from_lines
from kgpu.formats import names
from kgpu.kube.nodes import get_node, label_owners
from kgpu.kube.port import NODE_FEATURES, NODES, PODS, KubeApi, KubeRefusedError, Object, Resource

log = logging.getLogger(__name__)

FORBIDDEN: Final = 403
Replace: TypeAlias = Callable[[Resource, Object], Awaitable[Object]]
"""Replaces a whole object that was read and changed."""
_EMPTY_FEATURES: Final[Mapping[str, Mapping[str, str]]] = {"flags": {}, "attributes": {}, "instances": {}}


class Publisher(Protocol):
    """One place for labels. Methods raise KubeError or HostError if the place can't be reached."""

    async def published(self) -> dict[str, str] | None:
        """The labels that kgpu has there now; None if it never wrote any."""
        ...

    async def publish(self, labels: Mapping[str, str]) -> None:
        """Make the labels there exactly these."""
        ...

    async def close(self) -> None:
        """Release resources; published labels stay unless the publisher says otherwise."""
        ...


class MemoryLabelPublisher:
    """The fake: keeps what was published; ``refuse`` makes it fail."""

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = None if labels is None else dict(labels)
        self.history: list[dict[str, str]] = []
        self.refuse: KubeError | None = None

    async def published(self) -> dict[str, str] | None:
        if self.refuse is not None:
            raise self.refuse
        return None if self.labels is None else dict(self.labels)

    async def publish(self, labels: Mapping[str, str]) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.labels = dict(labels)
        self.history.append(dict(labels))

    async def close(self) -> None:
        return


class FilePublisher:
    """The feature file that node feature discovery reads, mode 0644, replaced atomically."""

    def __init__(self, path: str, *, remove_on_close: bool = False) -> None:
        self._path = path
        self._remove = remove_on_close

    async def published(self) -> dict[str, str] | None:
        try:
            return from_lines(_read(self._path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error("read", error) from error

    async def publish(self, labels: Mapping[str, str]) -> None:
        try:
            await beside(write_atomic, self._path, as_lines(labels), mode=0o644)
        except OSError as error:
            raise self._error("written", error) from error

    async def close(self) -> None:
        if self._remove:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise self._error("removed", error) from error

    def _error(self, verb: str, error: OSError) -> HostError:
        return HostError(
            f"the feature file {self._path} can't be {verb}: {error.strerror}",
            "a path in a folder that this user may write to",
            "check --output-file and the mounted folder's permissions",
        )


class StreamPublisher:
    """Prints the labels at every change, with a blank line between sets."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._last: dict[str, str] | None = None

    async def published(self) -> dict[str, str] | None:
        return None if self._last is None else dict(self._last)

    async def publish(self, labels: Mapping[str, str]) -> None:
        separator = "" if self._last is None else "\n"
        self._stream.write(separator + as_lines(labels))
        self._stream.flush()
        self._last = dict(labels)

    async def close(self) -> None:
        return


class NodeFeaturePublisher:
    """The object ``nvidia-features-for-<node>``, which node feature discovery's master turns into node labels.

    With ``pod``, that pod and its DaemonSet own it, so that an uninstall removes it and nothing else does. The replaced
    program's permissions are ``create`` and ``update``, but applying needs ``patch``: if that is forbidden,
    ``replace`` writes the whole object.
    """

    def __init__(
        self, api: KubeApi, *, node: str, namespace: str, pod: str = "", replace: Replace | None = None
    ) -> None:
        self._api = api
        self._replace = replace
        self._node = node
        self._namespace = namespace
        self._pod = pod
        self._name = names.NODE_FEATURE_PREFIX + node
        self._owners: list[Object] | None = None

    async def published(self) -> dict[str, str] | None:
        feature = await self._api.get(NODE_FEATURES, self._name, namespace=self._namespace)
        return None if feature is None else _string_map((feature.get("spec") or {}).get("labels"))

    async def publish(self, labels: Mapping[str, str]) -> None:
        metadata: dict[str, Any] = {
            "name": self._name,
            "namespace": self._namespace,
            "labels": {names.NFD_NODE_NAME_LABEL: self._node},
        }
        owners = await self._owner_references()
        if owners:
            metadata["ownerReferences"] = owners
        obj = {"metadata": metadata, "spec": {"features": _EMPTY_FEATURES, "labels": dict(labels)}}
        try:
            result = await self._api.apply(NODE_FEATURES, obj, manager=names.LABELS_FIELD_MANAGER)
        except KubeRefusedError as refused:
            if refused.code != FORBIDDEN or self._replace is None:
                raise
            await self._write_whole(obj, self._replace)
            return
        # Labels that another program put into the object under its own field manager, before kgpu took over.
        stale = set(_string_map((result.get("spec") or {}).get("labels"))) - set(labels)
        if stale:
            change = {"spec": {"labels": dict.fromkeys(sorted(stale))}}
            await self._api.patch(NODE_FEATURES, self._name, change, namespace=self._namespace)

    async def close(self) -> None:
        return

    async def _write_whole(self, obj: Object, replace: Replace) -> None:
        feature = await self._api.get(NODE_FEATURES, self._name, namespace=self._namespace)
        if feature is None:
            await self._api.create(NODE_FEATURES, obj)
            return
        old, new = feature["metadata"], obj["metadata"]
        metadata = {**old, **new, "labels": {**(old.get("labels") or {}), **new["labels"]}}
        spec = {**(feature.get("spec") or {}), **obj["spec"]}
        if (metadata, spec) != (old, feature.get("spec")):
            await replace(NODE_FEATURES, {**feature, "metadata": metadata, "spec": spec})

    async def _owner_references(self) -> list[Object]:
        if not self._pod:
            return []
        if self._owners is None:
            pod, why = None, "does not exist"
            try:
                pod = await self._api.get(PODS, self._pod, namespace=self._namespace)
            except KubeRefusedError as refused:
                if refused.code != FORBIDDEN:
                    raise
                why = "can't be read with this service account's rights"
            if pod is None:
                log.warning("pod %s/%s %s: the NodeFeature gets no owner", self._namespace, self._pod, why)
            self._owners = [] if pod is None else owner_references(pod)
        return self._owners


class NodeLabelsPublisher:
    """The Node's own labels, for clusters without node feature discovery."""

    def __init__(self, api: KubeApi, *, node: str) -> None:
        self._api = api
        self._node = node

    async def published(self) -> dict[str, str] | None:
        return _owned_labels(await get_node(self._api, self._node))

    async def publish(self, labels: Mapping[str, str]) -> None:
        # With the uid, the apply does not recreate a Node that was deleted meanwhile.
        uid = (await get_node(self._api, self._node))["metadata"]["uid"]
        metadata: Object = {"name": self._node, "uid": uid}
        if labels:  # the API server forgets a manager without any field
            metadata["labels"] = dict(labels)
        await self._api.apply(NODES, {"metadata": metadata}, manager=names.LABELS_FIELD_MANAGER)

    async def close(self) -> None:
        return


async def withdraw_labels(api: KubeApi, *, node: str) -> None:
    """Remove the labels that kgpu has written to the Node. Raises KubeError."""
    publisher = NodeLabelsPublisher(api, node=node)
    if await publisher.published():
        await publisher.publish({})


async def hand_over_labels(api: KubeApi, *, node: str) -> int:
    """Remove those of kgpu's labels on the Node that another owner has published as well; return how many are left,
    which nobody else has published yet. Raises KubeError.
    """
    node_object = await get_node(api, node)
    mine = _owned_labels(node_object) or {}
    others = {
        key for owner, _, keys in label_owners(node_object) if owner != names.LABELS_FIELD_MANAGER for key in keys
    }
    left = {key: value for key, value in mine.items() if key not in others}
    if left != mine:
        await NodeLabelsPublisher(api, node=node).publish(left)
    return len(left)


async def withdraw_feature(api: KubeApi, *, node: str, namespace: str) -> None:
    """Delete the node's NodeFeature if it is kgpu's own. Raises KubeError."""
    name = names.NODE_FEATURE_PREFIX + node
    try:
        feature = await api.get(NODE_FEATURES, name, namespace=namespace)
    except KubeRefusedError as refused:
        if refused.code in (403, 404):  # without permission or the kind, kgpu can't have written one
            return
        raise
    managers = {entry.get("manager") for entry in (feature or {"metadata": {}})["metadata"].get("managedFields") or ()}
    if names.LABELS_FIELD_MANAGER in managers:
        await api.delete(NODE_FEATURES, name, namespace=namespace)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def owner_references(pod: Object) -> list[Object]:
    """References to the pod's DaemonSet, as controller, and to the pod: the object lives until both are gone."""
    metadata = pod["metadata"]
    daemon_sets = [owner for owner in metadata.get("ownerReferences") or () if owner.get("kind") == "DaemonSet"]
    itself = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return [*daemon_sets, itself]


def _string_map(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def _owned_labels(node: Object) -> dict[str, str] | None:
    """The Node's labels that kgpu has applied; None if it has never applied any."""
    labels = _string_map(node["metadata"].get("labels"))
    applied = (keys for owner, applied, keys in label_owners(node) if applied and owner == names.LABELS_FIELD_MANAGER)
    mine = next(applied, None)
    return None if mine is None else {key: labels[key] for key in mine if key in labels}
