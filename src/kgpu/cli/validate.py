"""``kgpu validate``: the validator's checks by hand, and ``nvidia-validator`` with the replaced program's flags.

Exit code 0 when everything that was asked for passed, 3 when something did not or nothing could be checked.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._common import (
    ExampleCommand,
    GoFlagsCommand,
    output_option,
    print_json,
    root_option,
    run_async,
)
from kgpu.cli._options import help_naming_variables, settled
from kgpu.formats.names import (
    CDI_DIR,
    CDI_STATIC_DIR,
    DRIVER_INSTALL_DIR,
    ENV_METRICS_PORT,
    ENV_NO_DEVICE_LINKS,
    VALIDATIONS_DIR,
)
from kgpu.formats.settings import FlagShape, Setting

if TYPE_CHECKING:
    from kgpu.formats.validation_report import CheckTrouble
    from kgpu.host.root import DriverRoot
    from kgpu.validator.config import ValidatorSettings
    from kgpu.validator.files import Folder
    from kgpu.validator.model import CheckResult, DeviceResult, NodeValidation
    from kgpu.validator.run import ValidatorContext

NOT_PASSED: Final = 3
EXAMPLES: Final = """
kgpu validate
kgpu validate --only driver,cuda --root /run/nvidia/driver
kgpu validate --node-name "$(hostname)" -o json
"""
_COLORS: Final = {"passed": "green", "failed": "red", "skipped": "cyan", "waiting": "yellow"}


@click.command("validate", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--only", multiple=True, metavar="CHECKS", help="Some of: driver, toolkit, cuda, plugin. Default: all.")
@root_option
@click.option("--timeout", type=click.FloatRange(min=0.1, max=3600), default=30.0, show_default=True, metavar="SECONDS",
              help="How long CUDA may take on one device.")  # fmt: skip
@click.option("--cdi-dir", multiple=True, metavar="DIR", help=f"Spec folders. Default: {CDI_STATIC_DIR}, {CDI_DIR}.")
@click.option("--node-name", envvar="NODE_NAME", default="", metavar="NAME", help="This node's name, for plugin.")
@click.option("--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE", help="The API server, for plugin.")
@output_option()
def validate(
    *, only: tuple[str, ...], root: str, timeout: float, cdi_dir: tuple[str, ...], node_name: str, kubeconfig: str,
    output: str,
) -> None:  # fmt: skip
    """Prove that this node can run GPU work: driver, CDI specs, CUDA on every device, resources of the Node.

    Changes nothing. Says for each check what was seen, and for what is wrong what was expected and what to do. Exit
    code 3 when a check did not pass, or when all that were asked for were skipped.
    """
    from kgpu.host.root import DriverRoot
    from kgpu.validator.config import ValidatorSettings, choose_checks

    settings = ValidatorSettings(
        checks=choose_checks(only),
        cdi_dirs=tuple(Path(folder) for folder in cdi_dir or (CDI_STATIC_DIR, CDI_DIR)),
        cuda_seconds=timeout,
    )
    progress = sys.stderr.isatty() and output == "text"
    report = run_async(
        _once(DriverRoot.at(root or "/"), settings, node=node_name, kubeconfig=kubeconfig, progress=progress)
    )
    if output == "json":
        print_json(document(report))
    else:
        click.echo("\n".join(lines(report, color=sys.stdout.isatty())))
    if not _is_good(report):
        raise click.exceptions.Exit(NOT_PASSED)


def _is_good(report: NodeValidation) -> bool:
    """Skipped is fine beside what passed, and proves nothing alone."""
    return report.passed and not report.nothing_checked


async def _once(
    root: DriverRoot, settings: ValidatorSettings, *, node: str, kubeconfig: str, progress: bool
) -> NodeValidation:
    from kgpu.validator.run import validate_once

    printed: set[str] = set()

    def tell(report: NodeValidation) -> None:
        for result in report.results:
            line = f"{result.check}: {result.status}"
            if line not in printed:
                printed.add(line)
                click.echo(line, err=True)

    async with _Context(root, settings, node=node, kubeconfig=kubeconfig) as ctx:
        return await validate_once(ctx, tell if progress else lambda _: None)


class _Context:
    """Opens what a validation needs, and closes it."""

    def __init__(self, root: DriverRoot, settings: ValidatorSettings, *, node: str = "", kubeconfig: str = "") -> None:
        self._root, self._settings, self._node, self._kubeconfig = root, settings, node, kubeconfig
        self._close: list[Any] = []

    async def __aenter__(self) -> ValidatorContext:
        from kgpu.agent.shared_reader import SharedReader
        from kgpu.hw import roots
        from kgpu.hw.open import open_reader
        from kgpu.hw.port import Reader
        from kgpu.validator.cuda import ChildCuda
        from kgpu.validator.publish import NodeObject
        from kgpu.validator.run import ValidatorContext

        root = self._root.files.here

        async def opened() -> Reader:
            return open_reader(driver_root=None if root == Path("/") else root)

        reader = SharedReader(opened)
        self._close.append(reader)
        node = None
        if self._node:
            from kgpu.kube.client import connect

            api = connect(self._kubeconfig)
            self._close.append(api)
            node = NodeObject(api, node=self._node)
        return ValidatorContext(
            reader=reader,
            root=self._root,
            runner=ChildCuda(self._root),
            settings=self._settings,
            report=lambda _: None,
            node=node,
            proc=roots.proc_root(str(root)),
            sys=roots.sys_root(str(root)),
        )

    async def __aexit__(self, *_: object) -> None:
        for thing in reversed(self._close):
            await thing.close()


def lines(report: NodeValidation, *, color: bool) -> list[str]:
    """The report for people."""
    out: list[str] = []
    for result in report.results:
        word = str(result.status) if result.status != "waiting" else "not ready"
        shown = click.style(f"{word:<10}", fg=_COLORS[str(result.status)], bold=True) if color else f"{word:<10}"
        out.append(f"{result.check:<8} {shown} {_said(result)}".rstrip())
        out += _trouble(result.trouble, " " * 20) if _blocked(result) is None else []
        for device in result.devices:
            if device.status != "passed":
                out.append(f"{'':<20}{device.name}: {device.status}" + _reasons(device))
                out += _trouble(device.trouble, " " * 22)
        out += [f"{'':<20}note: {note}" for note in result.notes]
    if report.nothing_checked:
        out.append("nothing was checked: every check that was asked for was skipped")
    elif report.passed:
        computed = any(row.check == "cuda" and row.status == "passed" for row in report.results)
        out.append("Test PASSED" if computed else "passed")
    else:
        out.append(
            "not passed: "
            + ", ".join(str(check_result.check) for check_result in report.results if check_result.status in _OPEN)
        )
    return out


_OPEN: Final = ("failed", "waiting")


def _evidence(result: CheckResult) -> tuple[str, ...]:
    return result.evidence


def _said(result: CheckResult) -> str:
    return _blocked(result) or "; ".join(result.evidence)


def _blocked(result: CheckResult) -> str | None:
    """The line of a check that was not made because of another one."""
    return None if result.status != "waiting" or result.evidence or not result.trouble else result.trouble.what


def _reasons(device: DeviceResult) -> str:
    return f" ({'; '.join(device.evidence)})" if device.evidence else ""


def _trouble(trouble: CheckTrouble | None, indent: str) -> list[str]:
    if trouble is None:
        return []
    rows = (("", trouble.what), ("  expected: ", trouble.expected), ("  to do: ", trouble.remedy))
    return [f"{indent}{label}{text}" for label, text in rows if text]


def document(report: NodeValidation) -> dict[str, Any]:
    """The report as JSON data; a trouble has all of its keys, unlike in the Node's annotation, which is kept short."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(report)
    for result in data["results"]:
        for part in (result, *result["devices"]):
            part["trouble"] = part["trouble"] and {**_NO_TROUBLE, **part["trouble"]}
    return {"passed": _is_good(report), **data}


