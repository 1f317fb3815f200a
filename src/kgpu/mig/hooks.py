"""Runs the commands of hooks: one after the other, the first that fails ends it.

A command has its own environment and the variables of the command line, which win; nothing of this process's own is
handed on, as that may be a secret. Programs are looked for in this process's PATH. Each has a limit of time, and then
ends with all that it has started.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.printable import printable
from kgpu.formats.mig_hooks import MigHook
from kgpu.host.commands import CommandResult, run

SECONDS: Final = 300.0
"""How long a command may take: one that stops a node's services takes a minute or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRunner:
    """The commands by hook. ``variables`` are those of the command line. ``tell`` hears what is run and printed."""

    hooks: Mapping[str, tuple[MigHook, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    tell: Callable[[str], None] = lambda _line: None
    seconds: float = SECONDS

    def has(self, name: str) -> bool:
        """Whether the hook has commands."""
        return bool(self.hooks.get(name))

    async def run(self, name: str) -> None:
        """Run the commands of one hook. Raises HostError. Whoever is called off waits for the command under way."""
        for number, hook in enumerate(self.hooks.get(name, ()), start=1):
            self.tell(f"hook {name}: {printable(hook.command)}")
            work = asyncio.ensure_future(asyncio.to_thread(self._call, hook))
            try:
                done = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                raise
            for line in done.tail.splitlines():
                self.tell(f"  {printable(line)}")
            _check(f"command {number} of hook {name} ({printable(hook.command)})", done, self.seconds)

    def _call(self, hook: MigHook) -> CommandResult:
        # A name is looked for here, as the command's own environment may have no PATH.
        program = hook.command if "/" in hook.command else shutil.which(hook.command)
        if program is None:
            raise HostError(
                f"{printable(hook.command)} can't be run: it is in no folder of PATH", "a program", "give its full path"
            )
        environment = {**hook.env, **self.variables}
        return run(
            [program, *hook.args], seconds=self.seconds, env=environment, folder=hook.folder or os.getcwd(), group=True
        )


def _check(what: str, done: CommandResult, seconds: float) -> None:
    printed = done.last_lines or "it printed nothing"
    if done.code is None:
        raise HostError(
            f"{what} did not end within {seconds:g} s: {printed}", "a command that ends", "look at what it waits for"
        )
    if done.code:
        raise HostError(
            f"{what} has failed with {done.code}: {printed}", "exit code 0",
            "look at the command, or leave it out of the hooks file",
        )  # fmt: skip
