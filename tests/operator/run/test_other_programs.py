"""Another GPU operator and another node feature discovery: who is believed to be one, and that no tenant can play it."""

from __future__ import annotations

import dataclasses

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.base.errors import KubeError
from kgpu.formats import names
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODE_FEATURES
from kgpu.operator.model import OtherPresence, OtherProgram
from kgpu.operator.other_programs import AGAIN, MOST, MOST_OF_NAMESPACE, OtherPrograms, SuspectProgram, to_ask
from tests.operator.run.support import MAY_LABEL, MAY_LEAD, Wish, cluster, deploy, running
from tests.operator.world import NAMESPACE, SETTINGS

REVIEWS = ("create", "subjectaccessreviews", "")


def suspect(namespace: str = "old", name: str = "gpu-operator", made: str = "1") -> SuspectProgram:
    return SuspectProgram(made=made, namespace=namespace, name=name, account=name, program=OtherProgram.OPERATOR)


async def test_programs_whose_account_has_their_right_are_believed_while_they_run() -> None:
    api, wish = cluster(), Wish()
    async with running(api, planner=wish) as run:

        async def now(namespace: str, name: str, right: str, replicas: int = 1, **labels: str) -> tuple[bool, str]:
            deploy(api, namespace, name, right=right, replicas=replicas, **labels)
            await run.settled()
            return wish.seen[-1].foreign_nfd, wish.seen[-1].foreign_operator

        discovery = {"app_kubernetes_io__name": "node-feature-discovery"}
        assert await now("nfd", "nfd-worker", MAY_LABEL, **discovery) == (False, "")
        assert await now("nfd", "nfd-master", MAY_LABEL, **discovery) == (True, "")
        assert await now("nfd", "nfd-master", MAY_LABEL, 0, **discovery) == (False, "")
        assert await now("old", "gpu-operator", MAY_LEAD, app="gpu-operator") == (False, "old/gpu-operator")
        assert await now("old", "gpu-operator", MAY_LEAD, 0, app="gpu-operator") == (False, "")
        mine = {"app": "gpu-operator", "app_kubernetes_io__name": names.KGPU}
        assert await now(NAMESPACE, "kgpu", MAY_LEAD, **mine) == (False, "")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("gpu-operator", {"app": "gpu-operator"}),
        ("gpu-operator", {"app_kubernetes_io__component": "gpu-operator"}),
        ("nfd-master", {"app": "nfd"}),
        ("nfd-master", {"app": "nfd-master"}),
        ("nfd-master", {"app_kubernetes_io__name": "node-feature-discovery", "role": "master"}),
    ],
)
async def test_a_tenants_deployment_is_not_believed(name: str, label: dict[str, str]) -> None:
    """No pod of it needs to run: held still by it, the operator would do nothing for the whole cluster any more."""
    api, wish = cluster(), Wish()
    deploy(api, "tenant", name, **label)
    api.put(NODE_FEATURES, {"metadata": {"name": "n0", "namespace": "tenant"}, "spec": {"labels": {}}})
    api.rights.add(("system:serviceaccount:tenant:other", MAY_LEAD))
    async with running(api, planner=wish):
        assert (wish.seen[-1].foreign_nfd, wish.seen[-1].foreign_operator) == (False, "")


async def test_rights_that_come_and_go_are_noticed_within_a_minute() -> None:
    api, wish = cluster(), Wish()
    deploy(api, "old", "gpu-operator", app="gpu-operator")
    async with running(api, planner=wish) as run:
        assert not wish.seen[-1].foreign_operator
        right = ("system:serviceaccount:old:gpu-operator", MAY_LEAD)
        api.rights.add(right)
        await run.clock.advance(AGAIN + 5)
        assert wish.seen[-1].foreign_operator == "old/gpu-operator"
        api.rights.discard(right)
        await run.clock.advance(AGAIN + 5)
        assert not wish.seen[-1].foreign_operator


@pytest.mark.parametrize(("other", "expected"), [(OtherPresence.IGNORE, False), (OtherPresence.PRESENT, True)])
async def test_the_administrators_word_about_another_discovery_counts(other: OtherPresence, expected: bool) -> None:
    api, wish = cluster(), Wish()
    deploy(api, "nfd", "nfd-master", right="" if expected else MAY_LABEL, app="nfd")
    settings = dataclasses.replace(SETTINGS, other_discovery=other)
    async with running(api, planner=wish, settings=settings):
        assert wish.seen[-1].foreign_nfd == expected


async def test_the_administrators_word_about_another_operator_counts() -> None:
    api, wish = cluster(), Wish()
    deploy(api, "old", "gpu-operator", right=MAY_LEAD, app="gpu-operator")
    async with running(api, planner=wish, settings=dataclasses.replace(SETTINGS, other_operator=OtherPresence.IGNORE)):
        assert not wish.seen[-1].foreign_operator
    assert REVIEWS not in api.calls


async def test_who_may_not_ask_believes_nobody_and_says_so() -> None:
    api = FakeApi()
    api.refuse["create", "subjectaccessreviews"] = 403
    others = OtherPrograms(api, clock=VirtualClock())
    assert await others.confirmed([suspect()]) == frozenset()
    (told,) = others.advice()
    assert told.reason == "MissingRight"
    assert "looks like another GPU operator" in told.what
    assert await others.confirmed([]) == frozenset()
    assert others.advice() == ()


async def test_an_api_server_that_does_not_answer_is_no_answer() -> None:
    """Neither that nobody else works here nor that somebody does follows from it: the pass is tried again."""
    api = FakeApi()
    api.refuse["create", "subjectaccessreviews"] = 500
    with pytest.raises(KubeError):
        await OtherPrograms(api, clock=VirtualClock()).confirmed([suspect()])


async def test_an_answer_counts_for_all_deployments_of_an_account_and_for_a_minute() -> None:
    api, clock = FakeApi(), VirtualClock()
    others = OtherPrograms(api, clock=clock)
    two = [suspect(), dataclasses.replace(suspect(), name="again")]
    for _ in range(3):
        await others.confirmed(two)
    assert api.calls.count(REVIEWS) == 1
    await clock.advance(AGAIN)
    await others.confirmed(two)
    assert api.calls.count(REVIEWS) == 2
    assert others.again_at == clock.monotonic() + AGAIN


async def test_a_crowd_hides_nobody() -> None:
    """The real one was there first, or is in a namespace of its own."""
    crowd = [suspect("tenant", f"fake-{number:05d}", "2") for number in range(1000)]
    many = [suspect(f"tenant-{number:04d}", "fake", "2") for number in range(1000)]
    real = suspect("nvidia", "gpu-operator", "1")
    asked = to_ask([*crowd, *many, real])
    assert real in asked
    assert len(asked) == MOST
    assert sum(one.namespace == "tenant" for one in asked) == MOST_OF_NAMESPACE
    late = dataclasses.replace(real, made="3")
    assert late in to_ask([*crowd, late])
    api = FakeApi()
    others = OtherPrograms(api, clock=VirtualClock())
    await others.confirmed([*crowd, *many, real])
    assert api.calls.count(REVIEWS) == MOST
    assert [one.reason for one in others.advice()] == ["TooManySuspects"]
