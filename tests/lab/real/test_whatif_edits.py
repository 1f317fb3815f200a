"""``kgpu whatif`` on gangs, quotas and volumes against a real control plane: what lands, and what is said of the rest.

The control plane has the gates of Kubernetes 1.35's Workloads and no nodes but those that the cases make.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.kube.client import connect
from tests import on_real
from tests.budget import count
from tests.lab.real import gated
from tests.lab.real.whatif_edits import CLASSES, LOCAL, WhatIfEdits

CASES = count(25, 500)
AWAY = "-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"
"""What ends pods on nodes without a kubelet."""
SEED = int(os.environ.get("KGPU_WHATIF_SEED", "40000"))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gated.Gated]:
    folder: Path = tmp_path_factory.mktemp("gangs")
    try:
        with gated.running(folder, gangs=True) as found:
            found.start_controllers(
                "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"
            )
            found.start_scheduler()
            yield found
    except LabError as error:
        on_real.unavailable(str(error), what="control plane")


async def test_gangs_quotas_and_volumes_end_as_on_a_real_control_plane(plane: gated.Gated) -> None:
    api = connect(str(plane.kubeconfig))
    try:
        asking = WhatIfEdits(api)
        await asking.api.create(CLASSES, LOCAL)
        for seed in range(SEED, SEED + CASES):
            await asking.case(seed)
    finally:
        await api.close()
    tally = asking.tally
    print(tally)
    assert 0 < tally.landed < tally.pods
    assert set(tally.kinds) == {"gang", "quota", "volumes"}
    assert not tally.disagreements, "\n".join(tally.disagreements)
