"""TAB: names of a cluster, ids and words; and nothing at all where something is wrong."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kgpu.cli import _complete
from kgpu.cli.main import main
from kgpu.doctor.rules import by_id
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import DEPLOYMENTS, NAMESPACES
from kgpu.kube.port import NODES, PODS

Said = pytest.CaptureFixture[str]


def obj(kind: str, name: str, namespace: str = "") -> dict[str, Any]:
    version = "apps/v1" if kind == "Deployment" else "v1"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    api = FakeApi()
    for name in ("gpu-1", "gpu-2", "cpu-1"):
        api.put(NODES, obj("Node", name))
    for name in ("ml", "web"):
        api.put(NAMESPACES, obj("Namespace", name))
        api.put(PODS, obj("Pod", "train-0", name))
    api.put(DEPLOYMENTS, obj("Deployment", "serve", "ml"))
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: api)
    return api


@pytest.fixture
def tab(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> Any:
    def press(*words: str) -> list[str]:
        monkeypatch.setenv("_KGPU_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(("kgpu", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        main(["kgpu"])
        found = capsys.readouterr()
        assert found.err == ""
        return [line.partition(",")[2] for line in found.out.splitlines() if line]

    return press


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("doctor", "no"), ["node"]),
        (("doctor", "node", ""), ["cpu-1", "gpu-1", "gpu-2"]),
        (("doctor", "node", "g"), ["gpu-1", "gpu-2"]),
        (("doctor", "node/g"), ["node/gpu-1", "node/gpu-2"]),
        (("doctor", "pod", ""), ["ml/train-0", "web/train-0"]),
        (("doctor", "pod", "w"), ["web/train-0"]),
        (("doctor", "pod", "ml/t"), ["ml/train-0"]),
        (("doctor", "po/ml/"), ["po/ml/train-0"]),
        (("doctor", "-n", "ml", "pod", ""), ["train-0"]),
        (("doctor", "deployment", ""), ["ml/serve"]),
        (("doctor", "nonsense", ""), []),
        (("doctor", "node", "gpu-1", ""), []),
        (("doctor", "-n", ""), ["ml", "web"]),
        (("doctor", "-o", ""), ["text", "json", "yaml", "sarif"]),
        (("status", "-n", "m"), ["ml"]),
        (("top", "--node", "gpu"), ["gpu-1", "gpu-2"]),
        (("advise", "sharing", "--node", "g"), ["gpu-1", "gpu-2"]),
        (("whatif", "--drain", "g"), ["gpu-1", "gpu-2"]),
        (("whatif", "-n", "m"), ["ml"]),
        (("quota", "w"), ["web"]),
        (("advise", "sharing", "--need", "m"), ["memory-limit", "many-small"]),
        (("top", "-n", ""), ["ml", "web"]),
        (("top", "--sort", "m"), ["memory"]),
        (("top", "--view", ""), ["gpus", "nodes", "pods"]),
    ],
)
def test_what_is_offered(words: tuple[str, ...], offered: list[str], tab: Any) -> None:
    assert tab(*words) == offered


def test_rules_are_offered_in_any_case(tab: Any) -> None:
    assert tab("doctor", "--explain", "sch-0") == sorted(name for name in by_id() if name.startswith("SCH-0"))


def test_an_api_server_that_is_away_offers_nothing_and_says_nothing(api: FakeApi, tab: Any) -> None:
    api.set_down(True)
    assert tab("doctor", "node", "") == []


def test_a_kubeconfig_that_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch, tab: Any) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    assert tab("doctor", "node", "") == []


def test_a_command_that_is_not_there_says_nothing(tab: Any) -> None:
    assert tab("dcotor", "node", "") == []


def test_nobody_waits_for_what_hangs() -> None:
    ended = threading.Event()

    async def hangs() -> list[str]:
        ended.wait()  # a credential plugin that blocks the thread
        return ["late"]

    assert _complete.within(0.05, hangs) == []
    ended.set()
