"""Strategic patches with values of the wrong type: the words of kube-apiserver 1.35 for the same patches."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.lab.embedded.core.model import ApiUser, Call
from kgpu.lab.embedded.core.patch_errors import STRATEGIC
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.status import ApiError, Object
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.rules import BuiltinRules

CALL = Call(user=ApiUser("admin", ("system:masters",)), manager="test")
ROWS: list[tuple[Object, str, str]] = [
    ({"spec": {"replicas": "x"}}, "map[spec:map[replicas:x]]", "unrecognized type: int32"),
    ({"spec": {"replicas": 1.5}}, "map[spec:map[replicas:1.5]]", "cannot convert float64 to int32"),
    ({"spec": {"replicas": True}}, "map[spec:map[replicas:true]]", "unrecognized type: int32"),
    ({"spec": {"paused": 1}}, "map[spec:map[paused:1]]", "unrecognized type: bool"),
    ({"metadata": {"labels": "x"}}, "map[metadata:map[labels:x]]", "cannot restore map from string"),
    ({"metadata": {"labels": {"a": 5}}}, "map[metadata:map[labels:map[a:5]]]", "cannot convert int64 to string"),
    ({"spec": {"template": "x"}}, "map[spec:map[template:x]]", "cannot restore struct from: string"),
]


@pytest.mark.parametrize(("patch", "printed", "why"), ROWS)
def test_are_refused_in_the_real_words(patch: Any, printed: str, why: str) -> None:
    rules = BuiltinRules()
    core = ApiCore(Kinds(), ObjectStore(), lambda _kind: rules)
    core.create(core.kinds.need("", "namespaces"), "", {"metadata": {"name": "n"}}, CALL)
    kind = core.kinds.need("apps", "deployments")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    core.create(kind, "n", {"metadata": {"name": "d"}, "spec": spec}, CALL)
    with pytest.raises(ApiError) as caught:
        core.patch(kind, "n", "d", STRATEGIC, patch, CALL)
    assert caught.value.code == 422
    assert caught.value.message == f' "" is invalid: patch: Invalid value: "{printed}": {why}'
