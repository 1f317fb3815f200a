"""A lab's context in the user's own kubeconfig: put there on request, taken out when the lab goes.

The file is changed as kubectl changes it: under its lock, whole, and all that others have in it stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic

Config = dict[str, Any]

_LISTS: Final = ("clusters", "users", "contexts")
_FILES: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Keys with paths, which count from the folder of the file that has them."""
_PRIVATE: Final = 0o600


def context_of(name: str) -> str:
    """The context of the lab of that name."""
    return f"kgpu-{name}"


def users_own(environ: Mapping[str, str], lab: Path) -> Path:
    """The file that kubectl would change, were it not for the kubeconfig of ``lab``."""
    named = [Path(one) for one in environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    others = (path for path in named if path.absolute() != lab.absolute())
    return next(others, Path(environ.get("HOME") or Path.home(), ".kube", "config"))


def merge(path: Path, lab: Path, name: str) -> str:
    """Add the lab with the kubeconfig ``lab`` to the file ``path``, and make it current. Return its context.

    Raises LabError; the file is then as it was.
    """
    entries = _entries(_read(lab), lab.absolute().parent, context_of(name))
    with _locked(path):
        theirs = _read(path) if path.exists() else {"apiVersion": "v1", "kind": "Config", "preferences": {}}
        _write(path, _with(_without(theirs, context_of(name)), entries, context_of(name)))
    return context_of(name)


def withdraw(path: Path, name: str, server: str) -> bool:
    """Take the lab at the address ``server`` out of the file; False when it is not there. Raises LabError."""
    if not (path.exists() and server and _server(_read(path), context_of(name)) == server):
        return False
    with _locked(path):
        _write(path, _without(_read(path), context_of(name)))
    return True


def _entries(config: Config, folder: Path, context: str) -> dict[str, Config]:
    """The lab's cluster, user and context, all by the name of the context."""
    current = _named(config, "contexts", config.get("current-context", ""))["context"]
    cluster = _named(config, "clusters", current["cluster"])["cluster"]
    user = _named(config, "users", current["user"])["user"]
    return {
        "clusters": {"name": context, "cluster": _absolute(cluster, folder)},
        "users": {"name": context, "user": _absolute(user, folder)},
        "contexts": {"name": context, "context": {**current, "cluster": context, "user": context}},
    }


def _absolute(entry: Config, folder: Path) -> Config:
    return {key: str(folder / value) if key in _FILES else value for key, value in entry.items()}


def _named(config: Config, kind: str, name: str) -> Config:
    return next(one for one in config[kind] if one["name"] == name)


def _with(config: Config, entries: Mapping[str, Config], context: str) -> Config:
    added = {kind: [*(config.get(kind) or ()), entries[kind]] for kind in _LISTS}
    return {**config, **added, "current-context": context}


def _without(config: Config, context: str) -> Config:
    kept = {kind: [one for one in config.get(kind) or () if one["name"] != context] for kind in _LISTS}
    current = config.get("current-context", "")
    return {**config, **kept, "current-context": "" if current == context else current}


def _server(config: Config, context: str) -> str:
    there = [one for one in config.get("clusters") or () if one["name"] == context]
    return str(there[0]["cluster"].get("server", "")) if there else ""


def _read(path: Path) -> Config:
    try:
        loaded = yaml.safe_load(path.read_text())
        found = {} if loaded is None else loaded
        named = [one["name"] for kind in _LISTS for one in found.get(kind) or ()]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unusable(path, str(error).partition("\n")[0]) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise _unusable(path, "it is no kubeconfig") from error
    if not all(isinstance(one, str) for one in named):
        raise _unusable(path, "a name in it is no text")
    return dict(found)


def _unusable(path: Path, why: str) -> LabError:
    return LabError(f"{path}: {why}", "a kubeconfig that can be read", "mend it, or name another file in KUBECONFIG")


def _write(path: Path, config: Config) -> None:
    place = path.resolve()  # a link to it stays one
    mode = place.stat().st_mode & 0o777 if place.exists() else _PRIVATE
    try:
        write_atomic(place, yaml.safe_dump(config, sort_keys=False), mode=mode)
    except OSError as error:
        raise LabError(
            f"{path} can't be written: {error.strerror or error}", "a file of yours", "check its owner, and the disk"
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Kubectl's own lock: a file beside it, which whoever changes it makes first."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.touch(exist_ok=False)
    except FileExistsError as error:
        raise LabError(
            f"{lock} is there: another program changes {path}", "one at a time",
            "try again; if nothing does, remove that file",
        ) from error  # fmt: skip
    except OSError as error:
        raise LabError(
            f"{lock} can't be made: {error.strerror or error}", "a folder of yours", "check its owner, and the disk"
        ) from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
