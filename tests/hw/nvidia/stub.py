"""A stand-in for the loaded NVML library: symbols are Python functions that fill ctypes outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml


def target(argument: Any) -> Any:
    """What a by-reference argument points at."""
    return argument._obj if hasattr(argument, "_obj") else argument


class StubLibrary:
    """``stub.answer("nvmlX", code, {out index: value})``; symbols that were not given do not exist."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., int]] = {}
        self.calls: list[str] = []
        text = SimpleNamespace()
        text.restype = None

        def error_string(code: int) -> bytes:
            return f"reason {code}".encode()

        self.functions["nvmlErrorString"] = error_string

    def answer(self, symbol: str, code: int = 0, *values: object) -> None:
        """Fill the trailing outputs with the values: numbers, texts, or dicts of struct members."""

        def function(*arguments: Any) -> int:
            self.calls.append(symbol)
            if code == 0:
                outs = [one for one in arguments if hasattr(one, "_obj") or isinstance(one, ctypes.Array)]
                for out, value in zip(outs[len(outs) - len(values) :], values, strict=True):
                    fill(target(out), value)
            return code

        self.functions[symbol] = function

    def __getattr__(self, symbol: str) -> Callable[..., int]:
        try:
            return self.__dict__["functions"][symbol]
        except KeyError:
            raise AttributeError(symbol) from None


def fill(out: Any, value: object) -> None:
    if isinstance(value, dict):
        for name, member in value.items():
            if isinstance(member, dict):
                fill(getattr(out, name), member)
            else:
                setattr(out, name, member)
    elif isinstance(value, str):
        out.value = value.encode()
    else:
        out.value = value


def healthy_gpu(index: int = 0) -> StubLibrary:
    """One A100-like GPU without MIG enabled, with the oldest symbols that the tables know."""
    stub = StubLibrary()
    stub.answer("nvmlDeviceGetHandleByIndex_v2")
    stub.answer("nvmlDeviceGetUUID", 0, f"GPU-0000000{index}")
    stub.answer("nvmlDeviceGetName", 0, "NVIDIA A100-SXM4-40GB")
    stub.answer("nvmlDeviceGetSerial", 0, "123")
    stub.answer("nvmlDeviceGetMinorNumber", 0, 5)
    stub.answer("nvmlDeviceGetPciInfo_v3", 0, {"domain": 0, "bus": 7, "device": 0, "pciDeviceId": 0x20B010DE})
    stub.answer("nvmlDeviceGetMemoryInfo", 0, {"total": 40960 << 20})
    stub.answer("nvmlDeviceGetCudaComputeCapability", 0, 8, 0)
    stub.answer("nvmlDeviceGetMigMode", 0, 0, 0)
    stub.answer("nvmlDeviceGetMaxMigDeviceCount", 0, 7)
    return stub


STRUCTS = pynvml
