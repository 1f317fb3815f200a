"""``kgpu operations``: what is being done to nodes, what waits and why, and a person's word about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _complete
from kgpu.cli._common import ListingGroup, check_kubeconfig, output_option, print_json, run_async, with_api

if TYPE_CHECKING:
    from kgpu.kube.port import KubeApi
    from kgpu.operations.model import Operation, UnreadableOperation
    from kgpu.operations.requests import Preview, Word

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES: Final = """
kgpu operations
kgpu operations list --all -o json
kgpu operations show maintenance-gpu-7-x2x4k
kgpu operations plan maintenance-gpu-7-x2x4k
kgpu operations resume maintenance-gpu-7-x2x4k
kgpu operations cancel maintenance-gpu-7-x2x4k
kgpu operations bundle replace-gpu-7-7a00f4e9ae
"""
PLAN: Final = """
kgpu operations plan maintenance-gpu-7-x2x4k
kgpu operations plan driver-gpu-7-7a00f4e9ae driver-gpu-8-0c1f6e2d44
kgpu operations plan driver-gpu-7-7a00f4e9ae -o json
"""
BUNDLE: Final = """
kgpu operations bundle replace-gpu-7-7a00f4e9ae
kgpu operations bundle replace-gpu-7-7a00f4e9ae -o - | kgpu doctor --from -
"""


def _connection(function: F) -> F:
    return click.option(
        "--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server."
    )(function)


_names: Final = click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=_complete.operations)


@click.group("operations", cls=ListingGroup, examples=EXAMPLES)
def operations() -> None:
    """What is being done to nodes, what waits and why; approve, cancel, resume; fetch evidence.

    `kgpu node` makes operations; `kubectl get nodeoperations` has them, too.
    """


@operations.command("list", examples="kgpu operations list\nkgpu operations list --node gpu-7 --all")
@click.option("--all", "-A", "every", is_flag=True, help="Also those that are over.")
@click.option("--node", default="", metavar="NODE", help="Only of that node.", shell_complete=_complete.nodes)
@_connection
@output_option()
@click.pass_context
def list_(context: click.Context, *, every: bool, node: str, kubeconfig: str, output: str) -> None:
    """List operations, the oldest first."""
    from kgpu.cli._operations import as_data, table
    from kgpu.operations.requests import known_operations

    check_kubeconfig(context, kubeconfig)
    rows = [
        row
        for row in run_async(with_api(kubeconfig, known_operations))
        if (every or not _is_over(row)) and node in ("", row.node)
    ]
    if output == "json":
        print_json([as_data(row) for row in rows])
    elif rows:
        click.echo("\n".join(table(rows, time.time())))
    else:
        click.echo("nothing is being done to nodes" + ("" if every else "; --all shows what is over"), err=True)


@operations.command("show", examples="kgpu operations show maintenance-gpu-7-x2x4k")
@_names
@_connection
@output_option()
@click.pass_context
def show(context: click.Context, *, names: tuple[str, ...], kubeconfig: str, output: str) -> None:
    """Show all that is known of operations."""
    from kgpu.cli._operations import as_data, details

    check_kubeconfig(context, kubeconfig)
    rows = run_async(with_api(kubeconfig, lambda api: _read(api, names)))
    if output == "json":
        print_json([as_data(row) for row in rows])
    else:
        click.echo("\n\n".join("\n".join(details(row)) for row in rows))


@operations.command("plan", examples=PLAN)
@_names
@_connection
@output_option()
@click.pass_context
def plan(context: click.Context, *, names: tuple[str, ...], kubeconfig: str, output: str) -> None:
    """Say which pods an operation would move now. Exit code 3 when one may not go.

    Of an upgrade of a driver it says every step: what it waits for before it begins, which pods are waited for and
    which go, what becomes of the driver, and how long each may take.
    """
    from kgpu.cli._operations import show_previews

    check_kubeconfig(context, kubeconfig)
    show_previews(run_async(with_api(kubeconfig, lambda api: _plans(api, names))), output)


@operations.command("approve", examples="kgpu operations approve maintenance-gpu-7-x2x4k")
@_names
@_connection
@click.pass_context
def approve(context: click.Context, *, names: tuple[str, ...], kubeconfig: str) -> None:
    """Let operations begin that wait for a person."""
    from kgpu.operations.requests import Word

    _say(context, kubeconfig, names, Word.APPROVE, "may begin")


@operations.command("cancel", examples="kgpu operations cancel maintenance-gpu-7-x2x4k")
@_names
@_connection
@click.pass_context
def cancel(context: click.Context, *, names: tuple[str, ...], kubeconfig: str) -> None:
    """End operations and give their nodes back."""
    from kgpu.operations.requests import Word

    _say(context, kubeconfig, names, Word.CANCEL, "ends, and its node is given back")


@operations.command("resume", examples="kgpu operations resume maintenance-gpu-7-x2x4k")
@_names
@_connection
@click.pass_context
def resume(context: click.Context, *, names: tuple[str, ...], kubeconfig: str) -> None:
    """Say that the work on nodes is done: they are given back."""
    from kgpu.operations.requests import Word

    _say(context, kubeconfig, names, Word.RESUME, "goes on: its node is given back")


@operations.command("bundle", examples=BUNDLE)
@click.argument("name", shell_complete=_complete.operations)
@click.option("-o", "--output", "file", default="", metavar="FILE",
              help="Where it goes; - for stdout. Default: NAME.tar.gz.")  # fmt: skip
@_connection
@click.pass_context
def bundle(context: click.Context, *, name: str, file: str, kubeconfig: str) -> None:
    """Fetch what was known of a node before a Replace emptied it, an archive for `kgpu doctor --from`.

    Needs the rights of the Role kgpu-operation-bundles in the operator's namespace. It goes when its operation does.
    """
    from kgpu.cli.collect import STDOUT, to_stdout
    from kgpu.doctor.archive import save

    check_kubeconfig(context, kubeconfig)
    data = run_async(with_api(kubeconfig, lambda api: _bundle(api, name)))
    if file == STDOUT:
        to_stdout(data)
        return
    file = file or f"{name}.tar.gz"
    size = save(data, file)
    click.echo(f"{file}: {size // 1024 + 1} KiB; look at it with: kgpu doctor --from {file}")


async def _bundle(api: KubeApi, name: str) -> bytes:
    from kgpu.operations.bundles import read

    (known,) = await _read(api, (name,))
    return await read(api, _readable(known))


def _readable(row: Operation | UnreadableOperation) -> Operation:
    """Raises ConfigError for an operation of another version."""
    from kgpu.operations.model import Operation

    if not isinstance(row, Operation):
        raise ConfigError(
            f"this version of kgpu can't read {row.name}: {row.problem}",
            "an operation of this version",
            "use the kgpu of the cluster's version",
        )
    return row


def _say(context: click.Context, kubeconfig: str, names: tuple[str, ...], word: Word, what: str) -> None:
    from kgpu.operations.requests import say

    check_kubeconfig(context, kubeconfig)

    async def each(api: KubeApi) -> None:
        for name in names:
            await say(api, name, word)
            click.echo(f"{name} {what}")

    run_async(with_api(kubeconfig, each))


async def _read(api: KubeApi, names: tuple[str, ...]) -> list[Operation | UnreadableOperation]:
    from kgpu.operations.requests import known_operation

    return [await known_operation(api, name) for name in names]


async def _plans(api: KubeApi, names: tuple[str, ...]) -> list[Preview]:
    from kgpu.operations.requests import preview_of

    rows = map(_readable, await _read(api, names))
    return [await preview_of(api, row.node, row.spec, row) for row in rows]


def _is_over(row: Operation | UnreadableOperation) -> bool:
    from kgpu.operations.model import Operation

    return isinstance(row, Operation) and row.ended
