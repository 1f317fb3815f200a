"""Configuring an engine and undoing it: once, again, after edits, when the engine does not come back."""

from __future__ import annotations

import asyncio
import json
import os
import stat

import pytest

from kgpu.base.errors import ConfigError, HostError
from kgpu.host.engines.model import EngineOffer, RuntimeHandler
from kgpu.toolkit.engine import run
from kgpu.toolkit.engine.fake import FakeEngine
from kgpu.toolkit.engine.store import EngineChanges, EngineStore
from tests.toolkit.engine.support import CONFIG, HOSTS, containerd_host, docker_host

MAIN, DROP_IN = "etc/containerd/config.toml", "etc/containerd/conf.d/99-nvidia.toml"


@pytest.mark.parametrize("kind", HOSTS)
async def test_there_and_back(kind, tmp_path) -> None:
    host = HOSTS[kind](tmp_path)
    original = host.tree("etc", "var") if kind == "k3s" else host.tree()
    async with FakeEngine(host.local(host.place.socket)) as engine:
        ctx = host.context(engine)
        first = await run.configure(host.place, EngineOffer(), ctx)
        assert first.changed
        assert first.restarted
        again = await run.configure(host.place, EngineOffer(), ctx)
        assert not again.changed
        assert engine.restarts == 1
        if kind != "k3s":  # its state is what it renders at its next start
            assert set(run.state(host.place, host.paths).handlers) >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
        back = await run.unconfigure(host.place, ctx)
        assert back.changed
        assert engine.restarts == 2
        gone = await run.unconfigure(host.place, ctx)
        assert not gone.changed
        assert engine.restarts == 2
    left = {
        path: raw
        for path, raw in (host.tree("etc", "var") if kind == "k3s" else host.tree()).items()
        if "kgpu" not in path
    }
    assert left == original


async def test_a_preview_writes_nothing(tmp_path) -> None:
    host = containerd_host(tmp_path)
    before = host.tree(".")
    plan = run.preview(host.place, EngineOffer(), host.context())
    assert [change.path for change in plan.changes] == ["/" + DROP_IN, "/" + MAIN]
    assert run.preview_removal(host.place, host.context()).changes == ()
    assert host.tree(".") == before


async def test_a_missing_config_is_made_and_taken_away(tmp_path) -> None:
    host = containerd_host(tmp_path, config=None)
    before = host.tree()
    await run.configure(host.place, EngineOffer(), host.context())
    assert host.local("/" + MAIN).read_bytes().startswith(b"imports")
    await run.unconfigure(host.place, host.context())
    assert host.tree() == before


async def test_an_edit_since_stays_and_only_kgpus_keys_go(tmp_path) -> None:
    host = containerd_host(tmp_path)
    main = host.local("/" + MAIN)
    await run.configure(host.place, EngineOffer(), host.context())
    main.write_bytes(main.read_bytes().replace(b"# hello", b"# edited") + b'\n[timeouts]\n"a.b" = "5s"\n')
    outcome = await run.unconfigure(host.place, host.context())
    assert main.read_bytes() == CONFIG.replace(b"# hello", b"# edited") + b'\n[timeouts]\n"a.b" = "5s"\n'
    assert not host.local("/" + DROP_IN).exists()
    assert any("was edited since" in note for note in outcome.notes)


async def test_an_edit_since_is_the_new_original(tmp_path) -> None:
    host = containerd_host(
        tmp_path,
        version=(1, 7, 30),
        config=CONFIG.replace(b"version = 3", b"version = 2").replace(
            b"io.containerd.cri.v1.runtime", b"io.containerd.grpc.v1.cri"
        ),
    )
    main = host.local("/" + MAIN)
    await run.configure(host.place, EngineOffer(), host.context())
    edited = main.read_bytes() + b'[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/opt/other"\n'
    main.write_bytes(edited)
    outcome = await run.configure(host.place, EngineOffer(), host.context())
    assert [change.path for change in outcome.changes] == ["/" + DROP_IN]
    assert b"/opt/other" in host.local("/" + DROP_IN).read_bytes()  # the copied section follows the edit
    await run.unconfigure(host.place, host.context())
    assert main.read_bytes() == edited.replace(b'imports = ["/etc/containerd/conf.d/*.toml"]\n', b"")


