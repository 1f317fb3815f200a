"""Kubernetes' protobuf bodies as JSON data: Go clients send built-in kinds so. Only decoding: the answers are JSON."""

from kgpu.lab.embedded.protobuf.envelope import MEDIA, decode, types
from kgpu.lab.embedded.protobuf.wire import BadMessageError

__all__ = ["MEDIA", "BadMessageError", "decode", "types"]
