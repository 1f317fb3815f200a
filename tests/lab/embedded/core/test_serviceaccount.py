"""A pod made a moment after its namespace waits for the account that a controller makes, and for nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from kgpu.lab.embedded.core.serviceaccount import LONGEST_S, LOOKS, SHORTEST_S, await_default_account
from kgpu.lab.embedded.core.verbs import ApiCore
from tests.lab.embedded.support import CALL, make_core


async def waited(core: ApiCore, plural: str, namespace: str, obj: Any, subresource: str = "") -> float:
    begun = time.monotonic()
    await await_default_account(core, core.kinds.need("", plural), namespace, obj, subresource)
    return time.monotonic() - begun


@pytest.mark.parametrize("obj", [{}, {"spec": {}}, {"spec": {"serviceAccountName": "default"}}, {"spec": "x"}, []])
async def test_it_goes_on_once_the_account_is_there(obj: Any) -> None:
    core = make_core()
    waiting = asyncio.create_task(waited(core, "pods", "default", obj))
    await asyncio.sleep(0.01)
    account = {"metadata": {"name": "default"}}
    core.create(core.kinds.need("", "serviceaccounts"), "default", account, CALL)
    assert SHORTEST_S <= await waiting <= LONGEST_S + 1


async def test_it_gives_up_where_no_account_ever_comes() -> None:
    assert await waited(make_core(), "pods", "default", {}) >= (LOOKS - 1) * SHORTEST_S


@pytest.mark.parametrize(
    ("plural", "namespace", "obj", "subresource"),
    [
        ("pods", "default", {"spec": {"serviceAccountName": "robot"}}, ""),  # nobody makes that one by itself
        ("pods", "nowhere", {}, ""),
        ("pods", "default", {}, "binding"),
        ("configmaps", "default", {}, ""),
    ],
)
async def test_nothing_else_waits(plural: str, namespace: str, obj: Any, subresource: str) -> None:
    assert await waited(make_core(), plural, namespace, obj, subresource) < SHORTEST_S
