"""``kgpu doctor --watch``: looks again and again, prints what has changed, and says nothing while nothing has.

The first look is the whole report as text; as JSON or YAML every finding of it is an appearance. Later each change is
a line with its time. A look that fails (an API server that restarts) is a line too, and the next one comes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from kgpu.base.errors import ConfigError, UserError
from kgpu.base.printable import one_line
from kgpu.cli._common import run_async

if TYPE_CHECKING:
    from kgpu.doctor.model import Report


class DoctorWatch:
    """Looks with ``look`` and prints in the form ``output``. ``now`` is seconds since 1970."""

    def __init__(
        self, look: Callable[[], Awaitable[Report]], output: str, width: int, *, verbose: bool = False,
        now: Callable[[], float] = time.time, rest: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        if output == "sarif":
            raise ConfigError(
                "SARIF is one document about one look, and --watch looks again and again",
                "text, json or yaml with --watch", "leave --watch out, or take -o json",
            )  # fmt: skip
        self._look, self._output, self._width, self._verbose = look, output, width, verbose
        self._now, self._rest = now, rest
        self._trouble = ""
        self.last: Report | None = None

    def until_interrupted(self, interval: float) -> int:
        """The exit code of the last report. Raises UserError where the first look fails."""
        try:
            run_async(self._run(interval))
        except KeyboardInterrupt:
            if self.last is None:
                raise
        return self.last.exit_code if self.last is not None else 2

    async def _run(self, interval: float) -> None:
        while True:
            try:
                self._tell(await self._look())
            except UserError as error:
                if self.last is None:
                    raise
                self._failed(error)
            await self._rest(interval)

    def _tell(self, report: Report) -> None:
        from kgpu.doctor import changes, render

        when, before = changes.stamp(self._now()), self.last
        differences = changes.changes(before, report)
        self.last = report
        if self._trouble:
            self._trouble = ""
            self._say(
                when, {"change": "works again", "exit_code": report.exit_code}, f"{when} it can be looked at again"
            )
        if self._output != "text":
            for difference in differences:
                self._say(when, {**difference.data(), "exit_code": report.exit_code}, "")
            return
        if before is None:
            click.echo(render.as_text(report, self._width, verbose=self._verbose))
            click.echo(f"\n{when} watching; what changes is told here, and Ctrl-C ends it", err=True)
            return
        for line in changes.as_lines(differences, when, self._width):
            click.echo(line)
        if before.real and not report.real:
            click.echo(f"{when} " + "\n".join(render.headline(report, self._width)))

    def _failed(self, error: UserError) -> None:
        """Report a problem once for as long as it lasts."""
        from kgpu.doctor import changes

        if not self._trouble:
            when = changes.stamp(self._now())
            what, remedy = one_line(error.what), one_line(error.remedy)
            self._say(when, {"change": "can't look", "problem": what, "todo": remedy},
                      f"{when} can't look: {what}; to do: {remedy}; it is tried again")  # fmt: skip
        self._trouble = error.what

    def _say(self, when: str, data: dict[str, Any], text: str) -> None:
        document = {"time": when, **data}
        if self._output == "json":
            click.echo(json.dumps(document, ensure_ascii=False))
        elif self._output == "yaml":
            from kgpu.formats import yaml

            click.echo("---\n" + yaml.dump(document).rstrip("\n"))
        else:
            click.echo(text)
