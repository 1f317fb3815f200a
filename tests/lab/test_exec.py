"""``kubectl exec`` and ``cp`` on the embedded lab, with the real kubectl."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgpu.lab import processes
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import container_processes, host_folder, manage
from tests.lab import asking
from tests.polling import holds

pytestmark = pytest.mark.timeout(600)
WAIT_S = 300.0
OWN = os.getpid()
"""Ends the words by which commands are found among the machine's processes: others may run these tests, too."""
MEGABYTES = bytes(range(256)) * 4096 * 10
NVIDIA_SMI = {"limits": {"nvidia.com/gpu": 1}}


def pod(name: str, *containers: dict, **spec: object) -> dict:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": list(containers), **spec},
    }  # fmt: skip


def cuda(name: str = "c", **about: object) -> dict:
    script = "sleep 3600 & wait"
    return {"name": name, "image": "nvidia/cuda:12.4.1-base-ubuntu22.04", "command": ["sh", "-c", script], **about}


def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds."""
    assert holds(condition, seconds=WAIT_S)


class Pods:
    """Pods of the lab, and commands in them."""

    def __init__(self, lab: EmbeddedLab, kubectl: str) -> None:
        self.lab = lab
        self.program = kubectl
        self.environment = {**os.environ, "KUBECONFIG": str(lab.kubeconfig)}

    def apply(self, *objects: dict) -> None:
        together = {"kind": "List", "apiVersion": "v1", "items": objects}
        made = self.lab.kubectl_run("apply", "-f", "-", stdin=json.dumps(together))
        assert made.returncode == 0, made.stderr

    def make(self, *objects: dict) -> None:
        """Pods, which run when this returns."""
        self.apply(*objects)
        until(lambda: all(self.status(obj["metadata"]["name"]).get("phase") == "Running" for obj in objects))

    def status(self, name: str) -> dict:
        return asking.get(self.lab.kubeconfig, "pod", name)["status"]

    def remove(self, *names: str) -> None:
        self.lab.kubectl_run("delete", "pod", "--wait=false", "--ignore-not-found", *names)

    def exec(self, name: str, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        options = ("-i",) if stdin is not None else ()
        return self.run("exec", *options, name, "--", *words, stdin=stdin)

    def run(
        self, *words: str, stdin: bytes | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self.program, *words], env=self.environment, input=stdin, capture_output=True, check=False, timeout=300,
            cwd=cwd,
        )  # fmt: skip

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.program, *words], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture(scope="module")
def pods(embedded: EmbeddedLab, kubectl: str) -> Iterator[Pods]:
    made = Pods(embedded, kubectl)
    unknown = [{"name": name, "image": "nginx"} for name in ("one", "two")]
    made.make(pod("exec-gpu", cuda(resources=NVIDIA_SMI)), pod("exec-web", *unknown))
    yield made
    made.remove("exec-gpu", "exec-web")


def alive(marker: str, program: bytes = b"sleep") -> list[int]:
    """The processes of a program that was called with the word."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if marker.encode() in words[1:] and program in words[0] and container_processes.is_alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def test_nvidia_smi_shows_the_gpu_of_the_pod(pods: Pods) -> None:
    done = pods.exec("exec-gpu", "nvidia-smi", "-L")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"GPU 0: NVIDIA H100")
    assert done.stdout.count(b"\n") == 1


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("echo out; echo err >&2", 0, ""),
        ("echo out; echo err >&2; exit 3", 3, "command terminated with exit code 3"),
        ("echo out; echo err >&2; kill -9 $$", 137, "command terminated with exit code 137"),
        ("echo out; echo err >&2; kill -15 $$", 143, "command terminated with exit code 143"),
        ("echo out; echo err >&2; nosuch-program 2>/dev/null", 127, "command terminated with exit code 127"),
    ],
)
def test_output_errors_and_exit_code(pods: Pods, script: str, code: int, words: str) -> None:
    done = pods.exec("exec-gpu", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (code, b"out\n")
    assert done.stderr.decode().split("\n")[:2] == ["err", words]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("exec-gpu", "--", "nosuch"), 'unable to start container process: exec: "nosuch": executable file not found in $PATH: unknown'),
        (("exec-gpu", "--", "/no/such"), 'exec: "/no/such": stat /no/such: no such file or directory: unknown'),
        (("exec-gpu", "--", "/etc/passwd"), 'exec: "/etc/passwd": permission denied: unknown'),
        (("exec-gpu", "-c", "none", "--", "ls"), "container none is not valid for pod exec-gpu"),
        (("none", "--", "ls"), 'pods "none" not found'),
        (("exec-web", "-c", "two", "--", "ls"), "executable file not found in $PATH (nginx: the lab does not know this image; a stand-in runs in its place): unknown"),
    ],
)  # fmt: skip
def test_what_can_not_be_run_is_told(pods: Pods, words: Sequence[str], message: str) -> None:
    done = pods.run("exec", *words)
    assert done.returncode == 1
    assert message in done.stderr.decode()


