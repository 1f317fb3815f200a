"""Kubernetes' own tests of the API and of claims, on the embedded lab: every one that `make test` has time for passes.

`make conformance` runs the others, and all of them on the real lab too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from kgpu.lab.conformance.model import ResultState
from kgpu.lab.conformance.run import ConformanceOptions, run
from kgpu.lab.conformance.skips import CLAIMS, FAST_SIGS, SLOW, SLOW_CLAIMS
from kgpu.lab.port import EMBEDDED
from kgpu.lab.progress import PlainProgress
from tests.budget import count

CASES: Final = {
    "API": ConformanceOptions(sigs=FAST_SIGS, slow=SLOW, limit_s=600),
    "claims": ConformanceOptions(sigs=("node",), of=CLAIMS, slow=count(SLOW_CLAIMS, ""), limit_s=600),
}


@pytest.mark.parametrize("case", CASES)
def test_the_embedded_cluster_passes_kubernetes_own_tests(real_machine: None, tmp_path: Path, case: str) -> None:
    found = run(EMBEDDED, replace(CASES[case], keep=tmp_path), PlainProgress())
    failed = [f"{one.test.name}: {one.message}" for one in found.results if one.state is ResultState.FAILED]
    assert failed == []
    assert sum(one.state is ResultState.PASSED for one in found.results) > 20
