"""``kgpu whatif`` on gangs, quotas and volumes against a real control plane: what lands, and what is said of the rest.

The control plane has the gates of Kubernetes 1.35's Workloads and no nodes but those that the cases make. 25 cases here,
500 in ``make test-deep``, or ``KGPU_WHATIF_CASES``; ``KGPU_WHATIF_SEED`` is the first one's seed.
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
from tests.lab.real.whatif_controllers import WhatIfControllers
from tests.lab.real.whatif_edits import WhatIfEdits

SEED = int(os.environ.get("KGPU_WHATIF_SEED", "40000"))
CASES = int(os.environ.get("KGPU_WHATIF_CASES", count(25, 500)))
AWAY = "-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"
"""What ends pods on nodes without a kubelet."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gated.Gated]:
    folder: Path = tmp_path_factory.mktemp("gangs")
    try:
        with gated.running(folder, gangs=True) as found:
            found.start_controllers(f"--controllers=*,{AWAY}")
            found.start_scheduler()
            yield found
    except LabError as error:
        on_real.unavailable(str(error), what="control plane")


async def test_gangs_quotas_and_volumes_end_as_on_a_real_control_plane(plane: gated.Gated) -> None:
    api = connect(str(plane.kubeconfig))
    try:
        asking = WhatIfEdits(api)
        await asking.prepare()
        for seed in range(SEED, SEED + CASES):
            await asking.case(seed)
    finally:
        await api.close()
    tally = asking.tally
    print(tally)
    assert 0 < tally.landed < tally.pods
    assert set(tally.kinds) == {"gang", "quota", "volumes"}
    assert not tally.disagreements, "\n".join(tally.disagreements)


async def test_controllers_and_quotas_do_as_they_do_on_a_real_control_plane(plane: gated.Gated) -> None:
    api = connect(str(plane.kubeconfig))
    try:
        asking = WhatIfControllers(api)
        await asking.prepare()
        for seed in range(SEED, SEED + CASES):
            await asking.case(seed)
    finally:
        await api.close()
    tally = asking.tally
    print(tally)
    assert 0 < tally.landed < tally.pods
    assert set(tally.kinds) == {"scale", "drain", "volumes", "admission"}
    assert not tally.disagreements, "\n".join(tally.disagreements)
