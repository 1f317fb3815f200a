"""Decodes Kubernetes' protobuf bodies, in which Go clients send built-in kinds, to JSON data. Answers are JSON."""

from kgpu.lab.embedded.protobuf.envelope import MEDIA, decode, types
from kgpu.lab.embedded.protobuf.wire import BadMessageError

__all__ = ["MEDIA", "BadMessageError", "decode", "types"]