_NO_TROUBLE: Final = {"what": "", "expected": "", "todo": "", "problem": ""}


# --- the replaced program ---

_row = partial(Setting, metavar="VALUE")
_switch = partial(_row, shape=FlagShape.SWITCH)

PEER_FLAGS: Final = (
    _row(attr="kubeconfig", flag="--kubeconfig", envs=("KUBECONFIG",), help="How to reach the API server."),
    _row(attr="node_name", flag="--node-name", aliases=("-n",), envs=("NODE_NAME",), help="This node's name."),
    _row(attr="namespace", flag="--namespace", aliases=("--ns",), envs=("OPERATOR_NAMESPACE",),
         help="Not needed: no pods are made."),
    _switch(attr="with_wait", flag="--with-wait", aliases=("-w",), envs=("WITH_WAIT",), default="false",
            help="Try until it passes."),
    _switch(attr="with_workload", flag="--with-workload", aliases=("-l",), envs=("WITH_WORKLOAD",), default="true",
            help="false: cuda is not tried."),
    _row(attr="component", flag="--component", aliases=("-c",), envs=("COMPONENT",),
         help="One of: driver, toolkit, cuda, plugin, nvidia-fs, gdrcopy, nvidia-peermem, mofed, metrics."),
    _switch(attr="cleanup_all", flag="--cleanup-all", aliases=("-r",), envs=("CLEANUP_ALL",), default="false",
            help="Remove all status files first."),
    _row(attr="output_dir", flag="--output-dir", aliases=("-o",), envs=("OUTPUT_DIR",), default=VALIDATIONS_DIR,
         help="Where status files are."),
    _row(attr="interval", flag="--sleep-interval-seconds", aliases=("-s",), envs=("SLEEP_INTERVAL_SECONDS",),
         default="5", help="Pause between tries."),
    _row(attr="mig_strategy", flag="--mig-strategy", aliases=("-m",), envs=("MIG_STRATEGY",), default="single",
         help="Not needed: resources are looked at."),
    _row(attr="metrics_port", flag="--metrics-port", aliases=("-p",), envs=(ENV_METRICS_PORT,), default="0",
         help="Where the component metrics listens."),
    _row(attr="workload", flag="--default-gpu-workload-config", aliases=("-g",), envs=("DEFAULT_GPU_WORKLOAD_CONFIG",),
         help="Not needed."),
    _switch(attr="no_links", flag="--disable-dev-char-symlink-creation", envs=(ENV_NO_DEVICE_LINKS,), default="false",
            help="Not needed: no links are made, CDI does without."),
    _row(attr="host_root", flag="--host-root", envs=("HOST_ROOT",), default="/", help="The host's / as seen here."),
    _row(attr="install_dir", flag="--driver-install-dir", envs=("DRIVER_INSTALL_DIR",), default=DRIVER_INSTALL_DIR,
         help="Where a driver container installs, on the host."),
    _row(attr="install_here", flag="--driver-install-dir-ctr-path", envs=("DRIVER_INSTALL_DIR_CTR_PATH",),
         default=DRIVER_INSTALL_DIR, help="The same as seen here."),
    _switch(attr="skip_init", flag="--driver-validation-skip-gpu-init", envs=("DRIVER_VALIDATION_SKIP_GPU_INIT",),
            default="false", help="Not needed."),
)  # fmt: skip
PLUGIN_TRIES: Final = 30
COMPONENTS: Final = "driver, toolkit, cuda, plugin, nvidia-fs, gdrcopy, nvidia-peermem, mofed or metrics"


