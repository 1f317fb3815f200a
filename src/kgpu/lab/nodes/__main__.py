"""``python -m kgpu.lab.nodes --dir DIR --kubeconfig FILE [--address IP]``: the host process of simulated nodes."""

from __future__ import annotations

import argparse
import asyncio
import base64
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from kgpu.base.errors import ConfigError, UserError
from kgpu.base.log import configure


def ca_of(kubeconfig: Path) -> bytes:
    """The cluster's CA certificate (PEM) as the kubeconfig has it. Raises ConfigError."""
    import yaml

    try:
        data = yaml.safe_load(kubeconfig.read_text())
        name = next(c["context"]["cluster"] for c in data["contexts"] if c["name"] == data["current-context"])
        cluster = next(c["cluster"] for c in data["clusters"] if c["name"] == name)
        if "certificate-authority-data" in cluster:
            return base64.b64decode(cluster["certificate-authority-data"])
        if "certificate-authority" in cluster:
            found: bytes = (kubeconfig.parent / cluster["certificate-authority"]).read_bytes()
            return found
    except (OSError, yaml.YAMLError, LookupError, TypeError, StopIteration, ValueError) as error:
        raise ConfigError(
            f"{kubeconfig} can't be used: {type(error).__name__}: {error}", "a kubeconfig with a current context",
            "give another --kubeconfig",
        ) from error  # fmt: skip
    return b""


async def serve(arguments: argparse.Namespace) -> None:
    """Host the nodes until SIGTERM or SIGINT."""
    from kgpu.lab.nodes.host import NodeHost
    from kgpu.lab.nodes.wire import connect

    kubeconfig, folder = Path(arguments.kubeconfig), Path(arguments.dir)
    api = connect(kubeconfig)
    host = NodeHost(folder, api, kubeconfig, address=arguments.address, ca=ca_of(kubeconfig), mode=arguments.containers)
    task = asyncio.create_task(host.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("stopped")
    finally:
        await api.close()


def main() -> int:
    """Parse, run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kgpu.lab.nodes", description=__doc__)
    parser.add_argument("--dir", required=True, help="the folder with a folder for each node")
    parser.add_argument("--kubeconfig", required=True, help="how to reach the API server")
    parser.add_argument("--address", default="127.0.0.1", help="where the API server reaches this host")
    parser.add_argument(
        "--containers", default="", choices=("", "namespaces", "plain"), help="how containers see the file system"
    )
    parser.add_argument("--log-level", default="info")
    arguments = parser.parse_args()
    configure(level=arguments.log_level, form="text")
    if arguments.log_level == "info":  # each of a thousand agents would tell its whole configuration
        logging.getLogger("kgpu.deviceplugin").setLevel(logging.WARNING)
    _raise_limits()
    try:
        Path(arguments.dir).mkdir(parents=True, exist_ok=True)
        asyncio.run(serve(arguments))
    except (UserError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _raise_limits() -> None:
    """Sockets of a thousand nodes are thousands of descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
