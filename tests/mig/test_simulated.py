"""Every default config that fits is applied to a simulated driver of each model, and read back by another program."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kgpu.base.errors import UserError
from kgpu.formats.mig_config import MigEntry, parse_mig_configs
from kgpu.formats.mig_default_configs import default_configs
from kgpu.formats.mig_profile import MigProfile, parse_mig_profile
from kgpu.hw.nvidia.partitioner import NvmlPartitioner
from kgpu.hw.open import open_partitioner
from kgpu.hw.simulator import operate, processes
from kgpu.mig import apply
from kgpu.mig.apply import Applying
from kgpu.mig.generate import generate
from kgpu.mig.model import MigAction
from kgpu.mig.node_plan import plan_node
from kgpu.mig.reset import SmiReset
from kgpu.mig.survey import survey
from kgpu.mig.wanted import entry_of
from tests.mig.nvml_view import seen

GENERIC = {"all-disabled", "all-enabled", "all-balanced"}
MODELS = {
    "a30": {"all-1g.6gb", "all-1g.6gb.me", "all-2g.12gb", "all-2g.12gb.me", "all-4g.24gb"},
    "dgx-a100-40g": {
        "all-1g.5gb", "all-1g.5gb.me", "all-1g.10gb", "all-2g.10gb", "all-3g.20gb", "all-4g.20gb", "all-7g.40gb",
    },
    "dgx-a100-80g": {
        "all-1g.10gb", "all-1g.10gb.me", "all-1g.20gb", "all-2g.20gb", "all-3g.40gb", "all-4g.40gb", "all-7g.80gb",
    },
    "hgx-h100": {
        "all-1g.10gb", "all-1g.10gb.me", "all-1g.20gb", "all-2g.20gb", "all-3g.40gb", "all-4g.40gb", "all-7g.80gb",
    },
    "hgx-h200": {
        "all-1g.18gb", "all-1g.18gb.me", "all-1g.35gb", "all-2g.35gb", "all-3g.71gb", "all-4g.71gb", "all-7g.141gb",
    },
    "hgx-b200": {
        "all-1g.23gb", "all-1g.23gb.me", "all-1g.45gb", "all-2g.45gb", "all-3g.90gb", "all-4g.90gb", "all-7g.180gb",
    },
}  # fmt: skip
CONFIGS = parse_mig_configs(json.dumps(default_configs())).configs


def driver_of(root: Path):
    return open_partitioner(driver_root=root, reset=SmiReset(str(root)))


def kind(profile: MigProfile) -> tuple[object, ...]:
    """A profile without its size, which models round in different ways."""
    return profile.c, profile.g, profile.attributes, profile.negative_attributes


def told(entry: MigEntry) -> Counter[tuple[object, ...]]:
    return Counter({kind(profile): number for profile, number in entry.profiles})


@pytest.mark.parametrize("model", MODELS)
async def test_every_default_config_that_fits_is_made(sim_root, model: str) -> None:
    root = sim_root(model, gpus=1)
    driver = driver_of(root)
    made = set()
    try:
        for name, entries in CONFIGS.items():
            (gpu,) = [survey(cut) for cut in await driver.gpus()]
            entry = entry_of(entries, 0, gpu.device, gpu.subsystem)
            try:
                planned = plan_node([gpu], entries)
            except UserError:
                continue  # for other models
            if entry is None:
                assert planned == ()
                continue
            (outcome,) = await Applying(driver=driver).node(planned)
            assert outcome.failure is None, name
            mode, pending, instances, slices = seen(root)
            assert (mode, pending) == (entry.enabled, entry.enabled)
            assert instances == sum(slices.values()), "each default slice is a GPU instance of its own"
            names = Counter(kind(parse_mig_profile(one)) for one in slices.elements())
            assert names == told(entry), name
            made.add(name)
    finally:
        await driver.close()
    assert made >= GENERIC | MODELS[model]


@pytest.mark.parametrize("model", MODELS)
async def test_every_config_that_is_generated_for_a_model_is_made(sim_root, model: str) -> None:
    root = sim_root(model, gpus=1)
    driver = driver_of(root)
    try:
        found = survey((await driver.gpus())[0])
        configs = parse_mig_configs(json.dumps(generate([found]))).configs
        assert configs.keys() == GENERIC | MODELS[model]
        for name, entries in configs.items():
            (outcome,) = await Applying(driver=driver).node(plan_node([survey((await driver.gpus())[0])], entries))
            assert outcome.failure is None, name
            now = survey((await driver.gpus())[0]).gpu
            assert now.enabled == entries[0].enabled, name
            names = Counter(kind(parse_mig_profile(one.profile.name)) for one in now.instances)
            assert names == told(entries[0]), name
    finally:
        await driver.close()


async def test_what_the_driver_refuses_half_way_leaves_the_former_layout(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=1)
    driver = driver_of(root)
    try:
        await Applying(driver=driver).node(plan_node([survey(g) for g in await driver.gpus()], CONFIGS["all-3g.40gb"]))
        before = seen(root)
        planned = plan_node([survey(gpu) for gpu in await driver.gpus()], CONFIGS["all-1g.10gb"])
        second = next(one for one in planned[0].found.gpu.instances if one.start)

        def occupy(_planned, step) -> None:
            # A process begins in the second slice when the first has gone.
            if step.action is MigAction.DESTROY_INSTANCE and step.instance != second.id:
                processes.add(root, 0, pid=4242, gi=second.id, ci=0)

        (outcome,) = await Applying(driver=driver, tell=occupy).node(planned)
        assert outcome.failure is not None
        assert "In use by another client" in outcome.failure.what
        assert outcome.loss is None
        assert seen(root) == before == (True, True, 2, Counter({"3g.40gb": 2}))
        processes.remove(root, 0, 4242)
    finally:
        await driver.close()


async def test_a_driver_that_hangs_in_the_middle_is_told_and_the_next_apply_goes_on(sim_root, monkeypatch) -> None:
    monkeypatch.setattr(apply, "TRIES", 1)  # each waits for the deadline
    root = sim_root("hgx-h100", gpus=1)
    driver = NvmlPartitioner(root, SmiReset(str(root)))
    patient = driver_of(root)
    try:
        planned = plan_node([survey(gpu) for gpu in await patient.gpus()], CONFIGS["all-2g.20gb"])

        def hang(_planned, step) -> None:
            if step.action is MigAction.CREATE_COMPUTE:
                operate.inject(root, "hang", gpu=0)
                driver._deadline = driver._change_deadline = 1.0  # nothing answers from here on

        (outcome,) = await Applying(driver=driver, tell=hang).node(planned)
        assert "did not answer" in outcome.failure.what
        assert outcome.loss is not None
        operate.clear(root)
        planned = plan_node([survey(gpu) for gpu in await patient.gpus()], CONFIGS["all-2g.20gb"])
        (outcome,) = await Applying(driver=patient).node(planned)
        assert outcome.failure is None
        assert seen(root) == (True, True, 3, Counter({"2g.20gb": 3}))
    finally:
        operate.clear(root)
        await driver.close()
        await patient.close()


async def test_a_mode_that_waited_is_put_in_force_by_the_drivers_own_reset(sim_root) -> None:
    root = sim_root("dgx-a100-40g", gpus=1)
    driver = driver_of(root)
    try:
        (gpu,) = await driver.gpus()
        processes.add(root, 0, pid=4242)
        await driver.set_mode(gpu.uuid, True)
        processes.remove(root, 0, 4242)
        assert seen(root)[:2] == (False, True)
        (outcome,) = await Applying(driver=driver).node(
            plan_node([survey(cut) for cut in await driver.gpus()], CONFIGS["all-7g.40gb"])
        )
        assert outcome.failure is None
        assert seen(root) == (True, True, 1, Counter({"7g.40gb": 1}))
    finally:
        await driver.close()
