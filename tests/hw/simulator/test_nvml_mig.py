"""The MIG life cycle through the C ABI, against an oracle of the placement rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.mig_geometry import GEOMETRIES, InstanceProfile
from kgpu.hw.simulator import mig, operate
from kgpu.hw.simulator.state import DriverState
from tests.budget import tries
from tests.hw.simulator.mig_oracle import Oracle
from tests.hw.simulator.nvml_process import Nvml
from tests.hw.simulator.test_mig_tables import layouts, maximal

RootMaker = Callable[..., Path]
IN_USE = pynvml.NVML_ERROR_IN_USE
NO_ROOM = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
INVALID = pynvml.NVML_ERROR_INVALID_ARGUMENT
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED

HELPERS = """
def place(start, size):
    p = c_nvmlGpuInstancePlacement_t(); p.start, p.size = start, size
    return ctypes.byref(p)

def instances(h):
    found = {}
    for number in range(18):
        try:
            info = nvmlDeviceGetGpuInstanceProfileInfo(h, number)
        except NVMLError:
            continue
        room, n = (c_nvmlGpuInstance_t * 16)(), ctypes.c_uint()
        nvmlDeviceGetGpuInstances(h, info.id, room, ctypes.byref(n))
        for k in range(n.value):
            i = nvmlGpuInstanceGetInfo(room[k])
            found[i.id] = [i.profileId, i.placement.start, i.placement.size]
    return found

def remaining(h, profile):
    return nvmlDeviceGetGpuInstanceRemainingCapacity(h, profile)

def ids_of_migs(h):
    out = []
    for k in range(nvmlDeviceGetMaxMigDeviceCount(h)):
        try:
            m = nvmlDeviceGetMigDeviceHandleByIndex(h, k)
        except NVMLError_NotFound:
            continue
        out.append([nvmlDeviceGetIndex(m), nvmlDeviceGetGpuInstanceId(m), nvmlDeviceGetComputeInstanceId(m),
                    nvmlDeviceGetUUID(m)])
    return out

def wipe(h):
    for gi_id in instances(h):
        gi = nvmlDeviceGetGpuInstanceById(h, gi_id)
        for ci_id in range(8):
            try:
                nvmlComputeInstanceDestroy(nvmlGpuInstanceGetComputeInstanceById(gi, ci_id))
            except NVMLError_NotFound:
                pass
        nvmlGpuInstanceDestroy(gi)
