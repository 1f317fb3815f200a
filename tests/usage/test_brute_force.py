"""The command against a count by hand: who held which part of which GPU, second by second, at which price.

Nothing of what ``kgpu.usage`` computes with is used here: parts, prices and windows are worked out anew, as fractions.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import itertools
import json
import random
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.formats.usage import HolderSharing, RecordedHolder, UsageState
from tests.usage.recordings import BEGIN, Device, holder, node, write

TYPES = {"p5.48xlarge": Fraction("55.04"), "odd": Fraction("7.000001")}
"""Of a node, by instance type; a node of another type costs what the row of its model says."""
MODELS = {"NVIDIA-A100-SXM4-80GB": Fraction("3.06"), "NVIDIA-L4": Fraction("0.333333")}
PRICES = "instanceType,product,perNodeHour,perGpuHour\np5.48xlarge,,55.04,\nodd,,7.000001,\n" + "".join(
    f",{model},,{float(price)}\n" for model, price in MODELS.items()
)
PROFILES = (("1g.10gb", Fraction(1, 7)), ("3g.40gb", Fraction(1, 2)), ("2g.20gb", Fraction(2, 7)))
"""Of a GPU with 7 slices of compute and 8 of memory: the larger of both parts."""
SPACES = ("ml", "web", "batch")
Costs = dict[str, Fraction]
Stretch = tuple[int, int, dict[str, Fraction]]
"""From and to, in seconds, and whose part it is."""


class Counted:
    """A cluster that is drawn, its recording, and what everybody had of each GPU."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.length = self.draw.choice((3600, 5 * 3600 + 17, 86_400))
        self.devices: list[Device] = []
        self.nodes = []
        self.stretches: list[tuple[Fraction, list[Stretch]]] = []
        self.drawn = 0
        for number in range(self.draw.randint(1, 4)):
            kind, model = self.draw.choice((*TYPES, "other")), self.draw.choice(tuple(MODELS))
            gpus = self.draw.randint(1, 3)
            self.nodes.append(node(f"n{number}", gpus=gpus, instance_type=kind))
            for at in range(gpus):
                device = Device(node=f"n{number}", device=f"GPU-{number}-{at}", product=model)
                live = self.draw.choice((self.whole, self.shared, self.cut))
                stretches = live(device)
                hour = TYPES[kind] / gpus if kind in TYPES else MODELS[device.product]
                self.stretches.append((hour / 3600, stretches))
                self.devices.append(device)

    def times(self) -> list[tuple[int, int]]:
        cuts = sorted({0, self.length, *(self.draw.randrange(self.length) for _ in range(self.draw.randint(0, 6)))})
        return list(itertools.pairwise(cuts))

    def pod(self, **more: object) -> RecordedHolder:
        self.drawn += 1
        return holder(f"p{self.drawn}", namespace=self.draw.choice(SPACES), **more)

    def whole(self, device: Device) -> list[Stretch]:
        """Held as a whole, free, down, or not watched."""
        found: list[Stretch] = []
        for begin, end in self.times():
            what = self.draw.choice(("held", "held", "free", "down", "silent"))
            if what == "held":
                who = self.pod()
                device.spend(end - begin, who, state=self.draw.choice((UsageState.BUSY, UsageState.HELD_IDLE)))
                found.append((begin, end, {who.namespace: Fraction(1)}))
            else:
                state = UsageState.DOWN if what == "down" else None
                device.spend(end - begin, state=state, watched=what != "silent")
                name = {"free": "__idle__", "down": "__down__", "silent": "__unknown__"}[what]
                found.append((begin, end, {name: Fraction(1)}))
        return found

    def shared(self, device: Device) -> list[Stretch]:
        """By replicas: who is there pays for all, by the replicas that each holds."""
        found: list[Stretch] = []
        for begin, end in self.times():
            tenants = [
                self.pod(sharing=HolderSharing.TIME_SLICING, replicas=8, units=self.draw.randint(1, 2))
                for _ in range(self.draw.randint(0, 4))
            ]
            device.spend(end - begin, *tenants)
            units = sum(one.units for one in tenants)
            parts: dict[str, Fraction] = defaultdict(Fraction)
            for one in tenants:
                parts[one.namespace] += Fraction(one.units, units)
            found.append((begin, end, dict(parts) if tenants else {"__idle__": Fraction(1)}))
        return found

    def cut(self, device: Device) -> list[Stretch]:
        """Into slices, some of them held; what is not cut is nobody's."""
        device.product = "NVIDIA-A100-SXM4-80GB"
        chosen = self.draw.sample(PROFILES, self.draw.randint(1, 3))
        device.partitions = tuple((f"s{at}", profile) for at, (profile, _) in enumerate(chosen))
        device.lines.clear()
        device.write(())
        found: list[Stretch] = []
        for begin, end in self.times():
            parts: dict[str, Fraction] = defaultdict(Fraction, {"__idle__": Fraction(1)})
            held, states = [], {}
            for at, (_, part) in enumerate(chosen):
                states[f"s{at}"] = UsageState.FREE
                if self.draw.random() < 0.6:
                    who = self.pod(partition=f"s{at}")
                    held.append(who)
                    states[f"s{at}"] = UsageState.BUSY
                    parts[who.namespace] += part
                    parts["__idle__"] -= part
            device.spend(end - begin, *held, state=UsageState.FREE, states=states)
            found.append((begin, end, dict(parts)))
        return found

    def costs(self, since: int, until: int) -> Costs:
        """What everybody pays between two seconds, in dollars."""
        sums: Costs = defaultdict(Fraction)
        for a_second, stretches in self.stretches:
            for begin, end, parts in stretches:
                for name, part in parts.items():
                    sums[name] += max(0, min(end, until) - max(begin, since)) * part * a_second
        return {name: cost for name, cost in sums.items() if cost}


@pytest.mark.parametrize("seed", range(40))
def test_the_command_says_what_a_count_by_hand_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    counted = Counted(seed)
    path = write(tmp_path / "u.jsonl", *counted.devices, nodes=counted.nodes)
    prices = tmp_path / "prices.csv"
    prices.write_text(PRICES)
    since = counted.draw.randrange(counted.length // 2)
    until = counted.draw.randint(since + 60, counted.length)
    window = [(BEGIN + dt.timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ") for at in (since, until)]
    words = ["kgpu", "usage", "--from", str(path), "--prices", str(prices), "--since", window[0], "--until", window[1]]
    assert main([*words, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = counted.costs(since, until)
    # A GPU's hour has whole millionths: a node's price is divided among its GPUs, and less than one of each is lost.
    hours = Fraction(until - since, 3600) * len(counted.devices)
    near = Fraction(1, 10**6) * (1 + hours)
    told = {row["name"]: Fraction(str(row["cost"])) for row in found["rows"]}
    assert {name for name in {*told, *expected} if abs(told.get(name, 0) - expected.get(name, 0)) > near} == set()
    whole = sum((a_second * (until - since) for a_second, _ in counted.stretches), Fraction(0))
    assert abs(Fraction(str(found["total"]["cost"])) - whole) <= near
    assert sum(told.values()) == Fraction(str(found["total"]["cost"])), "to the last digit"
    assert main([*words, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["name"]: Fraction(row["cost"]) for row in rows if row["name"] in told} == told
