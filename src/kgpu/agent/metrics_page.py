"""The page ``/metrics`` of the agent's status pages: what the roles have to say there, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.agent.host import Host
from kgpu.base.errors import ConfigError
from kgpu.base.http import Response
from kgpu.formats.names import ENV_METRICS_PORT, METRICS_TYPE

PATH: Final = "/metrics"


@dataclass(slots=True)
class RolesMetrics:
    """The page, with the texts of roles by their names."""

    texts: dict[str, Callable[[], str]] = field(default_factory=dict)

    def __call__(self) -> Response:
        return Response(200, "".join(text() for _, text in sorted(self.texts.items())), METRICS_TYPE)


@contextlib.contextmanager
def on_page(host: Host, role: str, text: Callable[[], str]) -> Iterator[None]:
    """A role's metrics are on the page as long as the block lasts; ``text`` is in Prometheus' text format."""
    page = host.pages.setdefault(PATH, RolesMetrics())
    assert isinstance(page, RolesMetrics), "nobody else serves this path"
    page.texts[role] = text
    try:
        yield
    finally:
        del page.texts[role]
        if not page.texts:
            del host.pages[PATH]


def metrics_port(env: Mapping[str, str]) -> int:
    """The port of a role's own metrics page, 0 for none. Raises ConfigError."""
    text = env.get(ENV_METRICS_PORT, "")
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise ConfigError(
            f"{ENV_METRICS_PORT} is {text!r:.40}", "a port number, 0 for none", f"correct {ENV_METRICS_PORT}"
        )
    return int(text)
