"""What is due next with a pod, for every mix of containers, policies and ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.nodes import plan, podstatus
from kgpu.lab.nodes.podstate import ContainerRole, Phase, PodState, make_containers

ENDS = st.sampled_from([0, 1, 137])


def state_of(policy: str, inits: list[bool], mains: int) -> PodState:
    spec = {
        "restartPolicy": policy,
        "initContainers": [
            {"name": f"i{number}", "image": "x", **({"restartPolicy": "Always"} if sidecar else {})}
            for number, sidecar in enumerate(inits)
        ],
        "containers": [{"name": f"m{number}", "image": "x"} for number in range(mains)],
    }
    metadata = {"name": "p", "namespace": "d", "uid": "u"}
    pod = {"metadata": metadata, "spec": spec}
    return PodState(pod=pod, containers=make_containers(pod), start=1.0)


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]), inits=st.lists(st.booleans(), max_size=3),
    mains=st.integers(1, 3), data=st.data(),
)  # fmt: skip
def test_a_pod_lives_by_its_rules(policy: str, inits: list[bool], mains: int, data: st.DataObject) -> None:
    state, now = state_of(policy, inits, mains), 2.0
    for _ in range(40):
        actions = plan.decide(state, now)
        for one in actions.kill:
            end(one, 137, now)
        for one in actions.start:
            assert one.phase is not Phase.RUNNING
            if one.kind is ContainerRole.MAIN:
                # No main container runs before every init container is through and every sidecar is up.
                before = [other for other in state.containers if other.kind is not ContainerRole.MAIN]
                started = any(other.was_started for other in state.of(ContainerRole.MAIN))
                assert started or all(
                    other.started_ok if other.kind is ContainerRole.SIDECAR else other.succeeded for other in before
                )
            if one.ended is not None:
                assert plan.should_restart(state, one)
                plan.on_restart(one, scale=1.0)
            one.id, one.phase, one.started, one.started_ok = "id", Phase.RUNNING, now, True
        state.phase = plan.phase_of(state, ending=False)
        podstatus.pod_status(state, host_ip="10.0.0.1", now=now)
        if state.terminal:
            break
        running = [one for one in state.containers if one.phase is Phase.RUNNING]
        if running:
            end(data.draw(st.sampled_from(running)), data.draw(ENDS), now)
        now = max(now + 1, actions.look_at or 0.0)
    if state.terminal:
        assert policy != "Always" or any(one.kind is ContainerRole.INIT and one.failed for one in state.containers)
        assert not plan.decide(state, now).start
    if policy == "Never":
        assert all(one.restarts == 0 for one in state.containers if one.kind is not ContainerRole.SIDECAR)


def end(one, code: int, now: float) -> None:
    one.phase, one.finished = Phase.ENDED, now
    one.ended = podstatus.terminated(one.id, code=code, reason="x", message="", started=one.started, finished=now)
    plan.after_end(one, scale=1.0)


def test_the_back_off_doubles_up_to_five_minutes_and_is_forgotten() -> None:
    state = state_of("Always", [], 1)
    (one,) = state.containers
    waits = []
    now = 100.0
    for _ in range(8):
        one.id, one.phase, one.started = "id", Phase.RUNNING, now
        end(one, 1, now + 1)
        waits.append(max(0.0, one.not_before - one.finished))
        now = max(one.finished, one.not_before)
        plan.on_restart(one, scale=1.0)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    one.started, one.phase = now, Phase.RUNNING
    end(one, 1, now + plan.FORGET_S)
    assert one.not_before == 0


@given(st.floats(0, 10_000, allow_nan=False))
def test_seconds_are_shown_as_go_does(seconds: float) -> None:
    text = plan.show_seconds(seconds)
    minutes, _, rest = text.rpartition("m")
    assert abs(60 * float(minutes or 0) + float(rest.removesuffix("s")) - seconds) < 0.01


def test_after_a_reboot_the_main_containers_wait_for_the_init_containers_that_run_again() -> None:
    state = state_of("Always", [False], 1)
    init, main = state.containers
    for one in (init, main):
        one.id, one.phase, one.started, one.started_ok, one.former = "id", Phase.RUNNING, 1.0, True, True
        end(one, 0 if one is init else 255, 2.0)
        one.not_before = 0.0
    assert plan.decide(state, 3.0).start == (init,)
    init.phase, init.former = Phase.RUNNING, False  # its earlier end is still known
    assert plan.decide(state, 4.0).start == ()
    end(init, 0, 5.0)
    assert main in plan.decide(state, 100.0).start
