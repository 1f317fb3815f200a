"""The record is bounded, strict, and the same after it was read again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgpu.usage.reclaim.model import WorkloadRef
from kgpu.usage.reclaim.record import (
    MAX_BYTES,
    MOST_ACTIONS,
    MOST_WARNINGS,
    MOST_WORKED,
    EpisodeEntry,
    NoticeKind,
    ReclaimAction,
    ReclaimNotice,
    ReclaimRecord,
    StoredTarget,
    WarningEntry,
    decode,
    encode,
)


def notice(number: int, **more: Any) -> ReclaimNotice:
    return ReclaimNotice(
        id=str(number), kind=NoticeKind.IDLE, policy="p", namespace="a", who="w", what="x", at=float(number), **more
    )


def test_it_is_the_same_after_it_was_read() -> None:
    entry = EpisodeEntry(kind="Deployment", namespace="a", name="d", since=1.0, told=2.0)
    record = ReclaimRecord(looked=5.0).with_episode(entry).with_notices([notice(1), notice(1), notice(2)])
    assert decode(encode(record)) == record
    assert [one.id for one in record.notices] == ["1", "2"]
    assert record.episode(WorkloadRef("a", "Deployment", "d")) == entry


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "nots": []}', '{"notices": [{}]}'])
def test_what_is_none_is_told_apart_from_an_empty_one(text: str) -> None:
    assert decode(text) is None


def test_of_too_much_the_oldest_goes_and_is_counted() -> None:
    record = ReclaimRecord().with_notices(notice(number, keep="k" * 200) for number in range(2000))
    kept = decode(encode(record))
    assert kept is not None
    assert [kept.notices[0].id, kept.notices[-1].id, kept.dropped] == ["1500", "1999", 1500]
    large = msgspec.structs.replace(record, notices=tuple(notice(at, keep="k" * 5000) for at in range(400)))
    text = encode(large)
    assert len(text) <= MAX_BYTES
    kept = decode(text)
    assert kept is not None
    assert kept.dropped == 400 - len(kept.notices) > 0


def test_the_longest_names_fit_a_config_map() -> None:
    name, where = "n" * 253, "a" * 63
    target = StoredTarget(
        group="leaderworkerset.x-k8s.io", version="v1", plural="leaderworkersets", kind="LeaderWorkerSet",
        namespace=where, name=name, uid="u" * 36, way="scale",
    )  # fmt: skip
    own: dict[str, Any] = {"kind": "LeaderWorkerSet", "namespace": where, "target": target}
    record = ReclaimRecord(
        looked=1.0,
        warnings=tuple(WarningEntry(name=f"{at}{name}", since=1e9, deadline=2e9, **own) for at in range(MOST_WARNINGS)),
        actions=tuple(
            ReclaimAction(
                id=f"{at}{name}", policy=name, name=name, gpus=8.0, at=1.0, why="w" * 300, undo="u" * 350, **own
            )
            for at in range(MOST_ACTIONS)
        ),
        worked=("01234567",) * MOST_WORKED,
    ).with_notices(notice(number, keep="k" * 200) for number in range(2000))
    text = encode(record)
    assert len(text) < 1 << 20
    kept = decode(text)
    assert kept is not None
    assert kept.warnings == record.warnings, "a warning that is dropped is one that nobody was given time after"
