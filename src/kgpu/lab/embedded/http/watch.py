"""Watches over HTTP: a line of JSON for each change, as objects, tables or metadata, until the time is up.

Waiting lines go out together, so that a burst costs one write. A version that is too old is reported inside the stream
with an ERROR line, as the real server does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from kgpu.lab.embedded.core.model import WatchItem, encode
from kgpu.lab.embedded.http.answers import ApiAnswer, Columns, metadata_only, table_of
from kgpu.lab.embedded.http.negotiate import Representation
from kgpu.lab.embedded.http.options import ListOptions
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import ApiError, Object

if TYPE_CHECKING:
    from kgpu.lab.embedded.core import ApiCore
    from kgpu.lab.embedded.store import ObjectWatch

LEAST_SECONDS: Final = 1800  # of a watch whose client names no timeout; at most twice as long
_CHUNK: Final = 64 * 1024  # bytes that are sent together
_LINES: Final = 200  # lines that are encoded before others get their turn

Form = Callable[[WatchItem], bytes]


def error_line(error: ApiError) -> bytes:
    """The last line of a watch that can't go on."""
    return b'{"type":"ERROR","object":%s}\n' % encode(error.to_status())


def form_of(columns: Columns, request: ApiRequest, wanted: Representation) -> Form:
    """The function that encodes one line."""
    if wanted.kind == "Table":
        return _Tables(columns, request, wanted)
    if wanted.kind:
        version = wanted.version

        def metadata(item: WatchItem) -> bytes:
            return _line(item, metadata_only(item.stored.obj, version))

        return metadata
    return WatchItem.encoded


class _Tables:
    """Encodes lines as tables; only the first one has column definitions."""

    def __init__(self, columns: Columns, request: ApiRequest, wanted: Representation) -> None:
        self._columns = columns
        self._request = request
        self._wanted = wanted
        self._headers = True

    def __call__(self, item: WatchItem) -> bytes:
        table = table_of(self._columns, [item.stored.obj], self._request, self._wanted, headers=self._headers)
        self._headers = False
        return _line(item, table)


def _line(item: WatchItem, obj: Object) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (item.type.encode(), encode(obj))


def answer(core: ApiCore, columns: Columns, namespace: str, options: ListOptions, form: Form) -> ApiAnswer:
    """The watch as an answer. Raises ApiError, but not for a version that is too old: the stream reports that."""
    try:
        watch = core.watch(
            columns.kind, namespace, labels=options.labels, fields=options.fields, version=options.version,
            bookmarks=options.bookmarks, initial_events=options.initial_events,
        )  # fmt: skip
    except ApiError as error:
        if error.code != 410:
            raise
        return ApiAnswer(stream=_only(error_line(error)))
    reply = ApiAnswer(stream=_lines(watch, options.seconds, form))
    forget = watch.on_close

    def ended() -> None:
        forget()
        reply.over.set()

    watch.on_close = ended
    return reply


async def _only(line: bytes) -> AsyncIterator[bytes]:
    yield line


async def _lines(watch: ObjectWatch, seconds: int, form: Form) -> AsyncIterator[bytes]:
    seconds = seconds or LEAST_SECONDS + random.randrange(LEAST_SECONDS)  # noqa: S311 - spreads reconnections
    timer = asyncio.get_running_loop().call_later(seconds, watch.close)
    try:
        async for first in watch:
            parts, size, count = [form(first)], 0, 1
            while size < _CHUNK and count < _LINES:
                item = watch.pop()
                if item is None:
                    break
                parts.append(form(item))
                size += len(parts[-1])
                count += 1
            yield b"".join(parts)
            if count >= _LINES or size >= _CHUNK:
                await asyncio.sleep(0)
    finally:
        timer.cancel()
        watch.close()
