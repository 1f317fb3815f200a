"""Which writes of pods a quota is asked about: an update changes no amounts, so that a later quota refuses none."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kgpu.lab.embedded.core.model import Review
from kgpu.lab.embedded.status import ApiError
from kgpu.lab.embedded.types.admission.quotas import ResourceQuota
from tests.lab.embedded.support import CALL, kind, make_core
from tests.lab.embedded.types.table import Object

HARD: Object = {"requests.cpu": "1", "pods": "0"}


class OneQuota:
    """All that is there."""

    def get(self, *_: str) -> Object | None:
        return None

    def list(self, _group: str, plural: str, _namespace: str = "") -> Iterable[Object]:
        return [{"metadata": {"name": "q"}, "spec": {"hard": HARD}}] if plural == "resourcequotas" else []


def refusal(operation: str, pod: Object, old: Object | None = None) -> str:
    review = Review(
        operation=operation, kind=kind(make_core(), "pods"), namespace="ml", name="p", obj=pod, old=old, subresource="",
        call=CALL,
    )  # fmt: skip
    try:
        ResourceQuota().admit(review, OneQuota())  # type: ignore[arg-type]
    except ApiError as error:
        return error.message
    return ""


def pod(**spec: object) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}


def test_a_pod_that_was_there_before_the_quota_may_be_annotated() -> None:
    assert "must specify requests.cpu for: c" in refusal("CREATE", pod())
    annotated = {**pod(), "metadata": {"name": "p", "annotations": {"a": "b"}}}
    assert refusal("UPDATE", annotated, pod()) == ""


@pytest.mark.parametrize("deadline", [True, False])
def test_one_that_gets_a_deadline_may_come_under_another_quota(deadline: bool) -> None:
    was, becomes = (pod(), pod(activeDeadlineSeconds=5)) if deadline else (pod(activeDeadlineSeconds=5), pod())
    assert "must specify" in refusal("UPDATE", becomes, was)
