"""What a run of tests finds on this machine, and what it leaves there: labs' processes, cgroups, links, mounts, folders.

A run marks all that it starts by a variable that processes inherit, so that two runs beside each other never take one
for the other's; pytest's own variable tells which test started one. A run within a run appends its mark.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from kgpu.base.errors import LabError
from kgpu.lab.processes import parse_start_time
from kgpu.lab.real import mountpoints, state
from kgpu.lab.real.model import NODE_DIRS, LabNetwork

MARK: Final = "TESTS_OF_KGPU"
"""In the environment of all that a run starts: PID-START of its first process, after those of the runs around it."""
TEST: Final = "PYTEST_CURRENT_TEST"
OWN_FOLDERS: Final = ("/run/kgpu", "/run/kgpu-lab", "/nonexistent")
SHARED_FOLDERS: Final = (*NODE_DIRS, "/run/nvidia", "/run/cdi")
"""That others may have, too; what a lab leaves of them is empty."""
FEW_INSTANCES: Final = 10
FEW_BYTES: Final = 1 << 30
# Python's own helpers, which end with the process that they help.
HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_LAB: Final = re.compile(r"-m kgpu\.lab\.|-m kgpu agent|-m kgpu lab up")
_KEEPER: Final = "kgpu.lab.real.keeper"
# Temporary folders of kgpu's own programs.
_SCRATCH: Final = re.compile(r"kgpu-(nodes|scenario|mig|strip|pyc|shim)-")
_PID: Final = re.compile(r"-(\d+)(?:-\d+)?$")


class Thing(NamedTuple):
    """Something on this machine that a test could leave behind."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of some run or lab. ``runs`` are its marks, the innermost last; ``test`` is the test that started it."""

    pid: int
    runs: tuple[str, ...]
    test: str
    command: str

    def __str__(self) -> str:
        by = f", started by {self.test}" if self.test else ""
        return f"process {self.pid} ({self.command[:120]}{by})"


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look; tests have folders of their own in their place."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")
    links: Path = Path("/sys/class/net")
    devices: Path = Path("/dev")
    scratch: Path = Path("/tmp")
    folders: tuple[str, ...] = (*OWN_FOLDERS, *SHARED_FOLDERS)


@dataclass(frozen=True, slots=True)
class Stock:
    """What there is at one moment. ``claimed`` are things that a living lab or process has."""

    things: frozenset[Thing] = frozenset()
    claimed: frozenset[Thing] = frozenset()
    processes: tuple[Process, ...] = ()
    ended: frozenset[str] = frozenset()
    """Marks of runs whose first process is gone."""

    def others(self, run: str) -> tuple[Process, ...]:
        """Processes of labs and runs beside this one that are still under way."""
        return tuple(one for one in self.processes if run not in one.runs and one not in self.orphans())

    def orphans(self) -> tuple[Process, ...]:
        """Processes that a run has left behind."""
        return tuple(one for one in self.processes if self.ended.issuperset(one.runs[-1:]) and one.runs)


def own_mark() -> str:
    """This process as the first of a run."""
    return f"{os.getpid()}-{parse_start_time(Path('/proc/self/stat').read_text())}"


@contextlib.contextmanager
def marked(run: str) -> Iterator[None]:
    """What this process starts meanwhile is of the run."""
    before = os.environ.get(MARK)
    os.environ[MARK] = f"{before}/{run}" if before else run
    try:
        yield
    finally:
        os.environ.pop(MARK)
        if before:
            os.environ[MARK] = before


def take(places: Places | None = None) -> Stock:
    """Take stock."""
    places = places or Places()
    processes = tuple(_processes(places.proc))
    things = frozenset(_things(places))
    return Stock(
        things=things,
        claimed=frozenset(_claimed(places, things, processes)),
        processes=processes,
        ended=frozenset(run for one in processes for run in one.runs[-1:] if not _lives(run, places.proc)),
    )


def dirt(found: Stock, run: str) -> list[str]:
    """What runs before this one have left behind. Of what can't be told from a neighbour's, nothing is said."""
    things = sorted(thing for thing in found.things - found.claimed if _ours(thing))
    if found.others(run):
        things = [thing for thing in things if _PID.search(thing.name)]
    return [str(one) for one in (*found.orphans(), *things)]


def _ours(thing: Thing) -> bool:
    """Whether only kgpu makes such a thing."""
    return thing.kind in {"cgroup", "files", "mount"} or thing.name.startswith("kgpu") or thing.name in OWN_FOLDERS


def left(before: Stock, after: Stock, run: str) -> tuple[list[str], list[str]]:
    """What this run has left behind, and what it or one beside it may have."""
    mine = [str(one) for one in after.processes if run in one.runs]
    new = [str(one) for one in sorted(after.things - after.claimed - before.things)]
    return (mine, new) if before.others(run) or after.others(run) else (mine + new, [])


