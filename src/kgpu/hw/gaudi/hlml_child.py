"""The process that has ``libhlml.so`` loaded: a call that crashes or hangs in it is its trouble alone.

A request is a line ``{"id", "bus", "more"}``, an answer a line ``{"id", "code", "values", "failed"}``. Each card has a
thread of its own, so that one that hangs keeps none waiting. It ends with its parent. Started without site packages.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from kgpu.base.parent import end_with

LOST = 15
NOT_THERE = (3, 21)  # not supported, no data
TEXT = 96
PORTS = 64
"""More network ports than a card has."""


class HlmlMemory(ctypes.Structure):
    """Bytes."""

    _fields_ = [("free", ctypes.c_ulonglong), ("total", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


_INT, _LONG = ctypes.c_uint, ctypes.c_ulonglong
# key, call, arguments before the result, type of the result (None: a text)
ROWS: tuple[tuple[str, str, tuple[int, ...], Any], ...] = (
    ("serial", "hlml_device_get_serial", (), None),
    ("board_uuid", "hlml_device_get_uuid", (), None),
    ("board", "hlml_device_get_name", (), None),
    ("power", "hlml_device_get_power_usage", (), _INT),
    ("power_limit", "hlml_device_get_power_management_default_limit", (), _INT),
    ("temperature_chip", "hlml_device_get_temperature", (0,), _INT),
    ("temperature_board", "hlml_device_get_temperature", (1,), _INT),
    ("temperature_shutdown", "hlml_device_get_temperature_threshold", (0,), _INT),
    ("temperature_slowdown", "hlml_device_get_temperature_threshold", (1,), _INT),
    ("temperature_memory_highest", "hlml_device_get_temperature_threshold", (2,), _INT),
    ("temperature_chip_highest", "hlml_device_get_temperature_threshold", (3,), _INT),
    ("clock_soc", "hlml_device_get_clock_info", (0,), _INT),
    ("clock_soc_highest", "hlml_device_get_max_clock_info", (0,), _INT),
    ("utilization", "hlml_device_get_utilization_rates", (), _INT),
    ("energy", "hlml_device_get_total_energy_consumption", (), _LONG),
    ("replays", "hlml_device_get_pcie_replay_counter", (), _INT),
    ("link_generation", "hlml_device_get_curr_pcie_link_generation", (), _INT),
    ("link_width", "hlml_device_get_curr_pcie_link_width", (), _INT),
    ("ecc_corrected", "hlml_device_get_total_ecc_errors", (0, 0), _LONG),
    ("ecc_uncorrected", "hlml_device_get_total_ecc_errors", (1, 0), _LONG),
    ("ecc_uncorrected_lifetime", "hlml_device_get_total_ecc_errors", (1, 1), _LONG),
    ("rows_pending", "hlml_device_get_replaced_rows_pending_status", (), _INT),
)
# What only those who measure ask for.
MORE: tuple[tuple[str, str, tuple[int, ...], Any], ...] = (
    ("clock_ic_highest", "hlml_device_get_max_clock_info", (1,), _INT),
    ("clock_mme_highest", "hlml_device_get_max_clock_info", (2,), _INT),
    ("clock_tpc_highest", "hlml_device_get_max_clock_info", (3,), _INT),
    ("pcie_tx", "hlml_device_get_pcie_throughput", (0,), _INT),
    ("pcie_rx", "hlml_device_get_pcie_throughput", (1,), _INT),
    ("ecc_mode", "hlml_device_get_ecc_mode", (), _INT),
    ("rows_single_bit", "hlml_device_get_replaced_rows", (0,), _INT),
    ("rows_double_bit", "hlml_device_get_replaced_rows", (1,), _INT),
)
# Arguments after the result, by the call: the pending mode, and the addresses of the rows.
AFTER: dict[str, Callable[[], Any]] = {
    "hlml_device_get_ecc_mode": lambda: ctypes.byref(ctypes.c_uint()),
    "hlml_device_get_replaced_rows": lambda: None,
}


class HlmlLibrary:
    """The library's calls about one card; none is made that the library has not."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.code = int(self._library.hlml_init())

    def read(self, bus: str, more: bool = False) -> dict[str, Any]:
        """Everything that it says of the card; with ``more`` also what only those who measure ask for."""
        device = ctypes.c_void_p()
        code = self._call("hlml_device_get_handle_by_pci_bus_id", bus.encode(), ctypes.byref(device))
        values: dict[str, Any] = {}
        failed: list[str] = []
        for step in (self._figures, self._memory, *((self._ports,) if more else ())):
            if not code:
                code = step(device, more, values, failed)
        return {"code": code if code == LOST or not values else 0, "values": values, "failed": failed}

    def _figures(self, device: Any, more: bool, values: dict[str, Any], failed: list[str]) -> int:
        code = 0
        for key, name, before, kind in (*ROWS, *(MORE if more else ())):
            result: Any = ctypes.create_string_buffer(TEXT) if kind is None else kind()
            after = (result, TEXT) if kind is None else (ctypes.byref(result),)
            code = self._call(name, device, *before, *after, *((AFTER[name](),) if name in AFTER else ()))
            if code == LOST:
                return LOST
            if not code:
                values[key] = result.value.decode("ascii", "replace") if kind is None else int(result.value)
            elif code not in NOT_THERE:
                failed.append(key)
        return 0 if "serial" in values else code

    def _memory(self, device: Any, _more: bool, values: dict[str, Any], failed: list[str]) -> int:
        memory = HlmlMemory()
        code = self._call("hlml_device_get_memory_info", device, ctypes.byref(memory))
        if not code:
            values |= {"memory_total": int(memory.total), "memory_used": int(memory.used)}
        elif code not in {*NOT_THERE, LOST}:
            failed.append("memory_total")
        return LOST if code == LOST else 0

    def _ports(self, device: Any, _more: bool, values: dict[str, Any], _failed: list[str]) -> int:
        """The state of each network port: those that a card has are bits of one mask, external ones of another."""
        there, outside = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 2)()
        code = self._call("hlml_get_mac_addr_info", device, there, outside)
        for port in range(PORTS) if not code else ():
            if there[0] >> port & 1:
                up = ctypes.c_bool()
                code = self._call("hlml_nic_get_link", device, port, ctypes.byref(up))
                if code == LOST:
                    return LOST
                if not code:
                    values[f"{'external' if outside[0] >> port & 1 else 'internal'}_port_{port}"] = int(up.value)
        return LOST if code == LOST else 0

    def _call(self, name: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:  # an older library
            return NOT_THERE[0]


class Workers:
    """A thread for each card."""

    def __init__(self, read: Callable[[str, bool], dict[str, Any]], send: Callable[[bytes], None]) -> None:
        self._read, self._send = read, send
        self._queues: dict[str, queue.SimpleQueue[tuple[int, bool]]] = {}
        self._lock = threading.Lock()

    def ask(self, number: int, bus: str, more: bool) -> None:
        """Answer when the card has."""
        if bus not in self._queues:
            self._queues[bus] = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(bus,), daemon=True).start()
        self._queues[bus].put((number, more))

    def _work(self, bus: str) -> None:
        while True:
            number, more = self._queues[bus].get()
            answer = json.dumps({"id": number, **self._read(bus, more)})
            with self._lock:
                self._send(answer.encode() + b"\n")


def main(words: list[str]) -> None:
    """``words``: the socket's number, the parent's pid, and the library's path."""
    end_with(int(words[1]))
    connection = socket.socket(fileno=int(words[0]))
    try:
        library = HlmlLibrary(words[2])
    except (OSError, AttributeError) as error:
        connection.sendall(json.dumps({"id": 0, "code": -1, "why": str(error)[:300]}).encode() + b"\n")
        return
    connection.sendall(json.dumps({"id": 0, "code": library.code}).encode() + b"\n")
    if library.code:
        return
    workers = Workers(library.read, connection.sendall)
    with connection.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            workers.ask(request["id"], request["bus"], request["more"])
    os._exit(0)  # a thread that hangs in the driver is not waited for
