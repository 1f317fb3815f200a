"""A small world for a real Prometheus: simulated nodes whose agents and exporters it scrapes as kgpu's ServiceMonitor says.

The ServiceMonitor and the rules are those that the operator renders. ``shortened`` is the only thing that is done to
rules: their times are divided, so that an hour is a few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import http.server
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kgpu.cli.main import main
from kgpu.formats import yaml
from kgpu.kubelet.model import DeviceState
from kgpu.lab.nodes.podresources import PodResourcesServer
from kgpu.monitoring.rules import adjusted
from kgpu.operator.model import Monitoring, ObservedCluster
from kgpu.operator.openshift import OpenShift
from tests import polling
from tests.operator.objects.scenes import MONITORING, SETTINGS, Case, policy
from tests.ports import free_port

Object = dict[str, Any]
FACTOR: Final = 600
SHORTEST_RANGE_S: Final = 4
DEADLINE_S: Final = 180.0
_TIME: Final = re.compile(r"(\d+)(ms|[smhd])")
_RANGE: Final = re.compile(r"\[(\d+)([smhd])\]")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS: Final = {"sourceLabels": "source_labels", "targetLabel": "target_label"}


def rendered() -> tuple[Object, ...]:
    """What the operator makes where there is the Prometheus operator, with metrics of everything."""
    monitor = "serviceMonitor: {enabled: true, interval: 15s}"
    spec = (
        "driver: {enabled: false}\nnodeStatusExporter: {enabled: true}\n"
        f"dcgmExporter: {{{monitor}}}\noperator: {{metrics: {{{monitor}}}}}"
    )
    # Nobody waits three minutes here.
    monitoring = Monitoring(alerts=adjusted({"GPUMetricsStale": {"threshold": 4}}))
    settings = dataclasses.replace(SETTINGS, monitoring=monitoring, usage=True)
    observed = ObservedCluster(kinds=MONITORING, openshift=OpenShift())  # there are alerts that only OpenShift has
    return Case(policy=policy(spec), settings=settings, observed=observed).rendered().objects


def shortened(groups: list[Object]) -> list[Object]:
    """The groups with every ``for`` and every range divided by ``FACTOR``; ranges keep room for a few samples."""

    def seconds(text: str) -> float:
        return sum(int(count) * _SECONDS[unit] for count, unit in _TIME.findall(text)) / FACTOR

    found = copy.deepcopy(groups)
    for group in found:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = f"{int(seconds(rule['for']) * 1000)}ms"
            rule["expr"] = _RANGE.sub(
                lambda match: f"[{max(SHORTEST_RANGE_S, int(seconds(match[1] + match[2])))}s]", rule["expr"]
            )
    return found


def until(what: str, true: Callable[[], object], *, seconds: float = DEADLINE_S) -> None:
    """Wait for a condition."""
    assert polling.holds(true, seconds=seconds, pause=0.25), f"not within {seconds:g} s: {what}"


def kgpu(*words: str) -> str:
    """What ``kgpu WORDS`` prints; fails when it does. It is run within this process: to start one takes longer."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["kgpu", *words])
    assert code == 0, f"{words}: {code}\n{out.getvalue()}"
    return out.getvalue()


class Kubelet:
    """The pod-resources API of one node, in a thread of its own."""

    def __init__(self, folder: Path, held: Mapping[tuple[str, str, str], Mapping[str, tuple[str, ...]]]) -> None:
        self._held = held
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        pods = [
            {"metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"},
             "spec": {"containers": [{"name": container}]}}
            for namespace, name, container in held
        ]  # fmt: skip
        self._server = PodResourcesServer(folder, self, lambda: pods)
        self.socket = self._server.socket
        self.start()

    def held(self) -> Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]]:
        return {(f"{namespace}-{name}", container): of for (namespace, name, container), of in self._held.items()}

    def devices(self, resource: str) -> tuple[DeviceState, ...]:
        return tuple(DeviceState(id=one) for of in self._held.values() for one in of.get(resource, ()))

    def resources(self) -> tuple[str, ...]:
        return tuple({resource for of in self._held.values() for resource in of})

    def start(self) -> None:
        self._run(self._server.start())

    def stop(self) -> None:
        self._run(self._server.stop())
        self.socket.unlink(missing_ok=True)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


@dataclass
class Node:
    """A simulated node: its driver root, and the program that serves its metrics."""

    name: str
    folder: Path
    root: Path
    port: int
    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def hw(self, *words: str) -> None:
        kgpu("lab", "hw", *words[:1], "--root", str(self.root), *words[1:])

    @property
    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    def serves(self) -> bool:
        try:
            return "kgpu_gpu_up{" in self.metrics
        except OSError:
            return False

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "NODE_NAME": self.name,
            "KGPU_ROOT": str(self.root),
            "KGPU_HOST_ROOT": str(self.folder / "host"),
            "KGPU_RUN_DIR": str(self.folder / "run"),
            "STATE_DIR": str(self.folder / "state"),
            "DCGM_EXPORTER_LISTEN": f"127.0.0.1:{self.port}",
            "DCGM_EXPORTER_INTERVAL": "500",
            "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE": "6000",
            **self.env,
        }

    def kgpu(self, *words: str) -> None:
        """Run ``kgpu WORDS`` as on this node."""
        done = subprocess.run(
            [sys.executable, "-m", "kgpu", *words], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def start(self, *more: str) -> None:
        (self.folder / "host").mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            words = [sys.executable, "-m", "kgpu", *self.words, *more]
            self.process = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)

    def begun(self) -> bool:
        """Whether it serves, where it is expected to; fails at once when it has ended instead."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} has ended:\n{(self.folder / 'log').read_text()[-2000:]}"
        return self.serves()

    def end_children(self) -> None:
        """Kill what the program has started: the process that talks to the driver."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert children
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