@click.command("nvidia-validator", cls=GoFlagsCommand, examples="nvidia-validator --component driver --with-wait")
@settled(PEER_FLAGS, text=help_naming_variables)
def peer(**flags: str) -> None:
    """One component's validation, with the flags, variables and status files of the replaced program."""
    component = flags["component"]
    if component == "metrics":
        run_async(_serve_metrics(flags))
        return
    from kgpu.cli import _validate_modules as modules

    modules.refuse_virtual_machines(component, COMPONENTS)
    of_module = component in modules.COMPONENTS
    if not run_async(_peer_module(component, flags) if of_module else _peer(component, flags)):
        raise click.exceptions.Exit(NOT_PASSED)


async def _peer_module(component: str, options: Mapping[str, str]) -> bool:
    from kgpu.cli import _validate_modules as modules

    pause = _number("--sleep-interval-seconds", options["interval"])
    return await modules.validate_module(
        component, os.environ, host_root=Path(options["host_root"]), folder=_folder(options),
        wait=_true(options["with_wait"]), pause=pause,
    )  # fmt: skip


def _folder(options: Mapping[str, str]) -> Folder:
    """The folder of results, emptied if that is asked for."""
    from kgpu.validator.files import Folder

    folder = Folder(Path(options["output_dir"]))
    if _true(options["cleanup_all"]):
        folder.clear()
    return folder


