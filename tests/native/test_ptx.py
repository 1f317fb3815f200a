"""The PTX machine of the simulated libcuda: against Python's arithmetic, and against hostile programs.

The machine is built alone, with the address and undefined-behaviour sanitizers where the compiler has them, and runs
in one child process that answers thousands of small programs; a crash there is a failed test with the report.
"""

from __future__ import annotations

import math
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.hw.simulator.build import find_compiler
from tests.budget import tries

HERE = Path(__file__).resolve().parent
CUDA = HERE.parents[1] / "native" / "cuda"
BASE = 0x7F0000000000  # where the host maps its memory
OK, SYNTAX = 0, 1
FAULT_ADDRESS, FAULT_SHARED, FAULT_MISALIGNED, FAULT_TRAP, FAULT_STOPPED = 1, 2, 3, 4, 6
HEADER = ".version 7.0\n.target sm_50\n.address_size 64\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one run gave back."""

    status: int
    fault: int
    address: int
    instructions: int
    log: str
    memory: bytes


class Host:
    """The child process with the machine."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(
        self,
        text: str | bytes,
        *,
        params: bytes = b"",
        memory: bytes = b"",
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        shared: int = 0,
        limit: int = 1 << 24,
    ) -> Answer:
        """Run the first kernel of a module over `memory`, at most about `limit` instructions."""
        raw = text if isinstance(text, bytes) else text.encode()
        request = b"".join(struct.pack("<I", len(part)) + part for part in (raw, params, memory))
        request += struct.pack("<7IQ", *grid, *block, shared, limit)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            status, fault, address, count = struct.unpack("<IIQQ", self._read(24))
            log = self._read(struct.unpack("<I", self._read(4))[0]).decode(errors="replace")
            after = self._read(struct.unpack("<I", self._read(4))[0])
        except (BrokenPipeError, EOFError):
            assert self._process.stderr is not None
            pytest.fail(f"the machine died on {raw[:2000]!r}:\n{self._process.stderr.read().decode()[-4000:]}")
        return Answer(status=status, fault=fault, address=address, instructions=count, log=log, memory=after)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) != size:
            raise EOFError
        return data

    def close(self) -> tuple[int, str]:
        """End the child; its exit status and what it wrote to stderr (a leak report, for one)."""
        _, errors = self._process.communicate(timeout=60)
        return self._process.returncode, errors.decode()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    program = tmp_path_factory.mktemp("ptx") / "host"
    sources = [*sorted(map(str, CUDA.glob("ptx_*.c"))), str(HERE / "ptx_host.c")]
    base = [find_compiler(), "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{CUDA}", *sources]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    for flags in (sanitize, []):  # not every compiler comes with the sanitizers' libraries
        built = subprocess.run([*base, *flags, "-o", program, "-lm"], capture_output=True, text=True, check=False)
        if built.returncode == 0:
            break
    assert built.returncode == 0, built.stderr
    assert shutil.which(program)
    made = Host(program)
    yield made
    code, errors = made.close()
    assert code == 0, errors


def kernel(body: str, params: str = ".param .u64 out") -> str:
    """A module with one kernel whose registers are the usual families."""
    registers = ".reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<16>; .reg .f64 %fd<16>;"
    return f"{HEADER}.visible .entry k({params})\n{{\n{registers}\n{body}\nret;\n}}\n"


OUT = "ld.param.u64 %rd15, [out];\n"
TO_OUT = struct.pack("<Q", BASE)

# ---- integers ----

FAMILY = {"u32": ("%r", 32, False), "s32": ("%r", 32, True), "u64": ("%rd", 64, False), "s64": ("%rd", 64, True)}


def read(value: int, bits: int, signed: bool) -> int:
    """The low `bits` of a value as a number of the type."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def model(op: str, kind: str, a: int, b: int) -> int:
    """What PTX says the instruction gives, from Python's own integers."""
    _, bits, signed = FAMILY[kind]
    x, y = read(a, bits, signed), read(b, bits, signed)
    quotient = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    results = {
        "add": x + y,
        "sub": x - y,
        "mul.lo": x * y,
        "mul.hi": (x * y) >> bits,
        "div": -1 if y == 0 else quotient,
        "rem": x if y == 0 else x - quotient * y,
        "min": min(x, y),
        "max": max(x, y),
    }
    return results[op] & ((1 << bits) - 1)


