"""Bring an engine's config to what is wanted, or back to what it was, so that a kill at any moment does no harm.

The originals are remembered before the first write; each file is replaced whole; the files are written in an order in
which every step is a config that loads; the engine's own program has accepted the result beforehand. The engine is told
only when something changed, and when it does not come back, everything is as it was before. A run that was killed is
finished by the next one, because the memory still says that it wasn't settled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.errors import HostError, UserError
from kgpu.base.threads import beside
from kgpu.host.engines import rules
from kgpu.host.engines.containerd import MARK
from kgpu.host.engines.leftovers import leftovers
from kgpu.host.engines.model import (
    ChangePlan,
    Engine,
    EngineOffer,
    EnginePlace,
    EngineState,
    FileChange,
    Files,
    RuntimeHandler,
)
from kgpu.host.engines.paths import MountedPaths
from kgpu.host.engines.places import settled
from kgpu.host.engines.template import BEGIN
from kgpu.host.engines.undo import ChangedFile, without
from kgpu.toolkit.engine.files import apply, missing_folders, remove_folders, sweep
from kgpu.toolkit.engine.model import Check, EngineContext, EngineOutcome
from kgpu.toolkit.engine.restart import connects
from kgpu.toolkit.engine.store import EngineChanges, EngineStore, records_of

PAUSE_SECONDS: Final = 0.5
DOCKER_CDI: Final = (
    "Docker has read its runtimes anew, but features.cdi counts only after `systemctl restart docker`, which "
    "ends containers unless live-restore is on; from version 28.3 CDI is on without that, unless it was switched off"
)


@dataclass(frozen=True, slots=True)
class _Aim:
    """Files as they are now and as they shall be, the memory that goes with it, and what a person should know."""

    now: Files
    changes: tuple[FileChange, ...]
    records: tuple[ChangedFile, ...]
    notes: tuple[str, ...]
    kept: EngineChanges
    leaving: bool = False


async def configure(place: EnginePlace, wanted: EngineOffer, ctx: EngineContext) -> EngineOutcome:
    """Bring the engine's config to ``wanted``; nothing is written or restarted when it says so already.

    Raises HostError and ConfigError: the config is then what it was before, and the engine runs with it.
    """
    place = settled(place)
    store = EngineStore(ctx.state_dir, place)
    with store.locked():
        aim = await beside(_aim, place, wanted, ctx.paths, store)
        return await _reach(aim, place, ctx, store)


async def unconfigure(place: EnginePlace, ctx: EngineContext, handlers: Sequence[str] = ()) -> EngineOutcome:
    """Give back the original bytes of every file; of files edited since, only kgpu's keys are taken out.

    ``handlers``: names to take out of the main file even when kgpu has no memory of having written them. Raises as
    ``configure`` does.
    """
    store = EngineStore(ctx.state_dir, place)
    with store.locked():
        aim = await beside(_aim_back, place, ctx.paths, store, tuple(handlers))
        return await _reach(aim, place, ctx, store)


def preview(place: EnginePlace, wanted: EngineOffer, ctx: EngineContext) -> ChangePlan:
    """What ``configure`` would change. Raises as it does."""
    place = settled(place)
    aim = _aim(place, wanted, ctx.paths, EngineStore(ctx.state_dir, place))
    return ChangePlan(aim.changes, aim.notes)


def preview_removal(place: EnginePlace, ctx: EngineContext, handlers: Sequence[str] = ()) -> ChangePlan:
    """What ``unconfigure`` would change. Raises as it does."""
    aim = _aim_back(place, ctx.paths, EngineStore(ctx.state_dir, place), tuple(handlers))
    return ChangePlan(aim.changes, aim.notes)


def state(place: EnginePlace, paths: MountedPaths) -> EngineState:
    """What the engine's config files say now. Raises ConfigError and HostError."""
    return rules.state(place, rules.gather(place, paths))


def beside_others(place: EnginePlace, wanted: EngineOffer, ctx: EngineContext) -> EngineOffer:
    """``wanted`` in addition to the handlers, and the default, that kgpu has given the engine before.

    Raises ConfigError and HostError.
    """
    place = settled(place)
    kept = EngineStore(ctx.state_dir, place).load()
    now = {**_recorded_files(kept, ctx.paths), **rules.gather(place, ctx.paths)}
    before, is_now = rules.state(place, _base(place, kept, now)[0]), rules.state(place, now)
    names = {handler.name for handler in wanted.handlers}
    ours = {name: path for name, path in is_now.handlers.items() if name not in {*before.handlers, *names}}
    return replace(
        wanted,
        handlers=(*wanted.handlers, *(RuntimeHandler(name, path) for name, path in ours.items())),
        default=wanted.default or (is_now.default if is_now.default in ours else ""),
    )