class Pages:
    """Metrics pages whose text is whatever it is set to, or is made at that moment, by path."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.texts: dict[str, str | Callable[[], str]] = {}
        pages = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told = pages.texts.get(self.path, "")
                text = (told if isinstance(told, str) else told()).encode()
                self.send_response(200)
                json_like = text.startswith(b"[")
                self.send_header("Content-Type", "application/json" if json_like else "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(text)))
                # Whoever asks may have given up. A traceback from this thread, while pytest makes another one, ends
                # pytest itself: Python 3.11 can't parse in two threads at once (cpython issue 106905).
                with contextlib.suppress(ConnectionError):
                    self.end_headers()
                    self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((host, 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Prometheus:
    """A running Prometheus; with ``before`` the program that starts it, and ``host`` where it is reached then. ``more``
    are further flags.
    """

    def __init__(
        self, program: Path, folder: Path, config: Object, *, host: str = "127.0.0.1", before: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.address = f"{host}:{free_port()}"
        file = folder / "prometheus.yaml"
        file.write_text(yaml.dump(config))
        words = [
            *before, str(program), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}", "--log.level=warn", *more,
        ]  # fmt: skip
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()[:500]}") from error

    def query(self, expr: str) -> list[Object]:
        found: list[Object] = self.get("query", query=expr)["result"]
        return found

    def ready(self) -> bool:
        """Whether it answers questions. It listens before it can: until then it refuses them with 503."""
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=60):
                return True
        except OSError:
            return False

    def firing(self) -> set[str]:
        """Alerts that fire now, each with where it does."""
        return {
            " ".join(filter(None, (one["labels"].get(name, "") for name in ("alertname", "node", "gpu", "GPU_I_ID"))))
            for one in self.get("alerts")["alerts"]
            if one["state"] == "firing"
        }

    def fired(self, within: str = "10m") -> set[str]:
        """Names of alerts that fire or have fired."""
        expr = f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{within}]))'
        return {one["metric"]["alertname"] for one in self.query(expr)}

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def scrape_config(monitor: Object, targets: Mapping[str, tuple[str, str]]) -> Object:
    """What the Prometheus operator makes of a ServiceMonitor. ``targets``: by node its address and its pod's name."""
    deploy = "__meta_kubernetes_node_label_nvidia_com_gpu_deploy_"
    return {
        **_scraped(monitor),
        "static_configs": [
            {
                "targets": [address],
                "labels": {
                    "__meta_kubernetes_namespace": "gpu-operator",
                    "__meta_kubernetes_pod_name": pod,
                    "__meta_kubernetes_pod_container_name": "agent",
                    "__meta_kubernetes_pod_node_name": node,
                    "__meta_kubernetes_service_label_app": monitor["metadata"]["name"],
                    **{
                        f"{deploy}{name}": "true"
                        for name in ("dcgm_exporter", "node_status_exporter", "operator_validator")
                    },
                },
            }
            for node, (address, pod) in targets.items()
        ],
    }


def discovering(monitor: Object, url: str) -> Object:
    """The same where there is a cluster: ``url`` answers with what there is, see ``discovery``."""
    (endpoint,) = monitor["spec"]["endpoints"]
    keep: list[Object] = [
        {"action": "keep", "source_labels": [f"__meta_kubernetes_service_label_{label}"], "regex": value}
        for label, value in monitor["spec"]["selector"]["matchLabels"].items()
    ]
    keep.append(
        {"action": "keep", "source_labels": ["__meta_kubernetes_endpoint_port_name"], "regex": endpoint["port"]}
    )
    made = _scraped(monitor)
    return {
        **made,
        "relabel_configs": [*keep, *made["relabel_configs"]],
        "http_sd_configs": [{"url": url, "refresh_interval": "1s"}],
    }


def _scraped(monitor: Object) -> Object:
    """Everything but where the targets are."""
    (endpoint,) = monitor["spec"]["endpoints"]
    of_operator: list[Object] = [
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": [f"__meta_kubernetes_service_label_{monitor['spec']['jobLabel']}"], "target_label": "job"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]
    return {
        "job_name": monitor["metadata"]["name"],
        "scrape_interval": "500ms",
        "scrape_timeout": "450ms",
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint.get("honorLabels", False),
        "relabel_configs": [*of_operator, *map(_step, endpoint.get("relabelings", ()))],
        "metric_relabel_configs": [*map(_step, endpoint.get("metricRelabelings", ()))],
    }


def _step(step: Object) -> Object:
    return {_WORDS.get(key, key): value for key, value in step.items()}


@contextlib.contextmanager
def closing(*things: Any) -> Iterator[None]:
    """``close`` or ``stop`` of each, whatever happens."""
    try:
        yield
    finally:
        for thing in things:
            (getattr(thing, "close", None) or thing.stop)()
