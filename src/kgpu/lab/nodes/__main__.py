"""``python -m kgpu.lab.nodes --dir DIR --kubeconfig FILE [--address IP]``: the host process of simulated nodes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from kgpu.base.errors import UserError
from kgpu.base.log import configure
from kgpu.lab.nodes import apiserver


async def serve(arguments: argparse.Namespace) -> None:
    """Host the nodes until SIGTERM or SIGINT."""
    from kgpu.kube.client import connect
    from kgpu.lab.nodes.host import NodeHost

    kubeconfig, folder = Path(arguments.kubeconfig), Path(arguments.dir)
    api = connect(str(kubeconfig))
    server = apiserver.read(kubeconfig)
    host = NodeHost(
        folder, api, kubeconfig, address=arguments.address, ca=server.ca, mode=arguments.containers,
        service_env=apiserver.environment(server.url),
    )  # fmt: skip
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
