"""The tests' own engine has no CRI plugin: that one makes /etc/cni/net.d on the machine, which nothing removes."""

from __future__ import annotations

from tests.toolkit.real.conftest import Node


def test_the_engine_runs_without_kubernetes(node: Node) -> None:
    rows = [line.split() for line in node.engine.ctr("plugins", "ls").lines()[1:]]
    loaded = {(row[0], row[1]) for row in rows if row and row[-1] == "ok"}
    assert ("io.containerd.grpc.v1", "tasks") in loaded
    assert not [(kind, name) for kind, name in loaded if ".cri." in kind or name == "cri"]
