"""``python -m kgpu.lab.embedded.server --dir DIR``: the embedded cluster's one process.

Puts the parts together (store, rules, admission, HTTP, controllers, scheduler) and runs them until SIGTERM, which ends
it at once and cleanly, also with open watches; so does the removal of ``DIR``. A controller that fails is restarted and
never ends the API. In ``DIR``: ``pki/``, ``tokens.csv``, ``kubeconfig`` (the administrator's),
``nodes/kubeconfig`` (for the nodes' host).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgpu.base.errors import LabError, UserError
from kgpu.base.files import write_atomic
from kgpu.lab.embedded import auth, collector, tls, upkeep

if TYPE_CHECKING:
    from kgpu.base.supervise import RoleFunction, RoleHandle
    from kgpu.kube.port import KubeApi
    from kgpu.lab.embedded.core import ApiCore
    from kgpu.lab.embedded.http.app import App
    from kgpu.lab.embedded.usage import UsageApi

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
LOCK_FILE: Final = "server.lock"
ADMIN: Final = "kgpu-lab-admin"
NODE_HOST: Final = "system:node:lab-node-host"
_TOKENS: Final = {ADMIN: ("system:masters",), NODE_HOST: ("system:nodes",)}
_BACKLOG: Final = 1024
_COMPACTION_S: Final = 300.0  # the real server's default (--etcd-compaction-interval)
_STOP_S: Final = 2.0  # for controllers, and for requests that are being answered


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """``data`` is the folder of the journal, None for memory alone; ``port`` 0 picks a free one.

    ``event_ttl``: seconds for which Events are kept. ``gates``: feature gates that are on, of ``kinds.GATES``.
    """

    folder: Path
    name: str = "lab"
    host: str = HOST
    port: int = 0
    data: Path | None = None
    event_ttl: float = 3600.0
    gates: frozenset[str] = frozenset()

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def node_kubeconfig(self) -> Path:
        return self.folder / "nodes" / "kubeconfig"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"


def kubeconfig(*, name: str, server: str, ca: bytes, user: str, token: str) -> str:
    """A kubeconfig with everything in it; JSON, which is YAML."""
    context = f"kgpu-{name}"
    value: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": b64encode(ca).decode()}}
        ],
        "users": [{"name": f"{context}-{user}", "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": f"{context}-{user}"}}],
        "current-context": context,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def write_files(settings: ServerSettings, port: int) -> tls.Pki:
    """Keys, tokens and kubeconfigs. Tokens are kept over restarts. Raises LabError."""
    hosts = () if settings.host in ("", "0.0.0.0", "::") else (settings.host,)
    pki = tls.ensure(settings.folder / "pki", hosts=hosts)
    rows = {row.user: row for row in auth.read_tokens(settings.tokens)}
    if not set(_TOKENS) <= set(rows):
        for user, groups in _TOKENS.items():
            rows.setdefault(user, auth.StaticToken(token=auth.new_token(), user=user, groups=groups))
        auth.write_tokens(settings.tokens, rows.values())
    server = f"https://{url_host(settings.host)}:{port}"
    ca = pki.ca.read_bytes()
    for path, user in ((settings.kubeconfig, ADMIN), (settings.node_kubeconfig, NODE_HOST)):
        text = kubeconfig(name=settings.name, server=server, ca=ca, user=user, token=rows[user].token)
        write_atomic(path, text, mode=0o600)
    return pki


def url_host(host: str) -> str:
    """The host as written in a URL; the loopback for an address that means all."""
    if host in ("", "0.0.0.0", "::"):
        return HOST
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises LabError when the port is taken or not allowed."""
    return _socket(host, port, listening=True)


def reserve(host: str, port: int) -> socket.socket:
    """A socket that reserves a port (0: any free one) for a process that will listen on it while this one is open.

    The system does not give the port to others that request any. Raises LabError when it is in use.
    """
    return _socket(host, port, listening=False)