def _aim(place: EnginePlace, wanted: EngineOffer, paths: MountedPaths, store: EngineStore) -> _Aim:
    kept = store.load()
    now = {**_recorded_files(kept, paths), **rules.gather(place, paths)}
    base, edited = _base(place, kept, now)
    plan = rules.configure(place, wanted, base)
    target = {**base, **{change.path: change.after for change in plan.changes}}
    why = {change.path: change.why for change in plan.changes}
    return _Aim(now, _steps(place, now, target, why), records_of(place, base, target), (*edited, *plan.notes), kept)


def _aim_back(place: EnginePlace, paths: MountedPaths, store: EngineStore, handlers: tuple[str, ...]) -> _Aim:
    kept = store.load()
    now = _recorded_files(kept, paths)
    notes: tuple[str, ...] = ()
    if kept.records or kept.previous:
        target, notes = _base(place, kept, now)
        why = dict.fromkeys(target, "as it was before kgpu")
    else:
        by_template = settled(place)
        if _traces(by_template, rules.gather(by_template, paths)):
            place = by_template
        now = rules.gather(place, paths)
        plan = leftovers(place, now, handlers) if handlers or _traces(place, now) else ChangePlan()
        target = {**now, **{change.path: change.after for change in plan.changes}}
        why, notes = {change.path: change.why for change in plan.changes}, plan.notes
    return _Aim(now, _steps(place, now, target, why), (), notes, kept, leaving=True)


def _recorded_files(kept: EngineChanges, paths: MountedPaths) -> dict[str, bytes | None]:
    return {record.path: rules.read(paths, record.path) for record in (*kept.previous, *kept.records)}


def _base(place: EnginePlace, kept: EngineChanges, now: Files) -> tuple[dict[str, bytes | None], tuple[str, ...]]:
    """The files without kgpu's part, and notes about those that somebody has edited since."""
    base = dict(now)
    notes: list[str] = []
    if not kept.records and not kept.previous:
        if _traces(place, now):
            base.update({change.path: change.after for change in leftovers(place, now, ()).changes})
        return base, ()
    known = (*kept.records, *kept.previous)
    for path in dict.fromkeys(record.path for record in known):
        current = now.get(path)
        candidates = [record for record in known if record.path == path]
        exact = [record for record in candidates if current in {record.written, record.original}]
        # What a killed run has not come to is as one of the runs before it left it.
        for record in exact[:1] or candidates:
            current = without(record, current)
        base[path] = current
        if not exact:
            notes.append(f"{path} was edited since kgpu wrote it; the edit stays")
    return base, tuple(notes)


def _traces(place: EnginePlace, files: Files) -> bool:
    drop_in, template = files.get(place.drop_in) or b"", files.get(place.template) or b""
    return drop_in.startswith(MARK.encode()) or BEGIN.encode() in template


def _steps(place: EnginePlace, now: Files, target: Files, why: dict[str, str]) -> tuple[FileChange, ...]:
    """Changes in a safe order: a drop-in is there before it is imported, and goes after its import is gone."""
    changes = [
        FileChange(path, now.get(path), after, why.get(path, "no longer wanted"))
        for path, after in target.items()
        if now.get(path) != after
    ]
    ranks = {True: 2, False: 0}
    return tuple(sorted(changes, key=lambda one: ranks[one.after is None] if one.path == place.drop_in else 1))


