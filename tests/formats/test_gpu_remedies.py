"""Keys of remedies: each that health may use has words, and nothing else has any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.gpu_remedies import CHECKS, configured, words
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.buckets import GUIDANCE, RECOVERY
from kgpu.formats.xid.catalogue import guidance, switch_guidance, sxids, xids
from kgpu.health.config import HealthConfig
from kgpu.health.faults import evidence_of
from kgpu.health.model import EvidenceSource, Fault, GpuEvidence

KINDS = ("bucket", "recovery", "xid", "sxid", "check", "config")


def test_every_number_of_the_catalogue_has_the_words_that_it_had() -> None:
    for code in (*xids(), 9999):
        assert words(guidance(code).key) == guidance(code).advice != ""
    for code in sxids():
        assert words(switch_guidance(code).key) == switch_guidance(code).advice != ""
    for fatal in (True, False, None):
        assert words(switch_guidance(99999, fatal=fatal).key) != ""


def test_every_bucket_and_every_word_of_the_driver_has_words() -> None:
    for what in (*GUIDANCE.values(), *RECOVERY.values()):
        assert words(what.key) == what.advice


@pytest.mark.parametrize("key", [*CHECKS, *map(configured, Action)])
def test_every_check_and_every_configured_action_has_words(key: str) -> None:
    assert words(key)


@given(st.one_of(st.text(max_size=40), st.builds("{}/{}".format, st.sampled_from(KINDS), st.text(max_size=20))))
def test_no_other_key_raises_or_is_repeated(key: str) -> None:
    said = words(key)
    assert not said or key.partition("/")[0] in KINDS


def test_of_a_number_that_the_config_knows_better_its_action_is_told() -> None:
    fault = Fault(code=79, at=1.0)
    config = HealthConfig(xid_actions={79: Action.IGNORE})
    found = evidence_of(fault, config)
    assert found is not None
    assert found.remedy == "nothing to do: the config says so for this number"
    usual = evidence_of(fault, HealthConfig())
    assert usual is not None
    assert usual.remedy == guidance(79).advice


def test_what_an_earlier_kgpu_has_written_down_of_a_number_keeps_its_words() -> None:
    assert GpuEvidence(source=EvidenceSource.XID, key="79", what="", action=Action.REBOOT).remedy == guidance(79).advice