async def test_other_wishes_replace_the_former_ones(tmp_path) -> None:
    host = docker_host(tmp_path)
    original = host.tree()
    await run.configure(host.place, EngineOffer(), host.context())
    await run.configure(host.place, EngineOffer(handlers=(RuntimeHandler("gpu"),), default="gpu"), host.context())
    data = json.loads(host.local(host.place.config).read_bytes())
    assert set(data["runtimes"]) == {"gpu"}
    assert data["default-runtime"] == "gpu"
    await run.unconfigure(host.place, host.context())
    assert host.tree() == original


async def test_files_deleted_by_hand_are_no_error(tmp_path) -> None:
    host = containerd_host(tmp_path)
    await run.configure(host.place, EngineOffer(), host.context())
    host.local("/" + DROP_IN).unlink()
    await run.unconfigure(host.place, host.context())
    assert host.local("/" + MAIN).read_bytes() == CONFIG
    await run.configure(host.place, EngineOffer(), host.context())
    host.local("/" + MAIN).unlink()
    await run.unconfigure(host.place, host.context())
    assert not host.local("/" + MAIN).exists()


@pytest.mark.parametrize("broken", [b"version = \n", b"\xff", b"version = 3\nversion = 3\n", b"version = 'x'\n"])
async def test_a_broken_config_is_refused_and_left_as_it_is(broken, tmp_path) -> None:
    host = containerd_host(tmp_path, config=broken)
    before = host.tree()
    async with FakeEngine(host.local(host.place.socket)) as engine:
        with pytest.raises(ConfigError) as caught:
            await run.configure(host.place, EngineOffer(), host.context(engine))
        assert "/etc/containerd/config.toml" in caught.value.what
        assert caught.value.expected
        assert caught.value.remedy
        assert engine.restarts == 0
    assert host.tree() == before


async def test_broken_since_it_was_configured(tmp_path) -> None:
    host = containerd_host(tmp_path)
    await run.configure(host.place, EngineOffer(), host.context())
    main = host.local("/" + MAIN)
    main.write_bytes(b"version = \n")
    for work in (run.configure(host.place, EngineOffer(), host.context()), run.unconfigure(host.place, host.context())):
        with pytest.raises(ConfigError, match="isn't valid TOML"):
            await work
        assert main.read_bytes() == b"version = \n"
    main.write_bytes(CONFIG)  # restored by hand
    await run.unconfigure(host.place, host.context())
    assert main.read_bytes() == CONFIG
    assert not host.local("/" + DROP_IN).exists()


async def test_an_engine_that_does_not_come_back_gets_its_config_back(tmp_path) -> None:
    host = containerd_host(tmp_path)
    before = host.tree()
    async with FakeEngine(host.local(host.place.socket)) as engine:
        engine.broken = host.local("/" + DROP_IN).exists
        with pytest.raises(HostError, match="isn't well"):
            await run.configure(host.place, EngineOffer(), host.context(engine))
        assert engine.restarts == 2
        assert host.tree() == before
        assert EngineStore(host.root / "var/lib/kgpu", host.place).load() == EngineChanges()
        engine.broken = lambda: False
        assert (await run.configure(host.place, EngineOffer(), host.context(engine))).restarted


async def test_what_is_said_of_putting_back_is_true(tmp_path, monkeypatch, caplog) -> None:
    host = containerd_host(tmp_path)
    async with FakeEngine(host.local(host.place.socket)) as engine:
        engine.broken = host.local("/" + DROP_IN).exists
        with pytest.raises(HostError) as caught:
            await run.configure(host.place, EngineOffer(), host.context(engine))
        assert caught.value.remedy.endswith("; its config was put back as it was before")
        engine.broken = lambda: True
        with pytest.raises(HostError) as caught:
            await run.configure(host.place, EngineOffer(), host.context(engine))
        assert "its config was put back, but containerd isn't well with that either: " in caught.value.remedy
    assert host.local("/" + MAIN).read_bytes() == CONFIG

    def refuse(change, *more, back=False, **others) -> None:
        if back:
            raise HostError(f"{change.path} can't be written", "a disk with room", "make room")
        apply(change, *more, **others)

    apply = run.apply
    monkeypatch.setattr(run, "apply", refuse)
    async with FakeEngine(host.local(host.place.socket)) as engine:
        engine.broken = lambda: True
        with pytest.raises(HostError) as caught:
            await run.configure(host.place, EngineOffer(), host.context(engine))
    assert "its config could NOT be put back: /etc/containerd/" in caught.value.remedy
    assert host.local("/" + MAIN).read_bytes() != CONFIG
    assert caplog.text == ""  # everything is in the error


