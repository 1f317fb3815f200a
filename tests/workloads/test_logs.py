"""Logs of many pods: in order, from hostile containers, with what can't be read told in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kgpu.base.errors import ConfigError, KubeError
from kgpu.kube.port import KubeRefusedError
from kgpu.workloads.logs import MOST_FOLLOWED, LogLine, LogWish, followed, shown, written
from kgpu.workloads.pods import ServingPod


def serving_pod(node: str, state: str = "") -> ServingPod:
    return ServingPod(
        namespace="gpu-operator", name=f"p-{node}", uid=node, node=node, container="main", containers=("wait", "main"),
        state=state,
    )  # fmt: skip


class Source:
    """Logs by pod; what is an error is raised."""

    def __init__(self, **logs: bytes | list[bytes] | KubeError) -> None:
        self.texts = {f"p-{node}": text for node, text in logs.items()}
        self.asked: list[dict[str, object]] = []

    async def logs(self, namespace: str, pod: str, container: str, **how: object) -> bytes:
        self.asked.append({"pod": pod, "container": container, **how})
        await asyncio.sleep(0)
        found = self.texts[pod]
        if isinstance(found, KubeError):
            raise found
        assert isinstance(found, bytes)
        return found

    async def follow(self, namespace: str, pod: str, container: str, **how: object) -> AsyncIterator[bytes]:
        found = self.texts[pod]
        if isinstance(found, KubeError):
            raise found
        for piece in found if isinstance(found, list) else [found]:
            await asyncio.sleep(0)
            yield piece


async def every(lines: AsyncIterator[LogLine]) -> list[tuple[str, str, bool]]:
    return [(line.pod.node, line.text, line.note) async for line in lines]


AWAY = KubeError("the kubelet does not answer", "an answer", "see the node")


async def test_pod_by_pod_and_what_cannot_be_read_is_told() -> None:
    source = Source(a=b"1\n2\n", b=AWAY, c=b"3")
    pods = [serving_pod("a"), serving_pod("b", "ContainerCreating"), serving_pod("c")]
    lines = await every(written(source, pods, LogWish(tail=7)))  # type: ignore[arg-type]
    assert [line[:2] for line in lines if not line[2]] == [("a", "1"), ("a", "2"), ("c", "3")]
    (note,) = [text for _, text, noted in lines if noted]
    assert "ContainerCreating" in note
    assert "the kubelet does not answer" in note
    assert {one["tail"] for one in source.asked} == {7}


async def test_a_container_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        await every(written(Source(a=b""), [serving_pod("a")], LogWish(container="other")))  # type: ignore[arg-type]
    assert caught.value.expected == "one of: wait, main"


async def test_followed_pods_are_shown_in_whole_lines_until_all_have_ended() -> None:
    source = Source(a=[b"on", b"e\ntwo", b"\n"], b=[b"x\n"], c=AWAY)
    lines = await every(followed(source, [serving_pod(one) for one in "abc"], LogWish()))  # type: ignore[arg-type]
    assert [text for node, text, note in lines if node == "a" and not note] == ["one", "two"]
    assert [text for node, text, note in lines if node == "b" and not note] == ["x"]
    assert {node for node, _, note in lines if note} == {"a", "b", "c"}


async def test_a_line_without_an_end_is_shown_in_parts() -> None:
    source = Source(a=[b"x" * 50_000] * 4)
    lines = await every(followed(source, [serving_pod("a")], LogWish()))  # type: ignore[arg-type]
    assert [len(text) for _, text, note in lines if not note] == [100_000, 100_000]


async def test_too_many_to_follow_are_refused() -> None:
    pods = [serving_pod(str(number)) for number in range(MOST_FOLLOWED + 1)]
    with pytest.raises(ConfigError, match="can't be followed at once"):
        await every(followed(Source(), pods, LogWish()))  # type: ignore[arg-type]


async def test_a_container_without_an_earlier_run_is_told_as_that() -> None:
    refused = KubeRefusedError("previous terminated container not found", "one", "none", code=400)
    source = Source(a=refused)
    ((_, text, note),) = await every(written(source, [serving_pod("a")], LogWish(previous=True)))  # type: ignore[arg-type]
    assert (text, note) == ("container main had no run before", True)


def test_what_is_for_the_doctor_is_not_shown_whole() -> None:
    assert shown(b'{"kgpu.dev/host-facts":1,"facts":"' + b"x" * 9000).startswith("(9034 bytes of facts")


def test_a_log_does_not_drive_the_terminal() -> None:
    assert shown(b"a\tb \x1b[2J\xff\r") == "a\tb \ufffd[2J\ufffd"
