"""Who may not see a namespace's pods sees sums, and no name in any part of the page, whatever is filtered by."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import KubeError
from kgpu.overview.access import FAILED_HOLDS, HOLDS, RememberedAnswers, SeenNamespaces
from kgpu.overview.model import NamespaceLimit, OverviewQuery, PendingPod, Told, ToldEvidence, ToldIdle, ToldIdleness
from kgpu.overview.plan import shown
from kgpu.overview.port import FakeWorld
from kgpu.top.model import GpuInstance, GpuProcess, GpuUser
from tests.budget import tries
from tests.overview.making import NOW, error, finding, gathered, gpu, html_of, node

SECRET = "quarry"
POD = "zanzibar-0"


def cluster():
    """What is of the namespace that may not be seen is in everything that can be told."""
    path = f"{SECRET}/{POD}"
    mig = GpuInstance(gpu_instance=1, profile="1g.10gb", users=(GpuUser(namespace=SECRET, pod=POD),))
    deep = finding(f"Pod {path}", f"{path} waits", pods=(path,))
    report = (
        finding("Node a", "the node is bad", nodes=("a",)),
        finding("Node a", "a hurts somebody", nodes=("a",), pods=(path,)),
        finding("Node a", "under it", consequences=(deep,)),
        finding("Cluster", "a quote", evidence=(ToldEvidence(value=f"pod {POD} was killed"),)),
        finding("Cluster", "an order", remedy=(f"kubectl -n {SECRET} get pods",)),
        finding(f"ResourceQuota {SECRET}/gpus", "it counts nothing"),
    )
    idle = ToldIdle(who=f"{SECRET}/web", kind="Deployment", state="held-idle", gpus=2, per_hour=6.0, currency="USD")
    return gathered(
        node("a", gpu("a", 0, path, "ml/seen", busy=40), gpu("a", 1, busy=9, parts=(mig,)), gpu("a", 2, path),
             gpu("a", 3, processes=(GpuProcess(pid=7, command=POD, user=SECRET),))),
        report=report,
        waiting=Told((PendingPod(namespace=SECRET, name=POD), PendingPod(namespace="ml", name="open")), NOW),
        idleness=Told(ToldIdleness(idle=(idle,)), NOW),
        events=Told((error(code="GPUNeedsReset", text=f"killed {path}"), error(text=f"killed {path}")), NOW),
        limits=Told(tuple(NamespaceLimit(namespace=space, resource=f"{space}.example.com/gpu", used=1, hard=2)
                          for space in (SECRET, "ml")), NOW),
    )  # fmt: skip


@pytest.mark.parametrize("sees", [frozenset({"ml"}), frozenset()])
@pytest.mark.parametrize("sort", ["natural", "user", "health"])
def test_no_name_of_what_may_not_be_seen_is_in_the_page(sees, sort) -> None:
    html = html_of(cluster(), OverviewQuery(sort=sort), sees)
    assert SECRET not in html
    assert "zanzibar" not in html
    assert ("ml/seen" in html) == ("ml" in sees)
    assert ("1 of 2 ml.example.com/gpu" in html) == ("ml" in sees)
    assert "the node is bad" in html
    assert "Xid 79" in html
    for words in ("5 findings of namespaces that you may not see", "2 GPUs of namespaces that you may not see"):
        assert words in html


def test_sums_are_the_same_for_everybody() -> None:
    everything, nothing = (shown(cluster(), OverviewQuery(), sees).totals for sees in (None, frozenset[str]()))
    for name in ("nodes", "busy", "stale", "idle", "per_hour"):
        assert getattr(everything, name) == getattr(nothing, name)
    assert everything.whole.gpus == nothing.whole.gpus == 4
    assert everything.whole.power_w == nothing.whole.power_w
    assert (everything.whole.pods, nothing.whole.pods) == (2, 0)  # how many have no name is not known
    assert nothing.whole.used == 3  # of who has only processes nothing is told


@pytest.mark.parametrize(
    "query", [OverviewQuery(words=SECRET), OverviewQuery(words="zanzibar"), OverviewQuery(namespace=SECRET)]
)
def test_a_filter_finds_nothing_that_may_not_be_seen(query) -> None:
    assert len(shown(cluster(), query, None).rows) >= 3
    page = shown(cluster(), query, frozenset({"ml"}))
    assert (page.rows, page.namespaces, page.waiting, page.idle, page.findings) == ((), (), (), (), ())


NAMES = st.from_regex(re.compile(r"[a-z]{12,20}", re.ASCII), fullmatch=True)


@tries(100)
@given(names=st.lists(NAMES, min_size=6, max_size=6, unique=True))
def test_any_name_stays_unseen(names) -> None:
    spaces, pods = names[:3], names[3:]
    path = [f"{space}/{pod}" for space, pod in zip(spaces, pods, strict=True)]
    known = gathered(
        node("n", gpu("n", 0, *path), gpu("n", 1, path[0], busy=50)),
        report=[finding(f"Pod {each}", f"{each} waits", pods=(each,)) for each in path],
        waiting=Told(tuple(PendingPod(namespace=s, name=p) for s, p in zip(spaces, pods, strict=True)), NOW),
    )
    html = html_of(known, sees=frozenset(spaces[:1]))
    assert path[0] in html
    assert not [name for name in (*spaces[1:], *pods[1:]) if name in html]


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_the_api_server_is_asked_and_its_answer_holds_for_a_minute() -> None:
    world, clock = FakeWorld(sees={"ml"}), _Clock()
    seen = SeenNamespaces(RememberedAnswers(world.may_see, clock))
    assert await seen.of({"ml", "dev", ""}) == frozenset({"ml"})
    assert sorted(world.asked) == ["may see ", "may see dev", "may see ml"]
    assert await seen.of({"ml", "dev"}) == frozenset({"ml"})
    assert len(world.asked) == 3
    world.sees = {"dev"}
    clock.now = HOLDS
    assert await seen.of({"ml", "dev"}) == frozenset({"dev"})
    world.sees = {""}
    clock.now = 2 * HOLDS
    assert await seen.of({"ml", "dev"}) is None


async def test_after_a_question_without_an_answer_it_is_asked_again_soon() -> None:
    world, clock = FakeWorld(sees={""}), _Clock()
    seen = SeenNamespaces(RememberedAnswers(world.may_see, clock))
    world.trouble = KubeError("it is down", "an answer", "wait")
    assert await seen.of({"ml"}) == frozenset()
    world.trouble = None
    assert await seen.of({"ml"}) == frozenset()
    clock.now = FAILED_HOLDS
    assert await seen.of({"ml"}) is None


async def test_who_cant_be_asked_about_sees_nothing() -> None:
    world = FakeWorld(sees={""})
    world.trouble = KubeError("it is down", "an answer", "wait")
    assert await SeenNamespaces(RememberedAnswers(world.may_see)).of({"ml"}) == frozenset()
