"""The command line's front door: which commands there are, and what happens when one fails.

Commands are rows of a table; the module of a command is imported only when it runs, so that ``kgpu --help`` and every
small command start at once. Exit codes: 0 done, 1 a defect of kgpu, 2 bad input or an obstacle that is explained in
three parts, 130 interrupted, 141 the reader of the output went away. A traceback appears only with ``KGPU_DEBUG=1``.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu import __version__
from kgpu.base.errors import ConfigError, HostError, UserError
from kgpu.base.problems import describe, obstacle_in
from kgpu.base.signals import forget_interrupt
from kgpu.base.suggest import did_you_mean
from kgpu.cli._common import ExampleGroup, print_error
from kgpu.formats.programs import ENTRYPOINT, PROGRAM, PROGRAMS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command: its name, where its click command is, and the line that ``kgpu --help`` shows."""

    name: str
    module: str
    attribute: str
    help: str
    hidden: bool = False  # not in the list: no people run it, or it is there under a replaced program's name


COMMANDS: Final = (
    CommandEntry("agent", "kgpu.cli.agent", "agent", "Run a node's roles, from device plugin to validator."),
    CommandEntry(
        "device-plugin", "kgpu.cli.device_plugin", "device_plugin", "The device plugin alone; try its choices."
    ),
    CommandEntry("labels", "kgpu.cli.labels", "labels", "Print or publish this node's accelerator labels."),
    CommandEntry("features", "kgpu.cli.features", "features", "What a node has, and why rules of node features match."),
    CommandEntry(
        "config-manager", "kgpu.cli.config_manager", "config_manager", "The config by node label.", hidden=True
    ),
    CommandEntry(
        "mps-control-daemon", "kgpu.cli.mps", "mps_control_daemon", "The control daemons of MPS.", hidden=True
    ),
    CommandEntry("status", "kgpu.cli.status", "status", "What works in a cluster, what does not, why, and what to do."),
    CommandEntry("logs", "kgpu.cli.logs", "logs", "What an operand writes, on one node or all, in either layout."),
    CommandEntry("restart", "kgpu.cli.restart", "restart", "Restart an operand on one node or all, and wait for it."),
    CommandEntry(
        "doctor", "kgpu.cli.doctor", "doctor", "Why a GPU pod or node does not work, with proof and a remedy."
    ),
    CommandEntry("preflight", "kgpu.cli.preflight", "preflight", "What would fail on installing, before it does."),
    CommandEntry("advise", "kgpu.cli.advise", "advise", "Which way to share GPUs, and what the nodes can do."),
    CommandEntry("whatif", "kgpu.cli.whatif", "whatif", "Where pods would go after a change to the cluster."),
    CommandEntry("quota", "kgpu.cli.quota", "quota", "Who may have how many accelerators, and who has them."),
    CommandEntry("collect", "kgpu.cli.collect", "collect", "Write all evidence for the doctor into one archive."),
    CommandEntry("top", "kgpu.cli.top", "top", "Every GPU of the cluster, live: load, pods, health."),
    CommandEntry("overview", "kgpu.cli.overview", "overview", "A page about the cluster's GPUs, for a browser."),
    CommandEntry("usage", "kgpu.cli.usage", "usage", "What GPUs were used for, what was wasted, and what it cost."),
    CommandEntry("idle", "kgpu.cli.idle", "idle", "Which GPUs are held and not used; keep, stop, or bring back."),
    CommandEntry("operator", "kgpu.cli.operator", "operator", "Run the operator, or clean up after it."),
    CommandEntry("node", "kgpu.cli.node", "node", "Empty nodes for maintenance, or reboot them."),
    CommandEntry(
        "operations", "kgpu.cli.operations", "operations", "What is being done to nodes; approve, cancel, resume."
    ),
    CommandEntry(
        "driver-manager",
        "kgpu.cli.driver_manager",
        "driver_manager",
        "Make a node ready for the driver's container.",
        hidden=True,
    ),
    CommandEntry("act", "kgpu.cli.act", "act", "What the operator's pods run on nodes.", hidden=True),
    CommandEntry("validate", "kgpu.cli.validate", "validate", "Prove that this node can run GPU work."),
    CommandEntry(
        "nvidia-validator", "kgpu.cli.validate", "peer", "The replaced validator's command line.", hidden=True
    ),
    CommandEntry("cdi", "kgpu.cli.cdi", "cdi", "Write, list, change and check CDI specs for containers."),
    CommandEntry(
        "runtime", "kgpu.cli.runtime", "runtime", "Configure the container engine for GPUs, or take that back."
    ),
    CommandEntry(
        "nvidia-ctk", "kgpu.cli.nvidia_ctk", "nvidia_ctk", "The container toolkit's command line.", hidden=True
    ),
    CommandEntry(
        "nvidia-mig-manager", "kgpu.cli.mig_manager", "mig_manager", "Slices by the Node's label.", hidden=True
    ),
    CommandEntry("kubectl-nfd", "kgpu.cli.nfd", "plugin", "Rules, by the peer's command line.", hidden=True),
    CommandEntry("nfd", "kgpu.cli.nfd", "nfd", "Features, by the peer's command line.", hidden=True),
    CommandEntry("mig", "kgpu.cli.mig", "mig", "Cut GPUs into MIG slices, as a config says."),
    CommandEntry("dra", "kgpu.cli.dra", "dra", "What a node would publish of its GPUs for DRA."),
    CommandEntry("nri", "kgpu.cli.nri", "nri", "Give GPUs to containers that ask for them by name."),
    CommandEntry("exporter", "kgpu.cli.exporter", "exporter", "What every accelerator does, as metrics."),
    CommandEntry("health", "kgpu.cli.health", "health", "Which GPUs of this node are well, why not, and what to do."),
    CommandEntry("xid", "kgpu.cli.xid", "xid", "What an Xid means and what to do; what a kernel log says."),
    CommandEntry(
        "monitoring", "kgpu.cli.monitoring", "monitoring", "Alert rules and dashboards for Prometheus and Grafana."
    ),
    CommandEntry("crds", "kgpu.cli.crds", "crds", "Install or remove the operator's custom resources."),
    CommandEntry("lab", "kgpu.cli.lab", "lab", "Simulated accelerators and clusters to try and test with."),
    CommandEntry("completion", "kgpu.cli.completion", "completion", "Shell completion for bash, zsh or fish."),
    CommandEntry("version", "kgpu.cli.version", "version", "Print the version."),
)

