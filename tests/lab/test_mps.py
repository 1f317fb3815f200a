"""GPUs shared by MPS in an embedded lab: real CUDA programs in pods, and what is told where MPS can't be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.hw.simulator import mig
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.progress import QuietProgress
from tests.lab import mps_story
from tests.lab.mps_story import MpsLab, sharing

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def mps(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpsLab]:
    """A node with two GPUs."""
    del kubectl
    lab = EmbeddedLab("mps", tmp_path_factory.mktemp("mps") / "lab", QuietProgress(), first=FirstNode(gpus=2))
    try:
        lab.up()
        (hardware,) = lab.hardware()
        yield MpsLab(lab, hardware)
    finally:
        lab.down()


def agent(mps: MpsLab) -> int:
    return int((mps.hardware.root.parent / "agent.pid").read_text())


def test_four_pods_have_a_quarter_each_and_the_other_gpu_stays_whole(mps: MpsLab) -> None:
    mps_story.four_quarters_and_a_whole(mps, whole=2)


def test_a_daemon_that_is_killed_is_back_and_its_clients_loss_is_told(mps: MpsLab) -> None:
    mps_story.a_killed_daemon_is_back(mps, lambda: agent(mps), whole=2)


def test_more_shares_than_a_server_takes_clients_are_refused_and_told(mps: MpsLab) -> None:
    with mps.configured(sharing(49)):
        words = "maximum allowed replicas exceeded: 49 > 48; expected at most 48 shares"
        mps.until(lambda: any(words in told for told in mps.events("ConfigRefused")), f"an Event: {words}")
        mps.until_offered(whole=2)
    assert mps.daemons() == []


def test_a_gpu_with_mig_mode_on_is_refused_and_told(mps: MpsLab) -> None:
    mig.partition(mps.hardware.root, 0, ["1g.10gb"])
    try:
        with mps.configured(sharing()):
            told = mps.until(lambda: mps.events("SharingImpossible"), "an Event")
            assert "the MIG mode of GPU 0 is on; expected sharing.mps on nodes without MIG" in told[0]
            assert mps.daemons() == []
    finally:
        mig.disable(mps.hardware.root, 0)
    mps.until_offered(whole=2)


def test_time_slicing_beside_it_is_refused_and_the_former_configuration_stays(mps: MpsLab) -> None:
    both = sharing(more=", timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}")
    with mps.configured(both):
        words = ("timeSlicing", "mps")
        told = mps.until(
            lambda: [one for one in mps.events("ConfigRefused") if all(w in one for w in words)], "an Event"
        )
        assert "expected one kind of sharing" in told[0]
        assert mps.offered() == {"nvidia.com/gpu": 2}
    assert mps.daemons() == []


def test_a_node_that_is_removed_leaves_no_daemon(mps: MpsLab) -> None:
    (name,) = manage.add_to_running(mps.lab.about.folder, "t4", gpus=1, config=sharing(2), name_prefix="t4")
    made = mps.until(lambda: [one for one in mps.lab.hardware() if one.node == name], "the node's hardware")
    added = MpsLab(mps.lab, made[0])
    added.until_offered(shared=2)
    (daemon,) = added.daemons()
    manage.remove(mps.lab.about.folder, [name])
    added.until(lambda: not Path(f"/proc/{daemon}").exists(), "the end of its daemon")
