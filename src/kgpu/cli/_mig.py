"""What the commands of ``kgpu mig`` share: the config, the node's GPUs, and how plans and outcomes look."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError, HostError, UserError
from kgpu.base.printable import counted

if TYPE_CHECKING:
    from kgpu.formats.mig_config import MigConfigs
    from kgpu.hw.partitioning import Partitioner
    from kgpu.mig.apply import GpuOutcome
    from kgpu.mig.model import MigStep
    from kgpu.mig.node_plan import PlannedGpu
    from kgpu.mig.survey import SurveyedGpu

F = TypeVar("F", bound=Callable[..., Any])
PEER: Final = "nvidia-mig-parted"
STDIN: Final = "-"
MAX_BYTES: Final = 1 << 20


def format_option(about: str) -> Callable[[F], F]:
    """``-o`` of commands that print a config file; the parameter is ``output``."""
    return click.option(
        "-o", "--output", "--output-format", type=click.Choice(("yaml", "json")), default="yaml", show_default=True,
        envvar="MIG_PARTED_OUTPUT_FORMAT", help=about,
    )  # fmt: skip


def read_configs(path: str) -> MigConfigs:
    """The config file, or standard input for ``-``. Raises ConfigError, HostError; what has no effect is told."""
    from kgpu.formats.mig_config import parse_mig_configs
    from kgpu.host.bounded import read_regular

    if not path:
        raise ConfigError(
            "missing required flags 'config-file'", "a config file of mig-parted's form, or - for standard input",
            "give it with -f FILE",
        )  # fmt: skip
    if path == STDIN:
        content, source = sys.stdin.buffer.read(MAX_BYTES + 1), "standard input"
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{source} has more than {MAX_BYTES} bytes", "a MIG config", "give a smaller one")
    else:
        content, source = read_regular(path, MAX_BYTES, what="a MIG config file")[0], path
    configs = parse_mig_configs(content, source=source)
    for warning in configs.warnings:
        warn(warning)
    return configs


def open_driver(root: str) -> Partitioner:
    """What cuts the GPUs of the driver under this root. Raises NoHardwareError."""
    from kgpu.mig import gpu_users

    return gpu_users.open_driver(root)


async def node_gpus(root: str) -> tuple[SurveyedGpu, ...]:
    """The node's GPUs. Raises HwError."""
    from kgpu.mig.survey import survey

    driver = open_driver(root)
    try:
        return tuple(survey(gpu) for gpu in await driver.gpus())
    finally:
        await driver.close()


def write_file(path: str, text: str) -> None:
    """Replace a file at once. What is no file, such as /dev/stdout, is written to. Raises HostError."""
    from kgpu.base.files import write_atomic

    through = path.startswith(("/dev/", "/proc/")) or (os.path.exists(path) and not os.path.isfile(path))
    try:
        if through:
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
        else:
            write_atomic(os.path.realpath(path), text)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise HostError(f"{path} can't be written: {why}", "a file that can be written", "name another") from error


def warn(text: str) -> None:
    """One line on standard error."""
    click.echo(f"warning: {text}", err=True)


def is_peer() -> bool:
    """Whether we stand for mig-parted, whose scripts know exit code 1 alone."""
    return click.get_current_context().find_root().info_name == PEER


def step_words(step: MigStep, gpu: SurveyedGpu) -> str:
    """A step for people."""
    from kgpu.mig.model import COMPUTE_SLICES, MigAction

    rows = gpu.gpu.geometry.rows if gpu.gpu.geometry is not None else ()
    names = {row.enum: row.name for row in rows}
    within = "the new GPU instance" if step.made is not None else f"GPU instance {step.instance}"
    match step.action:
        case MigAction.MODE:
            return f"turn MIG {'on' if step.enabled else 'off'}"
        case MigAction.RESET:
            return "reset the GPU, if the mode waits for that"
        case MigAction.DESTROY_COMPUTE:
            return f"remove compute instance {step.compute} of {within}"
        case MigAction.DESTROY_INSTANCE:
            return f"remove {within}"
        case MigAction.CREATE_INSTANCE:
            return f"make a GPU instance {names.get(step.profile or 0, step.profile)} at {step.start}"
        case MigAction.CREATE_COMPUTE:
            slices = COMPUTE_SLICES[step.profile or 0]
            return f"make a compute instance of {counted(slices, 'slice')} at {step.start} of {within}"


