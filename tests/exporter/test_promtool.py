"""What a scrape gives, by Prometheus' own checker: it parses, and what it finds are the replaced exporter's names."""

from __future__ import annotations

import asyncio

from kgpu.exporter.labels import Style
from kgpu.exporter.model import Generation
from kgpu.exporter.plan import plan
from kgpu.exporter.render import render
from kgpu.exporter.settings import ExporterSettings
from tests.exporter.made import gpu, holding, look, partition
from tests.monitoring.conftest import prometheus_bin  # noqa: F401 - a fixture

KEPT = ("camelCase", '"_total" suffix', "should not include type")


async def check(folder, text: str) -> tuple[int, list[str]]:
    process = await asyncio.create_subprocess_exec(
        folder / "promtool", "check", "metrics",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate(text.encode())
    return process.returncode or 0, out.decode().splitlines()


async def test_a_scrape_passes_promtool(prometheus_bin):  # noqa: F811
    parts = [partition(0, gi) for gi in (7, 8)]
    hostile = holding('a"}\\\n# TYPE x counter\nx{a="', parts[0].uuid, resource="nvidia.com/mig-1g.10gb")
    seen = look(gpu(0, *parts), gpu(1), holdings=(hostile,))
    for generation in Generation:
        code, lines = await check(
            prometheus_bin, render(plan(seen, ExporterSettings(style=Style(generation=generation))).families)
        )
        # 3: it parses, and promtool would name some of it otherwise.
        assert code in {0, 3}, lines
        assert [line for line in lines if not any(word in line for word in KEPT)] == []


async def test_promtool_refuses_what_is_no_text_of_metrics(prometheus_bin):  # noqa: F811
    assert (await check(prometheus_bin, 'x{a="} 1\n'))[0] not in {0, 3}
