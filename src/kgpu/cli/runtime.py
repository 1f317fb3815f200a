"""``kgpu runtime``: give a container engine kgpu's runtime handlers, take them away again, or show what is there.

``nvidia-ctk runtime configure`` is the same work with the replaced program's flags: one runtime, and a dry run that
prints whole files.
"""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError, UserError
from kgpu.cli._common import (
    ExampleCommand,
    ExampleGroup,
    output_option,
    print_error,
    print_json,
    run_async,
)  # fmt: skip
from kgpu.cli._options import settled
from kgpu.formats.go_flags import bool_of
from kgpu.formats.names import STATE_DIR
from kgpu.formats.settings import FlagShape, Setting, read_list

if TYPE_CHECKING:
    from kgpu.host.engines.model import EngineOffer, EnginePlace, EngineState, FileChange
    from kgpu.host.engines.paths import MountedPaths
    from kgpu.toolkit.engine.model import EngineContext

ENGINES: Final = ("containerd", "crio", "docker")
SOURCES: Final = ("file", "command")
USUAL: Final = "RUNTIME_SPECIFIC_DEFAULT"
BROKEN: Final = 1
NOTHING: Final = 3
EXAMPLES: Final = """
kgpu runtime configure --dry-run
kgpu runtime configure --runtime containerd --restart systemd
kgpu runtime unconfigure --restart systemd
kgpu runtime status -o json
"""


def _read_bool(value: Any, where: str) -> bool:
    text = str(value)
    switch = bool_of(text, any_case=True) if text else None  # a flag without a value is a mistake, not false
    if switch is None:
        raise ConfigError(f"{where} {value} is neither true nor false", "true or false", "correct it")
    return switch


def _read_engine(value: Any, where: str) -> str:
    del where
    if value and value not in ENGINES:
        raise _unknown("container engine", value, ENGINES)
    return str(value)


def _read_path(value: Any, where: str) -> str:
    """A path of the host, or a socket with its scheme; "" for where it was found."""
    text = str(value)
    if text and not text.startswith("/") and "://" not in text:
        raise ConfigError(f"{where} {text} isn't an absolute path", "a path of the host such as /etc/...", "correct it")
    return text


def _read_drop_in(value: Any, where: str) -> str | None:
    """The same; None for the engine's usual one."""
    return None if value == USUAL else _read_path(value, where)


def _read_runtime(value: Any, where: str) -> str:
    text = str(value)
    if text and not text.startswith("/"):
        raise ConfigError(f"{where} {text} isn't an absolute path", "a path on the host", "correct it")
    return text


def _read_mode(value: Any, where: str) -> str:
    if value != "config-file":
        raise ConfigError(
            f"there is no config mode {value} here: containers get their devices through CDI, without hooks",
            "config-file",
            f"leave out {where}",
        )
    return str(value)


def _read_source(value: Any, where: str) -> str:
    del where
    if str(value).partition("=")[0] not in SOURCES:
        raise _unknown("config source", value, SOURCES)
    return str(value)


_text = partial(Setting, reads_default=True)
_switch = partial(Setting, read=_read_bool, shape=FlagShape.SWITCH, metavar="BOOL", default=False)