def test_pods_that_do_not_run_are_told(pods: Pods) -> None:
    ended = pod("exec-ended", cuda(command=["true"]))
    waiting = pod("exec-waiting", cuda(), nodeSelector={"no": "where"})
    pods.apply(ended, waiting)
    try:
        until(lambda: pods.status("exec-ended").get("phase") == "Succeeded")
        done = pods.exec("exec-ended", "ls")
        assert (done.returncode, b"cannot exec into a container in a completed pod" in done.stderr) == (1, True)
        done = pods.exec("exec-waiting", "ls")
        assert (done.returncode, b"pod exec-waiting does not have a host assigned" in done.stderr) == (1, True)
    finally:
        pods.remove("exec-ended", "exec-waiting")


def test_a_container_that_has_ended_is_not_found(pods: Pods) -> None:
    pods.make(pod("exec-half", cuda(), cuda("over", command=["true"])))
    try:

        def ended() -> bool:
            rows = pods.status("exec-half")["containerStatuses"]
            return any("terminated" in row["state"] for row in rows)

        until(ended)
        done = pods.run("exec", "exec-half", "-c", "over", "--", "ls")
        assert done.returncode == 1
        assert 'unable to upgrade connection: container not found ("over")' in done.stderr.decode()
    finally:
        pods.remove("exec-half")


def test_input_is_passed_and_ends(pods: Pods) -> None:
    done = pods.exec("exec-gpu", "sh", "-c", 'read line; echo "[$line]"; cat | wc -c', stdin=b"first\nrest")
    assert (done.returncode, done.stdout) == (0, b"[first]\n4\n")


def test_ten_megabytes_go_both_ways_unspoiled(pods: Pods) -> None:
    done = pods.exec("exec-gpu", "cat", stdin=MEGABYTES)
    assert (done.returncode, len(done.stdout), done.stdout == MEGABYTES) == (0, len(MEGABYTES), True)


def test_a_reader_that_is_slow_slows_the_command_down(pods: Pods) -> None:
    mark = f"98762{OWN}"
    begun = pods.begin("exec", "exec-gpu", "--", "yes", mark)
    assert begun.stdout is not None
    try:
        assert begun.stdout.read(len(mark) + 1) == f"{mark}\n".encode()
        (pid,) = alive(mark, b"yes")
        # Everything between is full, and the command waits in its write.
        until(lambda: rests(pid))
    finally:
        begun.kill()
        begun.communicate()
    until(lambda: not alive(mark, b"yes"))


def rests(pid: int) -> bool:
    """Whether the process uses no processor time for a while."""

    def ticks() -> list[str]:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]

    before = ticks()
    return not holds(lambda: ticks() != before, seconds=1.0)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("stdin", [(), ("-i",)], ids=["without input", "with input"])