# Replaced programs whose scripts expect another exit code than 2 for what is explained.
EXPLAINED: Final = {"nvidia-ctk": 1, "nvidia-mig-parted": 1, "kubectl-nfd": 1, "nfd": 1}

VERSION_WORDS: Final = (["-v"], ["--version"])
HELP_WORDS: Final = (["-h"], ["--help"])
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

EXAMPLES: Final = """
kgpu agent --roles deviceplugin,labels
kgpu labels
kgpu lab up --real
"""


class LazyGroup(ExampleGroup):
    """A group whose commands are imported when they are used, not when they are listed."""

    def __init__(self, *args: Any, entries: Sequence[CommandEntry] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = {entry.name: entry for entry in entries}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.entries, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            hint = did_you_mean(name, self.list_commands(ctx))
            raise ConfigError(
                f'there is no command "{name}"' + (f"; {hint}" if hint else ""),
                f"one of: {', '.join(self.list_commands(ctx))}",
                f"see `{ctx.command_path} --help`",
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(entry.name, help=entry.help)
            for entry in self.entries.values()
            if entry.name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in self.entries.values() if not entry.hidden])


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    examples=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.version_option(__version__, "-v", "--version", message="kgpu %(version)s", help="Print the version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Makes accelerators usable on Kubernetes, and says why when they are not."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. ``argv`` includes the program's name; default ``sys.argv``."""
    words = list(sys.argv if argv is None else argv)
    program, arguments = os.path.basename(words[0]) if words else PROGRAM, words[1:]
    try:
        if program == ENTRYPOINT:
            program = PROGRAM  # for what is said if it stands for none
            program = _meant(arguments)
        elif program not in PROGRAMS:
            program = PROGRAM
        # Which version it is, is asked of the program and not of the command whose name it stands for.
        if arguments not in VERSION_WORDS:
            arguments = [*PROGRAMS.get(program, ()), *arguments]
        code = _run(program, arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _forget_output()
        return 141
    except (KeyboardInterrupt, click.Abort):
        forget_interrupt()
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as problem:
        if os.environ.get("KGPU_DEBUG"):
            raise
        code = _explain(program, problem)
        known = next((name for name in (program, *arguments[:1]) if name in EXPLAINED), "")
        return EXPLAINED.get(known, code) if code == 2 else code


def _meant(arguments: list[str]) -> str:
    """The program that the image's entry point stands for. Raises ConfigError."""
    if (arguments and not arguments[0].startswith("-")) or arguments in (*VERSION_WORDS, *HELP_WORDS):
        return PROGRAM
    from kgpu.cli.entrypoint import meant

    return meant(arguments, os.environ)


def _run(program: str, arguments: list[str]) -> int:
    instruction = os.environ.get("_KGPU_COMPLETE")
    if instruction:
        from click.shell_completion import shell_complete

        try:
            return shell_complete(cli, {}, program, "_KGPU_COMPLETE", instruction)
        except (UserError, click.ClickException):
            return 1  # what is typed so far is wrong: an error now would be in the middle of the line
    # A command that stands for a program of its name is not called by that name twice.
    shown = "" if PROGRAMS.get(program) == (program,) else program
    with cli.make_context("kubectl gpu" if program == "kubectl-gpu" else shown, arguments) as ctx:
        cli.invoke(ctx)
    return 0


def _explain(program: str, problem: Exception) -> int:
    """Say it in the way that fits the kind of error; returns the exit code."""
    if isinstance(problem, click.exceptions.Exit):
        return problem.exit_code
    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        click.echo(problem.format_message(), err=True)
        return 2
    refused = _output_problem()
    if isinstance(refused, BrokenPipeError):
        return 141
    error = _unwritten("standard output", refused) if refused else obstacle_in(problem) or _foreign(problem)
    if error is not None:
        print_error(error, program)
        return 2
    click.echo(
        f"{program}: unexpected error: {describe(problem)}\n"
        "  This is a defect of kgpu. Run the command again with KGPU_DEBUG=1 and report what it prints.",
        file=sys.stderr,
    )
    return 1


def _foreign(problem: Exception) -> UserError | None:
    """Errors of click and of the system that are about input, in three parts; None for everything else."""
    if isinstance(problem, click.UsageError):
        path = problem.ctx.command_path if problem.ctx else "kgpu"
        usage = problem.ctx.get_usage().removeprefix("Usage: ") if problem.ctx else "a known command"
        what = " ".join(problem.format_message().split()).rstrip(".")
        return ConfigError(what, " ".join(usage.split()), f"see `{path} --help`")
    if isinstance(problem, click.ClickException):
        return ConfigError(problem.format_message(), "valid input", "correct it and run the command again")
    if isinstance(problem, OSError) and problem.filename is not None:
        name = os.fsdecode(problem.filename) if isinstance(problem.filename, str | bytes) else str(problem.filename)
        return UserError(
            f"can't use {name}: {problem.strerror}",
            "a path that this user may use in this way",
            "check the path and its permissions",
        )
    if isinstance(problem, OSError) and problem.errno in NO_ROOM:
        return _unwritten("the output", problem)
    return None


def _unwritten(place: str, problem: OSError) -> HostError:
    return HostError(
        f"can't write to {place}: {problem.strerror}",
        "a file or device that takes what is written",
        "make room there, or send the output to another place",
    )


def _output_problem() -> OSError | None:
    """Flush standard output; return the error, after which no more is written there, or None."""
    try:
        sys.stdout.flush()
    except OSError as problem:
        _forget_output()
        return problem
    except ValueError:  # closed
        return None
    return None


def _forget_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush does not complain again."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