@pytest.mark.parametrize(("cdi", "noted"), [(True, True), (False, False)])
async def test_docker_is_not_said_to_have_cdi_on_after_a_signal(tmp_path, cdi, noted) -> None:
    host = docker_host(tmp_path)
    async with FakeEngine(host.local(host.place.socket)) as engine:
        outcome = await run.configure(host.place, EngineOffer(cdi=cdi), host.context(engine))
        assert outcome.restarted
        assert any("systemctl restart docker" in note and "live-restore" in note for note in outcome.notes) is noted
        notes = run.state(host.place, host.paths).notes
        assert any("only when it starts" in note for note in notes) is noted
        back = await run.unconfigure(host.place, host.context(engine))
        assert not any("features.cdi" in note for note in back.notes)


async def test_an_engine_that_comes_back_otherwise_gets_its_config_back(tmp_path) -> None:
    host = containerd_host(tmp_path)
    await run.configure(host.place, EngineOffer(), host.context())
    before = host.tree()

    async def check() -> str:
        return "handler other is not there"

    async with FakeEngine(host.local(host.place.socket)) as engine:
        with pytest.raises(HostError, match="handler other is not there"):
            await run.configure(
                host.place, EngineOffer(handlers=(RuntimeHandler("other"),)), host.context(engine, check=check)
            )
        assert engine.restarts == 2
    assert host.tree() == before
    await run.unconfigure(host.place, host.context())
    assert host.local("/" + MAIN).read_bytes() == CONFIG


async def test_what_the_engine_would_not_load_is_never_written(tmp_path) -> None:
    host = containerd_host(tmp_path)
    before = host.tree()
    async with FakeEngine(host.local(host.place.socket)) as engine:
        engine.complaint = lambda files: "bad nvidia" if files.get("/" + DROP_IN) else ""
        with pytest.raises(HostError, match="would not load the changed config: bad nvidia"):
            await run.configure(host.place, EngineOffer(), host.context(engine))
        engine.complaint = lambda _files: "bad already"
        with pytest.raises(HostError, match="can't load its config as it is now: bad already"):
            await run.configure(host.place, EngineOffer(), host.context(engine))
        assert engine.restarts == 0
    assert host.tree() == before


async def test_leaving_a_config_that_somebody_broke_does_not_restart_the_engine(tmp_path) -> None:
    host = containerd_host(tmp_path)
    async with FakeEngine(host.local(host.place.socket)) as engine:
        await run.configure(host.place, EngineOffer(), host.context(engine))
        engine.complaint = lambda _files: "bad type"
        outcome = await run.unconfigure(host.place, host.context(engine))
        assert engine.restarts == 1
        assert any("was not restarted" in note for note in outcome.notes)
        engine.complaint = lambda files: "" if files.get("/" + DROP_IN) else "bad original"
        await run.configure(host.place, EngineOffer(), host.context(engine))
        with pytest.raises(HostError, match="bad original"):
            await run.unconfigure(host.place, host.context(engine))
    assert "/" + DROP_IN in [change.path for change in run.preview_removal(host.place, host.context()).changes]


async def test_kgpus_own_file_broken_by_hand_is_written_anew_or_removed(tmp_path) -> None:
    host = containerd_host(tmp_path)
    await run.configure(host.place, EngineOffer(), host.context())
    own = host.local("/" + DROP_IN)
    good = own.read_bytes()
    own.write_bytes(good + b"x = \n")
    await run.configure(host.place, EngineOffer(), host.context())
    assert own.read_bytes() == good
    own.write_bytes(good + b"x = \n")
    await run.unconfigure(host.place, host.context())
    assert not own.exists()


async def test_a_restart_that_was_missed_is_made_up_for(tmp_path) -> None:
    """Killed between the last write and the restart: the files are right, the engine hasn't read them."""
    host = containerd_host(tmp_path)
    await run.configure(host.place, EngineOffer(), host.context())
    store = EngineStore(host.root / "var/lib/kgpu", host.place)
    kept = store.load()
    store.save(EngineChanges(records=kept.records, previous=kept.records, settled=False, folders=kept.folders))
    async with FakeEngine(host.local(host.place.socket)) as engine:
        assert (await run.configure(host.place, EngineOffer(), host.context(engine))).restarted
        assert engine.restarts == 1
        assert not (await run.configure(host.place, EngineOffer(), host.context(engine))).restarted


