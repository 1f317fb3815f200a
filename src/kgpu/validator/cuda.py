"""Runs ``cuda_child`` for one device, with a deadline: whatever the driver does, a ``CudaOutcome`` comes back in time.

Each test is a process of its own, forked by one that never loads the driver (``forking.py``). The driver can hold a
killed one in the kernel: it is remembered and no second one is started for its device. A GPU that hangs processes gets
one, not one per minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu.base.threads import beside
from kgpu.formats.names import ENV_HW_STATE
from kgpu.host.driver.layouts import LIBRARY_DIRS
from kgpu.host.root import DriverRoot
from kgpu.validator.cuda_child import MAX_SEED
from kgpu.validator.forking import BOOT, ForkedTest, Forker

CUDA_LIBRARY: Final = "libcuda.so.1"
# The libraries that libcuda opens by bare name to compile PTX. They are loaded by path first, so that the driver root's
# own are found without a library path, which would also load the root's C library.
HELPERS: Final = ("libnvidia-gpucomp.so.", "libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1")
KILLED: Final = "the check's process was killed twice from outside"
_REAP_S: Final = 1.0
_MAX_OUTPUT: Final = 1 << 16
_MAX_STRAY: Final = 2000
_STEP_WORDS: Final = {"load": "loading libcuda.so.1", "compare": "comparing the sum"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOutcome:
    """One run. ``step`` is the driver call that failed or hung (or our ``load`` or ``compare``), ``code`` its CUresult.

    ``signal`` names the signal that killed the child, "" for none; ``hung`` means that it did not answer in
    ``deadline`` seconds, ``held`` that it could not even be killed. ``text`` is the driver's message.
    """

    passed: bool = False
    name: str = ""
    cuda: tuple[int, int] | None = None
    compute_mode: int = 0
    elements: int = 0
    seconds: float = 0.0
    step: str = ""
    code: int = 0
    code_name: str = ""
    text: str = ""
    signal: str = ""
    hung: bool = False
    held: bool = False
    deadline: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def step_words(self) -> str:
        """The step as a phrase for people."""
        return _STEP_WORDS.get(self.step, self.step) or "starting"


class CudaRunner(Protocol):
    """Adds vectors on one device."""

    async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
        """Test the device; returns little later than ``deadline`` seconds. Whatever the driver does, raises only
        DriverReleasedError, when nothing may open it for a while.
        """
        ...


@dataclass
class MemoryCuda:
    """The fake: returns the uuid's entry of ``outcomes``, or else a pass. ``runs`` lists the uuids."""

    outcomes: dict[str, CudaOutcome] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)

    async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
        self.runs.append(uuid)
        await asyncio.sleep(0)
        return self.outcomes.get(uuid) or CudaOutcome(passed=True, name="Test GPU", elements=50_000, deadline=deadline)


def find_cuda(root: DriverRoot) -> tuple[str, tuple[str, ...]]:
    """The real paths of libcuda.so.1 ("" if it is missing) and of its helpers, as this process opens them."""
    tree = root.files
    for folder in LIBRARY_DIRS:
        library = tree.resolve(f"{folder}/{CUDA_LIBRARY}")
        if library is None or not tree.local(library).is_file():
            continue
        helpers = [tree.resolve(f"{folder}/{name}") for stem in HELPERS for name in _named(tree.names(folder), stem)]
        return str(tree.local(library)), tuple(str(tree.local(helper)) for helper in helpers if helper)
    return "", ()


def _named(names: Sequence[str], stem: str) -> list[str]:
    return [name for name in names if name == stem or (stem.endswith(".") and name.startswith(stem))]


