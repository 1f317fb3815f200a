"""One server for the tests of its HTTP surface; each test writes under names of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.embedded.served import Server, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("embedded") / "lab") as found:
        yield found
        assert "Traceback" not in found.log
