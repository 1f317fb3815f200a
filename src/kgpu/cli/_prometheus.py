"""Options of commands that can read what agents have counted from a Prometheus, and how that is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._credentials import basic_auth, bearer, trusting

if TYPE_CHECKING:
    from kgpu.usage.recording import UsageRecording

F = TypeVar("F", bound=Callable[..., Any])
USUAL: Final = "7d"
"""Since when, where nobody says: a Prometheus has no beginning to read from."""
_OPTIONS: Final = (
    click.option("--prometheus", "prometheus_url", default=None, metavar="URL",
                 help="A Prometheus that scrapes the agents, to read from in place of the cluster."),
    click.option("--prometheus-match", multiple=True, metavar="LABEL=VALUE",
                 help="Only series with that label, such as cluster=prod. May be given several times."),
    click.option("--prometheus-token-file", default="", metavar="FILE", help="A bearer token to send to it."),
    click.option("--prometheus-auth-file", default="", metavar="FILE", help="USER:PASSWORD to send to it."),
    click.option("--prometheus-ca-file", default="", metavar="FILE", help="Whom to trust where it has TLS."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PrometheusWindow:
    """What was read, and the moments that were asked for, in microseconds since 1970."""

    recording: UsageRecording
    begin_us: int
    end_us: int


def options(function: F) -> F:
    """A decorator that adds them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def wanted(asked: Mapping[str, Any]) -> bool:
    """Whether it is to be read; an empty URL is, and is refused: a variable that is not set must not pass for none."""
    return asked["prometheus_url"] is not None


def check(context: click.Context, asked: Mapping[str, Any], file: str) -> None:
    """Raises ConfigError for options that contradict one another, or would change nothing."""
    if wanted(asked):
        _check_alone(context, file)
    if asked["prometheus_token_file"] and asked["prometheus_auth_file"]:
        raise ConfigError(
            "--prometheus-token-file and --prometheus-auth-file are both given", "one of them", "leave one out"
        )
    alone = next((name for name, value in asked.items() if value and not wanted(asked)), None)
    if alone is not None:
        flag = "--" + alone.replace("_", "-")
        raise ConfigError(f"{flag} alone changes nothing", "--prometheus URL beside it", f"add it, or leave {flag} out")


def _check_alone(context: click.Context, file: str) -> None:
    given = ["--from"] if file else []
    of_cluster = {"kubeconfig": "--kubeconfig", "kube_context": "--context"}
    line = click.core.ParameterSource.COMMANDLINE
    given += [flag for name, flag in of_cluster.items() if context.get_parameter_source(name) is line]
    if given:
        raise ConfigError(
            f"{given[0]} and --prometheus are both given", "one place to read from", "leave one of the two out"
        )


def as_scraped(by: str) -> str:
    """``--by`` as Prometheus' labels have it: of a label's key only letters, digits and underscores."""
    from kgpu.usage.grouping import LABEL
    from kgpu.usage.infos import label_name

    return LABEL + label_name(by.removeprefix(LABEL)) if by.startswith(LABEL) else by


async def recorded(asked: Mapping[str, Any], since: str, until: str) -> PrometheusWindow:
    """What the Prometheus has of that time; ``7d`` is before now. Raises UserError."""
    import time

    from kgpu.usage.prometheus.asking import PrometheusApi, checked_url
    from kgpu.usage.prometheus.reading import SETTLED_S, matchers, recorded_by
    from kgpu.usage.window import check_window, moment_us

    url, match = checked_url(asked["prometheus_url"]), matchers(asked["prometheus_match"])
    now_us = int(time.time() * 1e6)
    begin = max(0, moment_us(since or USUAL, "--since", now_us))
    end = moment_us(until, "--until", now_us) if until else now_us
    check_window(begin, end)
    last = min(end, now_us - SETTLED_S * 1_000_000)
    check_window(begin, last)
    headers = bearer(asked["prometheus_token_file"]) or basic_auth(asked["prometheus_auth_file"])
    context = trusting(asked["prometheus_ca_file"], "--prometheus-ca-file")
    api = PrometheusApi(url, headers=headers, context=context)
    try:
        found = await recorded_by(
            api, begin=begin // 1_000_000, end=-(-last // 1_000_000), newest=now_us // 1_000_000 - SETTLED_S,
            match=match,
        )  # fmt: skip
    finally:
        await api.close()
    return PrometheusWindow(found, begin, last)