def test_a_client_that_goes_away_ends_its_command(pods: Pods, ending: signal.Signals, stdin: Sequence[str]) -> None:
    mark = f"98{int(ending)}{len(stdin)}7{OWN}"
    begun = pods.begin("exec", *stdin, "exec-gpu", "--", "sh", "-c", f"trap '' HUP; sleep {mark} & echo on; wait")
    assert begun.stdout is not None
    assert begun.stdout.readline() == b"on\n"
    until(lambda: alive(mark))
    begun.send_signal(ending)
    begun.communicate()
    until(lambda: not alive(mark))


def test_a_client_that_goes_while_nobody_reads_its_input_ends_its_command(pods: Pods) -> None:
    mark = f"987654{OWN}"
    begun = pods.begin("exec", "-i", "exec-gpu", "--", "sleep", mark)
    assert begun.stdin is not None
    os.set_blocking(begun.stdin.fileno(), False)

    def full() -> bool:
        try:
            os.write(begun.stdin.fileno(), b"x" * 65536)
        except BlockingIOError:
            return bool(alive(mark))
        return False

    until(full)
    begun.kill()
    with contextlib.suppress(BrokenPipeError):
        begun.communicate()
    until(lambda: not alive(mark))


def test_a_deleted_pod_ends_its_commands_and_what_they_left(pods: Pods) -> None:
    mark = f"98764{OWN}"
    pods.make(pod("exec-short", cuda()))
    pods.exec("exec-short", "sh", "-c", f"setsid sleep {mark} >/dev/null 2>&1 &")
    begun = pods.begin("exec", "exec-short", "--", "sh", "-c", f"echo on; exec sleep {mark}")
    assert begun.stdout is not None
    assert begun.stdout.readline() == b"on\n"
    until(lambda: len(alive(mark)) == 2)
    pods.remove("exec-short")
    _, errors = begun.communicate(timeout=300)
    assert (begun.returncode, b"exit code 137" in errors) == (137, True)
    until(lambda: not alive(mark))


class Terminal:
    """kubectl on a terminal of its own."""

    def __init__(self, pods: Pods, *words: str, size: tuple[int, int]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(pods.program, [pods.program, *words], pods.environment)
        self.resize(size)
        self.seen = b""

    def resize(self, size: tuple[int, int]) -> None:
        rows, columns = size
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def shows(self, *words: bytes) -> None:
        """Return when one of the words is shown after what was seen before."""
        end = time.monotonic() + 300
        while not any(word in self.seen for word in words):
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 1)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.fd, 4096)
        self.seen = self.seen[max(self.seen.find(word) for word in words) :]

    def end(self) -> int:
        with contextlib.suppress(OSError):
            while os.read(self.fd, 4096):
                pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_shell_on_a_terminal(pods: Pods) -> None:
    terminal = Terminal(pods, "exec", "-it", "exec-gpu", "--", "sh", size=(33, 99))
    terminal.type("test -t 0 && test -t 2 && echo tty-$TERM-$((6*7))\n")
    terminal.shows(b"tty-xterm-42")
    # A size that comes at the beginning, and one that comes later.
    terminal.type("while test \"$(stty size)\" != '33 99'; do :; done; echo begun-$((1+1))\n")
    terminal.shows(b"begun-2")
    terminal.resize((44, 111))
    terminal.type("while test \"$(stty size)\" != '44 111'; do :; done; echo changed-$((1+2))\n")
    terminal.shows(b"changed-3")
    # Interrupts reach the command, not the shell.
    mark = f"98765{OWN}"
    terminal.type(f"echo sleeping-$((2+2)); sleep {mark}\n")
    terminal.shows(b"sleeping-4")
    until(lambda: bool(alive(mark)))
    terminal.type("\x03")
    until(lambda: not alive(mark))
    terminal.type("exit 5\n")
    assert terminal.end() == 5


def test_a_terminal_that_is_closed_ends_its_shell(pods: Pods) -> None:
    terminal = Terminal(pods, "exec", "-it", "exec-gpu", "--", "sh", size=(24, 80))
    mark = f"98766{OWN}"
    terminal.type(f"echo on-$((1+1)); sleep {mark}\n")
    terminal.shows(b"on-2")
    until(lambda: bool(alive(mark)))
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.end()
    until(lambda: not alive(mark))


