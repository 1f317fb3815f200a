"""Asks a Prometheus over HTTP: one range query at a time, each with a deadline and a bounded answer.

Promises: only GET is sent, and credentials to the given address alone, as redirects are not followed; none is ever in a
message. What may pass (429, 502, 503, 504, a lost connection) is tried again a few times; what is too much for the
server, or for the deadline, is a ``TooMuchAskedError``, so that the caller asks for less.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlencode, urlsplit

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.threads import beside
from kgpu.kube.wire import AnswerTooLongError, HttpAnswer, Wire, WireError
from kgpu.usage.prometheus.answer import (
    EXPECTED,
    PrometheusError,
    RangeAnswer,
    TooMuchAskedError,
    decode,
    said_why,
)

DEADLINE: Final = 60.0
"""Seconds for an answer."""
MOST_BYTES: Final = 32 << 20
PAUSES: Final = (1.0, 2.0, 4.0)
"""Seconds before each further try."""
_PASSING: Final = frozenset({429, 502, 503, 504})
_TOO_MUCH: Final = frozenset({"execution", "timeout", "canceled", "bad_data"})
"""Prometheus' words for a query that it can't answer; that it is wrong can't be, as it is always the same."""


class RangeQueries(Protocol):
    """Where figures come from."""

    place: str

    async def range(self, query: str, begin: int, end: int, step: int) -> RangeAnswer:
        """What the query says at ``begin``, and every ``step`` seconds until ``end``; moments in seconds since 1970.
        Raises PrometheusError, TooMuchAskedError among them.
        """
        ...


def checked_url(url: str) -> str:
    """The URL. Raises ConfigError for one that can't be asked; a password in it is not repeated."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, known = urlsplit(""), False
    if parts.username is not None or parts.password is not None or "@" in url:
        raise ConfigError(
            "--prometheus has a user or password in its URL, which everybody on this machine can see",
            "an address without them", "put USER:PASSWORD into a file, and give it by --prometheus-auth-file",
        )  # fmt: skip
    if not known or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(
            f"--prometheus {one_line(url, 100)!r} is no address of a Prometheus", "http://HOST:9090 or https://HOST/PATH",
            "correct --prometheus",
        )  # fmt: skip
    return url.rstrip("/")


class PrometheusApi:
    """``RangeQueries`` over HTTP. ``headers`` are sent with each request."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str], context: ssl.SSLContext, deadline: float = DEADLINE,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.place = checked_url(url)
        self._wire = Wire(self.place, context)
        self._headers = {"Accept": "application/json", "User-Agent": "kgpu", **headers}
        self._deadline = deadline
        self._clock = clock or SystemClock()

    async def close(self) -> None:
        """Close its connections."""
        await self._wire.close()

    async def range(self, query: str, begin: int, end: int, step: int) -> RangeAnswer:
        asked = {"query": query, "start": begin, "end": end, "step": step, "timeout": f"{self._deadline:g}s"}
        target = f"/api/v1/query_range?{urlencode(asked)}"
        for pause in (*PAUSES, None):
            try:
                answer = await self._get(target)
            except (WireError, OSError) as error:
                if pause is None:
                    raise PrometheusError(
                        f"{self.place} can't be asked: {one_line(str(error), 200)}", EXPECTED,
                        "see that it runs and can be reached from here, and correct --prometheus",
                    ) from error  # fmt: skip
            else:
                if answer.status_code == 200:
                    return await beside(decode, answer.content, self.place)
                if answer.status_code not in _PASSING or pause is None:
                    raise self._refusal(answer)
            await self._clock.sleep(pause)
        raise AssertionError("the last try ends in one way or another")

    async def _get(self, target: str) -> HttpAnswer:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._wire.request("GET", target, self._headers, b"", limit=MOST_BYTES)
        except TimeoutError as error:
            raise self._too_much(f"does not answer within {self._deadline:g} s") from error
        except AnswerTooLongError as error:
            raise self._too_much(f"answers more than {MOST_BYTES >> 20} MiB at once") from error

    def _refusal(self, answer: HttpAnswer) -> PrometheusError:
        code = answer.status_code
        kind, why = said_why(answer.content)
        if kind in _TOO_MUCH:
            return self._too_much(f"says: {why}")
        if code in _PASSING:
            return self._too_much(f"answers {code} again and again")
        if code in {401, 403}:
            return PrometheusError(
                f"{self.place} refuses with {code}", "credentials that it takes",
                "give --prometheus-token-file, or --prometheus-auth-file with USER:PASSWORD",
            )  # fmt: skip
        if 300 <= code < 400:
            return PrometheusError(
                f"{self.place} answers {code}, and sends whoever asks to another address, such as a login page",
                EXPECTED, "give the address behind it, and credentials that it takes",
            )  # fmt: skip
        return PrometheusError(
            f"{self.place} answers {code}" + (f": {why}" if why else ""), EXPECTED,
            "give the address that has /api/v1/query_range below it, with its path, such as http://HOST:9090",
        )  # fmt: skip

    def _too_much(self, what: str) -> TooMuchAskedError:
        return TooMuchAskedError(
            f"{self.place} {what}", "answers to queries over an hour of kgpu's counters",
            "ask for less with --since and --until, or raise Prometheus' --query.max-samples and --query.timeout",
        )  # fmt: skip
