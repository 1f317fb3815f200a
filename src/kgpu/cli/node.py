"""``kgpu node``: work on nodes, one safe step after the other.

Each command makes NodeOperations, which kgpu's operator carries out within one budget, and follows them. To stop
following stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _complete
from kgpu.cli._common import (
    MAX_SECONDS,
    ExampleGroup,
    check_kubeconfig,
    output_option,
    print_json,
    run_async,
    seconds_of,
)

if TYPE_CHECKING:
    from kgpu.formats.crd.nodeoperation import NodeOperationSpec, OperationDriver
    from kgpu.operations.model import Operation, UnreadableOperation
    from kgpu.operations.requests import Preview

F = TypeVar("F", bound=Callable[..., Any])

MAINTAIN: Final = """
kgpu node maintain gpu-7
kgpu node maintain gpu-7 --dry-run
kgpu node maintain gpu-7 --for 2h --reason "new power supplies"
kgpu operations resume maintenance-gpu-7-x2x4k
"""
REBOOT: Final = """
kgpu node reboot gpu-7
kgpu node reboot gpu-7 --dry-run
kgpu node reboot gpu-7 gpu-8 --reason "new kernel" --timeout 1h
kgpu node reboot gpu-7 --timeout 10m --on-timeout force
kgpu node reboot gpu-7 --ask --reason "new kernel"
"""
DRAIN_GPU: Final = """
kgpu node drain-gpu gpu-7 --gpu GPU-5d1b6f2c-0b0e-5c64-8f0c-2b1f6a8f9a11
kgpu node drain-gpu gpu-7 --gpu GPU-5d1b6f2c-0b0e-5c64-8f0c-2b1f6a8f9a11 --for 2h --reason "thermal test"
"""
RESET_GPU: Final = """
kgpu node reset-gpu gpu-7
kgpu node reset-gpu gpu-7 --gpu GPU-5d1b6f2c-0b0e-5c64-8f0c-2b1f6a8f9a11 --reason "row remap pending"
kgpu node reset-gpu gpu-7 --dry-run
"""
UPGRADE_DRIVER: Final = """
kgpu node upgrade-driver gpu-7
kgpu node upgrade-driver gpu-7 --dry-run
kgpu node upgrade-driver gpu-7 --dry-run -o json
kgpu node upgrade-driver gpu-7 gpu-8 --delete-emptydir-data --upgrade-timeout 2h
"""
REPLACE: Final = """
kgpu node replace gpu-7 --reason "Xid 79 after every reboot"
kgpu node replace gpu-7 --dry-run
kgpu operations bundle replace-gpu-7-x2x4k -o gpu-7.tar.gz
kgpu operations resume replace-gpu-7-x2x4k
"""
EXAMPLES: Final = 'kgpu node maintain gpu-7\nkgpu node reboot gpu-7 --reason "new kernel"\nkgpu node reset-gpu gpu-7'


@click.group("node", cls=ExampleGroup, examples=EXAMPLES)
def node() -> None:
    """Work on nodes and their GPUs: empty them, reset or reboot them, and give them back as they were; or hold them for
    replacement.

    Needs the rights of the ClusterRole kgpu-node-operations; with --ask, those of kgpu-node-operations-requester.
    """


def _options(function: F) -> F:
    """What every command has that empties nodes."""
    for option in reversed((
        click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=_complete.nodes),
        click.option("--reason", default="", metavar="TEXT", help="Why; people see it in Events and lists."),
        click.option("--timeout", default="5m", show_default=True, metavar="DURATION",
                     help="How long the pods may take to go."),
        click.option("--on-timeout", type=click.Choice(("fail", "force")), default="fail", show_default=True,
                     help="What becomes of pods that disruption budgets still hold then: the operation fails, or they "
                     "are deleted. Needs the chart's operations.allowForce."),
        click.option("--grace-period", type=click.IntRange(0, MAX_SECONDS), metavar="SECONDS",
                     help="How long each pod gets to end. Default: its own time."),
        click.option("--force", is_flag=True, help="Also pods that no controller makes anew."),
        click.option("--delete-emptydir-data", "empty_dirs", is_flag=True,
                     help="Also pods that lose what is in an emptyDir."),
        click.option("--ask", is_flag=True,
                     help="Make operations that wait until somebody approves them, and return."),
        click.option("--dry-run", is_flag=True, help="Say which pods would go, and do nothing."),
        click.option("--detach", is_flag=True, help="Return at once."),
        click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE",
                     help="How to reach the API server."),
        output_option(),
    )):  # fmt: skip
        function = option(function)
    return function


@node.command("maintain", examples=MAINTAIN)
@_options
@click.option("--for", "span", default="", metavar="DURATION",
              help="Give the node back after that, such as 2h. Default: when it is resumed.")  # fmt: skip
def maintain(*, span: str, **given: Any) -> None:
    """Empty nodes for maintenance, and hold them until they are resumed.

    The pods that go are those of `kubectl drain --ignore-daemonsets`, and disruption budgets hold. Exit code 0 once the
    nodes are empty, 3 when one could not be emptied; it is given back then.
    """
    spec = _spec("Maintenance", given, duration_seconds=seconds_of(span, "--for") if span else None)
    _carry_out(spec, given, until=_is_held, well=_is_held)


@node.command("reboot", examples=REBOOT)
@_options
@click.option("--reboot-timeout", default="30m", show_default=True, metavar="DURATION",
              help="How long the node may take until it is there with another boot.")  # fmt: skip
def reboot(*, reboot_timeout: str, **given: Any) -> None:
    """Empty nodes, reboot them, and give them back once they are well.

    Well is a node that is Ready and offers the GPUs that it had. The pods that go are those of
    `kubectl drain --ignore-daemonsets`, and disruption budgets hold. Exit code 0 once all nodes have rebooted and are
    well, 3 when one has not or is not; it is given back then.
    """
    spec = _spec("Reboot", given, act_timeout_seconds=seconds_of(reboot_timeout, "--reboot-timeout"))
    _carry_out(spec, given, until=lambda _: False, well=_has_succeeded)


@node.command("upgrade-driver", examples=UPGRADE_DRIVER)
@_options
@click.option("--whole-node", is_flag=True, help="Empty the whole node. Default: pods with GPUs go.")
@click.option("--upgrade-timeout", default="1h", show_default=True, metavar="DURATION",
              help="How long the driver may take until it is loaded.")  # fmt: skip
def upgrade_driver(*, whole_node: bool, upgrade_timeout: str, **given: Any) -> None:
    """Exchange the driver of nodes for the one that the policy asks for.

    For nodes whose driver comes in a container. Pods with GPUs go, the driver's pod is exchanged, and the node is given
    back once it is well with the new driver. --dry-run says each step before. Exit code 0 once all nodes are well, 3
    when one is not; it is given back then, with what its driver's pod says.
    """
    seconds = seconds_of(upgrade_timeout, "--upgrade-timeout")
    spec = _spec("DriverUpgrade", given, only_gpu_pods=not whole_node, act_timeout_seconds=seconds)
    wanted = run_async(_wanted_drivers(given["kubeconfig"], tuple(dict.fromkeys(given["nodes"]))))
    _carry_out(spec, given, until=lambda _: False, well=_has_succeeded, drivers=wanted)


async def _wanted_drivers(kubeconfig: str, nodes: Sequence[str]) -> dict[str, OperationDriver]:
    """The driver that each node is to run. Raises KubeError, ConfigError."""
    from kgpu.kube.client import connect
    from kgpu.operations.wanted_drivers import wanted_driver

    api = connect(kubeconfig)
    try:
        return {name: await wanted_driver(api, name) for name in nodes}
    finally:
        await api.close()


@node.command("replace", examples=REPLACE)
@_options
def replace(**given: Any) -> None:
    """Keep what is known of nodes, empty them, and hold them until their machines are replaced.

    What is known is an archive for `kgpu doctor --from`, which `kgpu operations bundle` fetches. The nodes get the
    label kgpu.dev/needs-replacement=true; kgpu deletes no machine and no Node. A node is given back when all its GPUs
    work in another boot, or it is resumed. Exit code 0 once the nodes are held, 3 when one could not be emptied; it is
    given back then.
    """
    _carry_out(_spec("Replace", given), given, until=_is_held, well=_is_held)


def _gpu_option(default: str) -> Callable[[F], F]:
    words = f"A GPU's UUID, as `nvidia-smi -L` and `kgpu status` show it; may be repeated. {default}"
    return click.option("--gpu", "gpus", multiple=True, metavar="UUID", help=words)


@node.command("drain-gpu", examples=DRAIN_GPU)
@_options
@_gpu_option("Required.")
@click.option("--for", "span", default="", metavar="DURATION",
              help="Give the GPUs back after that, such as 2h. Default: when it is resumed.")  # fmt: skip
def drain_gpu(*, gpus: tuple[str, ...], span: str, **given: Any) -> None:
    """Empty single GPUs, and keep new pods away from them until they are resumed.

    Only pods that hold one of these GPUs go, and disruption budgets hold; the node is not cordoned, and pods with other
    GPUs go on. Exit code 0 once no pod holds them, 3 when one could not be emptied; all are given back then.
    """
    if not gpus:
        raise ConfigError(
            "no GPU is named", "--gpu with a GPU's UUID", "take it from `kgpu status`, or `nvidia-smi -L`"
        )
    seconds = seconds_of(span, "--for") if span else None
    spec = _spec("Maintenance", given, duration_seconds=seconds, gpus=_one_node(given, gpus))
    _carry_out(spec, given, until=_is_held, well=_is_held)


@node.command("reset-gpu", examples=RESET_GPU)
@_options
@_gpu_option("Default: those of the node that its agent says need a reset now.")
def reset_gpu(*, gpus: tuple[str, ...], **given: Any) -> None:
    """Reset single GPUs while pods with other GPUs go on.

    Only pods that hold one of these GPUs go, and disruption budgets hold; the node is not cordoned. A GPU that any
    program still has open is not reset. Exit code 0 once all are reset and well, 3 when one is not.
    """
    chosen = gpus or run_async(_need_reset(given["kubeconfig"], given["nodes"]))
    spec = _spec("GpuReset", given, gpus=_one_node(given, chosen))
    _carry_out(spec, given, until=lambda _: False, well=_has_succeeded)


def _one_node(given: dict[str, Any], gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The UUIDs, each once. Raises ConfigError unless they are of one node."""
    if len(set(given["nodes"])) > 1:
        raise ConfigError("GPUs of several nodes are named", "one node", "run the command once per node")
    return tuple(dict.fromkeys(gpus))


