"""Where a claim's volume is on a node: by what the volume says, and in the kubelet's words where it can't be had."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kgpu.kube.kinds import VOLUMES
from kgpu.kube.port import Resource
from kgpu.lab.nodes import volumes
from kgpu.lab.nodes.persistent import places
from kgpu.lab.nodes.volumes import VolumeError

POD = {
    "metadata": {"namespace": "ml"},
    "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}, {"name": "tmp", "emptyDir": {}}]},
}  # fmt: skip
BOUND = {"spec": {"volumeName": "pv"}}


def node(tmp_path: Path, claim: Any, volume: Any) -> Any:
    async def get(resource: Resource, name: str, namespace: str = "") -> Any:
        assert (name, namespace) == (("pv", "") if resource == VOLUMES else ("mine", "ml"))
        return volume if resource == VOLUMES else claim

    find = lambda path: tmp_path / "host" / path.lstrip("/")  # noqa: E731
    return SimpleNamespace(api=SimpleNamespace(get=get), shared=tmp_path / "shared", machine=SimpleNamespace(find=find))


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ({"csi": {"driver": "kgpu.dev/local", "volumeHandle": "pv"}}, "shared/pv"),
        ({"hostPath": {"path": "/mnt/data", "type": "DirectoryOrCreate"}}, "host/mnt/data"),
    ],
)
async def test_a_volume_of_the_lab_is_shared_and_one_of_the_host_is_the_nodes(
    source: dict[str, Any], where: str, tmp_path: Path
) -> None:
    assert await places(node(tmp_path, BOUND, {"spec": source}), POD) == {"data": tmp_path / where}
    assert (tmp_path / where).is_dir()


async def test_a_kind_of_volume_that_is_not_known_is_left_to_the_pod(tmp_path: Path) -> None:
    assert await places(node(tmp_path, BOUND, {"spec": {"nfs": {"server": "a", "path": "/"}}}), POD) == {}
    made = volumes.write(POD, tmp_path / "pod", objects={}, facts={}, allocatable={}, persistent={})
    assert made == {"data": tmp_path / "pod/data", "tmp": tmp_path / "pod/tmp"}


@pytest.mark.parametrize(
    ("claim", "volume", "why"),
    [
        (None, None, 'error processing PVC ml/mine: persistentvolumeclaim "mine" not found'),
        ({"spec": {}}, None, "error processing PVC ml/mine: PVC is not bound"),
        (BOUND, None, "error processing PVC ml/mine: PVC is not bound"),
        (BOUND, {"spec": {"local": {"path": "/none"}}}, 'path "/none" does not exist'),
        (BOUND, {"spec": {"csi": {"driver": "kgpu.dev/local", "volumeHandle": "../../etc"}}}, "is not a volume's name"),
    ],
)
async def test_what_can_not_be_had_is_refused(claim: Any, volume: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(VolumeError) as refused:
        await places(node(tmp_path, claim, volume), POD)
    assert why in refused.value.what


def test_a_claim_taken_read_only_is_so_wherever_it_is_mounted() -> None:
    about = {"claimName": "mine", "readOnly": True}
    pod = {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": about}, {"name": "tmp", "emptyDir": {}}]}}
    container = {"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}, {"name": "tmp", "mountPath": "/t"}]}
    here = {"data": Path("/a"), "tmp": Path("/b")}
    made = volumes.mounts(container, here, {}, volumes.read_only(pod))
    assert [(one.container_path, one.options) for one in made] == [("/d", ("ro",)), ("/t", ())]
