"""How devices of claims are shared, by one contract: in memory, and by the programs of a simulated driver, whose state and
CUDA programs say what is in force.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgpu.agent.claim_sharing import driver_sharer
from kgpu.base.advice import Advice
from kgpu.base.errors import UserError
from kgpu.base.quantity import Quantity
from kgpu.base.threads import beside
from kgpu.dra.granted import ClaimRefusedError
from kgpu.dra.records import ClaimRecord
from kgpu.dra.sharing import ClaimSharer, DeviceSharer, GivenSharing
from kgpu.dra.sharing_fake import FakeDaemonKeeper, FakeGpuSettings
from kgpu.formats.cdi import ContainerEdits
from kgpu.formats.dra_config import ClaimMps, ClaimTimeSlicing
from kgpu.hw.simulator import mig, operate
from kgpu.hw.simulator.create import environment
from kgpu.hw.simulator.state import DriverState
from kgpu.mps.claims import ClaimControlDaemons
from tests.child import child
from tests.native.mps import SCRIPT, Program
from tests.polling import holds

Root = Callable[..., Path]
UID = "6f6c7f0e-6a3c-4f6a-9f1e-2f1d3c4b5a69"
ABSENT = "GPU-00000000-0000-0000-0000-000000000000"
EXCLUSIVE = "EXCLUSIVE_PROCESS"
OUT_OF_MEMORY = 2
LONG = ClaimTimeSlicing(3)
HALF = ClaimMps(threads=50, memory=Quantity.parse("10Gi"))


@dataclass
class Fake:
    """Everything in memory; ``sharer`` is a process that is started, with the records of prepared claims."""

    uuids: tuple[str, ...] = ("GPU-0", "GPU-1")
    gpus: FakeGpuSettings = field(default_factory=FakeGpuSettings)
    keeper: FakeDaemonKeeper = field(default_factory=FakeDaemonKeeper)

    async def sharer(self, *records: ClaimRecord) -> ClaimSharer:
        sharer = DeviceSharer(self.gpus, self.keeper)
        await sharer.resume(records)
        return sharer

    def intervals(self) -> list[int]:
        return [self.gpus.intervals.get(uuid, 0) for uuid in self.uuids]

    def modes(self) -> list[str]:
        return [self.gpus.modes.get(uuid, "DEFAULT") for uuid in self.uuids]

    def set_mode(self, number: int, mode: str) -> None:
        self.gpus.modes[self.uuids[number]] = mode

    def no_timeslices(self, number: int) -> None:
        self.gpus.unsupported.add(self.uuids[number])

    def daemons(self) -> int:
        return len(self.keeper.serving)

    def forget_timeslices(self) -> None:
        self.gpus.intervals.clear()

    def is_absent(self, uuid: str) -> None:
        self.gpus.gone.add(uuid)

    async def close(self) -> None:
        """Nothing is open."""


class Simulated:
    """A driver root. What is in force is read from its state, and from the machine's processes."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.told: list[Advice] = []
        self.kept: list[ClaimControlDaemons] = []
        with self.state() as state:
            self.uuids = tuple(state.gpu(index).uuid.decode() for index in range(2))

    @contextlib.contextmanager
    def state(self) -> Iterator[DriverState]:
        state = DriverState.open(self.root / "state", writable=False)
        try:
            yield state
        finally:
            state.close()

    async def sharer(self, *records: ClaimRecord) -> ClaimSharer:
        await self.close()
        sharer, kept = driver_sharer(str(self.root), self.folder, self.told.append)
        self.kept.append(kept)
        await sharer.resume(records)
        return sharer

    def intervals(self) -> list[int]:
        with self.state() as state:
            return [int(state.gpu(index).timeslice) for index in range(2)]

    def modes(self) -> list[str]:
        with self.state() as state:
            return [{0: "DEFAULT", 3: EXCLUSIVE}[int(state.gpu(index).compute_mode)] for index in range(2)]

    def set_mode(self, number: int, mode: str) -> None:
        operate.set_values(self.root, {"compute-mode": mode.lower().replace("_", "-")}, gpu=number)

    def no_timeslices(self, number: int) -> None:
        operate.set_values(self.root, {"timeslice-support": "off"}, gpu=number)

    def forget_timeslices(self) -> None:
        operate.set_values(self.root, {"timeslice": "default"})

    def is_absent(self, uuid: str) -> None:
        assert uuid not in self.uuids

    def processes(self, name: str = "nvidia-cuda-mps-control") -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                word = os.path.basename((process / "cmdline").read_bytes().split(b"\0")[0]).decode()
                if word == name and os.fsencode(str(self.folder)) in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found

    def daemons(self) -> int:
        return len(self.processes())

    async def close(self) -> None:
        while self.kept:
            await self.kept.pop().close()

    @contextlib.contextmanager
    def program(self, edits: ContainerEdits, *uuids: str) -> Iterator[Program]:
        """A CUDA program in a container with these edits and devices."""
        inside = {mount.container_path: mount.host_path for mount in edits.mounts}
        env = {**os.environ, **environment(self.root), "CUDA_VISIBLE_DEVICES": ",".join(uuids)}
        for word in edits.env:
            name, _, value = word.partition("=")
            env[name] = inside.get(value, value)
        words = [sys.executable, "-c", SCRIPT]
        with child(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield Program(process)


Site = Fake | Simulated


@contextlib.asynccontextmanager
async def by_programs(root: Path) -> AsyncIterator[Simulated]:
    with tempfile.TemporaryDirectory(prefix="kgpu") as folder:  # sockets need a short path
        made = Simulated(Path(folder), root)
        yield made
        await made.close()
        for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
            for pid in made.processes(name):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def simulated(sim_root: Root) -> AsyncIterator[Simulated]:
    async with by_programs(sim_root(gpus=2)) as made:
        yield made


@pytest.fixture(params=["in memory", "by programs"])
async def site(request: pytest.FixtureRequest, sim_root: Root) -> AsyncIterator[Site]:
    if request.param == "in memory":
        yield Fake()
        return
    async with by_programs(sim_root(gpus=2)) as made:
        yield made


async def recorded(sharer: ClaimSharer, wanted: Mapping[str, Any], *, entry: int = 0) -> ClaimRecord:
    """A claim's record; ``wanted`` is the sharing by UUID, or an entry of parameters and the sharing."""
    given = {uuid: one if isinstance(one, GivenSharing) else GivenSharing(entry, one) for uuid, one in wanted.items()}
    shared = await sharer.plan("team/mine", given)
    return ClaimRecord(uid=UID, namespace="team", name="mine", boot="b", done=True, shared=shared)


async def shared(sharer: ClaimSharer, wanted: Mapping[str, Any]) -> tuple[ClaimRecord, Mapping[str, ContainerEdits]]:
    record = await recorded(sharer, wanted)
    return record, await sharer.share(record)


def again(record: ClaimRecord) -> ClaimRecord:
    """As the next process reads it."""
    return msgspec.json.decode(msgspec.json.encode(record), type=ClaimRecord)


# --- the contract ---


async def test_a_time_slice_is_there_as_long_as_the_claim(site: Site) -> None:
    sharer = await site.sharer()
    record = await recorded(sharer, {site.uuids[1]: LONG})
    assert site.intervals() == [0, 0], "nothing is set before it is recorded"
    assert await sharer.share(record) == {}
    assert site.intervals() == [0, 3]
    await sharer.share(record)
    await (await site.sharer()).unshare(again(record))
    assert site.intervals() == [0, 0]
    await sharer.unshare(record)


async def test_a_time_slice_that_the_driver_forgot_is_set_at_the_next_start(site: Site) -> None:
    record, _ = await shared(await site.sharer(), {site.uuids[1]: LONG})
    site.forget_timeslices()
    sharer = await site.sharer(again(record))
    assert site.intervals() == [0, 3]
    site.no_timeslices(1)
    await site.sharer(again(record))
    await sharer.unshare(again(record))


@pytest.mark.parametrize("interval", [0, 1, 2])
async def test_each_interval(site: Site, interval: int) -> None:
    sharer = await site.sharer()
    record, _ = await shared(sharer, {site.uuids[0]: ClaimTimeSlicing(interval), site.uuids[1]: LONG})
    assert site.intervals() == [interval, 3]
    await sharer.unshare(record)
    assert site.intervals() == [0, 0]


async def test_a_gpu_for_one_process_is_for_several_and_then_for_one_again(site: Site) -> None:
    site.set_mode(0, EXCLUSIVE)
    sharer = await site.sharer()
    record, _ = await shared(sharer, {site.uuids[0]: LONG})
    assert site.modes() == ["DEFAULT", "DEFAULT"]
    await (await site.sharer()).unshare(again(record))
    assert site.modes() == [EXCLUSIVE, "DEFAULT"]


async def test_slices_take_turns_without_a_setting(site: Site) -> None:
    sharer = await site.sharer()
    assert await sharer.plan("team/mine", {"MIG-1": GivenSharing(0, ClaimTimeSlicing(None))}) == ()


async def test_a_gpu_without_a_time_slice_is_refused_and_left_alone(site: Site) -> None:
    """NVIDIA's driver sets the usual interval on every GPU, and fails on those that have none (its issue 41)."""
    site.no_timeslices(0)
    site.set_mode(0, EXCLUSIVE)
    sharer = await site.sharer()
    record = await recorded(sharer, {site.uuids[0]: LONG})
    with pytest.raises(
        UserError, match=r"claim team/mine: the time slice of GPU-.* can't be Long: it has none"
    ) as caught:
        await sharer.share(record)
    assert "timeSlicingConfig" in caught.value.remedy
    await sharer.unshare(record)
    assert (site.intervals(), site.modes()) == ([0, 0], [EXCLUSIVE, "DEFAULT"])


async def test_a_gpu_that_is_gone_keeps_no_claim(site: Site) -> None:
    sharer = await site.sharer()
    record = await recorded(sharer, {site.uuids[0]: LONG})
    site.is_absent(ABSENT)
    lost = msgspec.structs.replace(record.shared[0], uuid=ABSENT, former_mode=EXCLUSIVE)
    record = msgspec.structs.replace(record, shared=(lost,))
    with pytest.raises(UserError):
        await sharer.share(record)
    await sharer.unshare(record)


async def test_a_daemon_is_there_as_long_as_the_claim(site: Site) -> None:
    sharer = await site.sharer()
    record = await recorded(sharer, {site.uuids[0]: HALF})
    assert site.daemons() == 0
    edits = await sharer.share(record)
    assert site.daemons() == 1
    (own,) = edits.values()
    assert own.env == ("CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",)
    assert [mount.container_path for mount in own.mounts] == ["/tmp/nvidia-mps", "/dev/shm"]
    assert await sharer.share(record) == edits
    await sharer.unshare(record)
    await sharer.unshare(record)
    assert (site.daemons(), site.modes()) == (0, ["DEFAULT", "DEFAULT"])


async def test_each_entry_of_parameters_has_its_daemon(site: Site) -> None:
    sharer = await site.sharer()
    record, edits = await shared(sharer, {
        site.uuids[0]: GivenSharing(0, HALF), site.uuids[1]: GivenSharing(1, HALF),
    })  # fmt: skip
    assert site.daemons() == 2
    pipes = {edits[uuid].mounts[0].host_path for uuid in site.uuids}
    assert len(pipes) == 2
    await sharer.unshare(record)
    assert site.daemons() == 0


async def test_a_limit_for_a_device_that_the_claim_has_not_is_refused(site: Site) -> None:
    sharer = await site.sharer()
    mps = ClaimMps(by_device={"2": Quantity.parse("1Gi")})
    with pytest.raises(ClaimRefusedError, match='claim team/mine: a limit of memory is for the device "2"'):
        await recorded(sharer, {site.uuids[0]: mps, site.uuids[1]: mps})


async def test_daemons_of_claims_that_are_gone_end_at_the_next_start(site: Site) -> None:
    sharer = await site.sharer()
    await shared(sharer, {site.uuids[0]: HALF})
    await site.sharer()
    assert (site.daemons(), site.modes()) == (0, ["DEFAULT", "DEFAULT"])


# --- by programs alone ---


async def test_clients_have_their_share_and_get_no_more(simulated: Simulated) -> None:
    sharer = await simulated.sharer()
    mps = ClaimMps(threads=25, memory=Quantity.parse("2Gi"), by_device={"1": Quantity.parse("4Gi")})
    _, edits = await shared(sharer, dict.fromkeys(simulated.uuids, mps))
    assert simulated.modes() == [EXCLUSIVE, EXCLUSIVE]
    first, second = simulated.uuids
    with (
        simulated.program(edits[first], first, second) as one,
        simulated.program(edits[second], first, second) as other,
    ):
        for client in (one, other):
            assert [client("init()"), client("context()"), client("memory()")[2]] == [0, 0, 2048]
            assert client("sms()") == 34
            assert [client("alloc(1500)"), client("alloc(1000)")] == [0, OUT_OF_MEMORY]
        assert [one("context(1)"), one("memory()")[2]] == [0, 4096]


async def test_without_limits_clients_share_all_of_it(simulated: Simulated) -> None:
    sharer = await simulated.sharer()
    _, edits = await shared(sharer, {simulated.uuids[0]: ClaimMps()})
    (own,) = edits.values()
    with simulated.program(own, simulated.uuids[0]) as client:
        assert [client("init()"), client("context()"), client("sms()")] == [0, 0, 132]
        assert client("alloc(60000)") == 0


async def test_a_killed_process_leaves_a_daemon_that_the_next_one_takes_over(simulated: Simulated) -> None:
    sharer = await simulated.sharer()
    record, edits = await shared(sharer, {simulated.uuids[0]: HALF})
    (pid,) = simulated.processes()
    with simulated.program(edits[simulated.uuids[0]], simulated.uuids[0]) as client:
        assert [client("init()"), client("context()")] == [0, 0]
        successor = await simulated.sharer(again(record))
        assert await successor.share(again(record)) == edits
        assert simulated.processes() == [pid]
        assert client("alloc(9000)") == 0
    await successor.unshare(again(record))
    assert simulated.processes() == simulated.processes("nvidia-cuda-mps-server") == []
    assert simulated.modes() == ["DEFAULT", "DEFAULT"]
    assert [path.name for path in simulated.folder.rglob("*")] == ["mps"]


async def test_a_daemon_that_died_while_nobody_watched_is_started_at_the_next_start(simulated: Simulated) -> None:
    sharer = await simulated.sharer()
    record, edits = await shared(sharer, {simulated.uuids[0]: HALF})
    await simulated.close()
    (pid,) = simulated.processes()
    os.kill(pid, signal.SIGKILL)
    successor = await simulated.sharer(again(record))
    await successor.share(again(record))
    with simulated.program(edits[simulated.uuids[0]], simulated.uuids[0]) as client:
        assert [client("init()"), client("context()"), client("memory()")[2]] == [0, 0, 10240]
    await successor.unshare(again(record))


async def test_a_daemon_that_dies_is_started_again(simulated: Simulated) -> None:
    sharer = await simulated.sharer()
    record, edits = await shared(sharer, {simulated.uuids[0]: HALF})
    (pid,) = simulated.processes()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: simulated.processes() not in ([], [pid]))
    await until(lambda: list(simulated.folder.rglob(".started")))
    (lost,) = [advice for advice in simulated.told if advice.reason == "MpsDaemonLost"]
    assert lost.subject == "claim team/mine"
    with simulated.program(edits[simulated.uuids[0]], simulated.uuids[0]) as client:
        assert [client("init()"), client("context()"), client("memory()")[2]] == [0, 0, 10240]
    await sharer.unshare(record)
    assert simulated.daemons() == 0


