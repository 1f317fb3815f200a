"""What the plugins share: the message of a refusal, and whether a request creates a pod."""

from __future__ import annotations

from typing import Final

from kgpu.lab.embedded.core.model import Review
from kgpu.lab.embedded.status import ApiError, Object, forbidden

PODS: Final = ("", "pods")


def refused(review: Review, why: str) -> ApiError:
    """403, naming the object; an object without a name is called by its generateName, else "unknown"."""
    meta: Object = review.obj.get("metadata") or {}
    name = review.name or str(meta.get("name") or "")
    if not name:
        generated = meta.get("generateName")
        name = f"{generated}" if generated else "unknown"
    return forbidden(review.kind.group, review.kind.plural, name, why)


def new_pod(review: Review) -> bool:
    """Whether the request creates a pod."""
    return review.kind.key == PODS and review.operation == "CREATE" and not review.subresource
