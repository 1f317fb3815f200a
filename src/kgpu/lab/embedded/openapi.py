"""OpenAPI v3 of the built-in kinds and the CRDs: what kubectl's apply, explain and validation read.

``OpenApi`` keeps the encoded documents; ``index`` names them with a hash of their content.
"""

from __future__ import annotations

from kgpu.lab.embedded.crd.custom import CustomKinds
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.status import Object


class OpenApi:
    """The documents, made when asked for and forgotten when the kinds change."""

    def __init__(self, kinds: Kinds, custom: CustomKinds | None = None) -> None:
        self._kinds = kinds
        self._custom = custom

    def index(self) -> Object:
        """``GET /openapi/v3``: path -> serverRelativeURL with the content's hash."""
        raise NotImplementedError

    def document(self, path: str) -> bytes | None:
        """``GET /openapi/v3/PATH`` with PATH ``api/v1`` or ``apis/GROUP/VERSION``, encoded; None when there is none."""
        raise NotImplementedError

    def hash_of(self, path: str) -> str:
        """The hash that the index names, for ETag and ``?hash=``; "" when there is none."""
        raise NotImplementedError
