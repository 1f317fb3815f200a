"""The call table: every struct it names exists, and older symbols and struct versions are tried in order."""

from __future__ import annotations

import pynvml
import pytest

from kgpu.hw.nvidia.codes import FUNCTION_NOT_FOUND, GPU_IS_LOST, NEXT_WAY, NOT_SUPPORTED, VERSION_MISMATCH
from kgpu.hw.nvidia.fallbacks import CALLS, Nvml, NvmlError
from tests.hw.nvidia.stub import StubLibrary


@pytest.mark.parametrize("name", CALLS)
def test_every_row_names_outputs_that_pynvml_has(name: str) -> None:
    for way in CALLS[name]:
        for out in way.outs:
            assert out in {"u32", "i32", "u64"} or out.startswith("text:") or hasattr(pynvml, out), out
        assert not way.version or isinstance(getattr(pynvml, way.version), int)


def test_codes_are_nvmls() -> None:
    assert {NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH} == {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
    assert GPU_IS_LOST == pynvml.NVML_ERROR_GPU_IS_LOST


def test_newest_way_that_works_is_taken() -> None:
    stub = StubLibrary()
    stub.answer("nvmlDeviceGetCount_v2", 0, 8)
    stub.answer("nvmlDeviceGetCount", 0, 3)
    assert Nvml(stub, pynvml).call("count") == 8
    assert stub.calls == ["nvmlDeviceGetCount_v2"]


@pytest.mark.parametrize("code", sorted(NEXT_WAY))
def test_refused_way_gives_way_to_the_next(code: int) -> None:
    stub = StubLibrary()
    stub.answer("nvmlDeviceGetCount_v2", code)
    stub.answer("nvmlDeviceGetCount", 0, 3)
    assert Nvml(stub, pynvml).call("count") == 3


def test_missing_symbol_gives_way_to_the_next() -> None:
    stub = StubLibrary()
    stub.answer("nvmlDeviceGetMemoryInfo", 0, {"used": 7})
    assert Nvml(stub, pynvml).call("memory_detail", None).used == 7


def test_struct_version_is_written_before_the_call() -> None:
    stub = StubLibrary()
    seen = []

    def fabric(_handle, out) -> int:
        seen.append(out._obj.version)
        return VERSION_MISMATCH if len(seen) == 1 else 0

    stub.functions["nvmlDeviceGetGpuFabricInfoV"] = fabric
    Nvml(stub, pynvml).call("fabric", None)
    assert seen == [pynvml.nvmlGpuFabricInfo_v3, pynvml.nvmlGpuFabricInfo_v2]


def test_real_error_ends_the_search_with_nvmls_words() -> None:
    stub = StubLibrary()
    stub.answer("nvmlDeviceGetCount_v2", GPU_IS_LOST)
    stub.answer("nvmlDeviceGetCount", 0, 3)
    with pytest.raises(NvmlError) as caught:
        Nvml(stub, pynvml).call("count")
    assert (caught.value.code, caught.value.call, caught.value.text) == (GPU_IS_LOST, "count", "reason 15")


def test_no_way_at_all_is_function_not_found() -> None:
    with pytest.raises(NvmlError) as caught:
        Nvml(StubLibrary(), pynvml).call("count")
    assert caught.value.code == FUNCTION_NOT_FOUND