async def test_a_daemon_that_does_not_start_is_an_error_and_leaves_nothing(simulated: Simulated) -> None:
    control = simulated.root / "usr/bin/nvidia-cuda-mps-control"
    control.unlink()
    control.write_text("#!/bin/sh\necho no GPU for me\nexit 1\n")
    control.chmod(0o755)
    sharer = await simulated.sharer()
    record = await recorded(sharer, {simulated.uuids[0]: HALF})
    with pytest.raises(UserError) as caught:
        await sharer.share(record)
    assert (
        "the MPS control daemon of claim team/mine can't be started: it has ended with 1: no GPU for me"
        in caught.value.what
    )
    assert caught.value.expected
    assert caught.value.remedy
    await sharer.unshare(record)
    assert (simulated.daemons(), simulated.modes()) == (0, ["DEFAULT", "DEFAULT"])
    assert [path.name for path in simulated.folder.rglob("*")] == ["mps"]


async def test_a_slice_is_shared_by_a_daemon_of_its_own(simulated: Simulated) -> None:
    mig.partition(simulated.root, 0, ["3g.40gb", "3g.40gb"])
    slices = [one["uuid"] for one in operate.snapshot(simulated.root)["gpus"][0]["mig"]["devices"]]
    sharer = await simulated.sharer()
    record, edits = await shared(sharer, {slices[1]: HALF})
    with simulated.program(edits[slices[1]], slices[1]) as client:
        assert [client("init()"), client("context()"), client("memory()")[2]] == [0, 0, 10240]
    await sharer.unshare(record)
    assert (simulated.daemons(), simulated.modes()) == (0, ["DEFAULT", "DEFAULT"])


async def until(condition: Callable[[], object]) -> None:
    assert await beside(holds, condition, seconds=60, pause=0.02)
