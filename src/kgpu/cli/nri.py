"""``kgpu nri``: the NRI plugin alone, beside any container toolkit. In the agent it is a part of the toolkit's role."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.cli._common import ExampleCommand, check_kubeconfig, log_options, root_option, run_async, spec_dir_option
from kgpu.cli._options import help_with_default, options, settled
from kgpu.formats import names
from kgpu.formats.settings import FlagShape, Setting
from kgpu.toolkit.nri.config import ROWS, nri_config

if TYPE_CHECKING:
    from kgpu.hw.port import Reader
    from kgpu.kube.port import KubeApi
    from kgpu.toolkit.nri.config import NriConfig

EXAMPLES: Final = """
kgpu nri --namespace gpu-operator
kgpu nri --namespace gpu-operator --allow ml-dev --allow team/trainer
kgpu nri --namespace gpu-operator --socket /var/run/nri/nri.sock --index 20
"""
PLACES: Final = (
    Setting(attr="pod_resources", flag="--pod-resources-socket", default=names.POD_RESOURCES_SOCKET, metavar="FILE",
            help="Where the kubelet says which pod holds which devices."),
    Setting(attr="kubeconfig", flag="--kubeconfig", envs=("KUBECONFIG",), metavar="FILE",
            help="How to reach the API server; needed for service accounts in --allow only."),
)  # fmt: skip


@click.command("nri", cls=ExampleCommand, examples=EXAMPLES)
@options(ROWS, text=help_with_default)
@spec_dir_option("A folder of CDI specs that the runtime reads; later ones win. Default: /etc/cdi and /var/run/cdi.")
@settled(PLACES)
@root_option
@log_options
def nri(
    *, folders: tuple[str, ...], pod_resources: str, kubeconfig: str, root: str, log_level: str, log_format: str,
    **flags: Any,
) -> None:  # fmt: skip
    """Give GPUs to containers that ask by annotation or environment, as far as the policy allows it.

    Containers ask with the annotation nvidia.cdi.k8s.io (also /pod and /container.NAME) or with NVIDIA_VISIBLE_DEVICES.
    Only pods of --namespace and those in --allow may; never for a GPU that the kubelet gave to another pod. What a
    container has is cut down to its NVIDIA_DRIVER_CAPABILITIES, and NVIDIA_REQUIRE_* is checked. Runs until stopped.
    """
    from kgpu.base.log import configure

    check_kubeconfig(click.get_current_context(), kubeconfig)
    config = nri_config(_env(), **flags)
    configure(level=log_level, form=log_format)
    dirs = [Path(part) for item in folders for part in item.split(",") if part]
    run_async(_run(config, dirs, Path(pod_resources), kubeconfig, root))


def _env() -> Mapping[str, str]:
    """The environment, where blanks separate the words of a list as commas do."""
    lists = {name for row in ROWS if row.shape is FlagShape.LIST for name in row.envs}
    return {name: ",".join(text.split()) if name in lists else text for name, text in os.environ.items()}


async def _run(config: NriConfig, folders: list[Path], pod_resources: Path, kubeconfig: str, root: str) -> None:
    import logging

    from kgpu.base.advice import Advice
    from kgpu.base.errors import Reason, line_of
    from kgpu.kubelet.pod_resources import PodResources
    from kgpu.toolkit.nri.ports import KubeAccounts
    from kgpu.toolkit.nri.run import SPEC_DIRS, NriContext, run

    log = logging.getLogger("kgpu.nri")

    def report(advice: Advice) -> None:
        log.log(logging.WARNING if advice.severity.notable else logging.INFO, "%s", advice.one_line())

    last_line = ""

    def on_state(ready: bool, reason: Reason, why: str = "") -> None:
        del why
        nonlocal last_line
        line = f"{'serving' if ready else 'waiting'}: {line_of(reason)}"
        if line != last_line:
            last_line = line
            log.info("%s", line)

    async with contextlib.AsyncExitStack() as stack:
        reader, api = _reader(root), None
        if reader is not None:
            stack.push_async_callback(reader.close)
        if config.policy.accounts:
            api = _api(kubeconfig)
            stack.push_async_callback(api.close)
        await run(
            NriContext(
                config=config,
                reader=reader,
                holdings=PodResources(pod_resources),
                accounts=None if api is None else KubeAccounts(api),
                cdi_dirs=folders or SPEC_DIRS,
                report=report,
                on_state=on_state,
            )
        )


def _api(kubeconfig: str) -> KubeApi:
    from kgpu.kube.client import connect

    return connect(kubeconfig)


def _reader(root: str) -> Reader | None:
    """The driver's reader; None, with a word, while there is no driver: everything but requirements works without."""
    from kgpu.base.errors import HwError
    from kgpu.hw.open import open_reader

    try:
        return open_reader(driver_root=Path(root) if root else None)
    except HwError:
        place = f"under {root}" if root else "on this node"
        note = f"requirements of images are not checked: no driver was found {place} (--root names another place)"
        click.echo(f"note: {note}", err=True)
        return None
