"""Where a pod's port is reached: at its address first, then on localhost, and nowhere if the program is another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.lab.nodes import listeners
from kgpu.lab.nodes.reachable import PodPlace


@pytest.mark.parametrize(
    ("own", "reached"),
    [
        ({"127.31.5.6", "127.0.0.1"}, "127.31.5.6"), ({"127.0.0.1", "::1"}, "127.0.0.1"), ({"::1"}, "::1"), (set(), ""),
    ],
)  # fmt: skip
def test_the_pods_own_program_is_reached_where_it_listens(
    own: set[str], reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def is_pods(uid: str, node: Path, address: str, port: int) -> bool:
        asked.append((uid, node, port))
        return address in own

    monkeypatch.setattr(listeners, "is_pods", is_pods)
    assert PodPlace(uid="u", folder=Path("/n"), address="127.31.5.6").reach(80) == reached
    assert set(asked) == {("u", Path("/n"), 80)}
