"""Runs one container of a simulated node: ``python -I -S shim.py run CONFIG``, ``... exec CONFIG PID COMMAND...``,
``... session CONFIG PID REPORT COMMAND...``.

A program of its own with nothing but the standard library, because one runs beside every container: it makes the
container's view of the file system (a mount namespace where that is allowed, else folders and links), starts the
command, writes what it prints as CRI log lines, and leaves ``exit.json`` when it ends. It outlives the process that
started it, so a kubelet that is killed finds its containers again. No security boundary: the command runs as this user.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x4000000, 0x10000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MS_REMOUNT = 1, 2, 4, 4096, 16384, 1 << 18, 32
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINE_LIMIT = 16384  # bytes of a CRI log line; a longer one is marked partial
LOG_LIMIT = 10 << 20  # bytes of a log, after which it is begun anew and the full one kept beside it
DRAIN_S = 0.5  # what is left in the pipes after the command has ended
START_ERROR = 128
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, IFF_UP = 0x8913, 0x8914, 0x8916, 0x891C, 1
# Folders of the machine that a container has of its own.
FRESH = ("dev", "tmp", "run", "proc", "sys", "mnt", "media")
LINKS = 400  # parts and links of a path
HOST = "/.host"  # the machine's own files, for the links of a folder that was replaced
NODES = ("null", "zero", "full", "random", "urandom", "tty")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Make a file system appear, as the system call does."""
    _check(
        _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()),
        f"mount {source} at {target}",
    )


def bind(source: str, target: str, *, root: str = "", read_only: bool = False) -> None:
    """Make ``source`` appear at ``root + target``, which is made when it is not there."""
    if root:
        target = make_room(root, target)
    if not os.path.lexists(target):
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        # In a user namespace flags that the original has may not be dropped; without them it stays writable.
        for extra in (0, MS_NOSUID, MS_NODEV, MS_NOSUID | MS_NODEV):
            try:
                mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | extra)
            except OSError:
                continue
            return


def unshare(*, user: bool, network: bool = False) -> None:
    """Namespaces of its own; as root of a user namespace when this is no real root."""
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWNS | CLONE_NEWUTS | (CLONE_NEWUSER if user else 0) | (CLONE_NEWNET if network else 0)
    _check(_libc.unshare(flags), "unshare")
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def make_network(address: str) -> None:
    """In a fresh network: the loopback device, which has the pod's address too."""
    with socket.socket() as any_socket:
        flags = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))[16:18]
        up = struct.unpack("H", flags)[0] | IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", up))
        for call, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.255")):
            row = struct.pack("16sHH4s8x", b"lo:0", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(any_socket, call, row)


def build_root(config: dict[str, Any], *, user: bool) -> str:
    """The container's root in a fresh mount namespace: the machine's own files under a writable layer that goes."""
    base = os.path.join(config["folder"], "mnt")
    os.makedirs(base, exist_ok=True)
    mount("tmpfs", base, "tmpfs", MS_NOSUID, "mode=755")
    root = os.path.join(base, "root")
    os.makedirs(root)
    if user:
        bind("/", root + HOST)
    for name in sorted(os.listdir("/")):
        _take_over(base, root, name)
    for name in FRESH:
        os.makedirs(os.path.join(root, name), exist_ok=True)
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108
    mount("tmpfs", f"{root}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755")
    bind("/proc", f"{root}/proc")
    bind("/sys", f"{root}/sys")
    for name in NODES:
        if os.path.exists(f"/dev/{name}"):
            bind(f"/dev/{name}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")  # noqa: S108
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108
    for link, to in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                     ("stderr", "/proc/self/fd/2")):  # fmt: skip
        os.symlink(to, f"{root}/dev/{link}")
    return root


def make_room(root: str, path: str) -> str:
    """The place of ``path`` below ``root``, with a parent folder in which this user can make it.

    In a user namespace nobody may write to folders of the machine's root, not even on a layer over them. Such a folder
    is replaced by one of our own, with a link to each thing that was in it.
    """
    path = inside(root, path)
    target = root + path
    if not os.path.lexists(target) and os.path.isdir(root + HOST):
        _make_own(root, os.path.dirname(path).rstrip("/"))
    return target


