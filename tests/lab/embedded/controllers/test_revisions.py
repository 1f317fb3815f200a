"""ControllerRevisions: what they keep of a template."""

from __future__ import annotations

import json

from kgpu.lab.embedded.controllers.kinds import DAEMON_SETS
from kgpu.lab.embedded.controllers.revisions import new_revision, sort_out

TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "one"}]}, "metadata": {"labels": {"b": "1", "a": "2"}}}
OWNER = {"metadata": {"name": "d", "namespace": "n", "uid": "u"}, "spec": {"template": TEMPLATE}}


def test_a_revision_has_its_keys_in_order_as_gos_json_has_them() -> None:
    made = new_revision(DAEMON_SETS, OWNER, 1, None)
    assert json.dumps(made["data"]) == json.dumps(made["data"], sort_keys=True)
    assert list(made["data"]["spec"]["template"]) == ["$patch", "metadata", "spec"]


def test_it_is_found_again_whatever_the_order_of_the_template() -> None:
    made = new_revision(DAEMON_SETS, OWNER, 1, None)
    made["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    other = {**OWNER, "spec": {"template": dict(reversed(TEMPLATE.items()))}}
    assert sort_out(other, [made]) == (made, ())
