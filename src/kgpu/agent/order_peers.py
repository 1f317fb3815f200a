"""Where a node has a process for each role, all of them obey an order, and one answers for all.

Each writes its own answer into files in /run, one for each of its roles; the one that speaks waits for the others'. It
is the process with the first role that runs on the node, so that all agree on it without asking.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.formats.names import OPERATION_REPORT_ANNOTATION
from kgpu.formats.node_order import MAX_BYTES, ChangeResult, NodeOrder, OrderAnswer, read_answer

FOLDER: Final = "operation"


class OrderPeers:
    """``own`` are the roles of this process, ``wanted()`` all that read the driver on this node, in the same order
    everywhere. Calls block.
    """

    def __init__(self, run: Path, own: Collection[str], wanted: Callable[[], tuple[str, ...]]) -> None:
        self._folder = run / FOLDER
        self._own = own
        self._wanted = wanted

    @property
    def speaks(self) -> bool:
        """Whether this process answers on the Node."""
        return any(role in self._own for role in self._wanted()[:1])

    def write(self, text: str) -> None:
        """Tell the others what this process answers, "" for nothing. Raises HostError."""
        for role in self._own:
            path = self._folder / role
            try:
                if text:
                    write_atomic(path, text.encode())
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise HostError(
                    f"{path} can't be written: {error.strerror or error}",
                    "a folder that may be written, which is the same for every process of this node",
                    f"mount {self._folder.parent} of the host there, writable",
                ) from error

    def waits(self, order: NodeOrder) -> str:
        """What other processes have yet to do for the order's step, "" for nothing."""
        found = []
        for role in self._wanted():
            said = None if role in self._own else self._read(role)
            if role not in self._own and (said is None or not said.fulfils(order.id, order.step)):
                why = (said.refused or said.waits) if said is not None and said.id == order.id else ""
                found.append(f"the process of {role}: {why or 'it has not followed the order yet'}")
        return "; ".join(found)

    def result(self, order: NodeOrder) -> ChangeResult | None:
        """What another process says has come of the order's change of slices, None for nothing yet."""
        others = (self._read(role) for role in self._wanted() if role not in self._own)
        said = (one.result for one in others if one is not None and one.fulfils(order.id, order.step))
        return next((one for one in said if one is not None), None)

    def _read(self, role: str) -> OrderAnswer | None:
        with contextlib.suppress(OSError, UnicodeDecodeError), open(self._folder / role, "rb") as file:
            if os.fstat(file.fileno()).st_size <= MAX_BYTES:
                return read_answer({OPERATION_REPORT_ANNOTATION: file.read(MAX_BYTES).decode()})
        return None