def plan_lines(planned: PlannedGpu) -> list[str]:
    """One GPU's plan for people."""
    from kgpu.mig.plan import takes_from

    found = planned.found
    if not planned.steps:
        return [f"{found.name}: {now_words(found)}; nothing to do"]
    taken = takes_from(found.gpu, planned.steps)
    lines = [f"{found.name}: {now_words(found)}; {counted(len(planned.steps), 'step')}"]
    lines += [f"  {step_words(step, found)}" for step in planned.steps]
    lines += [f"  in use, so that apply refuses: {one.profile.name} at {one.start}" for one in taken]
    return lines


def now_words(found: SurveyedGpu) -> str:
    """How a GPU is cut, for people."""
    from kgpu.mig.export import cut_of

    if found.gpu.geometry is None:
        return "no MIG"
    enabled, slices = cut_of(found.gpu)
    if not enabled:
        return "MIG off"
    return ", ".join(f"{number} of {name}" for name, number in slices) or "MIG on without slices"


def plan_data(planned: PlannedGpu) -> dict[str, Any]:
    """One GPU's plan for programs. Profiles are NVML's numbers, as in its enumerations."""
    from kgpu.mig.plan import takes_from

    found = planned.found
    return {
        "index": found.gpu.index, "uuid": found.uuid, "product": found.product, "now": now_words(found),
        "steps": [_step_data(step) for step in planned.steps],
        "inUse": [one.id for one in takes_from(found.gpu, planned.steps)],
    }  # fmt: skip


def _step_data(step: MigStep) -> dict[str, Any]:
    from kgpu.mig.model import MigAction

    members = {name: getattr(step, name) for name in ("instance", "compute", "profile", "start", "made")}
    mode = {"enabled": step.enabled} if step.action is MigAction.MODE else {}
    return {"action": str(step.action), **mode, **{name: value for name, value in members.items() if value is not None}}


def outcome_word(outcome: GpuOutcome) -> str:
    """What has become of a GPU, for programs."""
    if outcome.failure is not None:
        return "restored" if outcome.loss is None else "broken"
    if outcome.waits:
        return "waits-for-reset"
    return "changed" if outcome.planned.steps else "unchanged"


def outcome_data(outcome: GpuOutcome) -> dict[str, Any]:
    """The same with why."""
    failure = {} if outcome.failure is None else {"failure": _parts(outcome.failure)}
    loss = {} if outcome.loss is None else {"loss": _parts(outcome.loss)}
    return {**plan_data(outcome.planned), "state": outcome_word(outcome), **failure, **loss}


def failures(outcomes: Sequence[GpuOutcome]) -> list[UserError]:
    """What has failed, each with what has become of its GPU."""
    return [_failed(outcome, outcome.failure) for outcome in outcomes if outcome.failure is not None]


def _failed(outcome: GpuOutcome, failure: UserError) -> UserError:
    name = outcome.planned.found.name
    if outcome.loss is None:
        return UserError(f"{failure.what}; {name} has its former layout", failure.expected, failure.remedy)
    return UserError(
        f"{failure.what}; the former layout of {name} could not be made again: {outcome.loss.what}",
        failure.expected,
        f"{failure.remedy}; then apply again, which goes on from what is there",
    )


def _parts(error: UserError) -> dict[str, str]:
    return {"what": error.what, "expected": error.expected, "todo": error.remedy}
