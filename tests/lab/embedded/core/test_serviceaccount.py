"""A pod made a moment after its namespace waits for the account that a controller makes, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kgpu.lab.embedded.core import serviceaccount
from kgpu.lab.embedded.core.serviceaccount import LONGEST_S, LOOKS, SHORTEST_S, await_default_account
from kgpu.lab.embedded.core.verbs import ApiCore
from tests.lab.embedded.support import CALL, make_core


class Pauses:
    """In place of asyncio: no pause takes any time. ``then`` is called in each."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.then: Callable[[], object] = lambda: None

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.then()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(serviceaccount, "asyncio", made)
    return made


async def wait(core: ApiCore, plural: str, namespace: str, obj: Any, subresource: str = "") -> None:
    await await_default_account(core, core.kinds.need("", plural), namespace, obj, subresource)


@pytest.mark.parametrize("obj", [{}, {"spec": {}}, {"spec": {"serviceAccountName": "default"}}, {"spec": "x"}, []])
async def test_it_goes_on_once_the_account_is_there(pauses: Pauses, obj: Any) -> None:
    core = make_core()
    account = {"metadata": {"name": "default"}}

    def made_in_the_second() -> None:
        if len(pauses.seconds) == 2:
            core.create(core.kinds.need("", "serviceaccounts"), "default", account, CALL)

    pauses.then = made_in_the_second
    await wait(core, "pods", "default", obj)
    assert len(pauses.seconds) == 2
    assert all(SHORTEST_S <= one <= LONGEST_S for one in pauses.seconds)


async def test_it_gives_up_where_no_account_ever_comes(pauses: Pauses) -> None:
    await wait(make_core(), "pods", "default", {})
    assert len(pauses.seconds) == LOOKS - 1


@pytest.mark.parametrize(
    ("plural", "namespace", "obj", "subresource"),
    [
        ("pods", "default", {"spec": {"serviceAccountName": "robot"}}, ""),  # nobody makes that one by itself
        ("pods", "nowhere", {}, ""),
        ("pods", "default", {}, "binding"),
        ("configmaps", "default", {}, ""),
    ],
)
async def test_nothing_else_waits(pauses: Pauses, plural: str, namespace: str, obj: Any, subresource: str) -> None:
    await wait(make_core(), plural, namespace, obj, subresource)
    assert pauses.seconds == []
