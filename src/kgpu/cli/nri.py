"""``kgpu nri``: the NRI plugin alone, beside any container toolkit. In the agent it is a part of the toolkit's role."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.cli._common import ExampleCommand, check_kubeconfig, log_options, root_option, run_async, spec_dir_option
from kgpu.formats import names

if TYPE_CHECKING:
    from kgpu.hw.port import Reader
    from kgpu.kube.port import KubeApi
    from kgpu.toolkit.nri.config import NriConfig

EXAMPLES: Final = """
kgpu nri --namespace gpu-operator
kgpu nri --namespace gpu-operator --allow ml-dev --allow team/trainer
kgpu nri --namespace gpu-operator --socket /var/run/nri/nri.sock --index 20
"""
# How an error names a setting: the flag, and the variable that may have been what gave it.
SPELLINGS: Final = {
    variable: f"{flag} (or {variable})"
    for flag, variable in (
        ("--namespace", names.ENV_NRI_NAMESPACE),
        ("--allow", names.ENV_NRI_ALLOWED),
        ("--management-namespace", names.ENV_NRI_MANAGEMENT_NAMESPACES),
        ("--socket", names.ENV_NRI_SOCKET),
        ("--index", names.ENV_NRI_INDEX),
    )
}


@click.command("nri", cls=ExampleCommand, examples=EXAMPLES)
@click.option(
    "--namespace",
    default=names.GPU_OPERATOR_NAMESPACE,
    show_default=True,
    metavar="NS",
    envvar=names.ENV_NRI_NAMESPACE,
    help="The operator's own namespace: its pods may ask, also for GPUs that others use.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="NS|NS/ACCOUNT",
    envvar=names.ENV_NRI_ALLOWED,
    help="A namespace or service account whose pods may ask for GPUs that nobody holds; may be given several times.",
)
@click.option(
    "--management-namespace",
    "management",
    multiple=True,
    metavar="NS",
    envvar=names.ENV_NRI_MANAGEMENT_NAMESPACES,
    help=f"A namespace whose pods may have {names.CDI_MANAGEMENT_KIND}: every GPU, whoever uses it.",
)
@click.option(
    "--socket",
    default=names.NRI_SOCKET,
    show_default=True,
    metavar="FILE",
    envvar=names.ENV_NRI_SOCKET,
    help="Where the container runtime takes NRI plugins.",
)
@click.option(
    "--index",
    default="10",
    show_default=True,
    metavar="0..99",
    envvar=names.ENV_NRI_INDEX,
    help="The place among NRI plugins; lower ones are asked first.",
)
@spec_dir_option("A folder of CDI specs that the runtime reads; later ones win. Default: /etc/cdi and /var/run/cdi.")
@click.option(
    "--pod-resources-socket",
    "pod_resources",
    default=names.POD_RESOURCES_SOCKET,
    show_default=True,
    metavar="FILE",
    help="Where the kubelet says which pod holds which devices.",
)
@click.option(
    "--kubeconfig",
    envvar="KUBECONFIG",
    default="",
    metavar="FILE",
    help="How to reach the API server; needed for service accounts in --allow only.",
)
@root_option
@log_options
def nri(
    *, namespace: str, allowed: tuple[str, ...], management: tuple[str, ...], socket: str, index: str,
    folders: tuple[str, ...], pod_resources: str, kubeconfig: str, root: str, log_level: str, log_format: str,
) -> None:  # fmt: skip
    """Give GPUs to containers that ask by annotation or environment, as far as the policy allows it.

    Containers ask with the annotation nvidia.cdi.k8s.io (also /pod and /container.NAME) or with NVIDIA_VISIBLE_DEVICES.
    Only pods of --namespace and those in --allow may; never for a GPU that the kubelet gave to another pod. What a
    container has is cut down to its NVIDIA_DRIVER_CAPABILITIES, and NVIDIA_REQUIRE_* is checked. Runs until stopped.
    """
    from kgpu.base.log import configure
    from kgpu.toolkit.nri.config import nri_config

    check_kubeconfig(click.get_current_context(), kubeconfig)
    config = nri_config(
        namespace=namespace, allowed=",".join(allowed), management=",".join(management), socket=socket, index=index,
        said=SPELLINGS,
    )  # fmt: skip
    configure(level=log_level, form=log_format)
    dirs = [Path(part) for item in folders for part in item.split(",") if part]
    run_async(_run(config, dirs, Path(pod_resources), kubeconfig, root))


async def _run(config: NriConfig, folders: list[Path], pod_resources: Path, kubeconfig: str, root: str) -> None:
    import logging

    from kgpu.base.advice import Advice
    from kgpu.base.errors import Reason, line_of
    from kgpu.kubelet.pod_resources import PodResources
    from kgpu.toolkit.nri.ports import KubeAccounts
    from kgpu.toolkit.nri.run import SPEC_DIRS, NriContext, run

    log = logging.getLogger("kgpu.nri")

    def report(decision: Advice) -> None:
        log.log(logging.WARNING if decision.severity.notable else logging.INFO, "%s", decision.one_line())

    told = ""

    def on_state(ready: bool, reason: Reason) -> None:
        nonlocal told
        line = f"{'serving' if ready else 'waiting'}: {line_of(reason)}"
        if line != told:
            told = line
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
        said = f"requirements of images are not checked: no driver was found {place} (--root names another place)"
        click.echo(f"note: {said}", err=True)
        return None
