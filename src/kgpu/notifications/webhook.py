"""One POST to the webhook, and what came of it.

Promises: it takes no longer than its deadline; redirects are not followed, as they would take the credentials
elsewhere; nothing of an answer is read but its head. The certificate is checked against the system's CAs.
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgpu.base.service import end
from kgpu.base.threads import beside
from kgpu.notifications.settings import WebhookSettings

if TYPE_CHECKING:
    import httpx2

DEADLINE: Final = 10.0
"""Seconds for one attempt."""
_AGAIN_CODES: Final = frozenset({408, 425, 429})
_MAX_CAUSES: Final = 8
_HINTS: Final = {401: " (its token)", 403: " (its token)", 404: " (its URL)", 410: " (its URL)"}


class Delivery(enum.Enum):
    """What came of an attempt."""

    SENT = "sent"
    AGAIN = "again"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``why`` it was not taken, for people; ``after`` is for how many seconds the receiver asks to wait."""

    delivery: Delivery
    why: str = ""
    after: float = 0.0


class Webhook:
    """The receiver. A proxy is used where the environment names one, as other programs do."""

    def __init__(self, settings: WebhookSettings, *, deadline: float = DEADLINE) -> None:
        self._settings = settings
        self._deadline = deadline
        self._opening: asyncio.Task[httpx2.AsyncClient] | None = None

    async def post(self, body: bytes) -> Outcome:
        """Send a body once. Never raises but for cancellation."""
        try:
            async with asyncio.timeout(self._deadline):
                return await self._post(body)
        except TimeoutError:
            return Outcome(Delivery.AGAIN, f"no answer within {self._deadline:g} s")
        except Exception as error:  # an exception's own text may quote the URL or a header
            return Outcome(Delivery.AGAIN, why_of(error))

    async def _post(self, body: bytes) -> Outcome:
        http = await self._opened()
        settings = self._settings
        headers = {"Content-Type": settings.format.content_type}
        if settings.authorization:
            headers["Authorization"] = settings.authorization
        async with http.stream("POST", settings.url, content=body, headers=headers) as answer:
            return outcome_of(answer.status_code, answer.headers.get("retry-after", ""))

    async def _opened(self) -> httpx2.AsyncClient:
        """The client. An attempt that runs out of time while it is made leaves it to the next one."""
        if self._opening is None:
            self._opening = asyncio.create_task(beside(self._client))
        try:
            return await asyncio.shield(self._opening)
        except Exception:
            self._opening = None
            raise

    def _client(self) -> httpx2.AsyncClient:
        """Reading the system's certificates takes a while: this runs in a thread."""
        import httpx2

        return httpx2.AsyncClient(
            verify=ssl.create_default_context(), follow_redirects=False, timeout=self._deadline,
            headers={"User-Agent": "kgpu", "Accept": "*/*"},
        )  # fmt: skip

    async def close(self) -> None:
        """Close what is open."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        await end(opening)
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().aclose()


def outcome_of(code: int, retry_after: str = "") -> Outcome:
    """What an answer's status says. ``retry_after`` is that header, of which only seconds are heeded."""
    if 200 <= code < 300:
        return Outcome(Delivery.SENT)
    if code >= 500 or code in _AGAIN_CODES:
        in_seconds = retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 7
        return Outcome(Delivery.AGAIN, f"it answers {code}", float(retry_after) if in_seconds else 0.0)
    if 300 <= code < 400:
        return Outcome(Delivery.REFUSED, f"it redirects ({code}), which is not followed: give the URL it leads to")
    return Outcome(Delivery.REFUSED, f"it refuses with {code}{_HINTS.get(code, '')}")


def why_of(error: BaseException) -> str:
    """What failed, in words of our own: of the errors behind this one, the first that says anything of use."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return f"its certificate is not accepted: {cause.verify_message}"
            case ssl.SSLError():
                return "TLS fails"
            case socket.gaierror():
                return "its name can't be resolved"
            case OSError(errno=number) if number:
                return os.strerror(number).lower()
    return type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what is behind it; of several that failed at once, the first."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = inner or cause.__cause__ or cause.__context__
