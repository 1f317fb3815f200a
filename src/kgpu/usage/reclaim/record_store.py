"""The record in its ConfigMap: read at each look, written on the version that was read."""

from __future__ import annotations

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.kube.port import CONFIG_MAPS, KubeApi, Object, version_of
from kgpu.usage.reclaim.record import ReclaimRecord, decode, encode


class RecordStore:
    """``load``, then any number of ``save``: each raises KubeError, with code 409 if somebody else has written."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._version = ""
        self._text = ""

    async def load(self) -> ReclaimRecord:
        """What is on record; empty where there is none yet. Raises KubeError, and ConfigError for one that can't be
        read.
        """
        obj = await self._api.get(CONFIG_MAPS, names.RECLAIM_RECORD, namespace=self._namespace)
        self._version, self._text = "", ""
        if obj is None:
            return ReclaimRecord()
        self._version = version_of(obj)
        self._text = str((obj.get("data") or {}).get(names.RECLAIM_RECORD_KEY) or "")
        record = decode(self._text) if self._text else ReclaimRecord()
        if record is None:
            raise ConfigError(
                f"the record in ConfigMap {self._namespace}/{names.RECLAIM_RECORD} can't be read",
                "what this version of kgpu has written",
                f"see what it says, then `kubectl -n {self._namespace} delete configmap {names.RECLAIM_RECORD}`: "
                "warnings begin anew",
            )
        return record

    async def save(self, record: ReclaimRecord) -> None:
        """Write it, if it has changed. Raises KubeError."""
        text = encode(record)
        if text == self._text and self._version:
            return
        body: Object = {"data": {names.RECLAIM_RECORD_KEY: text}}
        if self._version:
            body["metadata"] = {"resourceVersion": self._version}
            written = await self._api.patch(CONFIG_MAPS, names.RECLAIM_RECORD, body, namespace=self._namespace)
        else:
            body["metadata"] = {
                "name": names.RECLAIM_RECORD, "namespace": self._namespace, "labels": {names.PART_OF_LABEL: names.KGPU},
            }  # fmt: skip
            written = await self._api.create(CONFIG_MAPS, body)
        self._version, self._text = version_of(written), text
