"""The agent's page of metrics has what each role says, as long as it runs."""

from __future__ import annotations

from typing import cast

from kgpu.agent.host import Host
from kgpu.agent.metrics_page import PATH, RolesMetrics, on_page
from kgpu.base.http import Page


class Pages:
    """The part of a Host that is used."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}


def shown(host: Host) -> str:
    page = host.pages[PATH]
    assert isinstance(page, RolesMetrics)
    return str(page().body)


def test_roles_are_on_the_page_as_long_as_they_run() -> None:
    host = cast("Host", Pages())
    with on_page(host, "second", lambda: "b 1\n"):
        with on_page(host, "first", lambda: "a 1\n"):
            assert shown(host) == "a 1\nb 1\n"
        assert shown(host) == "b 1\n"
    assert PATH not in host.pages
