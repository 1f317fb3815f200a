"""How ``kgpu mig apply`` and ``restore`` change GPUs: alone on the machine, with hooks; and what they tell of it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _mig
from kgpu.cli._common import print_error, print_json, run_async

if TYPE_CHECKING:
    from kgpu.formats.mig_hooks import MigHook
    from kgpu.hw.partitioning import Partitioner
    from kgpu.mig.apply import GpuOutcome
    from kgpu.mig.change import HookedChange, Plan
    from kgpu.mig.model import MigStep
    from kgpu.mig.node_plan import PlannedGpu

FAILED: Final = 2
TERMINATED: Final = 143
VARIABLES: Final = "MIG_PARTED_"

mode_option: Final = click.option(
    "-m", "--mode-only", is_flag=True, envvar="MIG_PARTED_MODE_CHANGE_ONLY", help="The MIG mode alone, not the slices."
)
hooks_option: Final = click.option(
    "-k", "--hooks-file", metavar="FILE", default="", envvar="MIG_PARTED_HOOKS_FILE",
    help="Commands to run around the change: a hooks file of mig-parted's form, version v1.",
)  # fmt: skip


def read_hooks(path: str) -> dict[str, tuple[MigHook, ...]]:
    """The hooks of a file, none without one. Raises ConfigError, HostError."""
    from kgpu.formats.mig_hooks import MAX_BYTES, parse_hooks
    from kgpu.host.bounded import read_regular

    if not path:
        return {}
    content, about = read_regular(path, MAX_BYTES, what="a hooks file")
    if about.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"anybody may write to {path}, whose commands would run as whoever runs this",
            "a file that only its owner writes",
            f"look what is in it, then chmod o-w {path}",
        )  # fmt: skip
    return parse_hooks(content, source=path)


def run_change(
    plan: Plan, hooks: Mapping[str, tuple[MigHook, ...]], *, root: str, what: str, skip_reset: bool = False,
    may_wait: bool = False,
) -> tuple[GpuOutcome, ...]:  # fmt: skip
    """Carry the plan out, with no other change on this machine meanwhile. Raises UserError, and Exit if it is ended."""
    from kgpu.mig.lock import alone, run_folder

    with alone(run_folder(root, os.environ), what):
        try:
            return run_async(_changed(plan, hooks, root=root, skip_reset=skip_reset, may_wait=may_wait))
        except asyncio.CancelledError:
            raise click.exceptions.Exit(TERMINATED) from None


async def _changed(
    plan: Plan, hooks: Mapping[str, tuple[MigHook, ...]], *, root: str, skip_reset: bool, may_wait: bool
) -> tuple[GpuOutcome, ...]:
    task = asyncio.current_task()
    assert task is not None, "a coroutine of run_async"
    # Whoever ends us wants the GPU as it was, as at Ctrl-C.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    driver = _mig.open_driver(root)
    try:
        return await _change(driver, plan, hooks, skip_reset=skip_reset, may_wait=may_wait).run()
    finally:
        await driver.close()


def _change(
    driver: Partitioner, plan: Plan, hooks: Mapping[str, tuple[MigHook, ...]], *, skip_reset: bool, may_wait: bool
) -> HookedChange:
    from kgpu.mig.apply import Applying
    from kgpu.mig.change import HookedChange
    from kgpu.mig.hooks import HookRunner

    debug = bool(click.get_current_context().obj)

    def tell(line: str) -> None:
        if debug:
            click.echo(line, err=True)

    def tell_step(planned: PlannedGpu, step: MigStep) -> None:
        tell(f"{planned.found.name}: {_mig.step_words(step, planned.found)}")

    return HookedChange(
        applying=Applying(driver=driver, skip_reset=skip_reset, may_wait=may_wait, tell=tell_step), plan=plan,
        hooks=HookRunner(hooks=hooks, variables=hook_variables(click.get_current_context()), tell=tell),
        warn=lambda error: _mig.warn(error.one_line()),
    )  # fmt: skip


def hook_variables(context: click.Context) -> dict[str, str]:
    """The command's options under their variables' names, as mig-parted gives them to hooks: set ones and others."""
    values = {
        option.envvar: context.params.get(option.name or "")
        for option in context.command.params
        if isinstance(option.envvar, str) and option.envvar.startswith(VARIABLES)
    }
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def tell_outcomes(about: Mapping[str, str], done: str, outcomes: Sequence[GpuOutcome], output: str) -> None:
    """Print what has become of the GPUs; ``done`` is the word for success. Raises Exit if any has failed."""
    failed = _mig.failures(outcomes)
    if output == "json":
        print_json({**about, done: not failed, "gpus": [_mig.outcome_data(one) for one in outcomes]})
    for outcome in outcomes:
        if outcome.waits:
            _mig.warn(f"the MIG mode of {outcome.planned.found.name} comes with its next reset or a reboot")
    for error in failed:
        print_error(error, _mig.PEER if _mig.is_peer() else "kgpu")
    if failed:
        raise click.exceptions.Exit(FAILED)
    if output != "json":
        click.echo(f"MIG configuration {done} successfully")
