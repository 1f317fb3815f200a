"""The toolkit on a real node: its containerd is configured, asked, put right and rolled back, and as it was in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operator.real.conftest import Site
from tests.operator.real.engine import CONFIG, HANDLERS, Engine, patch_policy, pod


@pytest.fixture(scope="module")
def engine(site: Site) -> Iterator[Engine]:
    site.gone()
    found = Engine.of(site)
    site.install()
    site.ready()
    yield found
    if site.installed():
        site.uninstall()


def test_the_engine_offers_the_handlers_with_cdi_on(engine: Engine) -> None:
    status = engine.status()
    assert set(status["handlers"]) >= HANDLERS
    assert status["cdi"] is True
    assert "containerd" in engine.role()["reason"]


@pytest.mark.parametrize("runtime_class", sorted(HANDLERS))
def test_a_pod_with_a_runtime_class_runs(engine: Engine, runtime_class: str) -> None:
    site, name = engine.site, f"with-{runtime_class}"
    site.lab.kubectl("apply", "-f", "-", stdin=pod(name, gpus=1, runtime_class=runtime_class))
    try:
        done = {"Succeeded", "Failed"}
        site.until(lambda: site.get("pod", name)["status"].get("phase") in done, f"pod {name} to end")
        assert "Test PASSED" in site.lab.kubectl("logs", name)
    finally:
        site.lab.kubectl("delete", "pod", name, "--force", "--grace-period=0")


def test_another_start_of_the_agent_changes_and_restarts_nothing(engine: Engine) -> None:
    site, before, pid = engine.site, engine.files(), engine.pid()
    site.lab.kubectl("-n", "gpu-operator", "delete", "pod", "-l", "app=kgpu-agent", "--wait=true")
    site.ready()
    engine.settled("after a start of the agent")
    assert engine.files() == before
    assert engine.pid() == pid


def test_a_config_that_a_package_replaces_is_put_right_and_its_new_lines_stay(engine: Engine) -> None:
    fresh = bytes.fromhex(engine.original[CONFIG]).decode()
    for text in (f"# a maintainer's new file\n{fresh}", fresh):
        engine.write(text)
        engine.site.until(lambda: engine.text().strip() != text.strip(), "the toolkit to put its part back")  # noqa: B023
        engine.settled("after its file was replaced")
        assert text.splitlines()[0] in engine.text()


def test_a_killed_engine_comes_back_with_its_handlers(engine: Engine) -> None:
    before, pid = engine.files(), engine.pid()
    engine.site.lab.kill("containerd")
    engine.site.until(lambda: engine.pid() not in {0, pid}, "containerd to be started again")
    engine.settled("after it was killed")
    assert engine.files() == before


def test_a_config_that_the_engine_does_not_take_is_rolled_back(engine: Engine) -> None:
    site, before = engine.site, engine.files()
    wrong = [{"name": "RUNTIME_CONFIG_OVERRIDE", "value": '{"runtime_type": 7}'}]
    patch_policy(site, "/spec/toolkit/env", wrong)
    try:
        site.until(lambda: engine.role().get("state") == "waiting", "the toolkit to say what is wrong")
        # At one look: it is tried again, and the engine may be restarted for that.
        site.until(lambda: engine.files() == before and engine.handlers() >= HANDLERS, "the config of before")
        site.until(lambda: site.conditions().get("Ready", {}).get("status") == "False", "the policy not to be ready")
    finally:
        patch_policy(site, "/spec/toolkit/env", [])
    site.ready()
    engine.settled("with the right settings again")


def test_uninstalling_gives_the_original_bytes_back(engine: Engine) -> None:
    """Last."""
    site = engine.site
    site.ready()
    site.uninstall()
    site.until(lambda: not site.get("pods", "-n", "gpu-operator")["items"], "the last pods to go")
    assert engine.files() == engine.original
    engine.as_before("after uninstalling")