def inside(root: str, path: str) -> str:
    """``path`` with the links of its folders followed as they are seen from within ``root``, never out of it."""
    waiting = [part for part in path.split("/") if part]
    done: list[str] = []
    for _ in range(LINKS):
        if not waiting:
            return "/" + "/".join(done)
        part = waiting.pop(0)
        if part == "..":
            del done[-1:]
            continue
        full_path = "/".join((root, *done, part))
        link = os.readlink(full_path) if waiting and os.path.islink(full_path) else ""
        if not link or link.startswith(HOST + "/"):
            done += [part] if part != "." else []
            continue
        if link.startswith("/"):
            done = []
        waiting = [piece for piece in link.split("/") if piece] + waiting
    raise OSError(errno.ELOOP, f"{path}: {os.strerror(errno.ELOOP)}")


def _make_own(root: str, path: str) -> None:
    folder = root + path
    if not path or (not os.path.islink(folder) and os.access(folder, os.W_OK)):
        return
    _make_own(root, os.path.dirname(path).rstrip("/"))
    if not os.path.lexists(folder):
        os.mkdir(folder)
        return
    if os.path.islink(folder):
        os.unlink(folder)
        os.mkdir(folder)
    else:
        mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for entry in os.scandir(path):
        link = os.readlink(entry.path) if entry.is_symlink() else f"{HOST}{path}/{entry.name}"
        os.symlink(link, os.path.join(folder, entry.name))


def _take_over(base: str, root: str, name: str) -> None:
    """One entry of the machine's root: a link as it is, a folder under a writable layer (or as it is)."""
    source, target = f"/{name}", os.path.join(root, name)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif name not in FRESH and os.path.isdir(source):
        os.mkdir(target)
        upper, work = os.path.join(base, f"upper-{name}"), os.path.join(base, f"work-{name}")
        os.mkdir(upper)
        os.mkdir(work)
        options = f"lowerdir={source},upperdir={upper},workdir={work}"
        for more in (",userxattr", ""):
            try:
                mount("overlay", target, "overlay", 0, options + more)
            except OSError:
                continue
            return
        try:
            bind(source, target)
        except OSError:
            return  # a folder that this user may not have stays empty


def enter_namespaces(config: dict[str, Any]) -> None:
    """Be in the container: root, devices, libraries, volumes and files as its configuration says."""
    user = os.geteuid() != 0
    network = config.get("network")
    unshare(user=user, network=bool(network))
    if network:
        make_network(network["inside"])
    root = build_root(config, user=user)
    for path in config["hide"]:
        for hidden in (root + path, root + HOST + path):
            if os.path.isdir(hidden):
                mount("tmpfs", hidden, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for row in config["mounts"]:
        bind(row["source"], row["target"], root=root, read_only=row["read_only"])
    for row in config["devices"]:
        bind(row["source"], row["target"], root=root)
    for row in config["files"]:
        _copy(row["source"], make_room(root, row["target"]))
    log = root + config["termination_log"]
    if config["termination_log"] and not os.path.exists(log):
        bind(os.path.join(config["folder"], "termination-log"), config["termination_log"], root=root)
    _check(_libc.sethostname(config["hostname"].encode(), len(config["hostname"].encode())), "sethostname")
    os.chroot(root)
    os.makedirs(config["cwd"], exist_ok=True)
    os.chdir(config["cwd"])


def enter_plain(config: dict[str, Any]) -> None:
    """The same without namespaces: the folder's links were made beforehand, paths are in the environment."""
    os.makedirs(config["cwd"], exist_ok=True)
    os.chdir(config["cwd"])


def _copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)  # noqa: S103


def find_program(name: str, environment: dict[str, str], root: str = "") -> str:
    """The file to execute. Raises FileNotFoundError worded as the container runtime words it."""
    if "/" in name:
        paths = [name] if os.path.exists(name) else []
        if root and name.startswith("/") and os.path.exists(root + name):
            paths = [root + name]
        if not paths:
            raise FileNotFoundError(f'exec: "{name}": stat {name}: no such file or directory')
        return paths[0]
    for folder in environment.get("PATH", "").split(":"):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f'exec: "{name}": executable file not found in $PATH')


