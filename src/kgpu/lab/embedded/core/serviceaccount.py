"""The wait for a new namespace's ServiceAccount, which its controller creates a moment after the namespace.

As kube-apiserver 1.35's ServiceAccount admission does (plugin/pkg/admission/serviceaccount): a pod that runs as the
account ``default`` is refused only after ten look-ups at intervals of 100 to 200 ms have not found it.
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


async def await_default_account(core: ApiCore, kind: ApiKind, namespace: str, obj: Any, subresource: str = "") -> None:
    """Wait for the account ``default`` if a new pod uses it and it is missing; no wait without its namespace."""
    if kind.key != ("", "pods") or subresource or not _of_default(obj):
        return
    accounts, namespaces = core.kinds.need("", "serviceaccounts"), core.kinds.need("", "namespaces")
    interval = random.uniform(SHORTEST_S, LONGEST_S)  # noqa: S311 - spreads the look-ups of many pods
    for _ in range(LOOKS - 1):
        if core.has(accounts, namespace, DEFAULT) or not core.has(namespaces, "", namespace):
            return
        await asyncio.sleep(interval)


def _of_default(obj: Any) -> bool:
    """Whether a pod uses the account ``default``. A malformed one counts as such: validation reports what is wrong."""
    spec = obj.get("spec") if isinstance(obj, Mapping) else None
    return not isinstance(spec, Mapping) or (spec.get("serviceAccountName") or DEFAULT) == DEFAULT
