"""A real Kubernetes node and control plane on this machine, built from published Go modules at pinned versions.

Everything runs in one PID, mount and network namespace, so that taking the lab down leaves nothing behind.
``cluster.RealLab`` is the way in.
"""