PLACE_FLAGS: Final = (
    _text(attr="engine", flag="--runtime", read=_read_engine, metavar="|".join(ENGINES),
          help="The engine. Default: the one that the kubelet uses."),
    _text(attr="config", flag="--config", read=_read_path, metavar="FILE",
          help="Its main config file. Default: where it was found."),
    _text(attr="drop_in", flag="--drop-in-config", read=_read_drop_in, default=USUAL, metavar="FILE",
          help="kgpu's own file beside the main one; \"\" edits the main file. Default: the engine's usual one."),
    _text(attr="binary", flag="--executable-path", metavar="FILE",
          help="Its program, asked for its version and about the config."),
    _text(attr="version", flag="--engine-version", metavar="X.Y.Z",
          help="Its version, where its program can't be asked."),
    _text(attr="socket", flag="--socket", read=_read_path, metavar="FILE", help="Its socket."),
    _text(attr="service", flag="--service", metavar="UNIT", help="Its systemd unit."),
    _text(attr="root", flag="--root", aliases=("--host-root",), default="/", metavar="DIR",
          help="The host's root as it is seen here."),
    _text(attr="state_dir", flag="--state-dir", metavar="DIR",
          help=f"Where the original config is kept. Default: {STATE_DIR} of the host, so below --root."),
)  # fmt: skip
# A command with one of these is about one engine.
ONE_ENGINE: Final = ("engine", "config", "binary", "version", "socket", "service")
RESTART_FLAGS: Final = (
    _text(attr="restart", flag="--restart", aliases=("--restart-mode",), default="none", metavar="signal|systemd|none",
          help="How the engine is made to read a changed config; it is then waited for, and all is put back if it "
          "isn't well."),
)  # fmt: skip
DRY_RUN: Final = _switch(attr="dry_run", flag="--dry-run", help="Show what would change, and change nothing.")
WANTED_FLAGS: Final = (
    _text(attr="names", flag="--nvidia-runtime-name", read=read_list, shape=FlagShape.LIST, default=(), metavar="NAME",
          help="A handler; may be given several times. Default: nvidia, nvidia-cdi and nvidia-legacy."),
    _text(attr="path", flag="--nvidia-runtime-path", aliases=("--runtime-path",), read=_read_runtime, metavar="FILE",
          help="The handlers' OCI runtime. Default: the engine's own."),
    _switch(attr="as_default", flag="--nvidia-set-as-default", aliases=("--set-as-default",),
            help="Make the first handler the default."),
    _switch(attr="cdi", flag="--cdi.enabled", aliases=("--cdi.enable", "--enable-cdi"), default=True,
            help="Turn the engine's CDI on."),
    DRY_RUN,
)  # fmt: skip
GONE_FLAGS: Final = (
    replace(WANTED_FLAGS[0], help="Take this handler out even if kgpu doesn't remember having added it; may be given "
            "several times."),
)  # fmt: skip
# Flags of the replaced program that have no meaning where the engine's own runtime is used.
PEER_FLAGS: Final = (
    _text(attr="source", flag="--config-source", read=_read_source, default="file", usual=("command",),
          metavar="file|command", help="The config's files are always what is read.",
          idle="the config is read from the engine's own files"),
    _text(attr="mode", flag="--config-mode", read=_read_mode, default="config-file", metavar="MODE",
          help="Only config-file."),
    _text(attr="hook_path", flag="--nvidia-runtime-hook-path", metavar="FILE", help="Accepted; no hook is used.",
          idle="containers get their devices through CDI, without hooks"),
    _text(attr="oci_hook_path", flag="--oci-hook-path", metavar="FILE", help="Accepted; no hook is used.",
          idle="containers get their devices through CDI, without hooks"),
)  # fmt: skip
# What the replaced program has otherwise, by attribute.
PEER_CHANGES: Final[Mapping[str, dict[str, Any]]] = {
    "engine": {"default": "docker", "help": "The engine."},
    "names": {"help": "The runtime's name; may be given several times. Default: nvidia."},
    "as_default": {"help": "Make it the default runtime."},
    "path": {"help": "The runtime's program. Default: the engine's own OCI runtime."},
    "dry_run": {"help": "Print the files as they would be, and change nothing."},
}


def help_text(row: Setting) -> str:
    """What it means, and the default that the text does not name yet."""
    default = row.default if row.shape is FlagShape.TEXT and row.default != USUAL else ""
    return f"{row.help} Default: {default}." if default else row.help


