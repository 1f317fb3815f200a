"""Kubernetes' own conformance tests of the API, on the embedded lab: every one that `make test` has time for passes.

`make conformance` runs the others, and all of them on the real lab too.
"""

from __future__ import annotations

from pathlib import Path

from kgpu.lab.conformance.model import ResultState
from kgpu.lab.conformance.run import ConformanceOptions, run
from kgpu.lab.conformance.skips import FAST_SIGS, SLOW
from kgpu.lab.port import EMBEDDED
from kgpu.lab.progress import PlainProgress


def test_the_embedded_api_passes_kubernetes_own_tests(real_machine: None, tmp_path: Path) -> None:
    order = ConformanceOptions(sigs=FAST_SIGS, slow=SLOW, limit_s=600, keep=tmp_path)
    found = run(EMBEDDED, order, PlainProgress())
    failed = [f"{one.test.name}: {one.message}" for one in found.results if one.state is ResultState.FAILED]
    assert failed == []
    assert sum(one.state is ResultState.PASSED for one in found.results) > 0
