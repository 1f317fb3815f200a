"""kgpu.fit says what the real kube-scheduler says: random clusters and pods through both, verdict and message alike.

``KGPU_FIT_CASES`` is how many pods are compared (300 if unset, some 20 a second), ``KGPU_FIT_SEED`` the first round's
seed.
"""

from __future__ import annotations

import os

from kgpu.kube.client import connect
from tests.lab.real.conftest import Cluster
from tests.lab.real.scheduler_oracle import open_oracle

CASES = int(os.environ.get("KGPU_FIT_CASES", "300"))
SEED = int(os.environ.get("KGPU_FIT_SEED", "20000"))
PER_ROUND = 40


async def test_the_same_verdicts_as_kube_scheduler(cluster: Cluster):
    api = connect(str(cluster.lab.kubeconfig))
    try:
        async with open_oracle(api) as oracle:
            seed = SEED
            while oracle.tally.cases < CASES:
                await oracle.round(seed, min(PER_ROUND, CASES - oracle.tally.cases))
                seed += 1
                assert seed < SEED + CASES, "rounds end without cases"
    finally:
        await api.close()
    print(oracle.tally)
    assert oracle.tally.kinds["fit"] > 0
    assert oracle.tally.kinds["no fit"] > 0
    assert not oracle.tally.disagreements, "\n".join(map(str, oracle.tally.disagreements))
