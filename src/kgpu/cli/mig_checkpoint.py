"""``kgpu mig checkpoint`` and ``restore``: how this node's GPUs are cut, in mig-parted's file, and so again."""

from __future__ import annotations

from typing import Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _mig, _mig_change
from kgpu.cli._common import GoFlagsCommand, output_option, print_json, root_option, run_async
from kgpu.cli._mig_change import hooks_option, mode_option

CHECKPOINT_EXAMPLES: Final = """
kgpu mig checkpoint -f before.json
"""
RESTORE_EXAMPLES: Final = """
kgpu mig restore -f before.json
kgpu mig restore -f before.json --mode-only
"""

_file_option: Final = click.option(
    "-f", "--checkpoint-file", "file", metavar="FILE", default="", envvar="MIG_PARTED_CHECKPOINT_FILE",
    help="The checkpoint, of mig-parted's form.",
)  # fmt: skip


@click.command("checkpoint", cls=GoFlagsCommand, examples=CHECKPOINT_EXAMPLES)
@_file_option
@root_option
@output_option()
def checkpoint(*, file: str, root: str, output: str) -> None:
    """Write how this node's GPUs are cut into a file that restore takes."""
    from kgpu.formats.mig_checkpoint import write_checkpoint
    from kgpu.mig.checkpoint import saved_gpus

    _check(file)
    saved = saved_gpus(run_async(_mig.node_gpus(root)))
    _mig.write_file(file, write_checkpoint(saved))
    if click.get_current_context().obj:
        for one in saved:
            slices = f"MIG on, {len(one.instances)} GPU instances" if one.enabled else "MIG off"
            click.echo(f"GPU {one.uuid}: {slices}", err=True)
    if output == "json":
        print_json({"checkpoint": file, "gpus": [one.uuid for one in saved]})
    else:
        click.echo("MIG configuration checkpointed successfully")


@click.command("restore", cls=GoFlagsCommand, examples=RESTORE_EXAMPLES)
@_file_option
@hooks_option
@mode_option
@root_option
@output_option()
def restore(*, file: str, hooks_file: str, mode_only: bool, root: str, output: str) -> None:
    """Cut this node's GPUs as they were at a checkpoint, each instance at its place, and verify it.

    As with apply, what is right already is not touched, slices in use are not taken, and a GPU that fails gets its
    former layout back.
    """
    from kgpu.formats.mig_checkpoint import MAX_BYTES, parse_checkpoint
    from kgpu.host.bounded import read_regular
    from kgpu.mig.checkpoint import plan_restore

    _check(file)
    saved = parse_checkpoint(read_regular(file, MAX_BYTES, what="a checkpoint file")[0], source=file)
    if not saved:
        _mig.warn(f"{file} has no GPUs, so that nothing changes")

    def plan(gpus: Any) -> Any:
        return plan_restore(gpus, saved, mode_only=mode_only)

    hooks = _mig_change.read_hooks(hooks_file)
    outcomes = _mig_change.run_change(plan, hooks, root=root, what=f"restore of {file}")
    _mig_change.tell_outcomes({"checkpoint": file}, "restored", outcomes, output)


def _check(file: str) -> None:
    if not file:
        raise ConfigError("missing required flags 'checkpoint-file'", "a file's path", "give it with -f FILE")