def bitwise(op: str, bits: int, a: int, b: int) -> int:
    mask = (1 << bits) - 1
    amount = b & 0xFFFFFFFF
    results = {"and": a & b, "or": a | b, "xor": a ^ b, "shl": 0 if amount >= bits else a << amount}
    return results[op] & mask


edges = st.sampled_from([0, 1, 2, 31, 32, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1])
words = st.one_of(edges, st.integers(0, (1 << 64) - 1))
steps = st.tuples(
    st.sampled_from(["add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"]),
    st.sampled_from(sorted(FAMILY)),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
)


@given(st.lists(words, min_size=4, max_size=4), st.lists(steps, min_size=1, max_size=12))
@tries(150)
def test_integer_programs_agree_with_python(
    host: Host, start: list[int], program: list[tuple[str, str, int, int, int]]
) -> None:
    """Four values in 32-bit and four in 64-bit registers, then random instructions over them."""
    narrow, wide = [value & 0xFFFFFFFF for value in start], list(start)
    lines = [OUT]
    for i, value in enumerate(start):
        lines += [f"mov.u32 %r{i}, {value & 0xFFFFFFFF};", f"mov.u64 %rd{i}, {value};"]
    for op, kind, d, a, b in program:
        prefix, bits, _ = FAMILY[kind]
        lines.append(f"{op}.{kind} {prefix}{d}, {prefix}{a}, {prefix}{b};")
        values = narrow if bits == 32 else wide
        values[d] = model(op, kind, values[a], values[b])
    for i in range(4):
        lines += [f"st.global.u32 [%rd15+{4 * i}], %r{i};", f"st.global.u64 [%rd15+{16 + 8 * i}], %rd{i};"]
    answer = host.run(kernel("\n".join(lines)), params=TO_OUT, memory=bytes(48))
    assert (answer.status, answer.fault, answer.log) == (OK, 0, "")
    assert list(struct.unpack("<4I4Q", answer.memory)) == narrow + wide