def _socket(host: str, port: int, *, listening: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol, as asyncio switches off Nagle's delay (40 ms per response) only if it is given.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        if listening:
            sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise LabError(
            f"can't listen on {host}:{port}: {error.strerror or error}",
            "a free port on an address of this machine",
            "choose another with --port, or leave it out to have a free one found",
        ) from error
    return sock


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[upkeep.FileIdentity]:
    """Hold the folder's lock file and yield its identity. Raises LabError when another process holds it."""
    from kgpu.lab import processes

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(processes.holding(path))
        except BlockingIOError:
            text = path.read_bytes()[:200].decode(errors="replace").strip()
            raise LabError(
                f"another server already works in {folder}: {text}",
                "one server for a folder",
                '"kgpu lab down" first, or choose another --name or --dir',
            ) from None
        yield upkeep.FileIdentity.of(os.fstat(descriptor))


@dataclass(slots=True, kw_only=True)
class ServerParts:
    """The parts of a server: ``app`` for HTTP, ``roles`` that run beside it."""

    app: App
    core: ApiCore
    roles: dict[str, RoleFunction]


def assemble(settings: ServerSettings, port: int, pki: tls.Pki) -> ServerParts:
    """Everything but the network. Raises LabError when kept data can't be used."""
    from kgpu.lab.embedded import bootstrap
    from kgpu.lab.embedded.core import ApiCore
    from kgpu.lab.embedded.crd.custom_kinds import CustomKinds
    from kgpu.lab.embedded.http import discovery, metrics, paths, proxy, resources, usage
    from kgpu.lab.embedded.http.app import App
    from kgpu.lab.embedded.http.kubelets import HttpsKubelets
    from kgpu.lab.embedded.journal import Journal
    from kgpu.lab.embedded.kinds import TAINT_RULES_GATE, USAGE_KINDS, Kinds, behind, builtin
    from kgpu.lab.embedded.openapi import OpenApi
    from kgpu.lab.embedded.store import ObjectStore
    from kgpu.lab.embedded.types.admission import chain
    from kgpu.lab.embedded.types.rules import BuiltinRules
    from kgpu.lab.embedded.usage import Meter, UsageApi
    from kgpu.lab.nodes.addresses import loopback
    from kgpu.lab.nodes.listeners import is_pods

    def answers(place: proxy.ProxyTarget, address: str, number: int) -> bool:
        return is_pods(place.uid, nodes / place.node, address, number)

    nodes = settings.node_kubeconfig.parent
    kinds = Kinds((*builtin(), *behind(settings.gates), *USAGE_KINDS))
    store = ObjectStore(Journal.open(settings.data) if settings.data is not None else None)
    custom = CustomKinds(kinds)
    known = auth.Auth(store, tokens=settings.tokens, key=pki.token_key)
    admission = chain()
    core = ApiCore(kinds, store, custom.rules_for(BuiltinRules()), admission, authority=known)
    core.custom = custom
    custom.attach(core)
    for plugin in admission:
        follow = getattr(plugin, "attach", None)
        if follow is not None:
            follow(core)
    bootstrap.run(core, kinds, address=settings.host, port=port)
    counted = metrics.Metrics()
    counted.gauge("apiserver_resource_objects", "resource", lambda: _counts(store, kinds))
    kubelets = HttpsKubelets(pki.kubelet_client)
    node_kind = kinds.need("", "nodes")
    fetch = usage.fetching(kubelets, lambda: [stored.obj for stored in core.list(node_kind, "").items])
    used = UsageApi(core, kinds, Meter(fetch))
    served = resources.HandlerContext(
        core=core, kinds=kinds, metrics=counted, kubelets=kubelets, usage=used,
        programs=proxy.HttpPodPrograms(partial(loopback, nodes=nodes), answers), rules=core.rules, custom=custom,
    )  # fmt: skip
    place = f"{url_host(settings.host)}:{port}"
    others = paths.NonResourcePaths(
        discovery.Discovery(kinds, place), counted, documents=OpenApi(kinds, custom), ready={"etcd": lambda: ""},
        issuer=known, address=place,
    )  # fmt: skip
    roles = _roles(
        core, used, pki.ca.read_text("ascii"), settings, taint_rules=TAINT_RULES_GATE in settings.gates
    )  # fmt: skip
    return ServerParts(app=App(served, known, others), core=core, roles=roles)


def _counts(store: Any, kinds: Any) -> dict[str, int]:
    counts = {
        f"{kind.plural}.{kind.group}".rstrip("."): store.table(kind.key).count("") for kind in kinds if kind.stored
    }
    return {name: count for name, count in counts.items() if count}


def _roles(
    core: ApiCore, used: UsageApi, root_ca: str, settings: ServerSettings, *, taint_rules: bool
) -> dict[str, RoleFunction]:
    from kgpu.lab.embedded.bootstrap import USER
    from kgpu.lab.embedded.core.expiring import Expiring
    from kgpu.lab.embedded.local_api import LocalApi

    def local(manager: str) -> KubeApi:
        return LocalApi(core, USER, manager=manager, usage=used)

    async def controllers(handle: RoleHandle) -> None:
        from kgpu.lab.common import VOLUMES_FOLDER
        from kgpu.lab.embedded.controllers import run

        handle.running()
        volumes = settings.folder / VOLUMES_FOLDER
        await run.run(local("kube-controller-manager"), root_ca=root_ca, taint_rules=taint_rules, volumes=volumes)

    async def scheduler(handle: RoleHandle) -> None:
        from kgpu.lab.embedded.scheduler import run

        handle.running()
        await run.run(local("kube-scheduler"), taint_rules=taint_rules)

    ends = Expiring(core.store, settings.event_ttl)

    async def events(handle: RoleHandle) -> None:
        handle.running()
        await ends.run()

    async def compaction(handle: RoleHandle) -> None:
        handle.running()
        while True:
            await asyncio.sleep(_COMPACTION_S)
            core.store.compact()

    return {"controllers": controllers, "scheduler": scheduler, "events": events, "compaction": compaction}


async def serve(settings: ServerSettings, held: upkeep.FileIdentity) -> None:
    """Run until SIGTERM or SIGINT, or the lock file is no longer ``held``. Raises LabError when it can't begin."""
    from kgpu.base.log import log_advice
    from kgpu.base.supervise import Supervisor, stop_on_signals
    from kgpu.lab.embedded.http import serving

    descriptors = serving.raise_descriptor_limit()
    with listen(settings.host, settings.port) as sock:
        port = sock.getsockname()[1]
        pki = write_files(settings, port)
        cluster = assemble(settings, port, pki)
        stop = asyncio.Event()
        supervisor = Supervisor(on_advice=lambda advice: log_advice(log, advice))
        server = serving.server(cluster.app, pki, descriptors=descriptors, stop_s=_STOP_S)
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT), collector.small_steps():
            running = asyncio.create_task(server.serve(sockets=[sock]))
            log.info("serving on https://%s:%d", url_host(settings.host), port)
            for name, function in (cluster.roles | _upkeep(settings, held, stop)).items():
                supervisor.start(name, function)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            log.info("stopping")
            stopping.cancel()
            await supervisor.stop(_STOP_S)
            cluster.app.end_streams()
            server.should_exit = True
            await running
            await cluster.app.close()
            cluster.core.close()


