"""Random existing configs of every engine: only kgpu's keys change, and taking them out gives the original bytes."""

from __future__ import annotations

import copy
import json
import tomllib

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.host.engines import rules
from kgpu.host.engines.edited import lookup, same
from kgpu.host.engines.model import NVIDIA_HANDLERS, Engine, EngineOffer, EnginePlace
from kgpu.host.engines.undo import ChangedFile, kind_of, without
from tests.budget import tries
from tests.host.engines.documents import TEXTS, WORDS, containerd_configs, toml_text

MAIN, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
WANTED = st.builds(
    EngineOffer,
    default=st.sampled_from(["", "nvidia"]),
    cdi=st.booleans(),
    annotations=st.sampled_from([(), ("cdi.k8s.io/",)]),
)
V1, V2, V3 = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
# config version in the file, the plugin that counts, containerd's version, with a drop-in
LAYOUTS = [
    (None, V1, (1, 6, 20), False), (1, V1, (1, 7, 30), True), (2, V2, (1, 7, 30), False), (2, V2, (1, 7, 30), True),
    (2, V2, (2, 1, 4), True), (2, V2, None, True), (3, V3, (2, 0, 5), True), (3, V3, (2, 1, 4), False),
    (3, V3, (2, 1, 4), True), (4, V3, (2, 3, 0), True), (None, V3, (2, 1, 4), True),
]  # fmt: skip
MANY = tries(200, suppress_health_check=[HealthCheck.too_slow])


def changed_leaves(before, after, path=()):
    """Paths of every value that is in one only, or differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from changed_leaves(before.get(key), after.get(key), (*path, key))
    elif not same(before, after):
        yield path


def ours(path: tuple[str, ...], plugin: str) -> bool:
    """Whether a changed value is one that kgpu may change."""
    cri = ("plugins", plugin)
    if path[:2] != cri:
        return path in {("imports",), ("version",)} or path == ("plugins",)
    rest = path[2:]
    return (
        rest[:1] in {("enable_cdi",), ("cdi_spec_dirs",), ()}
        or rest in {("containerd",), ("containerd", "runtimes"), ("containerd", "default_runtime_name")}
        or (rest[:2] == ("containerd", "runtimes") and rest[2] in NVIDIA_HANDLERS)
    )


def taken_out(place: EnginePlace, plan) -> None:
    """Every changed file comes back byte for byte, as memory says and from its own text."""
    for change in plan.changes:
        record = ChangedFile(change.path, kind_of(place, change.path), change.before, change.after)
        assert without(record, change.after) == change.before
        assert without(record, change.before) == change.before
        assert without(record, None) is None


@pytest.mark.parametrize(("version", "plugin", "containerd", "drop_in"), LAYOUTS)
def test_containerd(version, plugin, containerd, drop_in) -> None:
    place = EnginePlace(
        engine=Engine.CONTAINERD,
        flavour="containerd",
        config=MAIN,
        drop_in=DROP_IN if drop_in else "",
        version=containerd,
    )

    @MANY
    @given(containerd_configs(version, plugin), WANTED, st.text("abc = \n#[]'\"", max_size=20))
    def check(config, wanted, edit) -> None:
        data, text = config
        files = {MAIN: text.encode(), DROP_IN: None}
        plan = rules.configure(place, wanted, files)
        after = {**files, **{change.path: change.after for change in plan.changes}}
        main = tomllib.loads((after[MAIN] or b"").decode())
        assert [path for path in changed_leaves(data, main) if not ours(path, plugin)] == []
        if after[DROP_IN] is not None:
            assert set(changed_leaves(data, main)) <= {("imports",), ("version",)}
            own = tomllib.loads(after[DROP_IN].decode())
            assert own["version"] == main.get("version", own["version"])
            section, original = lookup(own, ("plugins", plugin), {}), lookup(data, ("plugins", plugin), {})
            if containerd is not None and containerd >= (2, 1, 0):
                original = {}
            changed = changed_leaves({"plugins": {plugin: original}}, {"plugins": {plugin: section}})
            assert [path for path in changed if not ours(path, plugin)] == []
        now = rules.state(place, after)
        before = rules.state(place, files)
        assert set(NVIDIA_HANDLERS) <= set(now.handlers)
        assert set(before.handlers) <= set(now.handlers)
        assert now.default == (wanted.default or before.default)
        if wanted.cdi:
            assert now.cdi
            assert {"/etc/cdi"} <= set(now.cdi_dirs)
        taken_out(place, plan)
        for change in plan.changes:
            edited_since(place, change, edit)

    check()


def edited_since(place: EnginePlace, change, edit: str) -> None:
    """A line that somebody adds stays, and kgpu's keys go."""
    if change.path == place.drop_in:
        return
    line = f"# {edit!r}"
    current = (change.after or b"").replace(b"\r\n", b"\n") + f"\n{line}\n[edited]\nby = 'hand'\n".encode()
    record = ChangedFile(change.path, kind_of(place, change.path), change.before, change.after)
    rest = without(record, current)
    assert rest is not None
    assert line in rest.decode()
    data = tomllib.loads(rest.decode())
    assert data.pop("edited") == {"by": "hand"}
    original = tomllib.loads((change.before or b"").decode())
    assert same(without_empty(data), without_empty(original))