async def test_an_engine_that_is_not_running_is_not_restarted(tmp_path) -> None:
    host = containerd_host(tmp_path)
    engine = FakeEngine(host.local(host.place.socket))
    outcome = await run.configure(host.place, EngineOffer(), host.context(engine))
    assert outcome.changed
    assert engine.restarts == 0
    assert any("isn't running" in note for note in outcome.notes)


async def test_without_memory_kgpus_marks_are_enough(tmp_path) -> None:
    host = containerd_host(tmp_path)
    await run.configure(host.place, EngineOffer(), host.context())
    store = EngineStore(host.root / "var/lib/kgpu", host.place)
    (store.folder / "record.json").unlink()
    outcome = await run.configure(host.place, EngineOffer(handlers=(RuntimeHandler("nvidia"),)), host.context())
    assert outcome.changed
    (store.folder / "record.json").unlink()
    await run.unconfigure(host.place, host.context())
    assert host.tree()[MAIN] == CONFIG
    assert DROP_IN not in host.tree()


async def test_a_users_own_runtime_without_memory_stays(tmp_path) -> None:
    own = (
        CONFIG
        + b'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
    )
    host = containerd_host(tmp_path, config=own)
    assert not (await run.unconfigure(host.place, host.context())).changed
    outcome = await run.unconfigure(host.place, host.context(), ("nvidia",))
    assert outcome.changed
    assert host.tree()[MAIN] == CONFIG


async def test_one_at_a_time(tmp_path) -> None:
    host = containerd_host(tmp_path)
    with EngineStore(host.root / "var/lib/kgpu", host.place).locked(), pytest.raises(HostError, match="another kgpu"):
        await run.configure(host.place, EngineOffer(), host.context())


async def test_owner_and_permissions_are_kept_and_secrets_stay_secret(tmp_path) -> None:
    host = containerd_host(tmp_path, version=(1, 7, 30))
    main = host.local("/" + MAIN)
    main.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(main, 12, 34)
    await run.configure(host.place, EngineOffer(), host.context())
    state = main.stat()
    assert stat.S_IMODE(state.st_mode) == 0o600
    if os.geteuid() == 0:
        assert (state.st_uid, state.st_gid) == (12, 34)
    assert stat.S_IMODE(host.local("/" + DROP_IN).stat().st_mode) == 0o600
    for path in (host.root / "var/lib/kgpu/engines").rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


async def test_a_link_is_followed_inside_the_hosts_root(tmp_path) -> None:
    host = containerd_host(tmp_path, config=None)
    real = tmp_path / "opt/real.toml"
    real.parent.mkdir()
    real.write_bytes(CONFIG)
    host.local("/" + MAIN).symlink_to("/opt/real.toml")
    await run.configure(host.place, EngineOffer(), host.context())
    assert host.local("/" + MAIN).is_symlink()
    assert b"imports" in real.read_bytes()
    await run.unconfigure(host.place, host.context())
    assert real.read_bytes() == CONFIG


async def test_a_folder_that_can_not_be_written_changes_nothing(tmp_path) -> None:
    host = containerd_host(tmp_path)
    host.local("/etc/containerd/conf.d").write_text("a file in the way")
    before = host.tree()
    with pytest.raises(HostError) as caught:
        await run.configure(host.place, EngineOffer(), host.context())
    assert "99-nvidia.toml can't be written" in caught.value.what
    assert host.tree() == before
    assert EngineStore(host.root / "var/lib/kgpu", host.place).load() == EngineChanges()


async def test_memory_that_can_not_be_read_is_told(tmp_path) -> None:
    host = containerd_host(tmp_path)
    store = EngineStore(host.root / "var/lib/kgpu", host.place)
    await run.configure(host.place, EngineOffer(), host.context())
    (store.folder / "record.json").write_text('{"settled": 1}')
    with pytest.raises(HostError, match="memory of this engine"):
        await run.unconfigure(host.place, host.context())
    assert (store.folder / "originals" / MAIN).read_bytes() == CONFIG


async def test_giving_up_in_the_middle_is_made_good(tmp_path) -> None:
    host = containerd_host(tmp_path)
    started = asyncio.Event()

    class Slow(FakeEngine):
        async def restart(self, place) -> None:
            started.set()
            await asyncio.Event().wait()

    slow = Slow(host.local(host.place.socket))
    async with slow:
        task = asyncio.create_task(run.configure(host.place, EngineOffer(), host.context(slow)))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await run.unconfigure(host.place, host.context())
    assert host.tree()[MAIN] == CONFIG
    assert DROP_IN not in host.tree()