def _upkeep(settings: ServerSettings, held: upkeep.FileIdentity, stop: asyncio.Event) -> dict[str, RoleFunction]:
    """The roles that maintain the process itself."""

    async def garbage(handle: RoleHandle) -> None:
        handle.running()
        await collector.run()

    async def folder(handle: RoleHandle) -> None:
        handle.running()
        await upkeep.until_gone(settings.folder / LOCK_FILE, held)
        log.warning("%s is gone: nobody can reach this server any more", settings.folder / LOCK_FILE)
        stop.set()
        await asyncio.Event().wait()

    async def own_log(handle: RoleHandle) -> None:
        handle.running()
        await upkeep.bound_log(settings.folder / upkeep.LOG)

    return {"collector": garbage, "folder": folder, "log": own_log}


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _gates(text: str) -> frozenset[str]:
    """The gates that are on. Raises ValueError for one that changes nothing here."""
    from kgpu.lab.embedded.kinds import GATES

    rows = [part.partition("=") for part in text.split(",") if part]
    if any(name not in GATES or value not in ("true", "false") for name, _, value in rows):
        raise ValueError(text)
    return frozenset(name for name, _, value in rows if value == "true")


def main() -> int:
    """Parse the command line and run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kgpu.lab.embedded.server", description="The embedded cluster.")
    parser.add_argument("--dir", required=True, type=Path, help="the lab's folder")
    parser.add_argument("--name", default="lab", help="the lab's name, as the kubeconfig has it")
    parser.add_argument("--host", default=HOST, help="address to listen on (default: loopback)")
    parser.add_argument("--port", default=0, type=int, help="port to listen on (default: a free one)")
    parser.add_argument("--data", type=Path, help="keep the cluster's objects in this folder")
    parser.add_argument("--event-ttl", default=3600.0, type=_seconds, help="seconds to keep Events (default: 3600)")
    parser.add_argument("--feature-gates", default=(), type=_gates, help="GATE=true,...: what is off by default")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    arguments = parser.parse_args()
    from kgpu.base.log import configure

    configure(level=arguments.log_level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    upkeep.spare_log()
    settings = ServerSettings(
        folder=arguments.dir.absolute(), name=arguments.name, host=arguments.host, port=arguments.port,
        data=arguments.data.absolute() if arguments.data else None, event_ttl=arguments.event_ttl,
        gates=frozenset(arguments.feature_gates),
    )  # fmt: skip
    os.umask(0o077)
    try:
        with only_one(settings.folder) as held:
            asyncio.run(serve(settings, held))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"{settings.folder}: {error}\n  expected: a folder that can be written\n  to do: check it\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