async def _peer(component: str, options: Mapping[str, str]) -> bool:
    from kgpu.host.root import DriverRoot
    from kgpu.validator import files
    from kgpu.validator.config import ValidatorSettings, choose_checks, roots_of
    from kgpu.validator.cuda import path_of
    from kgpu.validator.model import Check
    from kgpu.validator.run import as_error, validate_once

    if not component:
        raise ConfigError("no component is named", COMPONENTS, "give --component")
    (check,) = choose_checks([component])
    if check is Check.PLUGIN and not options["node_name"]:
        raise ConfigError("no node is named", "the name of the Node whose resources to look at", "give --node-name")
    installed = DriverRoot.at(options["install_here"], driver_host=options["install_dir"])
    host_root = Path(options["host_root"])
    root = installed if path_of(installed) else DriverRoot.at(host_root, driver_host="/")
    specs = tuple(host_root / folder.lstrip("/") for folder in (CDI_STATIC_DIR, CDI_DIR))
    settings = ValidatorSettings(checks=(check,), cdi_dirs=specs, host_root=host_root)
    folder = _folder(options)
    folder.apply({files.ready(check): None})
    pause = _number("--sleep-interval-seconds", options["interval"])
    tries = 0
    while True:
        tries += 1
        async with _Context(root, settings, node=options["node_name"], kubeconfig=options["kubeconfig"]) as ctx:
            report = await validate_once(ctx)
        (result,) = report.results
        if check is Check.CUDA and not _true(options["with_workload"]):
            break
        click.echo("\n".join(lines(report, color=False)))
        if result.ready:
            break
        problem = as_error(report)
        folder.apply({files.not_ready(check): f"{result.reason()}\n".encode()})
        again = _true(options["with_wait"]) or (check is Check.PLUGIN and tries < PLUGIN_TRIES)
        if not again:
            return problem is None
        await asyncio.sleep(pause)
    text = files.driver_ready_text(roots_of(root, host_root)) if check is Check.DRIVER else ""
    folder.apply({files.not_ready(check): None, files.ready(check): text.encode()})
    return True


def _true(text: str) -> bool:
    """As Go's flags and the replaced program's environment take it. Raises ConfigError."""
    from kgpu.formats.go_flags import bool_of

    meant = bool_of(text, any_case=True)
    if meant is None:
        raise ConfigError(f"{text!r:.40} is neither true nor false", "true or false", "correct the flag or variable")
    return meant


def _number(flag: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > 86400:
        raise ConfigError(f"{flag} is {text!r:.40}", "a whole number of at most 86400", f"correct {flag}")
    return int(text)


async def _serve_metrics(options: Mapping[str, str]) -> None:
    import signal
    import time

    from kgpu.base.http import Address, Response, StatusServer
    from kgpu.base.supervise import stop_on_signals
    from kgpu.formats.names import METRICS_TYPE
    from kgpu.validator.metrics import look, render

    folder, since = Path(options["output_dir"]), time.time()
    port = _number("--metrics-port", options["metrics_port"])
    if not 0 < port < 65536:
        raise ConfigError("no port to serve metrics on", "1 to 65535", "give --metrics-port (METRICS_PORT)")
    server = StatusServer(
        {"/metrics": lambda: Response(200, render(look(folder, since=since), options["node_name"]), METRICS_TYPE)}
    )
    address = await server.start(Address("", port))
    click.echo(f"metrics at http://{address}/metrics", err=True)
    stop = asyncio.Event()
    with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
        await stop.wait()
    await server.close()
