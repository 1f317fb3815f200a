"""The hardware child: the only process that loads the driver's library, so that only it can hang or crash with it.

Talks lines of JSON over one socket. A request ``{"id", "op", "gpus", ...}`` is answered by one frame per GPU, in
order, then ``{"id", "end": true}``; the parent's deadline is per frame, so it knows which GPU a hang belongs to. A
second thread waits for driver events and writes ``{"event": {...}}`` frames. The process ends with its parent or its
socket.

JSON and dicts rather than typed structs: the child stays under 17 MB without msgspec, typing and dataclasses; the
parent decodes strictly (``wire.py``).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import types

# pynvml wants ctypes.util, which drags in tempfile, shutil and random, for Windows only.
if "ctypes.util" not in sys.modules:
    sys.modules["ctypes.util"] = types.ModuleType("ctypes.util")
    sys.modules["ctypes.util"].find_library = lambda _name: None  # type: ignore[attr-defined]

import pynvml

from kgpu.base.parent import end_with
from kgpu.hw import roots
from kgpu.hw.nvidia.codes import LIBRARY_NOT_FOUND, NOT_SUPPORTED, TIMEOUT
from kgpu.hw.nvidia.fallbacks import Nvml, NvmlError, address
from kgpu.hw.nvidia.gather import Gatherer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kgpu.hw.nvidia.slices import GpuSlices

_SLICE_MS = 500
_PAUSE_S = 0.5
# Xid, double- and single-bit ECC, MIG configuration change, recovery action
MIG_CHANGED = 0x100
WANTED_EVENTS = 0x8 | 0x2 | 0x1 | MIG_CHANGED | 0x8000


class Child:
    """Serves requests on one socket until the other end closes."""

    def __init__(self, connection: socket.socket, root: str) -> None:
        self.connection = connection
        self.root = root
        self.proc = roots.proc_root(root)
        self.gather: Gatherer | None = None
        self.library = ""
        self._write = threading.Lock()
        self._events: EventThread | None = None

    def serve(self) -> None:
        """Answer requests one after the other; returns when the parent is gone."""
        with self.connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                self._answer(request)

    def send(self, frame: dict[str, Any]) -> None:
        """Write one frame; both threads do."""
        raw = json.dumps(frame, separators=(",", ":")).encode() + b"\n"
        with self._write:
            self.connection.sendall(raw)

    def _answer(self, request: dict[str, Any]) -> None:
        number, op = request["id"], request["op"]
        try:
            if op == "init":
                self.send({"id": number, "data": self._init()})
            elif op == "node":
                self.send({"id": number, "data": self._node()})
            elif op.startswith("mig_"):
                self.send({"id": number, "data": self._mig(op, request)})
            elif op == "listen":
                with self._listener():
                    self._each(request)
            else:
                self._each(request)
        except NvmlError as error:
            self.send({"id": number, "error": [error.call, error.code, error.text]})
            return
        self.send({"id": number, "end": True})

    def _each(self, request: dict[str, Any]) -> None:
        for gpu in request["gpus"]:
            self.send({"id": request["id"], "gpu": gpu, **self._about(request["op"], gpu, request)})

    def _about(self, op: str, gpu: int, request: dict[str, Any]) -> dict[str, Any]:
        assert self.gather is not None, "init comes first"
        try:
            if op == "listen":
                return {"data": {"types": self._listener().add(gpu)}}
            if op in {"readings", "activity"}:
                return {"data": getattr(self.gather, op)(gpu, request["keys"])}
            if op in {"topology", "peers"}:
                return {"data": getattr(self.gather, op)(gpu, request["others"])}
            return {"data": getattr(self.gather, op)(gpu)}
        except NvmlError as error:
            return {"error": [error.call, error.code, error.text]}

    def _mig(self, op: str, request: dict[str, Any]) -> Any:
        # Most children never cut a GPU.
        from kgpu.hw.nvidia.mig_steps import STEPS

        assert self.gather is not None, "init comes first"
        return STEPS[op](self.gather.nvml, request)

    def _init(self) -> dict[str, Any]:
        path = roots.find_library(self.root)
        try:
            library = ctypes.CDLL(path or roots.LIBRARY, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise NvmlError(LIBRARY_NOT_FOUND, str(error), "ERROR_LIBRARY_NOT_FOUND") from error
        nvml = Nvml(library, pynvml)
        nvml.call("init")
        self.library = path or roots.LIBRARY
        self.gather = Gatherer(nvml, self.proc, roots.sys_root(self.root))
        versions: dict[str, Any] = {}
        for name in ("driver_version", "nvml_version", "cuda_version"):
            try:
                versions[name] = nvml.call(name)
            except NvmlError:
                versions[name] = None
        return {**versions, "library": self.library, **self._node()}

    def _node(self) -> dict[str, Any]:
        """The GPU count, and what tells one driver load and set of bound GPUs from another."""
        assert self.gather is not None, "init comes first"
        return {"count": self.gather.nvml.call("count"), "generation": self._generation(), "known": self._procfs()}

    def _generation(self) -> list[Any]:
        stamps: list[Any] = []
        try:
            with open(os.path.join(self.proc, "driver", "nvidia", "version"), encoding="utf-8", errors="replace") as f:
                stamps.append(f.readline().strip())
        except OSError:
            stamps.append(None)
        path = roots.find_library(self.root)
        stamps.append([path, os.stat(path).st_ino, os.stat(path).st_mtime_ns] if path else None)
        return stamps

    def _procfs(self) -> list[list[str]]:
        """[bus id, uuid, model, minor] of each GPU bound to the driver, without asking NVML: for GPUs that hang it."""
        gpus = []
        folder = os.path.join(self.proc, "driver", "nvidia", "gpus")
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return []
        for name in names:
            values = {"Model": "", "GPU UUID": "", "Device Minor": ""}
            try:
                with open(os.path.join(folder, name, "information"), encoding="utf-8", errors="replace") as lines:
                    for line in lines:
                        key, _, value = line.partition(":")
                        if key.strip() in values:
                            values[key.strip()] = value.strip()
            except OSError:
                pass
            gpus.append([name.lower(), values["GPU UUID"], values["Model"], values["Device Minor"]])
        return gpus

    def _listener(self) -> EventThread:
        assert self.gather is not None, "init comes first"
        if self._events is None:
            self._events = EventThread(self.gather.nvml, self.gather.slices, self.send)
        return self._events


class EventThread:
    """Waits for driver events in short slices and reports them; ``with`` it, to pause it while GPUs are added."""

    def __init__(self, nvml: Nvml, slices: GpuSlices, send: Any) -> None:
        self.nvml = nvml
        self.slices = slices
        self.send = send
        self._set: Any = nvml.call("event_set")
        self._uuids: dict[int | None, str] = {}
        self._turn = threading.Condition()
        self._paused = False
        self._started = False

    def __enter__(self) -> EventThread:  # noqa: PYI034 - Self would import typing
        # A plain lock would starve: the thread takes it again at once after each slice.
        self._paused = True
        self._turn.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._paused = False
        self._turn.notify()
        self._turn.release()
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="events", daemon=True).start()

    def add(self, gpu: int) -> int:
        """Register one GPU while paused; returns the event types it delivers (0 when it has none)."""
        handle = self.nvml.call("handle", gpu)
        uuid = self.nvml.call("uuid", handle)
        try:
            wanted = self.nvml.call("event_types", handle) & WANTED_EVENTS
            self.nvml.call("register_events", handle, ctypes.c_ulonglong(wanted), self._set)
        except NvmlError as error:
            if error.code != NOT_SUPPORTED:
                raise
            return 0
        self._uuids[address(handle)] = uuid
        if wanted & MIG_CHANGED:
            self.slices.with_events.add(uuid)
        return int(wanted)

    def _run(self) -> None:
        wait = self.nvml.function("nvmlEventSetWait_v2") or self.nvml.function("nvmlEventSetWait")
        while wait is not None:
            with self._turn:
                while self._paused:
                    self._turn.wait(_PAUSE_S)
                data = pynvml.c_nvmlEventData_t()
                code = wait(self._set, ctypes.byref(data), ctypes.c_uint(_SLICE_MS))
            if code == 0:
                # Before the parent hears of it, since it asks at once.
                self.slices.changes += data.eventType == MIG_CHANGED
                self.send({"event": self._event(data)})
            elif code != TIMEOUT:
                # The set is useless once a GPU in it is lost; the parent reads everything again and restarts us.
                self.slices.with_events.clear()
                self.send({"event": {"type": 0, "data": code, "uuid": None, "gi": None, "ci": None}})
                return

    def _event(self, data: Any) -> dict[str, Any]:
        none = 0xFFFFFFFF
        return {
            "type": data.eventType,
            "data": data.eventData,
            "uuid": self._uuids.get(address(data.device)),
            "gi": None if data.gpuInstanceId == none else data.gpuInstanceId,
            "ci": None if data.computeInstanceId == none else data.computeInstanceId,
        }


def main(arguments: list[str]) -> None:
    """``child.py FD PARENT_PID DRIVER_ROOT``; never returns to the interpreter's exit, which could wait for NVML."""
    fd, parent, root = int(arguments[0]), int(arguments[1]), arguments[2]
    end_with(parent)
    # The terminal's Ctrl-C is for the parent, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Child(socket.socket(fileno=fd), root).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
