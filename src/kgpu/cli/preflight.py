"""``kgpu preflight``: what would fail when kgpu and its driver are installed, predicted before anything is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kgpu import __version__
from kgpu.base.errors import ConfigError
from kgpu.base.printable import counted
from kgpu.base.suggest import did_you_mean, one_of
from kgpu.cli import _complete
from kgpu.cli._common import ExampleCommand, check_kubeconfig, output_option, run_async
from kgpu.formats.names import ENV_HOST_ROOT, IMAGE_REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgpu.doctor.preflight.model import Intent, PreflightReport, RegistryAnswer
    from kgpu.doctor.preflight.probe import ProbeResult
    from kgpu.doctor.snapshot import Snapshot

EXAMPLES: Final = """
kgpu preflight
kgpu preflight --node gpu-1 --node gpu-2
kgpu preflight --probe
kgpu preflight --values my-values.yaml --driver-version 580.95.05
sudo kgpu preflight --host
kgpu preflight --from bundle.tar.gz -o json
"""
MAX_VALUES: Final = 1 << 20  # bytes


@click.command("preflight", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--node", "nodes", multiple=True, metavar="NODE", shell_complete=_complete.nodes,
              help="Look at this node alone, and take it for one with GPUs; can be given several times.")  # fmt: skip
@click.option("--probe", is_flag=True, help="Look at the nodes' own files too: a pod for a moment on each of them.")
@click.option("--host", is_flag=True, help="Look at this machine itself, without a cluster: run it on the node.")
@click.option("--root", default="/", show_default=True, metavar="DIR", envvar=ENV_HOST_ROOT,
              help="With --host: where the host's root is.")  # fmt: skip
@click.option("--from", "path", default="", metavar="PATH", help="Look at this archive, folder or dump.")
@click.option("-n", "--namespace", default="", metavar="NS", shell_complete=_complete.namespaces,
              help="Where kgpu is, or is to be. Default: where one is found, else gpu-operator.")  # fmt: skip
@click.option("-f", "--values", default="", metavar="FILE", help="The values that the chart is to be given.")
@click.option("--driver-version", default="", metavar="VERSION", help="The driver that is to be installed.")
@click.option("--image", default=f"{IMAGE_REPOSITORY}:{__version__}", show_default=True, metavar="IMAGE",
              help="With --probe: kgpu's image.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, metavar="SECONDS",
              help="With --probe: the most for one node.")  # fmt: skip
@click.option("--registry/--no-registry", default=True, help="Ask the registry whether driver images are there.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@output_option("text", "json", "facts")
@click.pass_context
def preflight(
    context: click.Context, *, nodes: tuple[str, ...], probe: bool, host: bool, root: str, path: str, namespace: str,
    values: str, driver_version: str, image: str, timeout: float, registry: bool, kubeconfig: str, output: str,
) -> None:  # fmt: skip
    """Predict what would fail when kgpu and its driver are installed: why, and what to do before.

    Reads the cluster and changes nothing, but for the pods of --probe, which are gone at the end. With --host, -o facts
    prints what was seen, as a pod of --probe does. Exit code 0: nothing is predicted to fail; 1: something is; 2: it
    could not look, or no node is known to have GPUs.
    """
    _check(host=host, probe=probe, path=path, nodes=nodes, output=output)
    check_kubeconfig(context, kubeconfig)
    if output == "facts":
        click.echo(run_async(_facts(root)))
        return
    wanted = _Wanted(
        nodes=nodes, namespace=namespace, values=_values(values), version=driver_version,
        image=image if probe else "", seconds=timeout, registry=registry,
    )  # fmt: skip
    report = run_async(wanted.report(path, kubeconfig, root if host else ""))
    from kgpu.cli.doctor import width
    from kgpu.doctor.preflight import render

    click.echo(render.as_json(report) if output == "json" else render.as_text(report, width()))
    raise click.exceptions.Exit(report.exit_code)


def _check(*, host: bool, probe: bool, path: str, nodes: tuple[str, ...], output: str) -> None:
    """Raises ConfigError for options that exclude each other."""
    given = [word for word, on in (("--host", host), ("--probe", probe), ("--from", bool(path))) if on]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other", "one of them", "leave the others out")
    if host and nodes:
        raise ConfigError("--host is about this machine, and --node names another", "one of the two", "leave one out")
    if output == "facts" and not host:
        raise ConfigError("-o facts is what one machine says of itself", "--host with it", "add --host")


def _values(path: str) -> dict[str, Any]:
    """The chart's values in a file. Raises ConfigError."""
    if not path:
        return {}
    from kgpu.formats import yaml

    with open(path, "rb") as file:
        data = file.read(MAX_VALUES + 1)
    if len(data) > MAX_VALUES:
        raise ConfigError(f"{path} is longer than {MAX_VALUES} bytes", "the chart's values", "correct --values")
    try:
        found = yaml.load(data.decode())
    except (ConfigError, ValueError) as error:
        said = error.what if isinstance(error, ConfigError) else str(error)
        raise ConfigError(f"can't read {path}: {said}", "the chart's values as YAML", "correct the file") from error
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"{path} has no values", "a map such as driver: {version: 580.95.05}", "correct the file")
    return found or {}


