"""The scheduler of the embedded cluster: decides with ``kgpu.fit``, and says and does what kube-scheduler does."""
