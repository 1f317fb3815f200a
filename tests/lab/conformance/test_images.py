"""The images of the tests' pods: under the names that are asked for, and no others."""

from __future__ import annotations

import pytest

from kgpu.lab.conformance import images
from kgpu.lab.real.images import oci_archive

NAMES = (
    "registry.k8s.io/e2e-test-images/agnhost:2.55",
    "registry.k8s.io/e2e-test-images/agnhost:2.59",
    "gcr.io/k8s-authenticated-test/agnhost:2.6",
    "registry.k8s.io/e2e-test-images/nginx:1.15-4",
    "registry.k8s.io/e2e-test-images/nonewprivs:1.3",
    "registry.k8s.io/pause:3.10.1",
    "registry.k8s.io/etcd:3.6.6-0",
)


@pytest.fixture
def made() -> dict[str, images.LabImage]:
    found = images.make(
        NAMES,
        pause=b"p",
        agnhost=b"a",
        nnp=b"n",
        busybox=b"b",
        applets=("sh", "httpd"),
        pair=images.CertificateAndKey(b"c", b"k"),
    )
    return {images.repository(one.names[0]): one for one in found}


def test_an_image_has_every_name_that_is_asked_for(made: dict[str, images.LabImage]) -> None:
    assert made["agnhost"].names == NAMES[:2]
    assert set(made) == {"agnhost", "nginx", "nonewprivs", "pause"}


def test_what_tells_its_user_has_the_bit_that_could_change_it(made: dict[str, images.LabImage]) -> None:
    (program,) = [file for file in made["nonewprivs"].files if file.path == images.NNP]
    assert (program.data, program.mode, made["nonewprivs"].command) == (b"n", 0o4755, ("/usr/local/bin/nnp",))


def test_agnhost_is_what_its_pods_call(made: dict[str, images.LabImage]) -> None:
    files = {file.path: file for file in made["agnhost"].files}
    assert (made["agnhost"].entrypoint, files["agnhost"].data, files["agnhost-2"].link) == (
        ("/agnhost",),
        b"a",
        "agnhost",
    )
    assert (files["localhost.crt"].data, files["localhost.key"].data) == (b"c", b"k")
    assert b"group-defined-in-image:x:50000" in (files["etc/group"].data or b"")


def test_no_file_is_there_twice_and_folders_come_first(made: dict[str, images.LabImage]) -> None:
    for image in made.values():
        paths = [file.path.strip("/") for file in image.files]
        assert len(set(paths)) == len(paths)
        for file in image.files:
            parent = file.path.strip("/").rpartition("/")[0]
            assert not parent or paths.index(parent) < paths.index(file.path.strip("/"))
    assert oci_archive(*made.values(), architecture="amd64")
