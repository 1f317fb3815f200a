"""A cluster and roles that tell what happens to them, for the tests of the agent under the operator."""

from __future__ import annotations

import pytest

from kgpu.agent.host import Role

from .support_auto import Cluster, Started


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def started():
    return Started()


@pytest.fixture
def roles(started):
    return tuple(Role(name, started.role(name), hardware=name != "plain") for name in ("one", "two", "plain"))
