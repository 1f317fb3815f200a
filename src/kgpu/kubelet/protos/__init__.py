"""The kubelet APIs in protobuf, written from their published descriptions."""
