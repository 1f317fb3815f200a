"""Does this pod fit this node, and if not, every reason why. Pure: views in, answers out.

``verdict`` is kube-scheduler's answer over all nodes with its message; ``explain`` is every reason with the evidence.
"""

from kgpu.fit.explain import explain, explain_pod
from kgpu.fit.model import NodeView, PodView, Preemption, Reason
from kgpu.fit.snapshot import ClusterView, Snapshot
from kgpu.fit.verdict import Verdict, verdict

__all__ = [
    "ClusterView",
    "NodeView",
    "PodView",
    "Preemption",
    "Reason",
    "Snapshot",
    "Verdict",
    "explain",
    "explain_pod",
    "verdict",
]
