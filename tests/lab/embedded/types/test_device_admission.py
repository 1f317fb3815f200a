"""Who may ask for admin access to devices, and what a node may write of slices and claims."""

from __future__ import annotations

import pytest

from kgpu.formats.names import ADMIN_ACCESS_LABEL, CLAIM_FINALIZER
from kgpu.lab.embedded.core.model import ApiUser, Call, DeleteOptions
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.status import ApiError
from tests.lab.embedded.types import verdicts
from tests.lab.embedded.types.device_objects import CLAIM, EXACT, UID
from tests.lab.embedded.types.device_status_table import CONSUMER, POD, RESULT, allocated
from tests.lab.embedded.types.device_table import SLICE
from tests.lab.embedded.types.row import Object, laid

ADMIN = Call(user=verdicts.ADMIN, manager="test")
NODE = Call(user=ApiUser("system:node:n1", ("system:nodes",)), manager="kubelet")
CLAIMS = verdicts.KINDS.need("resource.k8s.io", "resourceclaims")
SLICES = verdicts.KINDS.need("resource.k8s.io", "resourceslices")
PODS = verdicts.KINDS.need("", "pods")
REQUEST = {"name": "gpu", "exactly": {**EXACT, "adminAccess": True}}
ASKING = laid(CLAIM, {"spec": {"devices": {"requests": [REQUEST]}}})


@pytest.fixture
def core() -> ApiCore:
    made = verdicts.core()
    labelled = {"name": "admins", "labels": {ADMIN_ACCESS_LABEL: "true"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": labelled}
    made.create(verdicts.KINDS.need("", "namespaces"), "", namespace, ADMIN)
    return made


def status_of(core: ApiCore, namespace: str, name: str, status: Object) -> None:
    core.patch(CLAIMS, namespace, name, verdicts.MERGE, {"status": status}, ADMIN, subresource="status")


def test_admin_access_takes_a_label_of_the_namespace(core: ApiCore) -> None:
    core.create(CLAIMS, "admins", ASKING, ADMIN)
    status_of(core, "admins", "x", allocated({**RESULT, "adminAccess": True}))
    status_of(core, "admins", "x", {"reservedFor": [CONSUMER]})
    core.create(CLAIMS, "plain", CLAIM, ADMIN)
    with pytest.raises(ApiError, match="admin access to devices requires"):
        status_of(core, "plain", "x", allocated({**RESULT, "adminAccess": True}))


def test_a_claim_that_goes_is_reserved_for_nobody_else(core: ApiCore) -> None:
    core.create(CLAIMS, "plain", laid(CLAIM, {"metadata": {"finalizers": [CLAIM_FINALIZER]}}), ADMIN)
    status_of(core, "plain", "x", {**allocated(), "reservedFor": [CONSUMER, {**CONSUMER, "uid": "b"}]})
    core.delete(CLAIMS, "plain", "x", DeleteOptions(), ADMIN)
    status_of(core, "plain", "x", {"reservedFor": [CONSUMER]})
    with pytest.raises(ApiError, match="new entries may not be added while"):
        status_of(core, "plain", "x", {"reservedFor": [CONSUMER, {**CONSUMER, "uid": "c"}]})
    status_of(core, "plain", "x", {"allocation": None, "reservedFor": None})


def test_a_node_writes_its_own_slices(core: ApiCore) -> None:
    core.create(SLICES, "", SLICE, NODE)
    other = laid(SLICE, {"metadata": {"name": "y"}, "spec": {"nodeName": "n2"}})
    with pytest.raises(ApiError, match="can only create ResourceSlice with the same NodeName as the requesting node"):
        core.create(SLICES, "", other, NODE)
    core.create(SLICES, "", other, ADMIN)
    with pytest.raises(ApiError, match="can only delete ResourceSlice with the same NodeName as the requesting node"):
        core.delete(SLICES, "", "y", DeleteOptions(), NODE)
    core.delete(SLICES, "", "x", DeleteOptions(), NODE)


def test_a_node_does_not_write_which_claims_a_pod_has(core: ApiCore) -> None:
    core.create(PODS, "plain", laid(POD, {"spec": {"nodeName": "n1"}}), ADMIN)

    def write(status: Object) -> None:
        body = {"status": status}
        core.patch(PODS, "plain", "with-claims", verdicts.MERGE, body, NODE, subresource="status")

    write({"phase": "Running"})
    with pytest.raises(ApiError, match="cannot update resource claim statues"):
        write({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": UID}]})