def test_folders_are_copied_both_ways(pods: Pods, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "big").write_bytes(MEGABYTES[: 1 << 20])
    (source / "a file").write_text("text\n")
    there = pods.run("cp", "source", "exec-gpu:/tmp/copied", cwd=tmp_path)
    assert there.returncode == 0, there.stderr
    assert pods.exec("exec-gpu", "cat", "/tmp/copied/a file").stdout == b"text\n"
    back = pods.run("cp", "exec-gpu:/tmp/copied", "back", cwd=tmp_path)
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "back/below/big").read_bytes() == MEGABYTES[: 1 << 20]
    # By tar alone: kubectl cp ends with tar's output, and may not wait for what it complains of.
    missing = pods.exec("exec-gpu", "tar", "cf", "-", "/tmp/none")
    assert (missing.returncode, b"No such file" in missing.stderr) == (2, True)


def test_who_may_not_is_told(pods: Pods) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "exec-reader"}}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "exec-reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods", "pods/exec"], "verbs": ["get"]}],
    }  # fmt: skip
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "exec-reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "exec-reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "exec-reader", "namespace": "default"}],
    }  # fmt: skip
    pods.apply(account, role, binding)
    who = "--as=system:serviceaccount:default:exec-reader"
    nobody = pods.run("exec", "--as=nobody", "exec-gpu", "--", "ls")
    assert (nobody.returncode, b'User "nobody" cannot get resource "pods" in API group ""' in nobody.stderr) == (
        1,
        True,
    )
    # To read is no right to run: a WebSocket begins with a GET.
    reader = pods.run("exec", who, "exec-gpu", "--", "ls")
    assert (reader.returncode, b'pods "exec-gpu" is forbidden' in reader.stderr) == (1, True)


def test_two_hundred_commands_at_once(pods: Pods) -> None:
    """Begun in tens, so that the machine of the tests is not busy with kubectl alone; they all run together."""
    begun = []

    def one(number: int) -> subprocess.Popen[bytes]:
        process = pods.begin("exec", "-i", "exec-gpu", "--", "sh", "-c", f"echo on-{number}; cat")
        assert process.stdout is not None
        assert process.stdout.readline() == f"on-{number}\n".encode()
        return process

    try:
        with ThreadPoolExecutor(10) as pool:
            begun = list(pool.map(one, range(200)))
        assert pods.exec("exec-gpu", "echo", "also").stdout == b"also\n"
        for number, process in enumerate(begun):
            out, errors = process.communicate(f"input {number}".encode(), timeout=300)
            assert (process.returncode, out, errors) == (0, f"input {number}".encode(), b"")
    finally:
        for process in begun:
            process.kill()


def test_a_host_that_is_killed_ends_the_commands_and_finds_the_pods_again(pods: Pods) -> None:
    mark = f"98767{OWN}"
    begun = pods.begin("exec", "-i", "exec-gpu", "--", "sh", "-c", f"echo on; exec sleep {mark}")
    assert begun.stdout is not None
    assert begun.stdout.readline() == b"on\n"
    host = host_folder.recorded(pods.lab.nodes / manage.HOST)
    assert host is not None
    assert processes.signal_process(host, signal.SIGKILL)
    try:
        _, errors = begun.communicate(timeout=WAIT_S)
        assert (begun.returncode, errors != b"") == (1, True)
        until(lambda: not alive(mark))
        until(lambda: not processes.alive(host))  # it may listen until its last descriptor is closed
        refused = pods.exec("exec-gpu", "ls")
        assert (refused.returncode, b"error dialing backend: dial tcp" in refused.stderr) == (1, True)
    finally:
        pods.lab.up()
    until(lambda: pods.exec("exec-gpu", "nvidia-smi", "-L").returncode == 0)
