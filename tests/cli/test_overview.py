"""``kgpu overview`` as a program: it prints a link, serves, and ends when it is told to."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kgpu.cli.main import cli, main
from tests.child import child
from tests.overview.making import Outline
from tests.polling import holds
from tests.ports import free_port
from tests.top.exporting import kubeconfig


@contextlib.contextmanager
def cluster(tmp_path, nodes: int = 2) -> Iterator[str]:
    """An API server with exporters; yields the kubeconfig's path."""
    words = [sys.executable, "-m", "tests.top.exporting", str(nodes), "8", "odd"]
    with child(words, stdout=subprocess.PIPE, text=True) as api:
        assert api.stdout is not None
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(f"http://127.0.0.1:{api.stdout.readline().strip()}"))
        yield str(path)


def fetch(port: int, path: str, cookie: str = "") -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_the_cluster_until_it_is_told_to_end(tmp_path, number) -> None:
    with cluster(tmp_path) as path:
        words = [sys.executable, "-m", "kgpu", "overview", "--kubeconfig", path]
        with child(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as page:
            assert page.stdout is not None
            link = page.stdout.readline().strip()
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/\?token=[\w-]+)", link)
            assert found, page.communicate(timeout=300)
            port = int(found[1])
            answer, _ = fetch(port, found[2])
            cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]

            html = ""

            def whole() -> bool:
                nonlocal html
                _, html = fetch(port, "/", cookie)
                # What is said of the cluster may name nodes before these have been read.
                known = all(word in html for word in ("node-1", "odd", "broken: "))
                return known and "GPUs 17 on 4 nodes" in Outline(html).text

            assert holds(whole, seconds=300), html
            outline = Outline(html)
            # That API server says nothing of rights, so nobody may see a pod; what they hold is counted.
            assert "held 9" in outline.text
            assert not [name for name in ("train-", "모델", "학습팀", "\x1b") if name in html]
            page.send_signal(number)
            _, said = page.communicate(timeout=300)
            assert page.returncode in {0, 130}
            assert "Traceback" not in said


def test_a_port_that_is_taken_is_told(tmp_path) -> None:
    with cluster(tmp_path, 1) as path:
        port = (tmp_path / "kubeconfig").read_text().partition("127.0.0.1:")[2].partition('"')[0]
        words = [sys.executable, "-m", "kgpu", "overview", "--kubeconfig", path, "--port", port]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 2
        assert "can't listen on 127.0.0.1" in done.stderr
        assert done.stdout == ""


def test_a_lab_that_is_not_up_and_a_file_that_is_not_there_are_told(tmp_path, capsys) -> None:
    assert main(["kgpu", "overview", "--lab", "none", "--lab-dir", str(tmp_path / "none")]) == 2
    assert 'there is no running lab "none"' in capsys.readouterr().err
    assert main(["kgpu", "overview", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_help_says_what_it_serves_and_to_whom() -> None:
    said = CliRunner().invoke(cli, ["overview", "--help"]).output
    assert "kgpu overview --lab lab" in said
    assert "only --lab has" in " ".join(said.split())


def test_in_the_cluster_it_is_for_whoever_has_a_token(tmp_path) -> None:
    with cluster(tmp_path) as path:
        page, health = free_port(), free_port()
        addresses = (f"--bind-address=127.0.0.1:{page}", f"--health-probe-bind-address=127.0.0.1:{health}")
        words = ("operator", "overview", "--kubeconfig", path, "-n", "gpu-operator", *addresses)
        with child([sys.executable, "-m", "kgpu", *words], stderr=subprocess.PIPE, text=True) as host:

            def answers() -> bool:
                with contextlib.suppress(OSError):
                    return fetch(health, "/readyz")[0].status == 200
                return False

            assert holds(answers, seconds=300)
            answer, html = fetch(page, "/")
            assert (answer.status, 'action="sign-in"' in html) == (401, True)
            assert fetch(page, "/?token=x")[0].status == 401, "a link is no token"
            assert fetch(page, "/style.css")[0].status == 200
            host.send_signal(signal.SIGTERM)
            assert host.wait(300) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bind-address", "x"), "correct --bind-address"), (("--doctor", "maybe"), "correct --doctor"),
        (("--idle", "2"), "correct --idle"), (("--through-api-server", "x"), "correct --through-api-server"),
        (("-n", ""), "set --namespace"),
    ],
)  # fmt: skip
def test_a_wrong_option_in_the_cluster_is_told(words, said, capsys, tmp_path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(kubeconfig("http://127.0.0.1:1"))
    given = ("kgpu", "operator", "overview", "--kubeconfig", str(config), "-n", "gpu-operator")
    assert main([*given, *words]) != 0
    assert said in capsys.readouterr().err
