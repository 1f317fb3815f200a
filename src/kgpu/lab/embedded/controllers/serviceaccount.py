"""What every namespace gets: the ServiceAccount ``default`` and the ConfigMap ``kube-root-ca.crt``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kgpu.kube.port import CONFIG_MAPS, KubeRefusedError, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.kinds import NAMESPACES, SERVICE_ACCOUNTS
from kgpu.lab.embedded.controllers.meta import status_of
from kgpu.lab.embedded.controllers.podcontrol import namespace_is_ending

ACCOUNT: Final = "default"
BUNDLE: Final = "kube-root-ca.crt"
_DESCRIPTION: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


def in_namespace(name: str) -> Callable[[Object | None, Object | None], list[str]]:
    """Map a change or deletion of an object of that name to its namespace."""

    def keys(old: Object | None, new: Object | None) -> list[str]:
        obj = new if new is not None else old
        return [namespace_of(obj)] if obj is not None and old is not None and name_of(obj) == name else []

    return keys


def _namespace(_: Object | None, new: Object | None) -> list[str]:
    return [] if new is None else [name_of(new)]


class _PerNamespace(ObjectController):
    """One object of a fixed name in every active namespace."""

    def is_active(self, namespace: str) -> bool:
        current = self.cluster.cache(NAMESPACES).get(("", namespace))
        return current is not None and status_of(current).get("phase", "Active") == "Active"

    async def ensure(self, resource: Resource, obj: Object) -> None:
        try:
            await self.cluster.create(resource, obj)
        except KubeRefusedError as error:
            if error.code != 409 and not namespace_is_ending(error):
                raise


class ServiceAccountController(_PerNamespace):
    name = "serviceaccount-controller"
    workers = 1

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {NAMESPACES: _namespace, SERVICE_ACCOUNTS: in_namespace(ACCOUNT)}

    async def sync(self, key: str) -> None:
        if self.is_active(key) and self.cluster.cache(SERVICE_ACCOUNTS).get((key, ACCOUNT)) is None:
            await self.ensure(SERVICE_ACCOUNTS, {"metadata": {"name": ACCOUNT, "namespace": key}})


class RootCaPublisher(_PerNamespace):
    name = "root-ca-certificate-publisher"
    workers = 1

    def __init__(self, cluster: ControllerContext, root_ca: str) -> None:
        """``root_ca`` in PEM."""
        super().__init__(cluster)
        self._data = {"ca.crt": root_ca}

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {NAMESPACES: _namespace, CONFIG_MAPS: in_namespace(BUNDLE)}

    async def sync(self, key: str) -> None:
        if not self.is_active(key):
            return
        bundle = self.cluster.cache(CONFIG_MAPS).get((key, BUNDLE))
        if bundle is None:
            annotations = {"kubernetes.io/description": _DESCRIPTION}
            metadata = {"name": BUNDLE, "namespace": key, "annotations": annotations}
            await self.ensure(CONFIG_MAPS, {"metadata": metadata, "data": self._data})
        elif bundle.get("data") != self._data:
            change = {"data": {**dict.fromkeys(bundle.get("data") or {}), **self._data}}
            await self.cluster.patch(CONFIG_MAPS, (key, BUNDLE), change)
