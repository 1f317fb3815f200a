"""``kgpu node``: work on nodes, one safe step after the other.

Each command makes NodeOperations, which kgpu's operator carries out within one budget, and follows them. To stop
following stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _complete
from kgpu.cli._common import ExampleGroup, check_kubeconfig, output_option, print_json, run_async

if TYPE_CHECKING:
    from kgpu.formats.crd.nodeoperation import NodeOperationSpec, OperationDrain
    from kgpu.operations.model import Operation, UnreadableOperation
    from kgpu.operations.requests import Preview

MAX_SECONDS: Final = 2**31 - 1
EXAMPLES: Final = """
kgpu node maintain gpu-7
kgpu node maintain gpu-7 --dry-run
kgpu node maintain gpu-7 --for 2h --reason "new power supplies"
kgpu operations resume maintenance-gpu-7-x2x4k
"""


@click.group("node", cls=ExampleGroup, examples=EXAMPLES)
def node() -> None:
    """Work on nodes: empty them, and give them back as they were.

    Needs the rights of the ClusterRole kgpu-node-operations.
    """


@node.command("maintain", examples=EXAMPLES)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=_complete.nodes)
@click.option("--reason", default="", metavar="TEXT", help="Why; people see it in Events and lists.")
@click.option("--for", "span", default="", metavar="DURATION",
              help="Give the node back after that, such as 2h. Default: when it is resumed.")  # fmt: skip
@click.option("--timeout", default="5m", show_default=True, metavar="DURATION",
              help="How long the pods may take to go.")  # fmt: skip
@click.option("--grace-period", type=click.IntRange(0, MAX_SECONDS), metavar="SECONDS",
              help="How long each pod gets to end. Default: its own time.")  # fmt: skip
@click.option("--force", is_flag=True, help="Also pods that no controller makes anew.")
@click.option("--delete-emptydir-data", "empty_dirs", is_flag=True, help="Also pods that lose what is in an emptyDir.")
@click.option("--dry-run", is_flag=True, help="Say which pods would go, and do nothing.")
@click.option("--detach", is_flag=True, help="Return at once.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@output_option()
def maintain(
    *, nodes: tuple[str, ...], kubeconfig: str, output: str, dry_run: bool, detach: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Empty nodes for maintenance, and hold them until they are resumed.

    The pods that go are those of `kubectl drain --ignore-daemonsets`, and disruption budgets hold. Exit code 0 once the
    nodes are empty, 3 when one could not be emptied; it is given back then.
    """
    check_kubeconfig(click.get_current_context(), kubeconfig)
    spec, names = _spec(given), tuple(dict.fromkeys(nodes))
    if dry_run:
        _show_previews(run_async(_previews(kubeconfig, names, spec.drain)), output)
        return
    say: Callable[[str], None] = (lambda _: None) if output == "json" else click.echo
    operations = run_async(_maintain(kubeconfig, names, spec, detach=detach, say=say))
    from kgpu.cli._operations import FAILED, as_data

    if output == "json":
        print_json([as_data(operation) for operation in operations])
    if len(operations) < len(names) or any(_has_ended(operation) for operation in operations):
        raise click.exceptions.Exit(FAILED)


def _spec(given: dict[str, Any]) -> NodeOperationSpec:
    from kgpu.formats.crd.nodeoperation import NodeOperationSpec, OperationDrain

    return NodeOperationSpec(
        node_name="",
        type="Maintenance",
        reason=given["reason"],
        duration_seconds=_seconds(given["span"], "--for") if given["span"] else None,
        drain=OperationDrain(
            timeout_seconds=_seconds(given["timeout"], "--timeout"),
            grace_period_seconds=given["grace_period"],
            force=given["force"],
            delete_empty_dir_data=given["empty_dirs"],
        ),
    )


async def _maintain(
    kubeconfig: str, names: Sequence[str], spec: NodeOperationSpec, *, detach: bool, say: Callable[[str], None]
) -> list[Operation | UnreadableOperation]:
    import msgspec

    from kgpu.cli._operations import follow
    from kgpu.kube.client import connect
    from kgpu.operations.requests import maintain, may_begin, who_am_i

    api = connect(kubeconfig)
    try:
        user = await who_am_i(api)
        for name in names:
            await may_begin(api, name)  # all of them, before anything is made
        made = []
        for name in names:
            whole = msgspec.structs.replace(spec, node_name=name, requested_by=user[:253])
            made.append(await maintain(api, name, whole))
            say(f"{name}: {made[-1].name} is made")
        if detach:
            return list(made)
        return await follow(api, [operation.name for operation in made], _is_held, say=say)
    finally:
        await api.close()


def _is_held(operation: Operation) -> bool:
    """Whether the node is empty, and held for whoever works on it."""
    from kgpu.formats.crd.nodeoperation import OperationPhase

    return operation.phase is OperationPhase.ACTING


def _has_ended(operation: Operation | UnreadableOperation) -> bool:
    from kgpu.operations.model import Operation

    return not isinstance(operation, Operation) or operation.ended


async def _previews(kubeconfig: str, names: Sequence[str], drain: OperationDrain) -> list[Preview]:
    from kgpu.kube.client import connect
    from kgpu.operations.requests import preview

    api = connect(kubeconfig)
    try:
        return [await preview(api, name, drain) for name in names]
    finally:
        await api.close()


def _show_previews(previews: Sequence[Preview], output: str) -> None:
    from kgpu.cli._operations import FAILED, preview_data, preview_lines

    if output == "json":
        print_json([preview_data(preview) for preview in previews])
    else:
        click.echo("\n".join(line for preview in previews for line in preview_lines(preview)))
    if any(preview.refused for preview in previews):
        raise click.exceptions.Exit(FAILED)


def _seconds(text: str, flag: str) -> int:
    from kgpu.formats.duration import parse_duration

    try:
        seconds = parse_duration(text) / 1e9
    except ConfigError as error:
        raise ConfigError(error.what, "a duration such as 90s, 5m or 2h", f"correct {flag}") from error
    if not 1 <= seconds <= MAX_SECONDS:
        raise ConfigError(f"{flag} is {text:.40}", "a duration of at least a second, such as 5m", f"correct {flag}")
    return int(seconds)
