"""The wait for a new namespace's ServiceAccount: its controller makes it a moment after the namespace.

As kube-apiserver 1.35's ServiceAccount admission does (plugin/pkg/admission/serviceaccount): a pod that runs as the
account ``default`` is refused only when ten looks at intervals of 100 to 200 ms have not found it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Final

from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.kinds import ApiKind

DEFAULT: Final = "default"
LOOKS: Final = 10
SHORTEST_S: Final = 0.1
LONGEST_S: Final = 0.2


async def default_account(core: ApiCore, kind: ApiKind, namespace: str, obj: Any, subresource: str = "") -> None:
    """Return when a new pod's account may be looked up: at once unless it is ``default``, missing, of a namespace."""
    if kind.key != ("", "pods") or subresource or not _of_default(obj):
        return
    accounts, namespaces = core.kinds.need("", "serviceaccounts"), core.kinds.need("", "namespaces")
    interval = random.uniform(SHORTEST_S, LONGEST_S)  # noqa: S311 - so that many do not look at once
    for _ in range(LOOKS - 1):
        if core.has(accounts, namespace, DEFAULT) or not core.has(namespaces, "", namespace):
            return
        await asyncio.sleep(interval)


def _of_default(obj: Any) -> bool:
    """Whatever has no readable account: the words for what is wrong with it come from those who check it."""
    spec = obj.get("spec") if isinstance(obj, Mapping) else None
    return not isinstance(spec, Mapping) or (spec.get("serviceAccountName") or DEFAULT) == DEFAULT