async def _facts(root: str) -> str:
    """What this machine says of itself as one line, as the agent's role ``probe`` writes them."""
    from kgpu.cli.doctor import snapshot_of
    from kgpu.doctor import host_facts
    from kgpu.doctor.sources.probed import line

    (facts,) = (await snapshot_of("", "", root)).hosts.values()
    return line(host_facts.encode(facts))


class _Wanted:
    """What one call asks for."""

    def __init__(
        self, *, nodes: tuple[str, ...], namespace: str, values: Mapping[str, Any], version: str, image: str,
        seconds: float, registry: bool,
    ) -> None:  # fmt: skip
        self._nodes, self._namespace, self._values, self._version = nodes, namespace, values, version
        self._image, self._seconds, self._registry = image, seconds, registry

    async def report(self, path: str, kubeconfig: str, root: str) -> PreflightReport:
        """Look, ask and predict. Raises UserError where nothing can be seen."""
        from kgpu.cli.doctor import check_root, snapshot_of
        from kgpu.doctor.preflight.model import PreflightScene
        from kgpu.doctor.preflight.plan import predict

        _say("looking at this machine" if root else "looking at the cluster")
        snapshot = await snapshot_of(path, kubeconfig, root)
        if root:
            check_root(snapshot, root)
            _describe(snapshot)
        _known(snapshot, self._nodes)
        intent, refused = self._intent(snapshot), ""
        if self._image:
            result = await self._probe(snapshot, intent, kubeconfig)
            refused = result.refused
        images = await self._images(snapshot, intent)
        scene = PreflightScene(snapshot=snapshot, intent=intent, images=images, refused=refused)
        return predict(scene, self._nodes)

    def _intent(self, snapshot: Snapshot) -> Intent:
        from kgpu.cli._preflight_intent import intent_of

        return intent_of(snapshot, namespace=self._namespace, values=self._values, version=self._version)

    async def _images(self, snapshot: Snapshot, intent: Intent) -> dict[str, RegistryAnswer]:
        from kgpu.doctor.preflight import registry
        from kgpu.doctor.preflight.plan import looked_at

        names = (node.name for node in looked_at(snapshot, self._nodes))
        choices = (intent.drivers[name] for name in names if name in intent.drivers)
        asked = {choice.image for choice in choices if choice.enabled and choice.image}
        if not self._registry or not asked:
            return {}
        _say(f"asking for {counted(len(asked), 'driver image')}")
        return await registry.ask(sorted(asked))

    async def _probe(self, snapshot: Snapshot, intent: Intent, kubeconfig: str) -> ProbeResult:
        """Look at the nodes' own files; what is seen goes into the snapshot."""
        import asyncio
        import signal

        from kgpu.doctor.preflight import probe
        from kgpu.kube.client import connect
        from kgpu.kube.pod_logs import PodLogs

        nodes = self._nodes or tuple(
            node.name for node in snapshot.nodes.values()
            if node.ready and node.text("status.nodeInfo.operatingSystem") in ("", "linux")
        )  # fmt: skip
        _say(f"looking at {counted(len(nodes), 'node')} with a pod each")
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does, each takes the pods away before it ends us
            asyncio.get_running_loop().add_signal_handler(number, signal.raise_signal, signal.SIGINT)
        api = connect(kubeconfig)
        try:
            settings = probe.ProbeSettings(namespace=intent.namespace, image=self._image, seconds=self._seconds)
            result = await probe.HostProbe(api, PodLogs(api), settings).look(
                nodes, done=lambda node: _say(f"looked at {node}")
            )
        finally:
            await api.close()
        for document in result.facts.values():
            snapshot.add(document)
        for node, why in sorted(result.failed.items()):
            _say(f"node {node} could not be looked at: {why}", always=True)
        for thing, why in sorted(result.left.items()):
            _say(f"{thing} is still in namespace {intent.namespace}, and can be deleted: {why}", always=True)
        return result


def _describe(snapshot: Snapshot) -> None:
    """Let the machine that was looked at be a Node, as its kubelet would describe it."""
    from kgpu.formats import names

    for facts in list(snapshot.hosts.values()):
        system = facts.os_release
        labels = {
            names.NFD_OS_ID: system.get("ID", ""), names.NFD_OS_VERSION: system.get("VERSION_ID", ""),
            names.NFD_KERNEL_FULL: facts.kernel,
        }  # fmt: skip
        info = {
            "kernelVersion": facts.kernel, "osImage": system.get("PRETTY_NAME", ""), "operatingSystem": "linux",
            "architecture": facts.architecture,
        }  # fmt: skip
        metadata = dict(name=facts.node, labels={key: value for key, value in labels.items() if value})  # noqa: C408
        snapshot.add({"kind": "Node", "metadata": metadata, "status": {"nodeInfo": info}})


def _known(snapshot: Snapshot, nodes: tuple[str, ...]) -> None:
    """Raises ConfigError for a node that is not there."""
    for name in nodes:
        if name not in snapshot.nodes:
            near = did_you_mean(name, snapshot.nodes)
            raise ConfigError(
                f"there is no node {name}" + (f"; {near}" if near else ""),
                one_of(name, snapshot.nodes) if snapshot.nodes else "a node",
                "correct --node: kubectl get nodes",
            )


def _say(words: str, *, always: bool = False) -> None:
    """Progress, for people who wait; nothing of it in a pipe or a log, unless it has to be known."""
    import sys

    if always or sys.stderr.isatty():
        click.echo(f"{words}{'' if always else ' …'}", err=True)
