"""Other limits of quotas: what is counted, what is created then, and what can't be asked."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.placement.answer import answer
from kgpu.placement.model import Origin, WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from tests.placement.clusters import GPU, Object, by_name, node, pod

KEY = f"requests.{GPU}"


def ask(*objects: Object, quota: tuple[tuple[str, str], ...], **question: object) -> WhatIfAnswer:
    return answer(WhatIfQuestion(quota=quota, **question), objects)  # type: ignore[arg-type]


def quota(hard: dict[str, str], used: dict[str, str], name: str = "q", **spec: Any) -> Object:
    metadata = {"name": name, "namespace": "ml"}
    return {
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used},
    }


NEW = pod("new", 4, owner="")
del NEW["metadata"]["uid"]
CLUSTER = [node("a"), node("b"), pod("p", 4, "a")]


@pytest.mark.parametrize(
    ("words", "lands"),
    [
        ((("ml", f"{KEY}=8"),), True),
        ((("ml", f"{KEY}=7"),), False),
        ((("ml/q", f"{KEY}=8"),), True),
        ((("ml", f"{KEY}=none"),), True),
        ((("ml", f"{KEY}=none"), ("ml", f"{KEY}=7")), False),
        ((("ml", f"{KEY}=8"), ("ml", "pods=1")), False),
        ((("ml", f"{KEY}=8"), ("ml", "cpu=2")), True),
        ((("ml", f"{KEY}=8"), ("ml", "cpu=1999m")), False),
        ((("others", f"{KEY}=0"),), False),
    ],
)
def test_a_pod_that_a_quota_lets_pass_or_not(words: tuple[tuple[str, str], ...], lands: bool) -> None:
    found = ask(*CLUSTER, quota({KEY: "4"}, {KEY: "4"}), quota=words, manifests=(NEW,))
    assert bool(by_name(found.outcomes)["new"]) is lands


def test_every_quota_with_the_key_is_meant_and_one_by_its_name() -> None:
    two = [quota({KEY: "4"}, {KEY: "4"}), quota({KEY: "6"}, {KEY: "4"}, "r")]
    assert ask(*CLUSTER, *two, quota=(("ml", f"{KEY}=8"),), manifests=(NEW,)).holds
    assert not ask(*CLUSTER, *two, quota=(("ml/q", f"{KEY}=8"),), manifests=(NEW,)).holds


def test_a_new_limit_counts_the_pods_that_are_there() -> None:
    found = ask(*CLUSTER, quota=(("ml", f"{KEY}=7"),), manifests=(NEW,))
    assert "allows 7" in found.outcomes[0].message
    assert ", 4 are used," in found.outcomes[0].message
    assert found.changes[0] == f"quota ml/what-if: {KEY} 7"


def test_what_controllers_could_not_create_comes_then() -> None:
    serve = {
        "kind": "ReplicaSet", "metadata": {"name": "serve", "namespace": "ml"},
        "spec": {"replicas": 3, "template": pod("x", 4)},
        "status": {"conditions": [{"type": "ReplicaFailure", "status": "True"}]},
    }  # fmt: skip
    job = {"kind": "Job", "metadata": {"name": "train", "namespace": "ml"}, "status": {"succeeded": 1},
           "spec": {"parallelism": 2, "completions": 2, "template": pod("x", 4)}}  # fmt: skip
    found = ask(
        node("a"), node("b"), pod("p", 4, "a"), serve, job, quota({KEY: "4"}, {KEY: "4"}), quota=(("ml", f"{KEY}=12"),)
    )
    assert [one.origin for one in found.outcomes] == [Origin.CREATED] * 3
    assert sorted(by_name(found.outcomes)) == ["serve-new-0", "serve-new-1", "train-new-0"]
    assert sum(bool(one.node) for one in found.outcomes) == 2
    assert "controllers create 3 pods that they could not before" in found.changes[0]
    for well in (
        {**serve, "status": {}},
        {**job, "status": {"failed": 1}},
        {**job, "spec": {**job["spec"], "suspend": True}},
    ):
        assert not ask(node("a"), pod("p", 4, "a"), well, quota=(("ml", f"{KEY}=12"),)).outcomes


@pytest.mark.parametrize(
    ("where", "words", "said"),
    [
        ("ml", f"{GPU}=4", "Kubernetes counts requests of it alone"),
        ("ml", f"limits.{GPU}=4", "what pods take of it is not known"),
        ("ml", "persistentvolumeclaims=4", "what pods take of it is not known"),
        ("ml", KEY, "can't be"),
        ("", f"{KEY}=4", "names no namespace"),
        ("ml", f"{KEY}=four", "is not a quantity"),
        ("ml", f"{KEY}=-4", "less than nothing"),
        ("ml/r", f"{KEY}=4", "no quota of namespace ml is called r"),
        ("ml/s", f"{KEY}=4", "has scopes"),
        ("ml", "pods=none", "no quota of namespace ml limits pods"),
        ("elsewhere", f"{KEY}=none", "no quota of namespace elsewhere limits"),
        ("ml", f"{KEY}s=4", 'no node offers nvidia.com/gpus, and no pod asks for it; did you mean "nvidia.com/gpu"'),
    ],
)  # fmt: skip
def test_what_is_no_quota_is_refused(where: str, words: str, said: str) -> None:
    scoped = quota({KEY: "4"}, {}, "s", scopes=["BestEffort"])
    with pytest.raises(ConfigError, match=said):
        ask(*CLUSTER, quota({KEY: "4"}, {KEY: "4"}), scoped, quota=((where, words),), manifests=(NEW,))


def test_a_drained_pod_is_made_again_where_the_quota_is_full_with_it() -> None:
    full = quota({KEY: "4"}, {KEY: "4"})
    found = ask(*CLUSTER, full, quota=(), drain=("a",))
    assert by_name(found.outcomes) == {"p": "b"}
    less = ask(*CLUSTER, full, quota=(("ml", f"{KEY}=3"),), drain=("a",))
    assert "allows 3" in less.outcomes[0].message
    assert ", 0 are used," in less.outcomes[0].message


def test_what_ends_for_good_is_not_used_any_more() -> None:
    bare = pod("bare", 4, "a", owner="")
    full = quota({KEY: "4"}, {KEY: "4"})
    found = ask(node("a"), node("b"), bare, full, quota=(), drain=("a",), manifests=(NEW,))
    assert by_name(found.outcomes) == {"new": "b"}


def test_a_preempted_pod_has_to_get_past_quotas_again() -> None:
    urgent = {**NEW, "spec": {**NEW["spec"], "priority": 10}, "metadata": {"name": "urgent", "namespace": "other"}}
    cluster = [node("a", 4), pod("p", 4, "a"), quota({KEY: "4"}, {KEY: "4"})]
    assert "Insufficient" in ask(*cluster, quota=(), manifests=(urgent,)).outcomes[1].message
    less = ask(*cluster, quota=(("ml", f"{KEY}=3"),), manifests=(urgent,))
    assert [one.node for one in less.outcomes] == ["a", ""]
    assert "it would not be created" in less.outcomes[1].message


@pytest.mark.parametrize(
    ("hard", "resources", "said"),
    [
        ({"requests.cpu": "8"}, {}, "limits requests.cpu, and a container"),
        ({"cpu": "8", "memory": "8"}, {"requests": {"cpu": 1}}, "limits memory, and a container"),
        ({"limits.memory": "8Gi"}, {"requests": {"memory": "1Gi"}}, "limits limits.memory, and a container"),
        ({"limits.memory": "8Gi"}, {"limits": {"memory": "9Gi"}}, "the pod asks for 9Gi"),
        ({"limits.memory": "8Gi"}, {"limits": {"memory": "8Gi"}}, ""),
        ({"requests.cpu": "1"}, {"limits": {"cpu": "500m"}}, ""),
        ({"limits.ephemeral-storage": "1"}, {}, ""),
        ({"limits.cpu": "2"}, {"requests": {"cpu": 1}, "limits": {"cpu": "2001m"}}, "the pod asks for 2001m"),
    ],
)
def test_quotas_of_processors_and_memory_want_every_container_to_ask(
    hard: dict[str, str], resources: Object, said: str
) -> None:
    new = pod("new", owner="")
    new["spec"]["containers"][0]["resources"] = resources
    found = ask(node("a"), quota(hard, dict.fromkeys(hard, "0")), quota=(), manifests=(new,))
    assert found.holds is not bool(said)
    assert said in found.outcomes[0].message


def test_bytes_are_told_as_people_write_them() -> None:
    found = ask(node("a"), quota=(("ml", "requests.memory=1536Mi"),), manifests=(NEW,))
    assert found.changes[0] == "quota ml/what-if: requests.memory 1536Mi"


def test_amounts_of_the_pod_itself_suffice() -> None:
    new = pod("new", owner="", resources={"requests": {"cpu": 2}, "limits": {"cpu": 3}})
    new["spec"]["containers"][0]["resources"] = {}
    hard = {"requests.cpu": "2", "limits.cpu": "2"}
    found = ask(node("a"), quota(hard, dict.fromkeys(hard, "0")), quota=(), manifests=(new,))
    assert "allows 2 limits.cpu, 0 are used, and the pod asks for 3" in found.outcomes[0].message


def test_a_quota_with_scopes_is_told_where_pods_come() -> None:
    scoped = quota({"pods": "0"}, {"pods": "0"}, scopes=["NotTerminating"])
    found = ask(node("a"), scoped, quota=(), manifests=(NEW,))
    assert found.notes == ("quota ml/q has scopes, so that it counts some pods alone: it is not looked at",)
    assert ask(node("a"), scoped, pod("p"), quota=()).notes == ()
