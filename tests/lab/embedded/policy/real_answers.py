"""Asks a real API server every case.

``python -m tests.lab.embedded.policy.real_answers KUBECTL KUBECONFIG`` writes ``answers.json``.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.lab.embedded.policy import play
from tests.lab.embedded.policy.cases import Ask, Raw

ANSWERS = Path(__file__).parent / "answers.json"


def recorded() -> Raw:
    """Every case's answer as it was when it was last asked."""
    found: Raw = json.loads(ANSWERS.read_text())
    return found


@contextlib.contextmanager
def proxy(kubectl: str, kubeconfig: str) -> Iterator[play.Call]:
    """What asks the server of a kubeconfig."""
    process = subprocess.Popen(
        [kubectl, "--kubeconfig", kubeconfig, "proxy", "--port=0", "--reject-paths="], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        base = f"http://{process.stdout.readline().split()[-1]}"
        yield lambda ask: call(base, ask)
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def call(base: str, ask: Ask) -> tuple[int, Raw, list[str]]:
    data = json.dumps(ask.body).encode() if ask.body is not None else None
    headers = {"Content-Type": ask.media, "Accept": "application/json"}
    if ask.user:
        headers["Impersonate-User"] = ask.user
    request = urllib.request.Request(f"{base}{ask.path}", data=data, method=ask.method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            code, found, raw = reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            code, found, raw = error.code, error.headers, error.read()
    return code, decoded(raw), warnings_of(found.get_all("Warning") or ())


def decoded(raw: bytes) -> Raw:
    try:
        found: Raw = json.loads(raw)
    except ValueError:
        return {"kind": "Status", "message": raw.decode()}
    return found


def warnings_of(headers: tuple[str, ...] | list[str]) -> list[str]:
    return [one.split('"', 1)[1].rsplit('"', 1)[0].replace('\\"', '"').replace("\\\\", "\\") for one in headers]


if __name__ == "__main__":
    with proxy(sys.argv[1], sys.argv[2]) as asking:
        ANSWERS.write_text(json.dumps(play.everything(asking), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
