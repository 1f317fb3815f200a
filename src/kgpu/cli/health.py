"""``kgpu health``: what the health role says of this node's GPUs, what happened to them, and a person's word.

Exit code 0 when every GPU is well enough for work, 3 when one is not, 2 when there are no verdicts or on bad input.
"""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError, HostError
from kgpu.base.times import stamp_of
from kgpu.cli._common import ExampleGroup, output_option, print_json
from kgpu.cli._options import settled
from kgpu.formats.names import ENV_HOST_ROOT, HEALTH_HISTORY, STATE_DIR
from kgpu.formats.settings import Setting

if TYPE_CHECKING:
    from kgpu.health.history import HealthHistory
    from kgpu.health.node import HistoryNote
    from kgpu.hw.verdicts import GpuVerdict, VerdictFile, Verdicts

UNHEALTHY: Final = 3
WAIT_SECONDS: Final = 10.0
MIN_PREFIX: Final = 8
_COLORS: Final = {"info": "green", "warning": "yellow", "error": "red"}
EXAMPLES: Final = """
kgpu health
kgpu health 3 -o json
kgpu health history 3 --since 24h
kgpu health set-healthy 3
kgpu health maintenance on all --for 2h
"""


class _Group(ExampleGroup):
    """A group that shows verdicts when it is given GPUs, or nothing, instead of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in {"-h", "--help"}):
            args = ["show", *args]
        return super().parse_args(ctx, args)


PLACES: Final = (
    Setting(attr="host_root", flag="--host-root", envs=(ENV_HOST_ROOT,), default="/", metavar="DIR",
            help="The host's / as it is seen here."),
    Setting(attr="state_dir", flag="--state-dir", envs=("STATE_DIR",), default=STATE_DIR, metavar="DIR",
            help="Where the agent keeps what it remembers."),
)  # fmt: skip
_places: Final = settled(PLACES)


@click.group("health", cls=_Group, examples=EXAMPLES)
def health() -> None:
    """Say which GPUs of this node are well, why not, and what to do.

    The verdicts are the agent's health role's; in a pod of the agent this shows those of its node. Name GPUs by index,
    UUID or its beginning. Exit code 3 when a GPU should get no new work.
    """


@health.command("show", hidden=True)
@click.argument("gpus", nargs=-1, metavar="[GPU]...")
@_places
@output_option()
def show(*, gpus: tuple[str, ...], host_root: str, state_dir: str, output: str) -> None:
    """Show the verdicts."""
    del state_dir
    verdicts = _verdicts(host_root)
    rows = _chosen(gpus, verdicts.gpus)
    if output == "json":
        import msgspec

        print_json(
            {
                "node": verdicts.node,
                "healthy": not any(row.withdraws for row in rows),
                "problems": list(verdicts.problems),
                "gpus": [msgspec.to_builtins(row) for row in rows],
            }
        )
    else:
        click.echo("\n".join(lines(rows, verdicts.problems, color=sys.stdout.isatty())))
    if any(row.withdraws for row in rows):
        raise click.exceptions.Exit(UNHEALTHY)


def lines(rows: Sequence[GpuVerdict], problems: Sequence[str] = (), *, color: bool = False) -> list[str]:
    """The verdicts for people."""
    out = []
    for row in rows:
        word = (
            "unhealthy" if row.withdraws else "muted" if row.muted else "well" if row.action == "ignore" else "usable"
        )
        if color:
            word = click.style(word, fg=_COLORS.get(row.severity, "red"), bold=True)
        since = f", since {_time(row.since)}" if row.since and row.action != "ignore" else ""
        out.append(f"GPU {'?' if row.index is None else row.index} {row.uuid or row.pci}: {word}{since}")
        if row.what not in {"well", ""}:
            out.append(f"  {'what':<9} {row.what}")
        if row.remedy:
            out.append(f"  {'to do':<9} {row.remedy}")
        out += [f"  {'evidence' if not place else '':<9} {text}" for place, text in enumerate(row.evidence)]
    out += [f"not seen: {problem}" for problem in problems]
    return out or ["the driver lists no GPU"]


@health.command("history", examples="kgpu health history\nkgpu health history 3 --since 24h -o json")
@click.argument("gpus", nargs=-1, metavar="[GPU]...")
@click.option("--since", default="", metavar="DURATION", help="Only the last 24h, 30m, ...")
@click.option("--limit", type=click.IntRange(1, 20_000), default=200, show_default=True, help="So many of the newest.")
@_places
@output_option()
def history(
    *, gpus: tuple[str, ...], since: str, limit: int, host_root: str, state_dir: str, output: str
) -> None:  # fmt: skip
    """Show what happened: Xids, verdicts, and what people said; the newest last."""
    begin = time.time() - _seconds(since) if since else 0.0
    names = tuple(row.uuid or row.pci for row in _chosen(gpus, _known(host_root))) if gpus else ()
    notes = _history(state_dir).notes(gpus=names, since=begin, limit=limit)
    if output == "json":
        keys = ("at", "gpu", "kind", "name", "action", "text")
        print_json([{key: getattr(note, key) for key in keys} for note in notes])
        return
    for note in notes:
        click.echo(_note(note))
    if not notes:
        click.echo("nothing has happened" + (" since then" if since else ""), err=True)


@health.command("set-healthy", examples="kgpu health set-healthy 3\nkgpu health set-healthy all")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...")
@_places
def set_healthy(*, gpus: tuple[str, ...], host_root: str, state_dir: str) -> None:
    """Say that GPUs are well. It stays so until there is new evidence, or a known fact gets worse."""
    _order("healthy", gpus, host_root, state_dir)


@health.command("maintenance", examples="kgpu health maintenance on 3 --for 2h\nkgpu health maintenance off 3")
@click.argument("word", type=click.Choice(("on", "off")), metavar="on|off")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...")
@click.option("--for", "span", default="", metavar="DURATION", help="Until when; without it, until it is ended.")
@_places
def maintenance(*, word: str, gpus: tuple[str, ...], span: str, host_root: str, state_dir: str) -> None:
    """Begin or end work on GPUs: what is seen meanwhile is not acted on, and Xids of that time never count."""
    from kgpu.health.model import FOREVER

    if span and word == "off":
        raise ConfigError("--for goes with on", "`kgpu health maintenance off GPU`", "leave --for out")
    until = 0.0 if word == "off" else time.time() + _seconds(span) if span else FOREVER
    _order("maintenance", gpus, host_root, state_dir, until=until)


def _order(kind: str, gpus: Sequence[str], host_root: str, state_dir: str, until: float | None = None) -> None:
    from kgpu.health.node import HealthOrder

    known = _known(host_root)
    names = tuple(row.uuid or row.pci for row in _chosen(gpus, known)) if known else tuple(gpus)
    store = _history(state_dir)
    more = {} if until is None else {"until": until}
    now, who = time.time(), _user()
    store.put(*(HealthOrder(kind=kind, gpu=name, at=now, who=who, **more) for name in names))
    deadline = time.monotonic() + WAIT_SECONDS
    while store.orders():
        if time.monotonic() >= deadline:
            click.echo(f"written down; no health role has taken it in {WAIT_SECONDS:.0f} s: is one running?", err=True)
            return
        time.sleep(0.2)
    file = _file(host_root).read()
    if file is not None:
        click.echo("\n".join(lines([row for row in file.gpus if (row.uuid or row.pci) in names])))


def _file(host_root: str) -> VerdictFile:
    import os

    from kgpu.hw.verdicts import VerdictFile, verdicts_path

    return VerdictFile(verdicts_path(host_root, os.environ))


def _verdicts(host_root: str) -> Verdicts:
    file = _file(host_root)
    found = file.read()
    if found is None:
        raise HostError(
            f"there are no verdicts of this boot, not older than a minute, in {file.path}",
            "the health role of an agent on this node",
            "see `kgpu status`; run `kgpu agent --roles health,...`, or look elsewhere with --host-root",
        )
    return found


def _known(host_root: str) -> tuple[GpuVerdict, ...]:
    found = _file(host_root).read()
    return found.gpus if found is not None else ()


def _history(state_dir: str) -> HealthHistory:
    from kgpu.health.history import HealthHistory

    return HealthHistory(Path(state_dir) / HEALTH_HISTORY)


def _chosen(words: Sequence[str], rows: Sequence[GpuVerdict]) -> tuple[GpuVerdict, ...]:
    """The rows that the words name; all without words. Raises ConfigError."""
    chosen: list[GpuVerdict] = []
    for word in words:
        hits = [row for row in rows if word in {"all", str(row.index), row.uuid, row.pci}]
        hits = hits or [row for row in rows if len(word) >= MIN_PREFIX and row.uuid.startswith(word)]
        if not hits:
            names = ", ".join(f"{row.index} ({row.uuid})" for row in rows) or "none"
            raise ConfigError(f"no GPU of this node is named {word!r:.60}", f"one of: {names}", "correct it")
        chosen += [row for row in hits if row not in chosen]
    return tuple(chosen) if words else tuple(rows)


def _seconds(text: str) -> float:
    from kgpu.formats.duration import parse_duration

    return parse_duration(text) / 1e9


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _note(note: HistoryNote) -> str:
    said = note.text if note.kind == "verdict" else f"{note.name}{': ' + note.text if note.text else ''}"
    return f"{_time(note.at)}  {note.gpu}  {note.kind:<8} {said}"


def _time(at: float) -> str:
    return stamp_of(max(at, 0.0))
