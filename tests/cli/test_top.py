"""``kgpu top`` on the command line: one look, JSON, sources, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from kgpu.cli import top as module
from kgpu.cli.main import main
from tests.top.exporting import node_text

GPUSTAT = {
    "index", "uuid", "name", "temperature.gpu", "fan.speed", "utilization.gpu", "utilization.enc", "utilization.dec",
    "power.draw", "enforced.power.limit", "memory.used", "memory.total", "processes",
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    text = node_text("n", 2)

    def do_GET(self) -> None:
        wanted = self.server.wanted  # type: ignore[attr-defined]
        raw = self.text.encode()
        self.send_response(200 if self.headers.get("Authorization") == wanted else 401)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.wanted = None  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(*words: str) -> str:
    done = CliRunner().invoke(module.top, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def named(server: ThreadingHTTPServer) -> str:
    return f"gpu-a=127.0.0.1:{server.server_port}"


def test_json_has_gpustats_keys_and_what_is_not_known_is_null(exporter) -> None:
    found = json.loads(run("--exporter", named(exporter), "-o", "json"))
    assert found["version"] == 1
    (node,) = found["nodes"]
    assert (node["hostname"], node["driver_version"], node["problem"]) == ("gpu-a", "570.133.20", None)
    first, second = node["gpus"]
    assert set(first) >= GPUSTAT
    assert (first["memory.used"], first["memory.total"], first["power.draw"]) == (40_000, 80_500, 300.5)
    assert first["fan.speed"] is None
    assert first["pods"] == [{"namespace": "ml", "pod": "train-0", "container": "main", "gpu_memory_usage": None}]
    assert second["pods"] == []
    assert found["total"]["gpus.used"] == 1


def test_the_filter_sort_and_namespace_hold_for_json_too(exporter) -> None:
    def uuids(*words: str) -> list[str]:
        found = json.loads(run("--exporter", named(exporter), "-o", "json", *words))
        return [gpu["uuid"] for node in found["nodes"] for gpu in node["gpus"]]

    assert uuids("--reverse") == ["GPU-n-1", "GPU-n-0"]
    assert uuids("--filter", "train") == ["GPU-n-0"]
    assert uuids("-n", "ml") == ["GPU-n-0"]
    assert uuids("-n", "web") == []


def test_one_look_as_text_where_the_output_is_no_terminal(exporter) -> None:
    text = run("--exporter", named(exporter))
    assert "1 node  2 GPUs, 1 in use  1 pod" in text
    assert "ml/train-0" in text
    assert "\x1b" not in text
    assert "IDLE" not in text


def test_an_exporter_that_is_away_is_a_line_and_the_other_is_shown(exporter) -> None:
    text = run("--exporter", named(exporter), "--exporter", "b=127.0.0.1:9")
    assert "! b: the exporter does not answer" in text
    assert "2 nodes (1 silent)" in text


def test_basic_authentication_by_file(exporter, tmp_path) -> None:
    exporter.wanted = "Basic bWU6aHVzaA=="
    file = tmp_path / "auth"
    file.write_text("me:hush\n")
    assert "2 GPUs" in run("--exporter", named(exporter), "--auth-file", str(file))
    assert "--auth-file" in run("--exporter", named(exporter))


def test_this_nodes_gpus(sim_root) -> None:
    found = json.loads(run("--root", str(sim_root("l4", gpus=2)), "-o", "json"))
    (node,) = found["nodes"]
    assert [gpu["name"] for gpu in node["gpus"]] == ["NVIDIA L4", "NVIDIA L4"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "memry"], "memory"),
        (["--exporter", "ftp://x"], "no exporter's address"),
        (["--host", "--exporter", "x"], "two different sources"),
        (["--exporter-namespace", ""], "no namespace"),
        (["--exporter-namespace", "a/../b"], "no namespace"),
        (["--exporter-namespace", "a", "--host"], "--exporter-namespace"),
        (["--kubeconfig", "/nonexistent"], "/nonexistent"),
        (["--interval", "0"], "interval"),
        (["--view", "x"], "view"),
        (["--exporter", "h", "--auth-file", "/nonexistent"], "/nonexistent"),
        (["--exporter", "h", "--ca-file", "/dev/null"], "/dev/null"),
        (["--root", "/nonexistent"], "for the cluster's GPUs leave --root out"),
        (["--host", "--root", "/nonexistent"], "for the cluster's GPUs leave --host out"),
    ],
)
def test_wrong_words_are_explained(words, said, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["kgpu", "top", "--once", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "to do:" in told


def test_without_a_cluster_the_other_sources_are_named(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main(["kgpu", "top"]) == 2
    assert "--host" in capsys.readouterr().err
