"""The CRI client: what containerd 2, containerd 1.7 and CRI-O answer, a runtime that is away, broken answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import KubeletError
from kgpu.kubelet.cri import ContainerRuntime, CriClient, RuntimeStatus, read_status
from kgpu.kubelet.cri_fake import FakeCriRuntime
from kgpu.kubelet.pb import cri_v1_pb2 as cri

STATE = RuntimeStatus(
    name="containerd",
    version="v2.1.4",
    handlers=("", "nvidia", "runc"),
    default_handler="runc",
    cdi=True,
    cdi_dirs=("/etc/cdi", "/var/run/cdi"),
    cgroup_driver="systemd",
)


def answer(*, ready: bool = True, config: str = "", handlers: tuple[str, ...] = ()) -> cri.StatusResponse:
    reply = cri.StatusResponse()
    reply.status.conditions.add(type="RuntimeReady", status=ready, message="" if ready else "it starts")
    for name in handlers:
        reply.runtime_handlers.add(name=name)
    if config:
        reply.info["config"] = config
    return reply


def version(name: str, number: str) -> cri.VersionResponse:
    return cri.VersionResponse(runtime_name=name, runtime_version=number)


@pytest.fixture(params=["fake", "socket"])
async def runtime(
    request: pytest.FixtureRequest, folder: Path
) -> AsyncIterator[tuple[FakeCriRuntime, ContainerRuntime]]:
    fake = FakeCriRuntime(STATE)
    if request.param == "fake":
        yield fake, fake
        return
    await fake.serve(folder / "cri.sock")
    yield fake, CriClient(folder / "cri.sock", timeout=60)
    await fake.close()


async def test_the_port_tells_all_that_there_is(runtime: tuple[FakeCriRuntime, ContainerRuntime]) -> None:
    assert await runtime[1].status() == STATE


async def test_the_port_of_an_old_containerd(runtime: tuple[FakeCriRuntime, ContainerRuntime], folder: Path) -> None:
    state = dataclasses.replace(STATE, version="1.7.30", handlers=("nvidia", "runc"), cgroup_driver="", cdi=False)
    old = await FakeCriRuntime(state, old=True).serve(folder / "old.sock")
    try:
        assert await CriClient(folder / "old.sock").status() == state
        assert await FakeCriRuntime(state, old=True).status() == state
    finally:
        await old.close()


async def test_a_runtime_that_is_down_is_a_kubelet_error(runtime: tuple[FakeCriRuntime, ContainerRuntime]) -> None:
    fake, port = runtime
    fake.down = "it has been stopped"
    with pytest.raises(KubeletError, match="stopped"):
        await port.status()


async def test_a_socket_without_a_runtime(folder: Path) -> None:
    with pytest.raises(KubeletError):
        await CriClient(folder / "nobody.sock").status()


def test_a_runtime_that_is_not_ready_says_why() -> None:
    found = read_status(version("containerd", "2.1.4"), answer(ready=False))
    assert not found.ready
    assert found.problem == "it starts"


def test_no_word_of_readiness_is_not_readiness() -> None:
    assert not read_status(version("containerd", "2.1.4"), cri.StatusResponse()).ready


@pytest.mark.parametrize(
    ("name", "number", "config", "expected"),
    [
        ("containerd", "v2.1.4", {}, True),
        ("containerd", "2.2.0", {"enableCDI": False}, False),
        ("containerd", "1.7.30", {"enableCDI": True}, True),
        ("containerd", "1.6.8", {}, False),
        ("cri-o", "1.34.1", {"sandboxImage": "pause"}, True),
        ("cri-o", "1.22.0", {}, False),
        ("containerd", "unknown", {}, None),
        ("other", "9.9", {}, None),
        ("other", "9.9", {"enableCDI": "yes"}, None),
    ],
)
def test_whether_cdi_is_on(name: str, number: str, config: dict[str, object], expected: bool | None) -> None:
    assert read_status(version(name, number), answer(config=json.dumps(config))).cdi is expected


def test_handlers_are_unknown_where_none_are_told() -> None:
    assert read_status(version("cri-o", "1.28.0"), answer(config='{"sandboxImage": "x"}')).handlers is None


def test_its_own_words_for_people() -> None:
    assert str(STATE) == "containerd 2.1.4"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
KEYS = st.sampled_from(["containerd", "runtimes", "cdiSpecDirs", "enableCDI", "defaultRuntimeName"])


@given(st.one_of(st.text(max_size=30), st.dictionaries(KEYS, json_values).map(json.dumps)))
def test_whatever_stands_in_the_configuration_is_read_or_ignored(config: str) -> None:
    found = read_status(version("containerd", "2.1.4"), answer(config=config))
    assert found.ready
    assert found.cdi in {True, False}


def test_a_nesting_bomb_is_ignored() -> None:
    assert read_status(version("containerd", "2.1.4"), answer(config="[" * 200_000)).handlers is None
