"""The process that runs a vector addition on one CUDA device and reports what happened, one line of JSON per step.

Only this process loads ``libcuda.so.1``, so that only it can hang or crash in the driver. It announces each driver call
beforehand, so that the parent knows which one hangs. The environment leaves only this device visible. The sum is
compared element by element; memory that the kernel did not write can't pass, because it is filled with a pattern that
no sum has. It uses only the standard library.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ELEMENTS = 50_000
BLOCK = 256
"""After so many elements the left vector begins anew, and the right one goes on to another number."""
THREADS = 256
MAX_SEED = 4095
_COUNT = array.array("f", range(ELEMENTS + MAX_SEED))
_BLOCKS = array.array("f", (at - at % BLOCK for at in range(ELEMENTS)))
_NOT_FOR_THIS_GPU = (209, 218, 222)  # no binary for the GPU, invalid PTX, unsupported PTX version
TARGETS = (("6.0", "sm_50"), ("6.3", "sm_75"), ("7.8", "sm_90"))
"""PTX version and architecture, oldest first: older PTX runs on newer GPUs until a driver drops support for it."""

PTX = """
.version %s
.target %s
.address_size 64

// out[n] = left[n] + right[n], one element per thread
.visible .entry kgpu_add(
    .param .u64 p_left,
    .param .u64 p_right,
    .param .u64 p_out,
    .param .u32 p_size
)
{
    .reg .pred  %%past;
    .reg .b32   %%n, %%size, %%block, %%width, %%lane;
    .reg .b64   %%left, %%right, %%out, %%offset;
    .reg .f32   %%x, %%y, %%sum;

    ld.param.u64    %%left, [p_left];
    ld.param.u64    %%right, [p_right];
    ld.param.u64    %%out, [p_out];
    ld.param.u32    %%size, [p_size];

    mov.u32         %%block, %%ctaid.x;
    mov.u32         %%width, %%ntid.x;
    mov.u32         %%lane, %%tid.x;
    mad.lo.s32      %%n, %%block, %%width, %%lane;
    setp.ge.s32     %%past, %%n, %%size;
    @%%past bra     LEAVE;

    mul.wide.s32    %%offset, %%n, 4;
    add.s64         %%left, %%left, %%offset;
    add.s64         %%right, %%right, %%offset;
    add.s64         %%out, %%out, %%offset;
    ld.global.f32   %%x, [%%left];
    ld.global.f32   %%y, [%%right];
    add.f32         %%sum, %%x, %%y;
    st.global.f32   [%%out], %%sum;
LEAVE:
    ret;
}
"""


class Failed(Exception):  # noqa: N818 - says what a driver call did
    """A driver call returned an error."""

    def __init__(self, step: str, code: int, name: str, text: str) -> None:
        super().__init__(step, code, name, text)
        self.step, self.code, self.name, self.text = step, code, name, text


class CudaLibrary:
    """The loaded library; ``driver.cuInit(0)`` announces the step, calls it, and raises Failed for an error."""

    def __init__(self, path: str, say: Any) -> None:
        self.say = say
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)  # AttributeError for a missing symbol

        def call(*arguments: Any) -> None:
            self.say({"step": name})
            code = function(*arguments)
            if code:
                raise Failed(name, code, self._word("cuGetErrorName", code), self._word("cuGetErrorString", code))

        return call

    def _word(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            if getattr(self.library, function)(code, ctypes.byref(text)) == 0 and text.value:
                return text.value.decode(errors="replace")
        except AttributeError:
            pass
        return ""


def add_vectors(driver: Any, say: Any, seed: int) -> dict[str, Any]:
    """Run the kernel on device 0 and compare. Returns the facts of a success; raises Failed, or ValueError for wrong
    sums.
    """
    by = ctypes.byref
    driver.cuInit(0)
    version, count, device, mode = (ctypes.c_int() for _ in range(4))
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(by(version))
    driver.cuDeviceGetCount(by(count))
    if count.value < 1:
        raise Failed("cuDeviceGetCount", 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")
    driver.cuDeviceGet(by(device), 0)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    for out, attribute in ((mode, 20), (major, 75), (minor, 76)):
        driver.cuDeviceGetAttribute(by(out), attribute, device)
    facts = {
        "cuda": version.value, "name": name.value.decode(errors="replace"), "compute_mode": mode.value,
        "capability": [major.value, minor.value],
    }  # fmt: skip
    say({"facts": facts})
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.cuCtxCreate_v2(by(context), 0, device)
    _load(driver, module)
    driver.cuModuleGetFunction(by(function), module, b"kgpu_add")
    left, right, wanted = vectors(seed)
    got = array.array("f", bytes(b"\xff" * (4 * ELEMENTS)))  # NaN
    size = 4 * ELEMENTS
    pointers = [ctypes.c_uint64() for _ in range(3)]
    for pointer in pointers:
        driver.cuMemAlloc_v2(by(pointer), ctypes.c_size_t(size))
    for pointer, values in zip(pointers, (left, right, got), strict=True):
        driver.cuMemcpyHtoD_v2(pointer, ctypes.c_void_p(values.buffer_info()[0]), ctypes.c_size_t(size))
    number = ctypes.c_uint32(ELEMENTS)
    addresses = [ctypes.cast(by(argument), ctypes.c_void_p) for argument in (*pointers, number)]
    arguments = (ctypes.c_void_p * 4)(*addresses)
    begin = time.monotonic()
    driver.cuLaunchKernel(function, -(-ELEMENTS // THREADS), 1, 1, THREADS, 1, 1, 0, None, arguments, None)
    driver.cuCtxSynchronize()
    seconds = time.monotonic() - begin
    driver.cuMemcpyDtoH_v2(ctypes.c_void_p(got.buffer_info()[0]), pointers[2], ctypes.c_size_t(size))
    for pointer in pointers:
        driver.cuMemFree_v2(pointer)
    driver.cuCtxDestroy_v2(context)
    if got.tobytes() != wanted.tobytes():
        at = next(n for n in range(ELEMENTS) if got[n] != wanted[n])
        raise ValueError(f"element {at} is {got[at]!r} instead of {wanted[at]!r}")
    return {"elements": ELEMENTS, "kernel_seconds": round(seconds, 6)}


def vectors(seed: int) -> tuple[array.array[float], array.array[float], array.array[float]]:
    """Two vectors of whole numbers, so that their sum, the third, is exact; each of its elements is another one.
    ``seed`` is 0 to ``MAX_SEED``. Cut from what is made once, when this is loaded: a node may have 56 slices to test.
    """
    left = _COUNT[seed : seed + BLOCK] * -(-ELEMENTS // BLOCK)
    return left[:ELEMENTS], _BLOCKS, _COUNT[seed : seed + ELEMENTS]


def _load(driver: Any, module: Any) -> None:
    for target in TARGETS:
        try:
            driver.cuModuleLoadData(ctypes.byref(module), (PTX % target).encode())
        except Failed as failed:
            if failed.code not in _NOT_FOR_THIS_GPU or target == TARGETS[-1]:
                raise
        else:
            return


def main(arguments: list[str]) -> int:
    """``arguments`` are the descriptor to write to, the seed, the library, and libraries that it opens by bare name."""
    out, seed, library, *helpers = arguments

    def say(frame: dict[str, Any]) -> None:
        os.write(int(out), json.dumps(frame).encode() + b"\n")

    for helper in helpers:
        try:
            ctypes.CDLL(helper, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            say({"note": str(error)})
    try:
        driver = CudaLibrary(library, say)
    except OSError as error:
        say({"error": {"step": "load", "text": str(error)}})
        return 1
    try:
        say({"passed": add_vectors(driver, say, int(seed))})
    except Failed as failed:
        say({"error": {"step": failed.step, "code": failed.code, "name": failed.name, "text": failed.text}})
    except AttributeError as error:
        say({"error": {"step": "load", "text": str(error)}})
    except ValueError as error:
        say({"error": {"step": "compare", "text": str(error)}})
    else:
        return 0
    return 1
