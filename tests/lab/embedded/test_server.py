"""The server as a process: kept data, a kill in the middle of writes, a second one, data that can't be read."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.lab.embedded.server import reserve
from tests.lab.embedded.served import Server, running, start

MAPS = "/api/v1/namespaces/default/configmaps"


def _writer(server: Server, name: str, acknowledged: dict[str, str]) -> None:
    """Creates objects one after the other until nobody answers, and notes what was acknowledged."""
    number = 0
    while True:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{number}"}}
        try:
            found = server.ask("POST", MAPS, body)
        except (OSError, http.client.HTTPException):
            return
        if found.code == 201:
            acknowledged[f"{name}-{number}"] = found.value["metadata"]["resourceVersion"]
        number += 1


def test_a_kill_in_the_middle_of_writes_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    folder, data = tmp_path / "lab", ("--data", str(tmp_path / "data"))
    noted: dict[str, str] = {}
    for life in range(2):
        with running(folder, *data) as server:
            threads = [threading.Thread(target=_writer, args=(server, f"w{life}{n}", noted)) for n in range(3)]
            for thread in threads:
                thread.start()
            wanted = len(noted) + 60
            while len(noted) < wanted:
                assert any(thread.is_alive() for thread in threads)
                time.sleep(0.01)
            server.kill()
            for thread in threads:
                thread.join()
    newest = max(map(int, noted.values()))
    with running(folder, *data) as server:
        listing = server.ask("GET", MAPS).value
        kept = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in listing["items"]}
        assert {name: kept.get(name) for name in noted} == noted
        assert int(listing["metadata"]["resourceVersion"]) > newest
        stream = server.ask("GET", f"{MAPS}?watch=1&resourceVersion={newest - 1}&timeoutSeconds=2").body
        (line,) = (json.loads(line) for line in stream.splitlines())
        assert (line["type"], line["object"]["code"]) == ("ERROR", 410)
        assert server.stop() == 0
        assert "Traceback" not in server.log


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kgpu.lab.embedded.server", "--dir", str(folder), *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def _is_three_parts(text: str, what: str) -> None:
    assert what in text
    assert "expected:" in text
    assert "to do:" in text
    assert "Traceback" not in text


def test_a_second_server_is_refused_for_the_folder_and_for_the_data(tmp_path: Path) -> None:
    with running(tmp_path / "lab", "--data", str(tmp_path / "data")) as server:
        second = _run(tmp_path / "lab")
        assert second.returncode == 2
        _is_three_parts(second.stderr, "another server already works in")
        second = _run(tmp_path / "other", "--data", str(tmp_path / "data"))
        assert second.returncode == 2
        _is_three_parts(second.stderr, "in use by another cluster")
        port = server.address.rpartition(":")[2]
        second = _run(tmp_path / "other", "--port", port)
        assert second.returncode == 2
        _is_three_parts(second.stderr, f"can't listen on 127.0.0.1:{port}")
        assert server.ask("GET", "/readyz").code == 200


def test_a_port_is_kept_for_the_server_that_is_told_of_it(tmp_path: Path) -> None:
    with reserve("127.0.0.1", 0) as kept:
        port = kept.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", port))
        with running(tmp_path / "lab", "--port", str(port)) as server:
            assert server.address == f"127.0.0.1:{port}"
            with pytest.raises(LabError, match="can't listen"):
                reserve("127.0.0.1", port)


@pytest.mark.parametrize("damage", ["header", "middle"])
def test_damaged_data_is_told_and_left_alone(tmp_path: Path, damage: str) -> None:
    folder, data = tmp_path / "lab", tmp_path / "data"
    server = start(folder, "--data", str(data))
    server.stop()
    kept = data / "cluster.db"
    content = bytearray(kept.read_bytes())
    at = 0 if damage == "header" else len(content) // 2
    content[at : at + 8192] = b"\xff" * min(8192, len(content) - at)
    kept.write_bytes(content)
    found = _run(folder, "--data", str(data))
    assert found.returncode == 2
    _is_three_parts(found.stderr, "can't be read")
    assert kept.read_bytes() == bytes(content)


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    for arguments in (("--event-ttl", "never"), ("--event-ttl", "0"), ("--port", "x"), ("--feature-gates", "DRA=true")):
        assert _run(tmp_path / "lab", *arguments).returncode == 2
