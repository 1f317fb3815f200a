"""GPUs shared by MPS on the real lab: clients in containers of containerd, with process and mount namespaces of their own."""

from __future__ import annotations

import pytest

from kgpu.lab.real.model import NODE_NAME
from tests.lab import mps_story
from tests.lab.mps_story import MpsLab
from tests.lab.real.conftest import Cluster


@pytest.fixture
def mps(gpus: Cluster) -> MpsLab:
    (hardware, *_) = (one for one in gpus.lab.hardware() if one.node == NODE_NAME)
    return MpsLab(gpus.lab, hardware)


def test_four_pods_have_a_quarter_each_and_the_other_gpus_stay_whole(mps: MpsLab) -> None:
    mps_story.four_quarters_and_a_whole(mps, whole=8)


def test_a_daemon_that_is_killed_is_back_and_its_clients_loss_is_told(mps: MpsLab, gpus: Cluster) -> None:
    mps_story.a_killed_daemon_is_back(mps, lambda: gpus.lab.agent_pid, whole=8)