async def _need_reset(kubeconfig: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of a node that need a reset by the report of its agent. Raises KubeError, and ConfigError if none do."""
    from kgpu.kube.client import connect
    from kgpu.operations.requests import need_reset

    api = connect(kubeconfig)
    try:
        return await need_reset(api, nodes[0])
    finally:
        await api.close()


def _carry_out(
    spec: NodeOperationSpec, flags: dict[str, Any], *, until: Callable[[Operation], bool],
    well: Callable[[Operation], bool], drivers: Mapping[str, OperationDriver] | None = None,
) -> None:  # fmt: skip
    """Make operations and follow them ``until`` that, or their end; exit code 3 where one is not ``well`` then.

    ``drivers`` are those that nodes are to run, by the node's name.
    """
    kubeconfig, output = flags["kubeconfig"], flags["output"]
    check_kubeconfig(click.get_current_context(), kubeconfig)
    names = tuple(dict.fromkeys(flags["nodes"]))
    if flags["dry_run"]:
        from kgpu.cli._operations import show_previews

        wishes = {name: _on(spec, name, drivers or {}) for name in names}
        show_previews(run_async(_previews(kubeconfig, wishes)), output)
        return
    say: Callable[[str], None] = (lambda _: None) if output == "json" else click.echo
    detach = flags["detach"] or flags["ask"]
    specs = {name: _on(spec, name, drivers or {}) for name in names}
    operations = run_async(_make(kubeconfig, specs, until=None if detach else until, say=say))
    from kgpu.cli._operations import FAILED, as_data
    from kgpu.operations.model import Operation

    if output == "json":
        print_json([as_data(operation) for operation in operations])
    done = sum(isinstance(operation, Operation) and (detach or well(operation)) for operation in operations)
    if done < len(names):
        raise click.exceptions.Exit(FAILED)


def _on(spec: NodeOperationSpec, node: str, drivers: Mapping[str, OperationDriver]) -> NodeOperationSpec:
    """The operation of one node."""
    import msgspec

    return msgspec.structs.replace(spec, node_name=node, driver=drivers.get(node))


def _spec(
    kind: Literal["Maintenance", "Reboot", "GpuReset", "Replace", "DriverUpgrade"], given: dict[str, Any], *,
    only_gpu_pods: bool = False, **more: Any,
) -> NodeOperationSpec:  # fmt: skip
    from kgpu.formats.crd.nodeoperation import NodeOperationSpec, OperationDrain

    drain = OperationDrain(
        timeout_seconds=seconds_of(given["timeout"], "--timeout"),
        on_timeout="Force" if given["on_timeout"] == "force" else "Fail",
        grace_period_seconds=given["grace_period"],
        force=given["force"],
        delete_empty_dir_data=given["empty_dirs"],
        only_gpu_pods=only_gpu_pods,
    )
    asks = given["ask"]
    return NodeOperationSpec(node_name="", type=kind, reason=given["reason"], drain=drain, approved=not asks, **more)


async def _make(
    kubeconfig: str, specs: Mapping[str, NodeOperationSpec], *, until: Callable[[Operation], bool] | None,
    say: Callable[[str], None],
) -> list[Operation | UnreadableOperation]:  # fmt: skip
    import msgspec

    from kgpu.cli._operations import follow
    from kgpu.kube.client import connect
    from kgpu.operations.requests import make_operation, may_begin, who_am_i

    api = connect(kubeconfig)
    try:
        user = await who_am_i(api)
        for name in specs:
            await may_begin(api, name)  # all of them, before anything is made
        made = []
        for name, spec in specs.items():
            whole = msgspec.structs.replace(spec, requested_by=user[:253])
            made.append(await make_operation(api, name, whole))
            waits = "" if spec.approved else f", and waits for approval: kgpu operations approve {made[-1].name}"
            say(f"{name}: {made[-1].name} is made{waits}")
        if until is None:
            return list(made)
        return await follow(api, [operation.name for operation in made], until, say=say)
    finally:
        await api.close()


def _is_held(operation: Operation) -> bool:
    """Whether the node is empty, and held for whoever works on it."""
    from kgpu.formats.crd.nodeoperation import OperationPhase

    return operation.phase is OperationPhase.ACTING


def _has_succeeded(operation: Operation) -> bool:
    return operation.ended and operation.status.result == "Succeeded"


async def _previews(kubeconfig: str, specs: Mapping[str, NodeOperationSpec]) -> list[Preview]:
    from kgpu.kube.client import connect
    from kgpu.operations.requests import preview_of

    api = connect(kubeconfig)
    try:
        return [await preview_of(api, name, spec) for name, spec in specs.items()]
    finally:
        await api.close()
