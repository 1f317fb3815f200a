"""``kgpu mig``: GPUs cut into MIG slices by a config of mig-parted's form; also found as ``nvidia-mig-parted``.

Exit codes: 0 done, or the config is applied; 3 from ``assert`` where it is not; 2 for what fails, in three parts. As
``nvidia-mig-parted`` the latter two are 1, as its scripts know it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _complete, _mig, _mig_change, _mig_node
from kgpu.cli._common import (
    ExampleGroup,
    GoFlagsCommand,
    check_kubeconfig,
    output_option,
    print_json,
    root_option,
    run_async,
)
from kgpu.cli._mig_change import hooks_option, mode_option
from kgpu.cli.mig_checkpoint import checkpoint, restore
from kgpu.cli.mig_generate import generate_config

if TYPE_CHECKING:
    from kgpu.formats.mig_config import MigConfigs, MigEntry
    from kgpu.mig.node_plan import PlannedGpu
    from kgpu.mig.survey import SurveyedGpu

F = TypeVar("F", bound=Callable[..., Any])
NOT_APPLIED: Final = 3
EXAMPLES: Final = """
kgpu mig plan -f config.yaml -c all-1g.10gb
kgpu mig apply -f config.yaml -c all-1g.10gb
kgpu mig assert -f config.yaml -c all-1g.10gb
kgpu mig export -o json
kgpu mig generate-config -f config.yaml
kgpu mig checkpoint -f before.json
kgpu mig restore -f before.json
"""
PLAN_EXAMPLES: Final = """
kgpu mig plan -f config.yaml -c all-balanced
kgpu mig plan -f config.yaml -c all-balanced -o json
kgpu mig plan --node gpu-7 --config all-1g.10gb
"""
APPLY_EXAMPLES: Final = """
kgpu mig apply -f config.yaml -c all-1g.10gb
kgpu mig apply -f config.yaml -c all-disabled --mode-only
kgpu mig apply -f config.yaml -c all-1g.10gb --hooks-file hooks.yaml
cat config.yaml | kgpu mig apply -f -
"""
ASSERT_EXAMPLES: Final = """
kgpu mig assert -f config.yaml -c all-1g.10gb
kgpu mig assert -f config.yaml -c all-1g.10gb --valid-config
"""
EXPORT_EXAMPLES: Final = """
kgpu mig export > config.yaml
kgpu mig export --config-label before-the-change -o json
"""


def config_options(function: F) -> F:
    """``-f`` and ``-c``; the parameters are ``config_file`` and ``selected``."""
    file = click.option(
        "-f", "--config-file", metavar="FILE", default="", envvar="MIG_PARTED_CONFIG_FILE",
        help="A config file of mig-parted's form, version v1; - is standard input.",
    )  # fmt: skip
    name = click.option(
        "-c", "--selected-config", "--config", "selected", metavar="NAME", default="",
        envvar="MIG_PARTED_SELECTED_CONFIG", help="Which of its configs. Default: the only one.",
    )  # fmt: skip
    return file(name(function))


@click.group("mig", cls=ExampleGroup, examples=EXAMPLES)
@click.option(
    "-d",
    "--debug",
    is_flag=True,
    envvar="MIG_PARTED_DEBUG",
    help="Tell every step before it is taken, and what a checkpoint has.",
)
@click.pass_context
def mig(context: click.Context, *, debug: bool) -> None:
    """Cut this node's GPUs into MIG slices, as a config says.

    A GPU that can't be cut so keeps all of them as they are. Each of the others ends as wanted, or as it was.
    """
    context.obj = debug


mig.command_class = GoFlagsCommand
for command in (generate_config, checkpoint, restore):
    mig.add_command(command)


@mig.command("plan", examples=PLAN_EXAMPLES)
@config_options
@mode_option
@root_option
@click.option("--node", default="", metavar="NODE", shell_complete=_complete.nodes,
              help="A node of the cluster, not this machine. Without -f by the configs of the cluster.")  # fmt: skip
@click.option("-n", "--namespace", default="", metavar="NS", shell_complete=_complete.namespaces,
              help="With --node: where the ConfigMap with the configs is. Default: where one is found.")  # fmt: skip
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@output_option()
@click.pass_context
def plan(
    context: click.Context, *, config_file: str, selected: str, mode_only: bool, root: str, node: str, namespace: str,
    kubeconfig: str, output: str,
) -> None:  # fmt: skip
    """Show which steps would make the config true; change nothing.

    With --node: which resources the node would offer then and which pods would have to go, as far as the API server
    knows.
    """
    if node:
        check_kubeconfig(context, kubeconfig)
        given = _mig.read_configs(config_file) if config_file else None
        _mig_node.show(run_async(_of_node(kubeconfig, node, selected, given, namespace)), output)
        return
    name, entries = _mig.read_configs(config_file).chosen(selected)
    planned = run_async(_planned(root, entries, mode_only=mode_only))
    if output == "json":
        print_json({"config": name, "gpus": [_mig.plan_data(one) for one in planned]})
        return
    _print_plans(planned)


@mig.command("apply", examples=APPLY_EXAMPLES)
@config_options
@mode_option
@click.option(
    "-s", "--skip-reset", is_flag=True, envvar="MIG_PARTED_SKIP_RESET",
    help="Reset no GPU. A mode that needs a reset then fails; with --mode-only it waits for the next one.",
)  # fmt: skip
@hooks_option
@root_option
@output_option()
def apply(
    *, config_file: str, selected: str, mode_only: bool, skip_reset: bool, hooks_file: str, root: str, output: str
) -> None:  # fmt: skip
    """Make the config true, and verify it.

    What is right already is not touched, and slices that processes use are not taken from them. If a step fails, the
    GPU gets its former layout back.
    """
    name, entries = _mig.read_configs(config_file).chosen(selected)
    hooks = _mig_change.read_hooks(hooks_file)
    outcomes = _mig_change.run_change(
        lambda gpus: _plan(gpus, entries, mode_only=mode_only), hooks, root=root, what=f"apply of {name}",
        skip_reset=skip_reset, may_wait=skip_reset and mode_only,
    )  # fmt: skip
    _mig_change.tell_outcomes({"config": name}, "applied", outcomes, output)


@mig.command("assert", examples=ASSERT_EXAMPLES)
@config_options
@mode_option
@click.option(
    "-a", "--valid-config", is_flag=True, envvar="MIG_PARTED_VALID_CONFIG",
    help="Only read the file and look the config up; ask no driver.",
)  # fmt: skip
@root_option
@output_option()
def assert_(
    *, config_file: str, selected: str, mode_only: bool, valid_config: bool, root: str, output: str
) -> None:  # fmt: skip
    """Say whether the config is applied. Exit code 3 if it is not (as nvidia-mig-parted: 1)."""
    name, entries = _mig.read_configs(config_file).chosen(selected)
    if valid_config:
        if output == "json":
            print_json({"config": name, "valid": True})
        else:
            click.echo("Selected MIG configuration is valid")
        return
    planned = run_async(_planned(root, entries, mode_only=mode_only))
    applied = not any(one.steps for one in planned)
    if output == "json":
        print_json({"config": name, "applied": applied, "gpus": [_mig.plan_data(one) for one in planned]})
    elif applied:
        what = "MIG mode settings from configuration" if mode_only else "MIG configuration"
        click.echo(f"Selected {what} currently applied")
    if not applied:
        click.echo("Assertion failure: selected configuration not currently applied", err=True)
        for one in planned:
            if one.steps:
                click.echo("\n".join(_mig.plan_lines(one)), err=True)
        raise click.exceptions.Exit(1 if _mig.is_peer() else NOT_APPLIED)


@mig.command("export", examples=EXPORT_EXAMPLES)
@click.option(
    "-l", "--config-label", "label", default="current", show_default=True, metavar="NAME",
    envvar="MIG_PARTED_CONFIG_LABEL", help="The config's name in the file.",
)  # fmt: skip
@_mig.format_option("How to print the file.")
@root_option
def export(*, label: str, output: str, root: str) -> None:
    """Print how this node's GPUs are cut, as a config file that apply takes."""
    from kgpu.formats import yaml_text
    from kgpu.mig.export import export as exported
    from kgpu.mig.export import unsaid

    if not label:
        raise ConfigError("--config-label is empty", "a name for the config", "give one, or leave it out")
    gpus = run_async(_mig.node_gpus(root))
    document = exported(gpus, label)
    for warning in unsaid(gpus):
        _mig.warn(warning)
    click.echo(json.dumps(document) if output == "json" else yaml_text.write(document), nl=output == "json")


async def _of_node(
    kubeconfig: str, node: str, selected: str, given: MigConfigs | None, namespace: str
) -> _mig_node.NodePlan:
    from kgpu.kube.client import connect

    api = connect(kubeconfig)
    try:
        return await _mig_node.plan_of(api, node, selected, given, namespace)
    finally:
        await api.close()


async def _planned(root: str, entries: Sequence[MigEntry], *, mode_only: bool) -> tuple[PlannedGpu, ...]:
    return _plan(await _mig.node_gpus(root), entries, mode_only=mode_only)


def _plan(gpus: Sequence[SurveyedGpu], entries: Sequence[MigEntry], *, mode_only: bool) -> tuple[PlannedGpu, ...]:
    from kgpu.mig.node_plan import missing_gpus, plan_node

    planned = plan_node(gpus, entries, mode_only=mode_only)
    if missing := missing_gpus(gpus, entries):
        _mig.warn(f"the node has no GPU {', '.join(map(str, missing))}, which the config names")
    if not planned:
        _mig.warn("the config is about no GPU of this node")
    return planned


def _print_plans(planned: Sequence[PlannedGpu]) -> None:
    for one in planned:
        click.echo("\n".join(_mig.plan_lines(one)))
