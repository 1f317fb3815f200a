"""One server for the tests of its HTTP surface; each test writes under names of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import polling
from tests.lab.embedded.served import START_S, Server, running

# What the controllers make in each namespace, a moment after the server answers.
MADE = ("serviceaccounts/default", "configmaps/kube-root-ca.crt")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A fresh cluster whose controllers have been at work."""
    with running(tmp_path_factory.mktemp("embedded") / "lab") as found:
        assert polling.holds(lambda: _is_made(found), seconds=START_S)
        yield found
        assert "Traceback" not in found.log


def _is_made(server: Server) -> bool:
    spaces = [one["metadata"]["name"] for one in server.ask("GET", "/api/v1/namespaces").value["items"]]
    return all(server.ask("GET", f"/api/v1/namespaces/{one}/{what}").code == 200 for one in spaces for what in MADE)