@pytest.mark.parametrize("kind", sorted(FAMILY))
@pytest.mark.parametrize("op", ["div", "rem", "mul.hi"])
def test_division_at_the_edges(host: Host, op: str, kind: str) -> None:
    """By zero, and the least value by -1, whose quotient does not fit."""
    prefix, bits, _ = FAMILY[kind]
    values = (0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1)
    for a in values:
        for b in values:
            body = (
                f"mov.b{bits} {prefix}0, {a}; mov.b{bits} {prefix}1, {b}; {op}.{kind} {prefix}2, {prefix}0, {prefix}1;"
            )
            answer = host.run(
                kernel(f"{OUT}{body} st.global.b{bits} [%rd15], {prefix}2;"), params=TO_OUT, memory=bytes(8)
            )
            assert int.from_bytes(answer.memory[: bits // 8], "little") == model(op, kind, a, b), (a, b)


@given(st.sampled_from(["and", "or", "xor", "shl"]), st.sampled_from([32, 64]), words, words)
@tries(80)
def test_bitwise(host: Host, op: str, bits: int, a: int, b: int) -> None:
    mask = (1 << bits) - 1
    prefix = "%r" if bits == 32 else "%rd"
    second = "%r9" if op == "shl" else f"{prefix}1"
    body = OUT + (
        f"mov.b{bits} {prefix}0, {a & mask}; mov.b{bits} {prefix}1, {b & mask}; mov.u32 %r9, {b & 0xFFFFFFFF};"
        f"{op}.b{bits} {prefix}2, {prefix}0, {second}; st.global.b{bits} [%rd15], {prefix}2;"
    )
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(8))
    assert int.from_bytes(answer.memory[: bits // 8], "little") == bitwise(op, bits, a & mask, b & mask)


@given(st.sampled_from(["u32", "s32", "u64", "s64"]), words, st.integers(0, 100))
@tries(60)
def test_shift_right_fills_with_the_sign(host: Host, kind: str, a: int, amount: int) -> None:
    prefix, bits, signed = FAMILY[kind]
    body = OUT + f"mov.b{bits} {prefix}0, {a & ((1 << bits) - 1)}; shr.{kind} {prefix}1, {prefix}0, {amount};"
    answer = host.run(kernel(body + f"st.global.b{bits} [%rd15], {prefix}1;"), params=TO_OUT, memory=bytes(8))
    expected = (read(a, bits, signed) >> amount) & ((1 << bits) - 1)
    assert int.from_bytes(answer.memory[: bits // 8], "little") == expected


# ---- floats ----


def f32(value: float) -> float:
    """Rounded to single precision; what overflows becomes infinite."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def float_model(op: str, a: float, b: float) -> float:
    if op == "div":
        if b == 0:
            sign = math.copysign(1, a) * math.copysign(1, b)
            return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, sign)
        return a / b
    if op == "mul":
        return a * b
    return a + b if op == "add" else a - b


@given(st.sampled_from(["add", "sub", "mul", "div"]), st.floats(width=32), st.floats(width=32))
@tries(150)
def test_single_precision(host: Host, op: str, a: float, b: float) -> None:
    """Double arithmetic rounded once to single is exact for these four."""
    x, y = (int.from_bytes(struct.pack("<f", value), "little") for value in (a, b))
    name = "div.rn.f32" if op == "div" else f"{op}.f32"
    body = OUT + f"mov.f32 %f0, 0f{x:08X}; mov.f32 %f1, 0f{y:08X}; {name} %f2, %f0, %f1; st.global.f32 [%rd15], %f2;"
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(4))
    expected = f32(float_model(op, a, b))
    if math.isnan(expected):
        assert answer.memory == b"\xff\xff\xff\x7f"  # the canonical NaN
    else:
        assert answer.memory == struct.pack("<f", expected)


@given(st.sampled_from(["add", "sub", "mul", "div"]), st.floats(), st.floats())
@tries(100)
def test_double_precision(host: Host, op: str, a: float, b: float) -> None:
    x, y = (int.from_bytes(struct.pack("<d", value), "little") for value in (a, b))
    name = "div.rn.f64" if op == "div" else f"{op}.f64"
    body = (
        OUT
        + f"mov.f64 %fd0, 0d{x:016X}; mov.f64 %fd1, 0d{y:016X}; {name} %fd2, %fd0, %fd1; st.global.f64 [%rd15], %fd2;"
    )
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(8))
    expected = float_model(op, a, b)
    if math.isnan(expected):
        assert math.isnan(struct.unpack("<d", answer.memory)[0])
    else:
        assert answer.memory == struct.pack("<d", expected)


@given(st.sampled_from(["u32", "s32", "u64", "s64"]), st.floats())
@tries(100)
def test_float_to_integer_saturates(host: Host, kind: str, value: float) -> None:
    prefix, bits, signed = FAMILY[kind]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    raw = int.from_bytes(struct.pack("<d", value), "little")
    body = (
        OUT + f"mov.f64 %fd0, 0d{raw:016X}; cvt.rzi.{kind}.f64 {prefix}0, %fd0; st.global.b{bits} [%rd15], {prefix}0;"
    )
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(8))
    expected = 0 if math.isnan(value) else low if value < low else high if value > high else int(value)
    assert int.from_bytes(answer.memory[: bits // 8], "little") == expected & ((1 << bits) - 1)


# ---- control flow, threads, memory ----


@given(st.integers(0, 300))
@tries(25)
def test_a_loop_counts(host: Host, n: int) -> None:
    body = OUT + (
        f"mov.u32 %r0, 0; mov.u32 %r1, 0; LOOP: setp.ge.u32 %p0, %r0, {n}; @%p0 bra DONE;"
        "add.u32 %r0, %r0, 1; add.u32 %r1, %r1, %r0; bra.uni LOOP; DONE: st.global.u32 [%rd15], %r1;"
    )
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(4))
    assert int.from_bytes(answer.memory, "little") == n * (n + 1) // 2


@given(
    st.tuples(*[st.integers(1, 4)] * 3),
    st.tuples(*[st.integers(1, 5)] * 3),
)
@tries(30)
def test_every_thread_runs_once(host: Host, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    """Each thread adds one to the cell of its own global number."""
    body = (
        OUT
        + """
    mov.u32 %r0, %ctaid.z; mov.u32 %r1, %nctaid.y; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r0, %r0, %r1, %r2;
    mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r0, %r0, %r1, %r2;
    mov.u32 %r1, %ntid.z; mov.u32 %r2, %tid.z; mad.lo.u32 %r0, %r0, %r1, %r2;
    mov.u32 %r1, %ntid.y; mov.u32 %r2, %tid.y; mad.lo.u32 %r0, %r0, %r1, %r2;
    mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2;
    mul.wide.u32 %rd0, %r0, 4; add.u64 %rd0, %rd0, %rd15; red.global.add.u32 [%rd0], 1;
    """
    )
    threads = math.prod(grid) * math.prod(block)
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(4 * threads), grid=grid, block=block)
    assert answer.fault == 0
    assert answer.memory == struct.pack("<I", 1) * threads


def test_barriers_order_shared_memory(host: Host) -> None:
    """A tree sum over shared memory is right only when every thread waits at each barrier."""
    body = (
        OUT
        + """
    .shared .align 4 .b8 cells[1024];
    mov.u32 %r0, %tid.x; mul.lo.u32 %r1, %r0, 4; mov.u32 %r2, cells; add.u32 %r1, %r1, %r2; cvt.u64.u32 %rd0, %r1;
    st.shared.u32 [%rd0], %r0; mov.u32 %r3, 128; bar.sync 0;
    LOOP: setp.ge.u32 %p0, %r0, %r3; @%p0 bra WAIT;
    mul.wide.u32 %rd1, %r3, 4; add.u64 %rd1, %rd1, %rd0; ld.shared.u32 %r4, [%rd1]; ld.shared.u32 %r5, [%rd0];
    add.u32 %r5, %r5, %r4; st.shared.u32 [%rd0], %r5;
    WAIT: bar.sync 0; shr.u32 %r3, %r3, 1; setp.ne.u32 %p1, %r3, 0; @%p1 bra LOOP;
    setp.ne.u32 %p2, %r0, 0; @%p2 bra END; ld.shared.u32 %r5, [cells]; red.global.add.u32 [%rd15], %r5; END:
    """
    )
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(4), grid=(3, 1, 1), block=(256, 1, 1))
    assert int.from_bytes(answer.memory, "little") == 3 * sum(range(256))


@given(st.integers(-64, 128), st.sampled_from([1, 2, 4, 8]), st.booleans())
@tries(120)
def test_no_access_leaves_the_memory(host: Host, offset: int, width: int, store: bool) -> None:
    """Inside and aligned works; anything else is a fault that changes nothing."""
    size, bits = 64, width * 8
    access = f"st.global.u{bits} [%rd15+{offset}], %rd1;" if store else f"ld.global.u{bits} %rd2, [%rd15+{offset}];"
    before = bytes(range(size))
    answer = host.run(kernel(OUT + "mov.u64 %rd1, -1;" + access), params=TO_OUT, memory=before)
    inside = 0 <= offset <= size - width
    expected = FAULT_MISALIGNED if offset % width else 0 if inside else FAULT_ADDRESS
    assert (answer.status, answer.fault) == (OK, expected)
    if expected:
        assert answer.memory == before
        assert answer.address == BASE + offset
    elif store:
        assert answer.memory == before[:offset] + b"\xff" * width + before[offset + width :]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("trap;", FAULT_TRAP),
        ("ld.shared.u32 %r0, [%rd0];", FAULT_SHARED),
        ("mov.u64 %rd0, 0; ld.global.u32 %r0, [%rd0];", FAULT_ADDRESS),
        ("LOOP: bra LOOP;", FAULT_STOPPED),
        ("ld.param.u64 %rd0, [out+8];", FAULT_ADDRESS),
    ],
)
def test_faults(host: Host, body: str, fault: int) -> None:
    answer = host.run(kernel(body), params=TO_OUT, memory=bytes(8), limit=100_000)
    assert (answer.status, answer.fault) == (OK, fault)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;", "'shfl' is not supported by the simulated GPU"),
        ("add.u32 %r0, %rd1, %r2;", "a 64-bit operand where 32 bits are expected"),
        ("add.rz.f32 %f0, %f1, %f2;", "Illegal modifier '.rz'"),
        ("mov.u32 %r99, 0;", "Unknown symbol '%r99'"),
        ("bra NOWHERE;", "Unknown label 'NOWHERE'"),
        ("mul.u32 %r0, %r1, %r2;", "needs .lo, .hi or .wide"),
        ("setp.lt.b32 %p0, %r0, %r1;", "orders typed values only"),
        ("cvt.u32.f32 %r0, %f0;", "needs .rni"),
        ("A: A: ret;", "Duplicate definition of label 'A'"),
        (".local .b8 x[4];", "directive '.local' is not supported"),
        ("add.u32 %r0, %r1", "expected"),
    ],
)
def test_what_is_outside_the_subset_is_refused(host: Host, body: str, said: str) -> None:
    answer = host.run(kernel(body))
    assert answer.status == SYNTAX
    assert said in answer.log
    assert answer.log.startswith("ptxas application ptx input, line ")


# ---- hostile text ----

SAMPLE = kernel(
    OUT
    + "mov.u32 %r0, %tid.x; mul.wide.u32 %rd0, %r0, 4; add.u64 %rd0, %rd0, %rd15; @!%p0 st.global.v2.u32 [%rd0], {%r0, %r1};"
)
PIECES = [
    "{", "}", ";", ",", "[", "]", "(", ")", "<", ">", "+", "-", "@", "!", "|", ":", '"', "/*", "//", "\0", "\xff", "%r<999999>",
    ".reg", ".b32", ".u64", ".shared", ".align 4", ".extern", ".global", "= {1,", ".visible .entry", ".param", "%rd15", "%tid.x",
    "0x", "0f12345678", "0dFFFFFFFFFFFFFFFF", "1e999", "99999999999999999999", "-", "bar.sync 0;", "ret;", "bra L;", "L:",
    ".v4", "ld.param.u64", "atom.global.cas.b32 %r0, [%rd0], 1, 2;", "red.global.add.f32 [%rd0], %f0;", ".target sm_50,", ".b8 x[1073741823];",
]  # fmt: skip
edits = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 30), st.sampled_from(["", *PIECES])), max_size=8)


@given(edits)
@tries(400, suppress_health_check=[HealthCheck.too_slow])
def test_mutilated_programs_never_crash(host: Host, changes: list[tuple[int, int, str]]) -> None:
    text = SAMPLE
    for at, drop, insert in changes:
        at %= len(text) + 1
        text = text[:at] + insert + text[at + drop :]
    answer = host.run(text.encode("latin-1"), params=TO_OUT, memory=bytes(64), block=(4, 1, 1), limit=50_000)
    assert (answer.status == OK) == (answer.log == "")


@given(
    st.binary(max_size=300)
    | st.text(max_size=300).map(str.encode)
    | st.lists(st.sampled_from(PIECES)).map(" ".join).map(str.encode)
)
@tries(200)
def test_random_text_never_crashes(host: Host, text: bytes) -> None:
    for raw in (text, HEADER.encode() + text, HEADER.encode() + b".entry k() {" + text):
        answer = host.run(raw, params=TO_OUT, memory=bytes(64), limit=50_000)
        assert (answer.status == OK) == (answer.log == "")
