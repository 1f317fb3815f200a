"""Evidence bundles: whose ConfigMap it is, what is too large, and how a person gets it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kgpu.base.errors import ConfigError, KubeError
from kgpu.formats.crd.nodeoperation import NodeOperationSpec, NodeOperationStatus, OperationEvidence
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS
from kgpu.operations.bundles import MAX_BYTES, keep, kept, name_of, read
from kgpu.operations.model import Operation

SPACE = "gpu-operator"


def operation(name: str = "replace-n1", uid: str = "u1", evidence: OperationEvidence | None = None) -> Operation:
    return Operation(
        name=name, uid=uid, version="1", created=0.0, spec=NodeOperationSpec(node_name="n1", type="Replace"),
        status=NodeOperationStatus(phase="Acting", evidence=evidence),
    )  # fmt: skip


async def test_what_is_kept_is_what_is_read() -> None:
    api = FakeApi()
    evidence = await keep(api, operation(), b"\x00\xffarchive", SPACE)
    assert evidence == OperationEvidence(namespace=SPACE, name="kgpu-evidence-replace-n1", size_bytes=9)
    assert await read(api, operation(evidence=evidence)) == b"\x00\xffarchive"
    obj = await api.get(CONFIG_MAPS, evidence.name, namespace=SPACE)
    assert obj is not None
    assert obj["immutable"] is True


async def test_the_first_one_stays() -> None:
    api = FakeApi()
    first = await keep(api, operation(), b"one", SPACE)
    assert await kept(api, operation(), SPACE) == first
    assert await keep(api, operation(), b"another", SPACE) == first
    assert await read(api, operation(evidence=first)) == b"one"


async def test_an_operation_of_the_same_name_gets_no_bundle_of_another() -> None:
    api = FakeApi()
    first = await keep(api, operation(), b"one", SPACE)
    later = operation(uid="u2", evidence=first)
    assert await kept(api, later, SPACE) is None
    with pytest.raises(KubeError, match="belongs to something else"):
        await keep(api, later, b"two", SPACE)
    with pytest.raises(ConfigError, match="does not hold the bundle of replace-n1"):
        await read(api, later)


async def test_the_largest_fits_into_a_config_map_and_a_larger_one_is_refused() -> None:
    api = FakeApi()
    evidence = await keep(api, operation(), bytes(MAX_BYTES), SPACE)
    obj = await api.get(CONFIG_MAPS, evidence.name, namespace=SPACE)
    assert obj is not None
    assert len(obj["binaryData"]["bundle.tar.gz"]) < 1_000_000
    with pytest.raises(KubeError, match="at most 524288"):
        await keep(api, operation("b"), bytes(MAX_BYTES + 1), SPACE)


def test_a_long_name_gives_a_name_that_is_allowed() -> None:
    names = {name_of(operation("r" * 253, uid)) for uid in ("u1", "u2")}
    assert len(names) == 2
    assert all(len(name) <= 253 for name in names)


async def test_without_a_bundle_it_is_said_what_to_do() -> None:
    with pytest.raises(ConfigError, match="has no evidence bundle") as raised:
        await read(FakeApi(), operation())
    assert "kgpu collect --node n1" in raised.value.remedy


@pytest.mark.parametrize(
    "content",
    [{}, {"binaryData": {"bundle.tar.gz": "not base64!"}}, {"binaryData": ["x"]}, {"binaryData": {"bundle.tar.gz": 7}},
     {"binaryData": {"other": base64.b64encode(b"x").decode()}}],
)  # fmt: skip
async def test_a_config_map_that_is_not_as_kgpu_made_it_is_told(content: dict[str, Any]) -> None:
    api = FakeApi()
    metadata = {"name": "e", "namespace": SPACE, "ownerReferences": [{"uid": "u1"}]}
    api.put(CONFIG_MAPS, {"metadata": metadata, **content})
    with pytest.raises(ConfigError, match="gpu-operator/e is gone, or does not hold"):
        await read(api, operation(evidence=OperationEvidence(namespace=SPACE, name="e")))
