"""``kgpu xid``: what an Xid or SXid means and what to do about it, or what a whole kernel log says.

Exit code 0 when numbers were explained or a log calls for nothing on the node (errors of programs are nothing for the
node), 3 when a GPU or switch in the log needs more than that, 2 on bad input.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._common import ExampleCommand, output_option, print_json

if TYPE_CHECKING:
    from kgpu.health.log_report import LogDevice, LogReport

NEEDED: Final = 3
EXAMPLES: Final = """
kgpu xid 79
kgpu xid 109 --driver 535.104
dmesg | kgpu xid
kgpu xid --log /var/log/kern.log
kgpu xid --list -o json
"""
FIRST_SXID: Final = 10_000
PACKED: Final = {b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz"}
_COLORS: Final = {"info": "green", "warning": "yellow", "error": "red"}


@click.command("xid", cls=ExampleCommand, examples=EXAMPLES)
@click.argument("codes", nargs=-1, metavar="[NUMBER]...")
@click.option("--list", "listed", is_flag=True, help="The whole catalogue.")
@click.option(
    "--log",
    default="",
    metavar="FILE",
    help="Explain every error of a GPU in this kernel log. Standard input (-) is read when something is piped in.",
)
@click.option("--driver", default="", metavar="VERSION", help="The driver's version: newer ones give own verdicts.")
@output_option()
def xid(*, codes: tuple[str, ...], listed: bool, log: str, driver: str, output: str) -> None:  # fmt: skip
    """Explain Xids of NVIDIA GPUs, SXids of NVSwitches, and errors of AMD GPUs: meaning, cause, and what to do.

    Give numbers, or a kernel log in any form (dmesg, syslog, journalctl -k, /dev/kmsg), in which errors of AMD GPUs
    are found, too: their driver has no numbers. Exit code 3 when a GPU in the
    log has to be looked at, reset, replaced, or its node rebooted; 0 when nothing is to be done on the node.
    """
    major = _major(driver)
    if sum((bool(codes), listed, bool(log))) > 1:
        raise ConfigError("more than one question at once", "numbers, --list or --log", "give one of the three")
    if driver and not codes:
        raise ConfigError("--driver goes with numbers", "numbers, such as `kgpu xid 109 --driver 535`", "leave it out")
    if listed:
        _print_list(output)
    elif codes:
        _print_codes(codes, major, output)
    elif log not in {"", "-"}:
        with _opened(log) as file:
            _print_log(file, output)
    elif log == "-" or not sys.stdin.isatty():
        _print_log(sys.stdin.buffer, output)
    else:
        raise ConfigError("nothing to explain", "an Xid's number, --list, or a kernel log", "see `kgpu xid --help`")


def _opened(path: str) -> Any:
    """The file, unpacked if it is compressed with gzip, as rotated logs are. Raises ConfigError for other packings."""
    with open(path, "rb") as file:
        head = file.read(6)
    for start, name in PACKED.items():
        if head.startswith(start):
            raise ConfigError(
                f"{path} is compressed with {name}", "a log, plain or gzip", f"run `{name}cat FILE | kgpu xid`"
            )
    if not head.startswith(b"\x1f\x8b"):
        return open(path, "rb")
    import gzip

    return gzip.open(path, "rb")


def _major(text: str) -> int | None:
    if not text:
        return None
    first = text.lstrip("Rr").partition(".")[0]
    if not (first.isascii() and first.isdecimal() and len(first) <= 4):
        raise ConfigError(f"{text!r:.40} is no driver version", "such as 570 or 570.133.20", "correct --driver")
    return int(first)


def _number(text: str) -> int:
    from kgpu.formats.xid.catalogue import LAST_XID, sxids, xids

    word = text.lower().removeprefix("s").removeprefix("xid")
    if not (word.isascii() and word.isdecimal() and len(word) <= 6):
        raise ConfigError(f"{text!r:.40} is no Xid", "a number, such as 79", "give the number that the log shows")
    code = int(word)
    if code not in xids() and code not in sxids():
        kind = "SXid" if code >= FIRST_SXID else "Xid"
        raise ConfigError(
            f"{kind} {code} is not in the catalogue",
            f"an Xid from 1 to {LAST_XID}, or one of {len(sxids())} SXids from {FIRST_SXID} on",
            "update kgpu for newer ones; ask the hardware vendor's support with the whole line of the log",
        )
    return code


def explain(code: int, driver: int | None) -> dict[str, Any]:
    """One number as data; it has to be in the catalogue."""
    from kgpu.formats.xid.buckets import GUIDANCE
    from kgpu.formats.xid.catalogue import guidance, reports_recovery, switch_guidance, sxids, xids

    switch = sxids().get(code)
    if switch is not None:
        what = switch_guidance(code)
        return {
            "kind": "sxid", "code": code, "meaning": switch.what, "severity": str(what.severity),
            "action": str(what.action), "todo": what.advice, "cause": switch.cause, "class": switch.kind,
        }  # fmt: skip
    row, what = xids()[code], guidance(code)
    return {
        "kind": "xid",
        "code": code,
        "name": row.mnemonic,
        "meaning": row.what,
        "severity": str(what.severity),
        "action": str(what.action),
        "todo": what.advice,
        "cause": row.cause,
        "nvidia": {"immediate": str(row.immediate), "investigate": str(row.investigate)},
        "again": GUIDANCE[row.investigate].advice if row.investigate else "",
        "products": list(row.products),
        "driverVerdictFrom": row.linked or None,
        "driverVerdict": reports_recovery(code, driver) if driver is not None else None,
    }


def _print_codes(codes: tuple[str, ...], driver: int | None, output: str) -> None:
    found = [explain(_number(text), driver) for text in codes]
    if output == "json":
        print_json(found if len(found) > 1 else found[0])
        return
    click.echo("\n\n".join("\n".join(_lines(one, driver)) for one in found))


def _lines(entry: dict[str, Any], driver: int | None) -> list[str]:
    from kgpu.formats.xid.action import WORDS, Action

    name = "SXid" if entry["kind"] == "sxid" else "Xid"
    severity = (
        click.style(entry["severity"], fg=_COLORS[entry["severity"]]) if sys.stdout.isatty() else entry["severity"]
    )
    rows = [
        ("name", entry.get("name", "")),
        ("severity", severity),
        ("do", f"{WORDS[Action(entry['action'])]}: {entry['todo']}"),
        ("again", entry.get("again", "")),
        ("cause", entry["cause"]),
        ("class", entry.get("class", "")),
        ("NVIDIA", " / ".join(filter(None, entry.get("nvidia", {}).values()))),
        ("on", ", ".join(entry.get("products", []))),
        ("driver", _driver_line(entry, driver)),
    ]
    return [f"{name} {entry['code']}: {entry['meaning']}", *(f"  {label:<9} {text}" for label, text in rows if text)]


def _driver_line(one: dict[str, Any], driver: int | None) -> str:
    since = one.get("driverVerdictFrom")
    if not since:
        return ""
    if driver is None:
        always = "" if since == 1 else f" from {since} on"
        return f"Xid 154 follows with the driver's own verdict{always}: where it does, that one counts"
    if one["driverVerdict"]:
        return f"{driver} follows it with Xid 154, its own verdict: that one counts"
    return f"{driver} gives no verdict of its own (from {since} on): the above holds"


def _print_list(output: str) -> None:
    from kgpu.formats.xid.catalogue import sxids, xids

    entries = [explain(code, None) for code in (*xids(), *sxids())]
    if output == "json":
        print_json(entries)
        return
    click.echo(f"{'NUMBER':<7} {'DO':<12} {'SEVERITY':<9} {'NVIDIA':<21} MEANING")
    for entry in entries:
        bucket = entry.get("nvidia", {}).get("immediate", entry.get("class", "")) or "-"
        click.echo(f"{entry['code']:<7} {entry['action']:<12} {entry['severity']:<9} {bucket:<21} {entry['meaning']}")


def _print_log(file: Any, output: str) -> None:
    import gzip
    import itertools
    import zlib

    from kgpu.formats.xid.action import Action
    from kgpu.health.klog import read_lines
    from kgpu.health.log_report import bounded_lines, summarise

    try:
        lines = bounded_lines(file)
        first = next(lines, None)
        if first is None:
            # Most likely dmesg was refused: that there are no Xids is not proven.
            raise ConfigError(
                "the log is empty", "lines of the kernel log", "run dmesg as root: many systems refuse it to others"
            )
        report = summarise(read_lines(itertools.chain((first,), lines)))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise ConfigError("the compressed log is damaged", "a whole gzip file", "unpack what is left") from problem
    if output == "json":
        print_json(document(report))
    else:
        click.echo("\n".join(_report(report)))
    if report.action.rank >= Action.INSPECT.rank:
        raise click.exceptions.Exit(NEEDED)


def document(report: LogReport) -> dict[str, Any]:
    """The report as JSON data."""
    return {
        "action": str(report.action),
        "devices": [
            {
                "pci": device.pci,
                "kind": device.kind,
                "uuid": device.uuid,
                "action": str(device.guidance.action),
                "todo": device.guidance.advice,
                "driverVerdict": device.recovery or None,
                "errors": [
                    {
                        "kind": str(row.kind), "code": row.code, "key": row.key, "meaning": row.what,
                        "count": row.count, "first": row.first, "last": row.last, "action": str(row.guidance.action),
                        "severity": str(row.guidance.severity), "nvidia": row.bucket, "gpuInstance": row.gpu_instance,
                        "computeInstance": row.compute_instance, "over": row.over, "processes": row.processes,
                        "text": row.text,
                    }
                    for row in device.rows
                ],
            }
            for device in report.devices
        ],
        "nvlinkStuck": report.stuck,
        "leftOut": report.left_out,
    }  # fmt: skip


def _report(report: LogReport) -> list[str]:
    lines: list[str] = []
    for device in report.devices:
        lines += [*_device(device), ""]
    if report.stuck:
        lines += [
            f"the driver can't find its NVLinks ({report.stuck} lines): calls of nvidia-smi may hang",
            "  to do: drain the node and reboot it", "",
        ]  # fmt: skip
    if report.left_out:
        lines += [f"{report.left_out} more lines are not shown: too many different ones", ""]
    return lines[:-1] or ["no Xid, SXid, lost GPU or error of amdgpu in this log"]


def _device(device: LogDevice) -> list[str]:
    from kgpu.formats.xid.action import WORDS

    what = device.guidance
    name = "switch" if device.kind == "switch" else "GPU"
    action = WORDS[what.action]
    if sys.stdout.isatty():
        action = click.style(action, fg=_COLORS[str(what.severity)], bold=True)
    head = f"{name} {device.pci}{' ' + device.uuid if device.uuid else ''}: {action}"
    lines = [head]
    for row in device.rows:
        place = "" if row.gpu_instance is None else f" in GPU instance {row.gpu_instance}"
        number = row.key or f"{'SXid' if row.kind == 'sxid' else 'Xid'} {row.code}"
        times = f"{row.count} times" if row.count > 1 else "once"
        when = f", {row.first}" if row.first else ""
        when += f" to {row.last}" if row.count > 1 and row.last and row.last != row.first else ""
        by = f" by {', '.join(row.processes)}" if row.processes else ""
        over = "over: before the last boot" + (" or reset" if row.key else "")
        calls = over if row.over else WORDS[row.guidance.action]
        lines.append(f"  {number:<10} {row.what}{place}: {times}{when}{by} [{calls}]")
    if what.action.rank:
        lines.append(f"  to do: {what.advice}")
    return lines
