"""``kgpu whatif`` is what happens: random clusters and changes, on the real control plane and in kgpu's answer.

25 cases here, 500 in ``make test-deep``, or ``KGPU_WHATIF_CASES``; ``KGPU_WHATIF_SEED`` is the first one's seed.
Compared is which pods land, where, and what is said of those that don't; ``whatif_oracle`` says how the scheduler's dice are dealt with.
"""

from __future__ import annotations

import os

from kgpu.kube.client import connect
from tests.budget import count
from tests.lab.real.conftest import Cluster
from tests.lab.real.scheduler_oracle import open_oracle
from tests.lab.real.whatif_oracle import WhatIfOracle

CASES = int(os.environ.get("KGPU_WHATIF_CASES", count(25, 500)))
SEED = int(os.environ.get("KGPU_WHATIF_SEED", "40000"))


async def test_the_same_pods_land_as_with_kube_scheduler(cluster: Cluster):
    api = connect(str(cluster.lab.kubeconfig))
    try:
        async with open_oracle(api) as oracle:
            asking = WhatIfOracle(oracle)
            await asking.prepare()
            for seed in range(SEED, SEED + CASES):
                await asking.case(seed)
    finally:
        await api.close()
    tally = asking.tally
    print(tally)
    assert 0 < tally.landed < tally.pods
    assert {"drain", "add", "replicas"} <= set(tally.kinds)
    assert not tally.disagreements, "\n".join(tally.disagreements)