"""


def enabled(root: Path) -> Nvml:
    n = Nvml(root)
    n.run(HELPERS)
    n.run("h = nvmlDeviceGetHandleByIndex(0)")
    assert n("nvmlDeviceSetMigMode(h, 1)") == 0
    assert n("nvmlDeviceGetMigMode(h)") == [1, 1]
    return n


@pytest.fixture
def h100(sim_root: RootMaker) -> Iterator[Nvml]:
    with enabled(sim_root("hgx-h100", gpus=2)) as n:
        yield n


def test_full_house_of_seven(h100: Nvml) -> None:
    for _ in range(7):
        h100.run("nvmlGpuInstanceCreateComputeInstance(nvmlDeviceCreateGpuInstance(h, 19), 0)")
    assert h100.code("nvmlDeviceCreateGpuInstance(h, 19)") == NO_ROOM
    assert sorted(place[1] for place in h100("instances(h)").values()) == [0, 1, 2, 3, 4, 5, 6]
    devices = h100("ids_of_migs(h)")
    assert [device[0] for device in devices] == list(range(7))
    assert [device[1] for device in devices] == [7, 8, 9, 10, 11, 12, 13]
    assert len({device[3] for device in devices}) == 7
    assert all(
        re.fullmatch(r"MIG-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", d[3]) for d in devices
    )
    assert h100("[remaining(h, p) for p in (19, 20, 15, 14, 9, 5, 0)]") == [0] * 7


def test_default_placement_keeps_large_profiles_possible(h100: Nvml) -> None:
    h100.run("for p in (19, 14, 5): nvmlDeviceCreateGpuInstance(h, p)")
    assert h100("instances(h)") == {"13": [19, 6, 1], "5": [14, 4, 2], "1": [5, 0, 4]}


def test_uuids_return_with_the_same_layout(h100: Nvml) -> None:
    make = "for p, c in ((9, 2), (14, 1)): nvmlGpuInstanceCreateComputeInstance(nvmlDeviceCreateGpuInstance(h, p), c)"
    h100.run(make)
    first = h100("ids_of_migs(h)")
    h100.run("wipe(h)")
    assert h100("ids_of_migs(h)") == []
    h100.run(make)
    assert h100("ids_of_migs(h)") == first


def test_order_of_destruction(h100: Nvml) -> None:
    h100.run("gi = nvmlDeviceCreateGpuInstance(h, 14); ci = nvmlGpuInstanceCreateComputeInstance(gi, 0)")
    assert h100.code("nvmlGpuInstanceDestroy(gi)") == IN_USE
    assert h100.code("nvmlDeviceSetMigMode(h, 0)") == IN_USE
    assert h100("nvmlDeviceGetMigMode(h)") == [1, 1]
    h100.run("nvmlComputeInstanceDestroy(ci)")
    assert h100.code("nvmlComputeInstanceDestroy(ci)") == INVALID
    h100.run("nvmlGpuInstanceDestroy(gi)")
    assert h100.code("nvmlGpuInstanceGetInfo(gi)") == INVALID
    h100.run("again = nvmlDeviceCreateGpuInstance(h, 14)")
    assert h100.code("nvmlGpuInstanceGetInfo(gi)") == INVALID, "a stale handle must not mean the new instance"
    h100.run("nvmlGpuInstanceDestroy(again)")
    assert h100("nvmlDeviceSetMigMode(h, 0)") == 0
    assert h100("nvmlDeviceGetMaxMigDeviceCount(h)") == 0


def test_several_compute_instances_share_a_gpu_instance(h100: Nvml) -> None:
    h100.run("gi = nvmlDeviceCreateGpuInstance(h, 5)")
    assert h100("nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0)") == 4
    h100.run("cis = [nvmlGpuInstanceCreateComputeInstance(gi, p) for p in (1, 0, 0)]")
    assert h100.code("nvmlGpuInstanceCreateComputeInstance(gi, 0)") == NO_ROOM
    infos = h100(
        "[[i.id, i.profileId, i.placement.start, i.placement.size] for i in map(nvmlComputeInstanceGetInfo_v2, cis)]"
    )
    assert infos == [[0, 1, 0, 2], [1, 0, 2, 1], [2, 0, 3, 1]]
    assert h100("[nvmlDeviceGetName(nvmlDeviceGetMigDeviceHandleByIndex(h, k))[-14:] for k in range(3)]") == [
        "MIG 2c.4g.40gb",
        "MIG 1c.4g.40gb",
        "MIG 1c.4g.40gb",
    ]
    a = h100("nvmlDeviceGetAttributes(nvmlDeviceGetMigDeviceHandleByIndex(h, 0))")
    assert (a["gpuInstanceSliceCount"], a["computeInstanceSliceCount"], a["multiprocessorCount"]) == (4, 2, 32)
    assert a["memorySizeMB"] == 40448


def test_mig_handles_lead_to_their_gpu_and_answer_for_their_slice(h100: Nvml) -> None:
    h100.run("nvmlGpuInstanceCreateComputeInstance(nvmlDeviceCreateGpuInstance(h, 9), 2)")
    h100.run("m = nvmlDeviceGetMigDeviceHandleByIndex(h, 0)")
    assert h100("nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)) == nvmlDeviceGetUUID(h)")
    assert h100("[nvmlDeviceIsMigDeviceHandle(x).value for x in (h, m)]") == [0, 1]
    assert h100("nvmlDeviceGetMemoryInfo(m).total >> 20") == 40448
    assert h100("nvmlDeviceGetUUID(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(m))) == nvmlDeviceGetUUID(m)")
    assert h100.code("nvmlDeviceGetPowerUsage(m)") == UNSUPPORTED
    assert h100.code("nvmlDeviceGetUtilizationRates(h)") == UNSUPPORTED
    assert h100.code("nvmlDeviceGetGpuInstanceId(h)") == INVALID
    assert h100.code("nvmlDeviceGetMigDeviceHandleByIndex(h, 1)") == pynvml.NVML_ERROR_NOT_FOUND
    assert h100.code("nvmlDeviceGetMigDeviceHandleByIndex(h, 7)") == INVALID
    assert (
        h100.code("nvmlDeviceGetHandleByUUID('MIG-00000000-0000-5000-8000-000000000000')")
        == pynvml.NVML_ERROR_NOT_FOUND
    )


def test_a_slice_counts_the_uncorrected_errors_of_its_own_cache(sim_root: RootMaker) -> None:
    root = sim_root("hgx-h100", gpus=1)
    mig.partition(root, 0, ["1g.10gb"] * 2)
    (gi, ci), other = [
        (int(part["gi"]), int(part["ci"])) for part in operate.snapshot(root)["gpus"][0]["mig"]["devices"]
    ]
    operate.inject(root, "ecc", gpu=0, count=3, gi=gi, ci=ci)
    with pytest.raises(ConfigError, match="not counted"):
        operate.inject(root, "ecc", gpu=0, corrected=True, gi=gi, ci=ci)
    with Nvml(root) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        n.run("all = [nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(2)]")
        ids = n("[[nvmlDeviceGetGpuInstanceId(m), nvmlDeviceGetComputeInstanceId(m)] for m in all]")
        sram = {tuple(one): n(f"nvmlDeviceGetMemoryErrorCounter(all[{at}], 1, 0, 7)") for at, one in enumerate(ids)}
        assert sram == {(gi, ci): 3, other: 0}
        for kind in ("1, 0, 2", "0, 0, 7", "1, 1, 7"):  # DRAM, corrected, aggregate
            assert n.code(f"nvmlDeviceGetMemoryErrorCounter(all[0], {kind})") == UNSUPPORTED
        assert n("nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 7)") == 3
        operate.clear(root, 0)
        assert n("nvmlDeviceGetMemoryErrorCounter(all[0], 1, 0, 7)") == 0


def test_what_needs_mig_mode_is_refused_without_it(sim_root: RootMaker) -> None:
    with Nvml(sim_root("hgx-h100", gpus=1)) as n:
        n.run(HELPERS + "\nh = nvmlDeviceGetHandleByIndex(0)")
        assert n.code("nvmlDeviceCreateGpuInstance(h, 19)") == UNSUPPORTED
        assert n.code("remaining(h, 19)") == UNSUPPORTED
        assert n("nvmlDeviceGetGpuInstanceProfileInfo(h, 0).id") == 19, "profiles are told regardless of the mode"
    with Nvml(sim_root("l4", gpus=1)) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        for call in (
            "nvmlDeviceGetMigMode(h)",
            "nvmlDeviceSetMigMode(h, 1)",
            "nvmlDeviceGetGpuInstanceProfileInfo(h, 0)",
        ):
            assert n.code(call) == UNSUPPORTED


def test_profiles_by_number_and_by_id(h100: Nvml) -> None:
    known = {0: 19, 7: 20, 9: 15, 1: 14, 2: 9, 3: 5, 4: 0}
    for number in range(18):
        call = f"nvmlDeviceGetGpuInstanceProfileInfo(h, {number})"
        assert (h100(f"{call}.id") if number in known else -h100.code(call)) == known.get(number, -UNSUPPORTED)
    assert h100.code("nvmlDeviceGetGpuInstanceProfileInfo(h, 18)") == INVALID
    assert h100("nvmlDeviceGetGpuInstanceProfileInfoByIdV(h, 20).name") == "MIG 1g.10gb+me"
    assert h100("nvmlDeviceGetGpuInstanceProfileInfo(h, 0, 2).memorySizeMB") == 9984


def test_ampere_in_use_stays_pending_until_a_reset(sim_root: RootMaker) -> None:
    root = sim_root("dgx-a100-40g", gpus=1)
    with Nvml(root) as n, DriverState.open(root / "state") as state:
        with state.locked():
            slot = state.gpu(0).process[0]
            slot.used, slot.pid, slot.kind = 1, 4242, 1
        n.run("h = nvmlDeviceGetHandleByIndex(0)")
        assert n("nvmlDeviceSetMigMode(h, 1)") == IN_USE
        assert n("nvmlDeviceGetMigMode(h)") == [0, 1]
        assert n.code("nvmlDeviceCreateGpuInstance(h, 19)") == UNSUPPORTED
        with state.locked():
            slot.used = 0
        state.reset(0)
        assert n("nvmlDeviceGetMigMode(h)") == [1, 1]
        n.run("nvmlDeviceCreateGpuInstance(h, 19)")


def test_a_reset_from_c_is_the_reset_of_the_state(sim_root: RootMaker) -> None:
    root = sim_root("dgx-a100-40g", gpus=2)
    with Nvml(root) as n, DriverState.open(root / "state") as state:
        n.run("reset = pynvml.nvmlLib.kgpuSimDeviceReset; h = nvmlDeviceGetHandleByIndex(1)")
        with state.locked():
            gpu = state.gpu(1)
            gpu.process[0].used, gpu.process[0].pid, gpu.process[0].kind = 1, 4242, 1
            gpu.mig_pending, gpu.ecc_pending, gpu.ecc_volatile[2], gpu.lost = 1, 0, 5, 1
            gpu.persistence = 0
        assert n("reset(1)") == IN_USE
        with state.locked():
            gpu.process[0].used = 0
        assert n("reset(1)") == 0
        assert n("[nvmlDeviceGetMigMode(h), nvmlDeviceGetEccMode(h)]") == [[1, 1], [0, 0]]
        assert (gpu.ecc_volatile[2], gpu.lost) == (0, 0)
        assert n("reset(2)") == INVALID


def test_instances_with_processes_are_in_use(h100: Nvml, tmp_path: Path) -> None:
    h100.run("gi = nvmlDeviceCreateGpuInstance(h, 9); ci = nvmlGpuInstanceCreateComputeInstance(gi, 2)")
    gi_id = h100("nvmlGpuInstanceGetInfo(gi).id")
    with DriverState.open(tmp_path / "root1" / "state") as state:
        with state.locked():
            slot = state.gpu(0).process[0]
            slot.used, slot.pid, slot.kind, slot.gi_id, slot.ci_id, slot.memory = 1, 77, 1, gi_id, 0, 3 << 30
        assert h100.code("nvmlComputeInstanceDestroy(ci)") == IN_USE
        assert h100("nvmlDeviceGetMemoryInfo(nvmlDeviceGetMigDeviceHandleByIndex(h, 0)).used") == 3 << 30
        assert h100("nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetMigDeviceHandleByIndex(h, 0))[0].pid") == 77
        with state.locked():
            slot.used = 0
    assert h100.code("nvmlComputeInstanceDestroy(ci)") == 0


def test_only_one_holder_of_the_exclusive_engines(sim_root: RootMaker) -> None:
    with enabled(sim_root("rtx-pro-6000", gpus=1)) as n:
        n.run("one = nvmlDeviceCreateGpuInstance(h, 21)")
        assert [n.code(f"nvmlDeviceCreateGpuInstance(h, {profile})") for profile in (21, 64, 65)] == [NO_ROOM] * 3
        n.run("nvmlGpuInstanceDestroy(one); nvmlDeviceCreateGpuInstance(h, 65)")
        assert n.code("nvmlDeviceCreateGpuInstance(h, 14)") == NO_ROOM, "all media engines are taken"
        n.run("for _ in range(3): nvmlDeviceCreateGpuInstance(h, 67)")
        assert [place[1] for place in n("instances(h)").values()].count(0) == 1
        assert len(n("instances(h)")) == 4


@pytest.mark.parametrize(("profile", "family"), [("hgx-h100", "h100-80gb"), ("a30", "a30")])
def test_every_maximal_layout_can_be_made_and_leaves_no_room(sim_root: RootMaker, profile: str, family: str) -> None:
    rows = list(GEOMETRIES[family].rows)
    with enabled(sim_root(profile, gpus=1)) as n:
        for layout in sorted(maximal(layouts(rows))):
            oracle = Oracle(family)
            plan = plan_of(rows, layout, GEOMETRIES[family].units)
            allowed = True
            for row, start in plan:
                allowed = allowed and oracle.allowed(row.id, start)
                code = n.code(f"nvmlDeviceCreateGpuInstanceWithPlacement(h, {row.id}, place({start}, {row.units}))")
                assert (code == 0) == oracle.allowed(row.id, start), (layout, row, start)
                if code == 0:
                    oracle.made[oracle.instance_id(row, start)] = (row, start)
            assert allowed or family == "a30", "seven-slice GPUs have engines for every layout"
            if allowed:
                assert not any(n(f"[remaining(h, p) for p in {[row.id for row in rows]}]")), layout
            n.run("wipe(h)")


def plan_of(rows: list[InstanceProfile], layout: tuple[int, ...], units: int) -> list[tuple[InstanceProfile, int]]:
    """A placement for each profile of a feasible layout."""

    def walk(at: int, left: tuple[int, ...]) -> list[tuple[InstanceProfile, int]] | None:
        if not left:
            return []
        for start in range(at, units):
            for index in set(left):
                if start in rows[index].starts:
                    rest = list(left)
                    rest.remove(index)
                    found = walk(start + rows[index].units, tuple(rest))
                    if found is not None:
                        return [(rows[index], start), *found]
        return None

    plan = walk(0, layout)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("profile", "family"),
    [("hgx-h100", "h100-80gb"), ("dgx-a100-40g", "a100-40gb"), ("a30", "a30"), ("rtx-pro-6000", "rtx-pro-6000")],
)
def test_random_life_cycles_agree_with_the_oracle(sim_root: RootMaker, profile: str, family: str) -> None:
    ids = [row.id for row in GEOMETRIES[family].rows]
    units = GEOMETRIES[family].units
    create = st.tuples(st.just("create"), st.sampled_from(ids), st.one_of(st.none(), st.integers(0, units)))
    destroy = st.tuples(st.just("destroy"), st.integers(0, 15), st.none())

    with enabled(sim_root(profile, gpus=1)) as n:

        @given(steps=st.lists(st.one_of(create, create, destroy), max_size=14))
        @tries(60, suppress_health_check=list(HealthCheck))
        def run(steps: list[tuple[str, int, int | None]]) -> None:
            n.run("wipe(h)")
            oracle = Oracle(family)
            for kind, number, start in steps:
                if kind == "destroy":
                    code = n.code(f"nvmlGpuInstanceDestroy(nvmlDeviceGetGpuInstanceById(h, {number}))")
                    assert code == (0 if number in oracle.made else pynvml.NVML_ERROR_NOT_FOUND)
                    oracle.made.pop(number, None)
                    continue
                row = oracle.rows[number]
                call = f"nvmlDeviceCreateGpuInstance(h, {number})"
                if start is not None:
                    call = f"nvmlDeviceCreateGpuInstanceWithPlacement(h, {number}, place({start}, {row.units}))"
                code = n.code(call)
                if start is not None and start not in row.starts:
                    assert code == INVALID
                else:
                    assert (code == 0) == oracle.allowed(number, start)
                    assert code in {0, NO_ROOM}
                now = {int(key): value for key, value in n("instances(h)").items()}
                if code == 0:
                    (new,) = set(now) - set(oracle.made)
                    at = now[new][1]
                    assert at in oracle.free_starts(row)
                    assert new == oracle.instance_id(row, at)
                    assert start is None or at == start
                    oracle.made[new] = (row, at)
                assert now == {key: [r.id, s, r.units] for key, (r, s) in oracle.made.items()}
            assert n(f"[remaining(h, p) for p in {ids}]") == [oracle.remaining(p) for p in ids]

        run()


def test_two_processes_never_get_the_same_slice(sim_root: RootMaker) -> None:
    root = sim_root("hgx-h100", gpus=1)
    with enabled(root) as a, Nvml(root) as b:
        b.run(HELPERS + "\nh = nvmlDeviceGetHandleByIndex(0)")
        grab = (
            "def grab():\n    got = []\n    while True:\n        try:\n"
            "            got.append(nvmlGpuInstanceGetInfo(nvmlDeviceCreateGpuInstance(h, 19)).id)\n"
            "        except NVMLError_InsufficientResources:\n            return got"
        )
        a.run(grab)
        b.run(grab)
        a.send("grab()")
        b.send("grab()")
        assert sorted(a.receive() + b.receive()) == [7, 8, 9, 10, 11, 12, 13]