async def _reach(aim: _Aim, place: EnginePlace, ctx: EngineContext, store: EngineStore) -> EngineOutcome:
    """Do what the aim says, or put everything back and raise."""
    if not aim.changes and aim.kept.settled and aim.kept.records == aim.records:
        return EngineOutcome(notes=aim.notes)
    if not aim.changes and aim.kept.settled:
        await beside(store.save, EngineChanges(records=aim.records, folders=aim.kept.folders))
        return EngineOutcome(notes=aim.notes)
    for record in (*aim.kept.records, *aim.kept.previous):
        await beside(sweep, record.path, ctx.paths)
    quiet = await _ask_engine(aim, place, ctx)
    previous = tuple(dict.fromkeys((*aim.kept.records, *aim.kept.previous)))
    folders_made = dict.fromkeys(aim.kept.folders)
    for change in aim.changes:
        folders_made.update(dict.fromkeys(missing_folders(change.path, ctx.paths) if change.after is not None else ()))
    unsettled = EngineChanges(records=aim.records, previous=previous, settled=False, folders=tuple(folders_made))
    await beside(store.save, unsettled)
    written: list[FileChange] = []
    reread = False
    try:
        for change in aim.changes:
            written.append(change)
            await beside(apply, change, ctx.paths, like=place.config)
        reread = ctx.restarter.mode != "none" and not quiet
        restarted, note = (False, (quiet,)) if quiet else await _tell(place, ctx)
    except UserError as problem:
        trouble = await _put_back(written, place, ctx, reread=reread)
        if not trouble and aim.kept.settled:
            await beside(
                remove_folders, tuple(folder for folder in folders_made if folder not in aim.kept.folders), ctx.paths
            )
            await beside(store.save, aim.kept)
        outcome = trouble or "its config was put back as it was before"
        raise HostError(problem.what, problem.expected, f"{problem.remedy}; {outcome}") from problem
    if restarted and place.engine is Engine.DOCKER and ctx.restarter.mode == "signal" and not aim.leaving:
        is_now = rules.state(place, {**aim.now, **{change.path: change.after for change in aim.changes}})
        note = (*note, *((DOCKER_CDI,) if is_now.cdi else ()))
    folders = tuple(folders_made) if aim.records else ()
    if not folders:
        await beside(remove_folders, tuple(folders_made), ctx.paths)
    await beside(store.save, EngineChanges(records=aim.records, folders=folders))
    return EngineOutcome(changes=aim.changes, restarted=restarted, notes=(*aim.notes, *note))


async def _ask_engine(aim: _Aim, place: EnginePlace, ctx: EngineContext) -> str:
    """Refuse what the engine's own program would not load. Raises HostError before anything is written.

    On leaving, a config that somebody else has broken is no reason to stay in it, but one not to restart the engine:
    what is returned then says so.
    """
    target = {**aim.now, **{change.path: change.after for change in aim.changes}}
    complaint = await ctx.validator.problem(place, target)
    if not complaint:
        return ""
    already = await ctx.validator.problem(place, aim.now)
    if already and aim.leaving:
        return f"{place.flavour} was not restarted, because it can't load its config, without kgpu either: {complaint}"
    if already:
        raise HostError(
            f"{place.flavour} can't load its config as it is now: {already}",
            "a config that loads, before anything is added to it",
            "repair it; it was left as it is",
        )
    raise HostError(
        f"{place.flavour} would not load the changed config: {complaint}",
        "a config that its own program accepts",
        "report this; the config was left as it is",
    )


async def _tell(place: EnginePlace, ctx: EngineContext) -> tuple[bool, tuple[str, ...]]:
    """Restart the engine and wait until it is as wanted. Raises HostError when it isn't within the deadline."""
    name = place.service or place.flavour
    if ctx.restarter.mode == "none":
        return False, (f"{name} reads its config when it is restarted",)
    if not ctx.paths.exists(place.socket):
        return False, (f"{place.flavour} isn't running (no {place.socket}); it reads its config when it starts",)
    note = await ctx.restarter.restart(place)
    trouble = await _wait(place, ctx, ctx.check)
    if trouble:
        trouble += f" ({note})" if note else ""
        raise HostError(
            f"{place.flavour} isn't well {ctx.deadline:.0f} s after it was told to read its config: {trouble}",
            "that it answers, with the handlers that were added",
            f"see `journalctl -u {name}`",
        )
    return True, (note,) if note else ()


async def _wait(place: EnginePlace, ctx: EngineContext, check: Check | None) -> str:
    """What is wrong with the engine still when the deadline has come; "" as soon as nothing is."""
    end = ctx.clock.monotonic() + ctx.deadline
    while True:
        trouble = await connects(str(ctx.paths.local(place.socket)))
        if not trouble and check is not None:
            try:
                trouble = await check()
            except UserError as problem:
                trouble = problem.one_line()
        if not trouble or ctx.clock.monotonic() >= end:
            return trouble
        await ctx.clock.sleep(PAUSE_SECONDS)


async def _put_back(written: list[FileChange], place: EnginePlace, ctx: EngineContext, *, reread: bool) -> str:
    """Put back what was there, in reverse order, and have the engine read it; why that failed, "" when it didn't."""
    try:
        for change in reversed(written):
            if await beside(rules.read, ctx.paths, change.path) != change.before:
                await beside(apply, change, ctx.paths, back=True, like=place.config)
    except UserError as worse:
        return f"its config could NOT be put back: {worse.one_line()}; run the command again, or put it back by hand"
    if not reread:
        return ""
    with contextlib.suppress(UserError):  # one that has ended is started again by its supervisor
        await ctx.restarter.restart(place)
    trouble = await _wait(place, ctx, None)
    return trouble and f"its config was put back, but {place.flavour} isn't well with that either: {trouble}"