def without_empty(data):
    if not isinstance(data, dict):
        return data
    return {key: item for key, item in ((key, without_empty(value)) for key, value in data.items()) if item != {}}


@st.composite
def crio_configs(draw: st.DrawFn) -> tuple[dict, str]:
    runtime = st.fixed_dictionaries(
        {"runtime_path": st.sampled_from(["/usr/bin/crun", "/usr/libexec/crio/runc", ""])},
        optional={"runtime_type": st.just("oci"), "monitor_path": st.just("/usr/libexec/crio/conmon")},
    )
    table = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "default_runtime": st.sampled_from(["crun", "runc"]),
                "cdi_spec_dirs": st.lists(st.sampled_from(["/etc/cdi", "/opt/cdi"]), unique=True),
                "pids_limit": st.integers(0, 9),
                "runtimes": st.dictionaries(st.sampled_from(["crun", "runc", "nvidia"]), runtime),
            },
        )
    )
    data = {"crio": {"runtime": table, "image": draw(st.dictionaries(WORDS, TEXTS, max_size=2))}}
    return data, draw(toml_text(data))


@pytest.mark.parametrize("drop_in", ["/etc/crio/crio.conf.d/99-nvidia.toml", ""])
def test_crio(drop_in) -> None:
    main = "/etc/crio/crio.conf"
    place = EnginePlace(
        engine=Engine.CRIO, flavour="crio", config=main, drop_in=drop_in, oci=("/usr/bin/crun", "/usr/bin/runc")
    )

    @MANY
    @given(crio_configs(), WANTED)
    def check(config, wanted) -> None:
        data, text = config
        files = {main: text.encode(), **({drop_in: None} if drop_in else {})}
        plan = rules.configure(place, wanted, files)
        after = {**files, **{change.path: change.after for change in plan.changes}}
        if drop_in:
            assert after[main] == files[main]
        changed = changed_leaves(data, tomllib.loads(after[main].decode()))
        for path in changed:
            assert path[:2] == ("crio", "runtime")
            assert path[2:] in {("default_runtime",), ("cdi_spec_dirs",), ("runtimes",)} or path[3] in NVIDIA_HANDLERS
        now = rules.state(place, after)
        assert all(now.handlers[name] for name in NVIDIA_HANDLERS)
        assert now.default == (wanted.default or rules.state(place, files).default)
        taken_out(place, plan)

    check()


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@MANY
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "runtimes": st.dictionaries(
                st.sampled_from(["nvidia", "kata", "sysbox"]), st.fixed_dictionaries({"path": st.just("/usr/bin/x")})
            ),
            "features": st.dictionaries(st.sampled_from(["cdi", "buildkit", "containerd-snapshotter"]), st.booleans()),
            "default-runtime": st.sampled_from(["runc", "nvidia"]),
            "exec-opts": st.just(["native.cgroupdriver=systemd"]),
            "log-opts": st.dictionaries(TEXTS, TEXTS, max_size=2),
            "other": VALUES,
        },
    ),
    WANTED,
    st.sampled_from([None, 2, 4, "\t"]),
    st.booleans(),
    st.data(),
)
def test_docker(data, wanted, indent, ascii_only, draw) -> None:
    data = dict(draw.draw(st.permutations(list(data.items()))))
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only) + draw.draw(st.sampled_from(["", "\n"]))
    place = EnginePlace(engine=Engine.DOCKER, flavour="docker", config="/etc/docker/daemon.json")
    plan = rules.configure(place, wanted, {place.config: text.encode()})
    after = json.loads(plan.changes[0].after) if plan.changes else data
    expected = copy.deepcopy(data)
    for name in NVIDIA_HANDLERS:
        expected.setdefault("runtimes", {})[name] = after["runtimes"][name]
        assert after["runtimes"][name] == {"path": "runc", "args": []}
    if wanted.cdi:
        expected.setdefault("features", {})["cdi"] = True
    if wanted.default:
        expected["default-runtime"] = wanted.default
    assert same(after, expected)
    assert [key for key in after if key in data] == list(data)
    taken_out(place, plan)
    for change in plan.changes:
        edited = {**json.loads(change.after), "edited": "by hand"}
        record = ChangedFile(change.path, kind_of(place, change.path), change.before, change.after)
        rest = json.loads(without(record, json.dumps(edited).encode()))
        assert rest.pop("edited") == "by hand"
        assert same(without_empty(rest), without_empty(data))