class ChildCuda:
    """The real runner. ``boot`` replaces the forking process's program in tests; ``env`` is its environment."""

    def __init__(self, root: DriverRoot, *, env: Mapping[str, str] | None = None, boot: str = BOOT) -> None:
        self._root = root
        self._env = dict(os.environ if env is None else env)
        self._boot = boot
        self._forker: Forker | None = None
        self._found: tuple[str, tuple[str, ...]] = ("", ())
        self._held: dict[str, ForkedTest] = {}

    async def run(self, uuid: str, *, deadline: float) -> CudaOutcome:
        former = self._held.get(uuid)
        if former is not None and not former.over:
            return CudaOutcome(hung=True, held=True, deadline=deadline, text=f"process {former.pid} is still held")
        self._held.pop(uuid, None)
        why = ""
        for _ in range(2):  # whatever ends it from outside, also before it has begun, costs one repetition
            try:
                if (outcome := await self._run(uuid, deadline)) is not None:
                    return outcome
            except OSError as error:
                why = f"the check's process can't be started: {error}"
        return CudaOutcome(step="load", text=why or KILLED, deadline=deadline)

    async def _run(self, uuid: str, deadline: float) -> CudaOutcome | None:
        """One test; None if something else ended it. Raises OSError when it can't be started."""
        begin = time.monotonic()
        library, helpers = await self._libraries()
        ours, theirs = socket.socketpair()
        try:
            test = self._fork(uuid, theirs.fileno(), [library or CUDA_LIBRARY, *helpers])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        output, hung, answered = bytearray(), False, False
        try:
            async with asyncio.timeout(deadline):
                await test.begun()
                while len(output) < _MAX_OUTPUT and (more := await reader.read(_MAX_OUTPUT)):
                    output += more
            answered = True
        except TimeoutError:
            hung = True
        except ConnectionError:
            answered = True  # it has ended
        finally:
            writer.transport.abort()
            if not await _end(test, wait=answered):
                self._held[uuid] = test
        if test.lost:
            return None
        return read_outcome(
            bytes(output),
            hung=hung,
            held=not test.over,
            returncode=test.returncode,
            seconds=time.monotonic() - begin,
            deadline=deadline,
        )

    async def _libraries(self) -> tuple[str, tuple[str, ...]]:
        """The paths of libcuda and its helpers, looked for once in the life of a forking process."""
        if self._forker is None or not self._forker.open:
            self._found = await beside(find_cuda, self._root)
        return self._found

    def _fork(self, uuid: str, out: int, libraries: Sequence[str]) -> ForkedTest:
        if self._forker is None or not self._forker.open:
            self._forker = Forker.start(self._env, boot=self._boot)
        environment = {
            "CUDA_VISIBLE_DEVICES": uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_CACHE_DISABLE": "1",  # so that nothing is written to the home folder
        }
        if (state := self._root.state_file) is not None:
            environment[ENV_HW_STATE] = str(self._root.files.local(state))
        seed = random.randrange(1, MAX_SEED + 1)  # so that an earlier run's sum is wrong  # noqa: S311
        return self._forker.fork([str(seed), *libraries], out=out, environment=environment)


async def _end(test: ForkedTest, *, wait: bool) -> bool:
    """Let the test end, or kill it; False if the driver holds it even then."""
    if wait and await test.end(_REAP_S):
        return True
    test.kill()
    return await test.end(_REAP_S)


def read_outcome(
    raw: bytes, *, hung: bool, held: bool, returncode: int | None, seconds: float, deadline: float
) -> CudaOutcome:
    """Parse the child's output. Lines that are not its frames (the driver's own messages) are kept as text."""
    facts: dict[str, Any] = {}
    passed: dict[str, Any] | None = None
    error: dict[str, Any] = {}
    step, notes, stray = "", [], ""
    for line in raw.decode(errors="replace").splitlines():
        frame = _frame(line)
        if frame is None:
            stray = f"{stray} {line.strip()}".strip()[:_MAX_STRAY]
            continue
        step = _text(frame.get("step")) or step
        if note := _text(frame.get("note")):
            notes.append(note)
        facts = _dict(frame.get("facts")) or facts
        passed = _dict(frame.get("passed")) or passed
        error = _dict(frame.get("error")) or error
    cuda = _number(facts.get("cuda"))
    killed = signal_name(returncode) if not hung else ""
    return CudaOutcome(
        passed=bool(passed) and not hung and returncode == 0,
        name=_text(facts.get("name")),
        cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        compute_mode=_number(facts.get("compute_mode")),
        elements=_number((passed or {}).get("elements")),
        seconds=seconds,
        step=_text(error.get("step")) or step,
        code=_number(error.get("code")),
        code_name=_text(error.get("name")),
        text=_text(error.get("text")) or stray,
        signal=killed,
        hung=hung,
        held=held,
        deadline=deadline,
        notes=tuple(notes),
    )


def signal_name(returncode: int | None) -> str:
    """``SIGSEGV`` for -11, "" for an exit code."""
    if returncode is None or returncode >= 0:
        return ""
    with contextlib.suppress(ValueError):
        return signal.Signals(-returncode).name
    return f"signal {-returncode}"


def _frame(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return " ".join(value.split())[:_MAX_STRAY] if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0


def path_of(root: DriverRoot) -> Path | None:
    """The path of libcuda.so.1 in this driver root, None if it is missing."""
    library, _ = find_cuda(root)
    return Path(library) if library else None
