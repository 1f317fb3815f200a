"""An API server that fails at any call, or is away for a minute, delays the operator and nothing else."""

from __future__ import annotations

import pytest

from kgpu.base.errors import KubeError
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.port import NODES
from tests.operator.run.support import POLICY, Meddled, cluster, labels_of, refusal, running, silence, there, writes
from tests.operator.run.test_killed import kept


@pytest.mark.parametrize("error", [refusal(500), refusal(429), silence()], ids=["500", "429", "silence"])
@pytest.mark.parametrize("verb", ["get", "list", "watch", "apply", "patch", "create", "delete", "discover"])
async def test_every_kind_of_call_may_fail_many_times(verb: str, error: KubeError) -> None:
    reference = cluster(3)
    async with running(reference):
        pass
    api = cluster(3)
    meddled, left = Meddled(api), 20

    def fail(called: str, _plural: str, _name: str) -> None:
        nonlocal left
        if called == verb and left:
            left -= 1
            raise error

    meddled.before = fail
    async with running(meddled, elect=True, settle_first=False) as run:
        await run.until(lambda: not left or verb in ("patch", "delete", "create", "get"), "the failures")
        await run.settled()
        assert run.operator.problem == ""
        assert kept(api) == kept(reference)


async def test_calls_that_had_their_effect_without_an_answer_do_no_harm() -> None:
    reference = cluster(3)
    async with running(reference):
        pass
    api = cluster(3)
    meddled, number = Meddled(api), 0

    def fail(_verb: str, _plural: str, _name: str) -> None:
        nonlocal number
        number += 1
        if number % 3 == 0 and number < 100:
            raise silence()

    meddled.after = fail
    async with running(meddled, elect=True) as run:
        await run.clock.advance(60)
        assert kept(api) == kept(reference)


async def test_a_minute_without_the_api_server() -> None:
    api = cluster(3)
    async with running(api, elect=True) as run:
        api.set_down(True)
        await run.clock.advance(60)
        api.put(NODES, {"metadata": {"name": "new", "labels": {names.NFD_PCI_NVIDIA[0]: "true"}}})
        api.put(kinds.CLUSTER_POLICIES, {**POLICY, "metadata": {**POLICY["metadata"], "generation": 2}})
        since = len(api.calls)
        await run.clock.advance(60)
        assert len(api.calls) - since < 3000, "pauses grow"
        api.set_down(False)
        back = run.clock.monotonic()
        await run.until(lambda: writes(api)["nodes", "new"], "the new node")
        assert run.clock.monotonic() - back < 20
        await run.settled()
        assert (await labels_of(api, "new"))[names.LABEL_GPU_PRESENT] == "true"
        assert run.operator.problem == ""
        assert names.AGENT_DAEMON_SET in await there(api, kinds.DAEMON_SETS)
