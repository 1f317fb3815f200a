"""A node's GPUs end as its label says, or as they were, whoever is killed while they are cut; the label tells which.

Nothing is simulated but the GPUs: a real kubelet with pods in real containers, two of them on the GPUs that are cut.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import pytest

from kgpu.base.errors import LabError
from kgpu.formats.names import MIG_CONFIG_STATE_LABEL
from kgpu.hw.simulator import operate
from tests.budget import count
from tests.operator.real import cutting
from tests.operator.real.conftest import Site
from tests.operator.real.cutting import GPU, LARGE_SLICE, SLICE, ask, deploy, is_done, offered, report, running

T = TypeVar("T")
# Of a change of this length each moment is as likely.
LONGEST_S: Final = 8.0
VICTIMS: Final = ("agent", "kube-apiserver", "kubelet")
KILLS: Final = count(3, 20)
Layout = tuple[str, ...]
BY_CONFIG: Final[dict[str, Layout]] = {"all-disabled": (), "two-cut": ("1g.10gb",) * 7, "two-large": ("3g.40gb",) * 2}
"""What each layout makes of GPUs 0 and 1; the other six GPUs stay as they are."""
RESOURCES: Final = {"1g.10gb": SLICE, "3g.40gb": LARGE_SLICE}
CUT: Final = (0, 1)
TRAINS: Final = tuple(f"train-{number}" for number in range(8))


@pytest.fixture(scope="module")
def trains(site: Site) -> Iterator[Site]:
    """A pod on each of the eight GPUs."""
    with cutting.to_be_cut(site):
        for name in TRAINS:
            deploy(site, name, GPU)
        site.until(lambda: len(at_work(site)) == len(TRAINS), "a pod to run on each GPU")
        yield site


def layout_of(site: Site, gpu: int) -> Layout:
    """The slices of a GPU, as its driver has them; fails where its mode is still to change."""
    mig = operate.snapshot(site.lab.hw_root)["gpus"][gpu]["mig"]
    assert not mig["pending"], f"GPU {gpu} waits for a reset"
    found = tuple(sorted(device["profile"] for device in mig["devices"]))
    assert bool(found) == mig["enabled"], f"MIG of GPU {gpu} is on without slices, or the other way round"
    return found


def kill(site: Site, victim: str) -> None:
    if victim == "agent":
        site.shell("pkill -KILL -f '[k]gpu-entrypoint agent' || true")
    else:
        site.lab.kill(victim)


def resources_of(layouts: Iterable[Layout]) -> dict[str, int]:
    """What a node of eight GPUs offers, two of which have these layouts."""
    found = Counter(RESOURCES[profile] for layout in layouts for profile in layout)
    return dict(found) | {GPU: 6 + sum(not layout for layout in layouts)}


def ended(site: Site, config: str) -> str:
    """How the label's wish has ended: success or failed; "" as long as it has not."""
    told, state = report(site), site.node_labels().get(MIG_CONFIG_STATE_LABEL, "")
    if told is None or (told.config, told.state) != (config, state) or state not in ("success", "failed"):
        return ""
    return state


def until(site: Site, condition: Callable[[], T], what: str) -> T:
    """``Site.until``, for a condition that asks an API server which may have been killed a moment ago."""

    def asked() -> T | None:
        with contextlib.suppress(LabError, TypeError):
            return condition()
        return None

    found = site.until(asked, what)
    assert found is not None
    return found


def at_work(site: Site) -> dict[str, set[str]]:
    """The uids of the pods that run, by app; each has a whole GPU."""
    pods = {name: running(site, name) for name in TRAINS}
    return {name: uids for name, uids in pods.items() if uids}


def is_as(site: Site, resources: dict[str, int]) -> bool:
    """Whether the node offers that and takes pods, each whole GPU has one, and no operation is under way."""
    phases = {one.get("status", {}).get("phase") for one in site.get("nodeoperations")["items"]}
    quiet = phases <= {"Complete", "Failed", "Cancelled"} and not site.lab.node()["spec"].get("unschedulable")
    return quiet and offered(site) == resources and len(at_work(site)) == resources[GPU]


def make_whole(site: Site) -> None:
    """No GPU is cut, as where a node begins: the seed before may have ended otherwise."""
    ask(site, "all-disabled")
    until(site, lambda: is_done(site, "all-disabled"), "whole GPUs")
    until(site, lambda: is_as(site, resources_of([()] * 2)), "a pod on each")


@pytest.mark.parametrize("seed", range(count(1, 10)))
def test_gpus_end_as_wanted_or_as_before_whoever_is_killed(trains: Site, seed: int) -> None:
    chance = random.Random(seed)
    ends: Counter[str] = Counter()
    took = []
    make_whole(trains)
    wished, before = "all-disabled", [()] * len(CUT)
    for number in range(KILLS):
        wished = chance.choice([config for config in BY_CONFIG if config != wished])
        victim = VICTIMS[number % len(VICTIMS)]
        point = chance.uniform(0, LONGEST_S)
        pods = at_work(trains)
        ask(trains, wished)
        began = time.monotonic()
        time.sleep(point)
        kill(trains, victim)
        where = f"seed {seed}, kill {number}: {victim} after {point:.2f} s to {wished}"
        state = until(trains, functools.partial(ended, trains, wished), f"an end ({where})")
        took.append(time.monotonic() - began)
        ends[state] += 1
        if state == "failed":
            told = report(trains)
            print(f"{where}: {told.reason if told else ''}: {told.message if told else ''}")
        layouts = [layout_of(trains, gpu) for gpu in CUT]
        wanted = BY_CONFIG[wished]
        assert all(layout in (wanted, former) for layout, former in zip(layouts, before, strict=True)), where
        assert (state == "success") is all(layout == wanted for layout in layouts), f"{where}: {layouts}"
        assert [layout_of(trains, gpu) for gpu in range(2, 8)] == [()] * 6, where
        resources = resources_of(layouts)
        until(trains, functools.partial(is_as, trains, resources), f"{resources} and no operation ({where})")
        stayed = [name for name, uids in at_work(trains).items() if pods.get(name) == uids]
        assert len(stayed) >= 6, f"{where}: of {pods} stayed {stayed}"
        before = layouts
        if victim == "agent":  # the kubelet would soon restart it after minutes only; a new kubelet has forgotten that
            trains.lab.kill("kubelet")
    print(f"seed {seed}: {dict(ends)}, {sum(took) / len(took):.1f} s each, {max(took):.1f} s at most")
    assert ends["success"], "each one failed"
    until(trains, lambda: trains.policy_status().get("state") == "ready", "the ClusterPolicy to be ready")