_options = partial(settled, text=help_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """The engine that a command is about."""

    place: EnginePlace
    paths: MountedPaths
    ctx: EngineContext


@click.group(cls=ExampleGroup, examples=EXAMPLES)
def runtime() -> None:
    """Configure the container engine for GPUs, take that back, or show it."""


@runtime.command(examples=EXAMPLES.splitlines()[1])
@_options((*PLACE_FLAGS, *WANTED_FLAGS, *RESTART_FLAGS, *PEER_FLAGS))
@output_option()
def configure(*, output: str, **flags: Any) -> None:
    """Add runtime handlers for GPUs to a container engine, and turn its CDI on.

    The original config is kept, byte for byte, for unconfigure. Nothing is written that the engine's own program would
    not load; nothing is restarted when nothing changed.
    """
    _note_source(flags)
    run_async(_configure(flags, output))


@runtime.command(examples="kgpu runtime unconfigure --restart systemd")
@_options((*PLACE_FLAGS, *GONE_FLAGS, DRY_RUN, *RESTART_FLAGS))
@output_option()
def unconfigure(*, output: str, **flags: Any) -> None:
    """Give container engines back their own config, byte for byte.

    Of a file that was edited since, only kgpu's keys are taken out. Without --runtime or --config it is every engine
    that kgpu remembers to have configured. JSON is a list with one entry for each engine.
    """
    run_async(_unconfigure(flags, output))


@runtime.command(examples="kgpu runtime status\nkgpu runtime status -o json")
@_options(PLACE_FLAGS)
@output_option()
def status(*, output: str, **flags: Any) -> None:
    """Show the engines found on this host, their files, and the handlers that these name.

    A flag about an engine (--engine-version, --socket, ...) is about the one named, or that the kubelet uses. Exit
    code 1 when a config can't be read, 3 when there is no engine.
    """
    code = run_async(_status(flags, output))
    if code:
        raise click.exceptions.Exit(code)


@click.command("configure", cls=ExampleCommand, examples="nvidia-ctk runtime configure --runtime docker --dry-run")
@_options(replace(row, **PEER_CHANGES.get(row.attr, {})) for row in (*PLACE_FLAGS, *WANTED_FLAGS, *PEER_FLAGS))
def peer(**flags: Any) -> None:
    """Add the NVIDIA runtime to an engine's config."""
    _note_source(flags)
    flags["engine"] = flags["engine"] or "docker"
    flags["names"] = flags["names"] or ("nvidia",)
    flags["restart"] = "none"
    run_async(_peer(flags))


async def _configure(flags: dict[str, Any], output: str) -> None:
    from kgpu.toolkit.engine import run

    at = await _at(flags)
    wanted = _wanted(flags)
    if flags["dry_run"]:
        plan = await asyncio.to_thread(run.preview, at.place, wanted, at.ctx)
        row, changes = _plan_row(at.place, plan.changes, plan.notes, done=False), plan.changes
    else:
        outcome = await run.configure(at.place, wanted, at.ctx)
        changes = outcome.changes
        row = _plan_row(at.place, changes, outcome.notes, done=True, restarted=outcome.restarted)
    if output == "json":
        print_json(row)
    else:
        _print_plan(at.place, row, changes)


async def _unconfigure(flags: dict[str, Any], output: str) -> None:
    from kgpu.toolkit.engine import run

    dry = flags["dry_run"]
    handlers = flags["names"]  # never by their usual names alone: they may be another toolkit's
    engines, hints = await _configured(flags)
    rows: list[dict[str, Any]] = []
    failed: list[UserError] = []
    for at in engines:
        try:
            if dry:
                plan = await asyncio.to_thread(run.preview_removal, at.place, at.ctx, handlers)
                row, changes = _plan_row(at.place, plan.changes, plan.notes, done=False), plan.changes
            else:
                outcome = await run.unconfigure(at.place, at.ctx, handlers)
                changes = outcome.changes
                row = _plan_row(at.place, changes, outcome.notes, done=True, restarted=outcome.restarted)
        except UserError as problem:
            failed.append(problem)
            continue
        rows.append(row)
        if output != "json":
            _print_plan(at.place, row, changes)
    if output == "json":
        print_json(rows)
    for hint in hints:
        click.echo(f"note: {hint}", err=True)
    for error in failed[1:]:
        print_error(error)
    if failed:
        raise failed[0]


async def _configured(flags: dict[str, Any]) -> tuple[list[_At], list[str]]:
    """The engines to give back: the one named, else all that kgpu remembers, else the kubelet's; and hints."""
    from kgpu.host.engines.paths import MountedPaths
    from kgpu.host.engines.places import find_places
    from kgpu.toolkit.engine.store import EngineStore, remembered

    if any(flags[name] for name in ONE_ENGINE) or flags["drop_in"] is not None:
        return [await _at(flags)], []
    paths = MountedPaths.at(flags["root"])
    state_dir = _state_dir(flags, paths)
    places = find_places(paths)
    known = remembered(state_dir)
    mine = [place for place in places if EngineStore(state_dir, place).folder in known]
    if not mine:
        mine = [*places[:1]]
    ats = [await _at({**flags, "engine": place.engine.value, "config": place.config}) for place in mine]
    hints = [
        f"kgpu has also changed {', '.join(files) or f'what {folder} says'}, of no engine that was found: "
        "name it with --runtime and --config"
        for folder, files in known.items()
        if folder not in {EngineStore(state_dir, place).folder for place in places}
    ]
    left = [place.flavour for place in places if place not in mine]
    if left and not known:
        hints.append(
            f"kgpu remembers no config of its own in {state_dir}; {', '.join(left)} was left alone: name an "
            "engine with --runtime"
        )
    return ats or [await _at(flags)], hints


async def _peer(flags: dict[str, Any]) -> None:
    from kgpu.toolkit.engine import run

    at = await _at(flags)
    # The replaced program adds to what is there: a second run with another name takes nothing away.
    wanted = await asyncio.to_thread(run.beside_others, at.place, _wanted(flags), at.ctx)
    if flags["dry_run"]:
        plan = await asyncio.to_thread(run.preview, at.place, wanted, at.ctx)
        for change in plan.changes:
            click.echo((change.after or b"").decode(), nl=False)
        notes = plan.notes
    else:
        outcome = await run.configure(at.place, wanted, at.ctx)
        for change in outcome.changes:
            click.echo(f"wrote {change.path}: {change.why}", err=True)
        notes = outcome.notes
    for note in notes:
        click.echo(f"note: {note}", err=True)


async def _status(flags: dict[str, Any], output: str) -> int:
    from kgpu.host.engines.paths import MountedPaths
    from kgpu.host.engines.places import find_places
    from kgpu.toolkit.engine.programs import with_version

    paths = MountedPaths.at(flags["root"])
    found_places = find_places(paths)
    if not found_places and not flags["engine"] and not flags["config"]:
        places: list[EnginePlace] = []
    elif any(flags[name] for name in ONE_ENGINE) or flags["drop_in"] is not None:
        places = [(await _at(flags)).place]
    else:
        places = [await with_version(place, paths) for place in found_places]
    failed: list[UserError] = []
    rows = [_described(place, paths, failed) for place in places]
    if output == "json":
        print_json(rows)
    elif not rows:
        click.echo("no container engine was found on this host")
    else:
        _print_status(rows)
    for problem in failed if output != "json" else ():
        print_error(problem)
    return BROKEN if failed else 0 if rows else NOTHING


def _print_status(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        engine = f"{row['engine']} {row['version']}".strip()
        heading = engine if row["flavour"] == row["engine"] else f"{row['flavour']} ({engine})"
        click.echo(f"{heading}: {row['socket']}")
        for label in ("files", "handlers", "default", "cdi", "notes", "problem"):
            value = row.get(label)
            text = ", ".join(map(str, value)) if isinstance(value, list | dict) else value
            if isinstance(text, bool):
                text = "on" if text else "off"
            if text:
                click.echo(f"  {label + ':':<11}{text}")


def _described(place: EnginePlace, paths: MountedPaths, failed: list[UserError]) -> dict[str, Any]:
    from kgpu.toolkit.engine.run import state

    row: dict[str, Any] = {
        "engine": place.engine.value,
        "flavour": place.flavour,
        "version": ".".join(map(str, place.version or ())),
        "socket": place.socket,
        "service": place.service,
        "config": place.config,
        "dropIn": place.drop_in,
        "template": place.template,
    }
    try:
        engine_state: EngineState = state(place, paths)
    except UserError as error:
        failed.append(error)
        return {**row, "problem": error.what, "expected": error.expected, "todo": error.remedy}
    return {
        **row,
        "files": list(engine_state.files),
        "handlers": dict(engine_state.handlers),
        "default": engine_state.default,
        "cdi": engine_state.cdi,
        "cdiDirs": list(engine_state.cdi_dirs),
        "notes": list(engine_state.notes),
    }


async def _at(flags: dict[str, Any]) -> _At:
    """The engine meant, its version, and what is needed to change its config. Raises ConfigError."""
    from kgpu.host.engines.model import Engine
    from kgpu.host.engines.paths import MountedPaths
    from kgpu.host.engines.places import find_places, place_for
    from kgpu.toolkit.engine.model import EngineContext
    from kgpu.toolkit.engine.programs import EngineValidator, parse_version, with_version
    from kgpu.toolkit.engine.restart import restarter

    paths = MountedPaths.at(flags["root"])
    engine = flags["engine"]
    if not engine:
        places = find_places(paths)
        if not places:
            raise ConfigError(
                "no container engine was found on this host", f"one of: {', '.join(ENGINES)}", "name it with --runtime"
            )
        engine = places[0].engine.value
    place = place_for(
        Engine(engine),
        paths,
        config=flags["config"],
        drop_in=flags["drop_in"],
        socket=flags["socket"],
        service=flags["service"],
    )
    if flags["drop_in"] and place.engine is Engine.DOCKER:
        raise ConfigError("Docker reads no drop-in config", "its one file, daemon.json", "leave out --drop-in-config")
    version = parse_version(flags["version"]) if flags["version"] else None
    if flags["version"] and version is None:
        raise ConfigError(f"--engine-version {flags['version']} isn't a version", "three numbers: 1.7.30", "correct it")
    place = await with_version(replace(place, version=version, binary=flags["binary"] or place.binary), paths)
    state_dir = _state_dir(flags, paths)
    return _At(
        place=place,
        paths=paths,
        ctx=EngineContext(
            paths=paths,
            state_dir=state_dir,
            restarter=restarter(flags.get("restart") or "none", paths, place),
            validator=EngineValidator(
                paths, f"{STATE_DIR}/engines" if flags["root"] != "/" else f"{state_dir}/engines"
            ),
        ),
    )


def _state_dir(flags: dict[str, Any], paths: MountedPaths) -> Path:
    """On the host's own disk unless another is named: originals must outlive a container that has configured it."""
    return Path(os.path.abspath(flags["state_dir"] or paths.local(STATE_DIR)))


def _wanted(flags: dict[str, Any]) -> EngineOffer:
    from kgpu.host.engines.model import NVIDIA_HANDLERS, EngineOffer, RuntimeHandler

    names = flags["names"] or NVIDIA_HANDLERS
    for name in names:
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ConfigError(
                f'"{name}" is no name of a runtime', "letters, digits and -", "correct --nvidia-runtime-name"
            )
    return EngineOffer(
        handlers=tuple(RuntimeHandler(name, flags["path"]) for name in names),
        default=names[0] if flags["as_default"] else "",
        cdi=flags["cdi"],
    )


def _note_source(flags: dict[str, Any]) -> None:
    if flags["source"] == "command":
        click.echo(
            "note: the config's files are read, because a dump would freeze every default of the engine", err=True
        )


def _plan_row(
    place: EnginePlace, changes: Sequence[FileChange], notes: Sequence[str], *, done: bool, restarted: bool = False
) -> dict[str, Any]:
    return {
        "engine": place.engine.value,
        "flavour": place.flavour,
        "changed": bool(changes) and done,
        "restarted": restarted,
        "changes": [{"path": change.path, "why": change.why, "diff": _diff(change)} for change in changes],
        "notes": list(notes),
    }


def _print_plan(place: EnginePlace, row: dict[str, Any], changes: Sequence[FileChange]) -> None:
    for change in changes:
        if row["changed"]:
            click.echo(f"{'removed' if change.after is None else 'wrote'} {change.path}: {change.why}")
        else:
            click.echo(_diff(change), nl=False)
    if not changes:
        click.echo(f"{place.flavour}: nothing to change")
    if row["restarted"]:
        click.echo(f"{place.service or place.flavour} has read its config and answers")
    for note in row["notes"]:
        click.echo(f"note: {note}", err=True)


def _diff(change: FileChange) -> str:
    before, after = (
        (raw or b"").decode(errors="replace").splitlines(keepends=True) for raw in (change.before, change.after)
    )
    old, new = (change.path if raw is not None else "/dev/null" for raw in (change.before, change.after))
    lines = difflib.unified_diff(before, after, old, new)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _unknown(what: str, value: str, known: Sequence[str]) -> ConfigError:
    from kgpu.base.suggest import did_you_mean

    hint = did_you_mean(value, known)
    return ConfigError(
        f'there is no {what} "{value}"{"; " if hint else ""}{hint}', f"one of: {', '.join(known)}", "choose one"
    )
