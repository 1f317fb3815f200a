"""An exporter that serves over an in-memory driver, and what a scraper sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from dataclasses import dataclass, field

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kgpu.base.advice import Advice
from kgpu.base.http import Address
from kgpu.exporter.config import resolve
from kgpu.exporter.run import Exporter, ExporterContext
from kgpu.exporter.users.kubelet_users import FakeUsers
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.port import Reading

LIMIT = 60.0


def reader_of(count: int = 2, **values: float) -> FakeReader:
    """GPUs that all have the same values."""
    inventory = sample_inventory(count)
    reader = FakeReader(inventory)
    set_values(reader, **{"temperature_c": 40.0, "power_w": 70.0, **values})
    return reader


def set_values(reader: FakeReader, **values: float) -> None:
    reader.set_readings(Reading(uuid=gpu.uuid, values=values) for gpu in reader._inventory.accelerators)


@dataclass
class Served:
    """A running exporter."""

    exporter: Exporter
    reader: FakeReader
    users: FakeUsers
    advice: list[Advice]
    states: list[tuple[bool, str]]
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))

    async def get(self, path: str = "/metrics", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body as sent."""
        return await fetch(self.address.port, path, headers)

    async def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Everything that one scrape has, read by Prometheus' own parser."""
        status, _, body = await self.get()
        assert status == 200
        text = body.decode()
        return {
            # The parser gives every counter the suffix that OpenMetrics wants.
            (
                one.name if f"\n{one.name}" in text else one.name.removesuffix("_total"),
                tuple(sorted(one.labels.items())),
            ): one.value
            for family in parse_text(text)
            for one in family.samples
        }

    async def values(self, name: str, label: str = "gpu") -> dict[str, float]:
        """One metric's values by one of its labels."""
        return {
            dict(labels).get(label, ""): value for (of, labels), value in (await self.samples()).items() if of == name
        }

    async def until(self, name: str, expected: dict[str, float], label: str = "gpu") -> None:
        """Wait until a metric has these values."""
        found: dict[str, float] = {}
        try:
            async with asyncio.timeout(LIMIT):
                while (found := await self.values(name, label)) != expected:  # noqa: ASYNC110 - another process' state
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{name} is {found}, not {expected}") from None

    def told(self, reason: str) -> list[Advice]:
        return [one for one in self.advice if one.reason == reason]


async def fetch(
    port: int, path: str, headers: dict[str, str] | None = None, ssl=None
) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=ssl, server_hostname="localhost" if ssl else None
    )
    try:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in (headers or {}).items())
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        raw = await asyncio.wait_for(reader.read(), LIMIT)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    found = {name.lower(): value for name, _, value in (row.partition(": ") for row in rest)}
    assert int(found["content-length"]) == len(body)
    return int(first.split()[1]), found, body


def read(body: bytes, headers: dict[str, str]) -> list:
    """Families of a scrape in whichever form it came."""
    text = (gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body).decode()
    return list((parse_openmetrics if "openmetrics" in headers["content-type"] else parse_text)(text))


@contextlib.asynccontextmanager
async def serving(reader: FakeReader | None = None, users: FakeUsers | None = None, flags=None, **more):
    """An exporter on a free port, listening already."""
    listening: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    reader, users = reader or reader_of(), users or FakeUsers()
    advice: list[Advice] = []
    states: list[tuple[bool, str]] = []
    given = resolve({"address": "127.0.0.1:0", "interval": "100", **(flags or {})}, {})
    context = ExporterContext(
        reader=reader, users=users, options=given, hostname="n", report=advice.append,
        on_address=listening.set_result, on_state=lambda *state: states.append(state), **more,
    )  # fmt: skip
    exporter = Exporter(context)
    task = asyncio.create_task(exporter.run())
    try:
        waited: list[asyncio.Future] = [task, listening]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
        if task.done():
            await task
        yield Served(exporter, reader, users, advice, states, await listening)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
