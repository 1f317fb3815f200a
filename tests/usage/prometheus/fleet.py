"""A day of a small fleet: what its agents have recorded, and what was scraped of them meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from kgpu.formats import names
from kgpu.formats.names import NVIDIA
from kgpu.formats.usage import HolderSharing, RecordedNode
from kgpu.formats.usage_now import LINES_PATH, decode_page
from kgpu.hw.port import Accelerator, Inventory, Reading
from kgpu.usage.grouping import grouping
from kgpu.usage.looks import LookedHolder
from kgpu.usage.plan import UsageReport, UsageWish, report
from kgpu.usage.prices import PriceBook
from kgpu.usage.recording import UsageRecording
from kgpu.usage.segments import timeline
from tests.usage.prometheus.scraped import Scrapes
from tests.usage.watched import BEGIN, HungReader, WatchedNode

SCRAPED_S = 30
START_S = 1000.0
BEGIN_S = int(BEGIN.timestamp() + START_S)


def pod(name: str, **fields: object) -> LookedHolder:
    usual = {"namespace": "team", "pod": name, "uid": f"uid-{name}", "container": "main", "owner": f"Deployment/{name}"}
    return LookedHolder(**{**usual, **fields})  # type: ignore[arg-type]


async def described() -> RecordedNode:
    """What the API server says of each node."""
    labels = {
        names.LABEL_INSTANCE_TYPE: "p4d.24xlarge",
        names.LABEL_REGION: "us-east-1",
        names.LABEL_EKS_NODE_GROUP: "gpu",
    }
    return RecordedNode(
        node="?", at=BEGIN, labels=labels, provider_id="aws:///us-east-1a/i-1", cpus=96, memory_mib=1 << 20
    )


@dataclass
class Member:
    """A node of two A100, its agent, and the labels of the scrapes that are made of it."""

    folder: Path
    name: str
    targets: Sequence[Mapping[str, str]] = ({"job": "usage"},)
    honor: bool = True
    up: bool = True
    scraped: bool = True
    agent: WatchedNode = field(init=False)
    offset: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        gpus = tuple(
            Accelerator(
                vendor=NVIDIA, index=at, uuid=f"GPU-{self.name}-{at}", name="NVIDIA A100-SXM4-40GB", memory_mib=40960
            )
            for at in range(2)
        )

        async def about() -> RecordedNode:
            return structs.replace(await described(), node=self.name)

        self.agent = WatchedNode(
            self.folder, name=self.name, labels=("team", "app.kubernetes.io/name"), about=about, now=START_S,
            reader=HungReader(Inventory(vendor=NVIDIA, driver_version="1", accelerators=gpus)),
        )  # fmt: skip
        self.does({})

    def does(self, holders: Mapping[int, tuple[LookedHolder, ...]], *busy: float) -> None:
        """From now on these hold its GPUs, which are busy for so many percent."""
        self.agent.holders.now = {f"GPU-{self.name}-{at}": of for at, of in holders.items()}
        self.agent.reader.set_readings([
            Reading(uuid=f"GPU-{self.name}-{at}", values={
                "utilization_percent": busy[at] if at < len(busy) else 0.0,
                "memory_used_mib": 2000.0 if at in holders else 0.0, "power_w": 90.0,
            })
            for at in range(2)
        ])  # fmt: skip


@dataclass
class Fleet:
    """Nodes whose time passes together."""

    members: dict[str, Member]
    scrapes: Scrapes = field(default_factory=Scrapes)
    now_s: float = START_S

    async def start(self) -> None:
        for member in self.members.values():
            await member.agent.start()
        await self.passes(10)

    async def passes(self, seconds: int) -> None:
        """Each agent looks every ten seconds; each scrape is made every half a minute, at seconds of its own."""
        for _ in range(seconds // 10):
            self.now_s += 10
            for number, member in enumerate(self.members.values()):
                if not member.up:
                    member.agent.now += 10
                    continue
                await member.agent.looks(1)
                if not member.scraped:
                    continue
                for replica, target in enumerate(member.targets):
                    if (self.now_s // 10 + number + replica) % (SCRAPED_S // 10) == 0:
                        at = self.at + 0.2 + replica
                        text = member.agent.watcher.metrics()
                        instance = {"instance": f"{member.name}:9410"}
                        self.scrapes.scrape(at, text, honor=member.honor, **{**instance, **target})

    @property
    def at(self) -> float:
        """Now, in seconds since 1970."""
        return BEGIN.timestamp() + self.now_s

    async def recorded(self) -> UsageRecording:
        """As ``kgpu usage`` has it from the agents."""
        found = UsageRecording(labels=("app.kubernetes.io/name", "team"))
        for member in self.members.values():
            if member.up:
                await member.agent.watcher.end()
                await member.agent.start()
            cursor, more = "", True
            while more:
                body = (await member.agent.page(LINES_PATH, f"after={cursor}")).body
                page, lines = decode_page(bytes(body).decode(), place="test", node=member.name)  # type: ignore[arg-type]
                found.nodes += [line for line in lines if isinstance(line, RecordedNode)]
                found.devices += [line for line in lines if not isinstance(line, RecordedNode)]  # type: ignore[misc]
                cursor, more = page.cursor, page.more
        return found


def reported(recording: UsageRecording, by: str, begin_s: float, end_s: float) -> UsageReport:
    wish = UsageWish(grouping=grouping(by, recording.labels), begin_us=int(begin_s * 1e6), end_us=int(end_s * 1e6))
    return report(timeline(recording), PriceBook(), wish)


def seconds(found: UsageReport) -> dict[str, dict[str, float]]:
    """What rows add up, in seconds, by their names."""
    return {
        row.name: {what: (getattr(row.sums, what) or 0) / 1e6 for what in ("gpu_us", "held_us", "busy_us", "wasted_us")}
        for row in found.rows
    }


async def a_day(fleet: Fleet) -> None:
    """Work, idleness, a crowd on one GPU, jobs that come and go, a hung driver, a reboot: some hours."""
    one, two = fleet.members["n1"], fleet.members["n2"]
    train = pod("train", labels={"team": "vision", "app.kubernetes.io/name": "train"})
    idle = pod("notebook", namespace="lab", owner="StatefulSet/notebook", labels={"team": 'n"lp\\'})
    shared = [
        pod(
            f"llama-{at}",
            namespace="web",
            owner="Deployment/llama",
            sharing=HolderSharing.TIME_SLICING,
            replicas=4,
            units=1,
        )
        for at in range(3)
    ]
    one.does({0: (train,), 1: (idle,)}, 80.0, 0.0)
    two.does({0: tuple(shared)}, 40.0)
    await fleet.passes(2400)
    one.does({1: (idle,)}, 0.0, 0.0)
    two.does({0: tuple(shared[:2])}, 40.0)
    await fleet.passes(730)
    for number in range(3):
        one.does({0: (pod(f"job-{number}", owner="Job/sweep"),), 1: (idle,)}, 95.0, 0.0)
        await fleet.passes(250)
        one.does({1: (idle,)})
        await fleet.passes(140)
    two.agent.reader.hung = True
    await fleet.passes(60)
    two.agent.reader.hung = False
    await fleet.passes(600)
    await two.agent.watcher.end()
    two.up = False
    await fleet.passes(300)
    two.agent.boot, two.agent.now, two.agent.wall_off = "boot-2", 60.0, fleet.now_s - 60.0
    await two.agent.start()
    two.up = True
    two.does({0: (shared[0],), 1: (train,)}, 40.0, 60.0)
    await fleet.passes(2400)