def shortages(places: Places | None = None) -> list[str]:
    """What all processes of this machine share and have used up: tests then fail by their neighbours."""
    places = places or Places()
    found = []
    with contextlib.suppress(OSError, ValueError):
        limit = int((places.proc / "sys" / "fs" / "inotify" / "max_user_instances").read_text())
        used = sum(_inotify_instances(places.proc))
        if limit - used < FEW_INSTANCES:
            found.append(f"inotify instances: {used} of {limit} are in use (fs.inotify.max_user_instances)")
    with contextlib.suppress(OSError):
        row = re.search(r"^MemAvailable:\s+(\d+) kB", (places.proc / "meminfo").read_text(), re.MULTILINE)
        if row and int(row[1]) < FEW_BYTES >> 10:
            found.append(f"memory: {int(row[1]) >> 10} MiB are left")
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(places.scratch).free
        if free < FEW_BYTES:
            found.append(f"disk: {free >> 20} MiB are left in {places.scratch}")
    return found


def _inotify_instances(proc: Path) -> Iterator[int]:
    """How many each process of this user has."""
    for pid in filter(str.isdigit, os.listdir(proc)):
        with contextlib.suppress(OSError):
            if (proc / pid).stat().st_uid == os.geteuid():
                fds = [f"{proc}/{pid}/fd/{fd}" for fd in os.listdir(proc / pid / "fd")]
                yield sum(_leads_to(fd) == "anon_inode:inotify" for fd in fds)


def _leads_to(path: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def _processes(proc: Path) -> Iterator[Process]:
    for pid in filter(str.isdigit, os.listdir(proc)):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            words = (proc / pid / "cmdline").read_bytes().split(b"\0")
            command = b" ".join(words).decode(errors="replace").strip()
            env = _environment((proc / pid / "environ").read_bytes())
            if (MARK in env or _LAB.search(command)) and not any(name in command for name in HELPERS):
                runs = tuple(filter(None, env.get(MARK, "").split("/")))
                yield Process(int(pid), runs, env.get(TEST, "").partition(" (")[0], command)


def _environment(raw: bytes) -> dict[str, str]:
    rows = (row.partition(b"=") for row in raw.split(b"\0") if row.startswith((MARK.encode(), TEST.encode())))
    return {name.decode(): value.decode(errors="replace") for name, _, value in rows}


def _lives(run: str, proc: Path) -> bool:
    pid, _, start = run.partition("-")
    try:
        return str(parse_start_time((proc / pid / "stat").read_text())) == start
    except (OSError, ValueError, IndexError):
        return False


def _things(places: Places) -> Iterator[Thing]:
    for tree in (places.cgroups, *_entries(places.cgroups)):
        yield from (Thing("cgroup", one.name) for one in _entries(tree) if one.name.startswith("kgpu-"))
    yield from (Thing("link", one.name) for one in _entries(places.links) if one.name.startswith(("kgpu", "veth")))
    yield from (Thing("device", str(one)) for one in _entries(places.devices) if one.name.startswith("nvidia"))
    yield from (Thing("files", str(one)) for one in _entries(places.scratch) if _SCRATCH.match(one.name))
    yield from (Thing("folder", name) for name in places.folders if _counts(name))
    with contextlib.suppress(OSError):
        points = mountpoints.parse_mountinfo((places.proc / "self" / "mountinfo").read_text())
        yield from (Thing("mount", point) for point in points if "/pytest-of-" in point or "kgpu" in point)
    with contextlib.suppress(OSError):
        yield from (Thing("address", one) for one in _addresses((places.proc / "net" / "fib_trie").read_text()))


def _counts(folder: str) -> bool:
    """Whether the folder is there, and is one of ours alone or empty."""
    try:
        return not os.listdir(folder) or folder in OWN_FOLDERS
    except OSError:  # a lab beside this run may remove it at any moment
        return False


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _addresses(trie: str) -> set[str]:
    """Loopback addresses that this machine was given beside its first."""
    found = re.findall(r"\|-- (127\.[\d.]+)\s+/32 host LOCAL", trie)
    return set(found) - {"127.0.0.1"}


def _claimed(places: Places, things: frozenset[Thing], processes: tuple[Process, ...]) -> Iterator[Thing]:
    """What a living lab has by its state file, and what has a living process's number in its name."""
    for thing in things:
        hit = _PID.search(thing.name)
        if hit and (places.proc / hit[1]).exists():
            yield thing
    for process in processes:
        if _KEEPER in process.command:
            yield from _of_lab(process.command)


def _of_lab(command: str) -> Iterator[Thing]:
    plan = command.partition(f"{_KEEPER} ")[2].split(" ")[0]
    try:
        lab = state.load(Path(plan).with_name("lab.json"))
    except LabError:
        lab = None
    if lab is not None:
        yield Thing("link", LabNetwork(lab.network_index).host_link)
        yield from (Thing("cgroup", Path(name).name) for name in lab.cgroups)
        # Another lab's node may sit on folders that this one has not made.
        yield from (Thing("folder", name) for name in NODE_DIRS)