def default_signals() -> None:
    """What this program ignores, as every Python does some, its command must not: it would inherit that."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def child(config: dict[str, Any], report: int) -> None:
    """Become the command; an error before that is written to ``report``."""
    try:
        os.setsid()
        if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError("prctl")
        spaces = config["mode"] == "namespaces"
        (enter_namespaces if spaces else enter_plain)(config)
        environment = config["env"]
        program = find_program(config["args"][0], environment, "" if spaces else config["plain_root"])
        default_signals()
        os.execve(program, config["args"], environment)  # noqa: S606
    except BaseException as error:  # told to the parent, whatever it is
        os.write(report, str(error if isinstance(error, FileNotFoundError) else f"{error}").encode()[:4000])
        os._exit(START_ERROR)


class ContainerLogWriter:
    """Writes a container's output as CRI log lines."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rest = {"stdout": b"", "stderr": b""}
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o640)
        self._size = os.fstat(self._fd).st_size

    def _write(self, data: bytes) -> None:
        """Append; a file that has grown too large is put aside first, in the place of the one before."""
        if self._size and self._size + len(data) > LOG_LIMIT:
            os.close(self._fd)
            os.replace(self._path, f"{self._path}.1")
            self._open()
        os.write(self._fd, data)
        self._size += len(data)

    def take(self, stream: str, data: bytes) -> None:
        """Write every whole line; keep the rest."""
        lines = (self._rest[stream] + data).split(b"\n")
        rest = lines.pop()
        out = [self._line(stream, b"F", line) for line in lines]
        while len(rest) >= LINE_LIMIT:
            out.append(self._line(stream, b"P", rest[:LINE_LIMIT]))
            rest = rest[LINE_LIMIT:]
        self._rest[stream] = rest
        if out:
            self._write(b"".join(out))

    def end(self) -> None:
        """Write what did not end with a newline."""
        for stream, rest in self._rest.items():
            if rest:
                self._write(self._line(stream, b"P", rest))
        os.close(self._fd)

    def _line(self, stream: str, tag: bytes, line: bytes) -> bytes:
        now = time.time_ns()
        when = dt.datetime.fromtimestamp(now // 10**9, dt.UTC)
        text = when.strftime("%Y-%m-%dT%H:%M:%S") + f".{now % 10**9:09d}Z"
        pieces = [line[at : at + LINE_LIMIT] for at in range(0, max(len(line), 1), LINE_LIMIT)]
        tags = [b"P"] * (len(pieces) - 1) + [tag]
        return b"".join(
            b"%s %s %s %s\n" % (text.encode(), stream.encode(), t, p) for t, p in zip(tags, pieces, strict=False)
        )


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replace a file atomically."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(f"{path}.new", path)


def kill_rest() -> None:
    """End every process that the container left behind; they are children of this one by now."""
    for _ in range(100):
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                pids = [int(word) for word in file.read().split()]
        except OSError:
            return
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def run(config_path: str) -> int:
    """Start the command, write its output, and when it ends how it ended."""
    config = read_config(config_path)
    os.chdir("/")
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = ContainerLogWriter(config["log"])  # who reads that the command runs finds its log
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    report_r, report_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        null = os.open("/dev/null", os.O_RDONLY)
        for fd, to in ((null, 0), (out_w, 1), (err_w, 2)):
            os.dup2(fd, to)
        os.closerange(3, report_w)
        os.set_inheritable(report_w, False)
        child(config, report_w)
    for fd in (out_w, err_w, report_w):
        os.close(fd)
    state = os.path.join(config["folder"], "state.json")
    problem = os.read(report_r, 4096).decode(errors="replace")
    if problem:
        os.waitpid(pid, 0)
        write_json(os.path.join(config["folder"], "exit.json"), {"code": START_ERROR, "problem": problem})
        return 0
    write_json(state, {"pid": pid, "shim": os.getpid(), "started": time.time(), **traces(pid)})
    if config.get("network"):
        relay = [sys.executable, "-I", "-S", config["network"]["relay"], config_path, str(pid)]
        os.posix_spawn(relay[0], relay, os.environ)
    status = pump(log, pid, {out_r: "stdout", err_r: "stderr"})
    code = os.waitstatus_to_exitcode(status)
    write_json(
        os.path.join(config["folder"], "exit.json"),
        {"code": code if code >= 0 else 128 - code, "signal": max(0, -code), "finished": time.time(), "problem": ""},
    )
    return 0


def traces(pid: int) -> dict[str, Any]:
    """What identifies the processes of the session that ``pid`` began, once this shim is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return {"ticks": ticks, "boot": boot, "mounts": os.readlink(f"/proc/{pid}/ns/mnt")}
    except OSError:
        return {}


def pump(log: ContainerLogWriter, pid: int, streams: dict[int, str]) -> int:
    """Copy output to the log until the command has ended and its pipes are empty; the wait status."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    for fd in (*streams, ended):
        poll.register(fd, select.POLLIN)
    status: int | None = None
    deadline = 0.0
    while streams or status is None:
        timeout = None if status is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = poll.poll(timeout)
        if not ready and status is not None:
            break
        for fd, _ in ready:
            if fd == ended:
                poll.unregister(ended)
                _, status = os.waitpid(pid, 0)
                kill_rest()
                deadline = time.monotonic() + DRAIN_S
                continue
            data = os.read(fd, 65536)
            if data:
                log.take(streams[fd], data)
            else:
                poll.unregister(fd)
                del streams[fd]
    log.end()
    return status


def execute(config_path: str, pid: str, command: list[str]) -> int:
    """Become ``command`` inside the running container of ``pid``; without it, tell why on standard error."""
    config = read_config(config_path)
    try:
        become(command, config["env"], enter_running(config, pid))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
    return 126


def session(config_path: str, pid: str, report: int, command: list[str]) -> int:
    """The same for ``kubectl exec``: with the terminal that is standard input, if it is one; ends with its parent.

    Why it can't is written to ``report``, which is closed once the command runs.
    """
    parent = os.getppid()
    config = read_config(config_path)
    environment = config["env"]
    try:
        os.set_inheritable(report, False)
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            environment = {**environment, "TERM": "xterm"}
        root = enter_running(config, pid)
        # After the namespaces: to enter a user namespace ends it.
        _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
        if os.getppid() != parent:
            return START_ERROR
        become(command, environment, root)
    except OSError as error:
        why = f'exec: "{command[0]}": {os.strerror(error.errno).lower()}' if error.errno else str(error)
        os.write(report, why.encode(errors="replace")[:4000])
    return START_ERROR


def read_config(path: str) -> dict[str, Any]:
    """A container's configuration."""
    with open(path, encoding="utf-8") as file:
        config: dict[str, Any] = json.load(file)
    return config


def become(command: list[str], environment: dict[str, str], root: str) -> None:
    """Become the command. Raises OSError."""
    program = find_program(command[0], environment, root)
    default_signals()
    os.execve(program, command, environment)  # noqa: S606


def enter_running(config: dict[str, Any], pid: str) -> str:
    """Be in the running container of ``pid``; where its files are, if that is not ``/``. Raises OSError."""
    root = ""
    if config["mode"] == "namespaces":
        root_fd = os.open(f"/proc/{pid}/root", os.O_RDONLY)
        spaces = (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS), ("uts", CLONE_NEWUTS))
        fds = [
            (os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), flag)
            for name, flag in spaces
            if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
        ]
        for fd, flag in fds:
            _check(_libc.setns(fd, flag), "setns")
        os.fchdir(root_fd)
        os.chroot(".")
    else:
        root = config["plain_root"]
    os.chdir(config["cwd"])
    return root


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(sys.argv[2]))
    if sys.argv[1] == "session":
        sys.exit(session(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]))
    sys.exit(execute(sys.argv[2], sys.argv[3], sys.argv[4:]))
