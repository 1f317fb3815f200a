"""The exporter while it serves: true health, everything that works flows whatever fails, and news come at once."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.errors import HostError, HwError
from kgpu.exporter.model import Users
from kgpu.exporter.users.kubelet_users import FakeUsers
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import DriverReleasedError, EventKind, HardwareEvent, Inventory, Problem, Reading
from kgpu.hw.verdicts import GpuVerdict, MemoryVerdicts
from tests.exporter.made import holding
from tests.exporter.serving import fetch, read, reader_of, serving, set_values

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
UP = "kgpu_gpu_up"
AWAY = HwError("the driver is away", "a driver", "bring it back")
SLOW = {"interval": "30000"}
"""So far apart are readings by default; what comes sooner came because something happened."""


async def eventually(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another object's state
            await asyncio.sleep(0.01)


async def test_the_first_scrape_has_everything_and_the_pages_are_there():
    async with serving() as served:
        assert await served.values(TEMPERATURE) == {"0": 40, "1": 40}
        assert (await served.get("/health"))[::2] == (200, b"OK\n")
        status, headers, body = await served.get("/")
        assert status == 200
        assert headers["content-type"].startswith("text/html")
        assert b"metrics" in body
        assert (await served.get("/nowhere"))[0] == 404


@pytest.mark.parametrize(
    "accept", ["", "application/openmetrics-text", "text/plain;q=0.5,application/openmetrics-text;q=1"]
)
@pytest.mark.parametrize("encoding", ["", "gzip", "gzip;q=0", "br"])
async def test_every_form_of_a_scrape_is_the_same(accept, encoding):
    async with serving(flags=SLOW) as served:
        status, headers, body = await served.get(accept=accept, accept_encoding=encoding)
        assert status == 200
        assert ("openmetrics" in headers["content-type"]) == ("openmetrics" in accept)
        assert (headers.get("content-encoding") == "gzip") == (encoding == "gzip")
        found = {one.name: one.value for family in read(body, headers) for one in family.samples}
        plain = {name: value for (name, _), value in (await served.samples()).items()}
        assert found.keys() == plain.keys()
        assert found[TEMPERATURE] == plain[TEMPERATURE] == 40


async def test_two_scrapers_at_once_agree():
    async with serving(flags=SLOW) as served:
        bodies = await asyncio.gather(*(served.get() for _ in range(20)))
        assert len({body for _, _, body in bodies}) == 1


async def test_readings_are_followed():
    async with serving() as served:
        set_values(served.reader, temperature_c=55.0)
        await served.until(TEMPERATURE, {"0": 55, "1": 55})


async def test_a_lost_gpu_costs_its_own_series_and_comes_back():
    async with serving(flags=SLOW) as served:
        lost, other = (gpu.uuid for gpu in served.reader._inventory.accelerators)
        served.reader.fail(lost, Problem.LOST)
        await served.until(UP, {"0": 0, "1": 1})
        await served.until(TEMPERATURE, {"1": 40})
        status, _, body = await served.get("/health")
        assert status == 200
        assert lost in body.decode()
        assert other not in body.decode()
        served.reader.heal(lost)
        await served.until(TEMPERATURE, {"0": 40, "1": 40})


async def test_a_driver_that_is_away_is_told_and_forgets_nothing_else():
    async with serving(flags=SLOW) as served:
        uuid = served.reader._inventory.accelerators[0].uuid
        served.reader.report(HardwareEvent(kind=EventKind.XID, uuid=uuid, code=79))
        await served.until("DCGM_FI_DEV_XID_ERRORS", {"0": 79})
        served.reader.set_down(AWAY)
        await served.until(UP, {"0": 0, "1": 0})
        await served.until(TEMPERATURE, {})
        await served.until("DCGM_FI_DEV_XID_ERRORS", {"0": 79})
        await served.until("kgpu_exporter_driver_up", {"": 0})
        assert (await served.get("/health"))[0] == 503
        assert served.states[-1] == (False, AWAY)
        served.reader.set_down(None)
        await served.until(TEMPERATURE, {"0": 40, "1": 40})
        assert (await served.get("/health"))[0] == 200
        assert len(served.told("DriverSilent")) == 1


async def test_a_driver_that_is_released_costs_its_readings_and_nothing_else():
    released = DriverReleasedError("a GPU is being reset")
    async with serving(flags=SLOW) as served:
        await served.until(TEMPERATURE, {"0": 40, "1": 40})
        served.reader.set_down(released)
        await served.until(TEMPERATURE, {})
        await served.until("kgpu_exporter_driver_up", {"": 0})
        assert (await served.get("/health"))[0] == 200
        assert served.states[-1][:2] == (True, released.what)
        assert served.told("DriverSilent") == []
        served.reader.set_down(None)
        await served.until(TEMPERATURE, {"0": 40, "1": 40})
        assert served.states[-1] == (True, "")


async def test_a_driver_that_is_away_from_the_start():
    reader = reader_of()
    reader.set_down(AWAY)
    async with serving(reader) as served:
        await served.until("kgpu_exporter_driver_up", {"": 0})
        assert (await served.get("/health"))[0] == 503
        reader.set_down(None)
        await served.until(TEMPERATURE, {"0": 40, "1": 40})


async def test_no_gpu_at_all_is_fine_when_that_is_expected():
    reader = FakeReader(Inventory(vendor="nvidia", driver_version=""))
    reader.set_down(AWAY)
    async with serving(reader, flags={"fake_gpus": "true"}) as served:
        assert (await served.get("/health"))[0] == 200
        assert served.advice == []


class Hanging(FakeReader):
    """Its readings do not come back while ``stuck``."""

    def __init__(self, inner: FakeReader) -> None:
        self.__dict__ = inner.__dict__
        self.stuck = asyncio.Event()
        self.free = asyncio.Event()

    async def readings(self, keys=None) -> tuple[Reading, ...]:
        if self.stuck.is_set():
            await self.free.wait()
        return await super().readings(keys)


async def test_a_hung_driver_holds_up_no_scrape_and_leaves_no_old_values():
    reader = Hanging(reader_of())
    async with serving(reader, patience=0.2) as served:
        reader.stuck.set()
        await served.until(TEMPERATURE, {})
        assert await served.values(UP) == {"0": 0, "1": 0}
        assert served.told("DriverSilent")[0].why == "a reading has not come back"
        reader.stuck.clear()
        reader.free.set()
        await served.until(TEMPERATURE, {"0": 40, "1": 40})


async def test_a_field_that_fails_costs_its_own_series():
    reader = reader_of()
    bad = reader._inventory.accelerators[0].uuid
    reader.set_readings([Reading(uuid=bad, values={"temperature_c": 40.0}, failures={"power_w": "timeout"})])
    async with serving(reader) as served:
        samples = await served.samples()
        assert await served.values("DCGM_FI_DEV_POWER_USAGE") == {"1": 70}
        assert any(
            name == "kgpu_exporter_field_errors_total" and dict(labels)["reason"] == "timeout"
            for name, labels in samples
        )


async def test_an_xid_is_there_soon_with_its_words_and_counted():
    async with serving(flags=SLOW, xid_text=lambda code: f"words of {code}") as served:
        uuid = served.reader._inventory.accelerators[1].uuid
        for _ in range(2):
            served.reader.report(HardwareEvent(kind=EventKind.XID, uuid=uuid, code=13))
        await served.until("DCGM_FI_DEV_XID_ERRORS", {"words of 13": 13}, label="err_msg")
        assert await served.values("DCGM_EXP_XID_ERRORS_TOTAL", "xid") == {"13": 2}


async def test_users_are_looked_at_when_they_say_that_they_are_others():
    reader = reader_of()
    uuid = reader._inventory.accelerators[0].uuid
    users = FakeUsers()
    async with serving(reader, users, flags={**SLOW, "kubernetes": "true"}) as served:
        assert await served.values(TEMPERATURE, "pod") == {"": 40}
        users.now = Users(holdings=(holding("trainer", uuid),))
        users.changed()
        await served.until(TEMPERATURE, {"trainer": 40, "": 40}, label="pod")
        users.now = Users(holdings=None, failures={"holdings": "unreachable"}, missing={("device", "unknown-id"): 2})
        users.changed()
        await served.until("kgpu_exporter_users_unknown", {"unreachable": 1}, label="reason")
        await served.until(TEMPERATURE, {"": 40}, label="pod")
        assert await served.values("kgpu_exporter_pods_known") == {"": 0}
        assert await served.values("kgpu_exporter_users_missing", "reason") == {"unknown-id": 2}
    assert users.closed


async def test_verdicts_are_series():
    verdicts = MemoryVerdicts()
    async with serving(flags=SLOW, verdicts=verdicts) as served:
        assert await served.values("kgpu_gpu_healthy") == {}
        first, second = (gpu.uuid for gpu in served.reader._inventory.accelerators)
        verdicts.put(
            GpuVerdict(uuid=first, action="reset-gpu", withdraws=True, reason="XidReset"), GpuVerdict(uuid=second),
            GpuVerdict(uuid="GPU-elsewhere", withdraws=True, reason="Gone"),
        )  # fmt: skip
        await served.until("kgpu_gpu_healthy", {"0": 0, "1": 1})
        assert await served.values("kgpu_gpu_verdict", "action") == {"reset-gpu": 1}
        verdicts.end()
        await served.until("kgpu_gpu_healthy", {})


async def test_what_is_told_beside_a_verdict_is_of_after_it():
    verdicts = MemoryVerdicts()
    async with serving(flags=SLOW, verdicts=verdicts) as served:
        assert await served.values(TEMPERATURE) == {"0": 40, "1": 40}
        set_values(served.reader, temperature_c=93.0)  # nobody tells of it, and the next reading is far away
        verdicts.put(GpuVerdict(uuid=served.reader._inventory.accelerators[0].uuid, action="inspect", reason="Hot"))
        await served.until("kgpu_gpu_verdict", {"inspect": 1}, label="action")
        await served.until(TEMPERATURE, {"0": 93, "1": 93})


async def test_without_own_metrics_there_are_only_the_asked_ones():
    async with serving(flags={"own_metrics": "false", "extra_fields": "false"}) as served:
        names = {name for name, _ in await served.samples()}
        assert "DCGM_FI_DEV_GPU_TEMP" in names
        assert {name for name in names if not name.startswith("DCGM_FI_")} == set()


async def test_an_address_in_use_is_an_error():
    async with serving() as served:
        with pytest.raises(HostError, match="can't listen on"):
            async with serving(flags={"address": f"127.0.0.1:{served.address.port}"}):
                pass


async def test_a_text_that_is_no_more_renewed_is_told(monkeypatch):
    async with serving(patience=0.1) as served:
        assert (await fetch(served.address.port, "/health"))[0] == 200
        stopped = asyncio.Event()

        async def never(self):
            await stopped.wait()

        monkeypatch.setattr(type(served.exporter), "_tick", never)
        await eventually(lambda: served.exporter.health().status == 503)
        assert "no new text" in str(served.exporter.health().body)
