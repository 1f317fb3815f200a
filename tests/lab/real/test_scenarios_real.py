"""Every scenario that comes with kgpu, played on real Kubernetes."""

from __future__ import annotations

import pytest

from kgpu.lab.scenarios import model
from kgpu.lab.scenarios.run import play


@pytest.mark.parametrize("name", sorted(model.bundled()))
def test_scenario(name: str, gpus: object) -> None:
    lab = gpus.lab  # type: ignore[attr-defined]
    result = play(
        model.load(name),
        lab.backend(),
        listener=lambda step: print(f"{'ok' if step.ok else 'WRONG'} {step.title} ({step.seconds} s): {step.why}"),
    )
    wrong = [f"{step.title}: {step.why}\n$ {step.command}\n{step.output}" for step in result.steps if not step.ok]
    assert not wrong, "\n\n".join([*wrong, lab.log_tail("kgpu-agent", 40)])
