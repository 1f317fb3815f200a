"""Does this pod fit this node, and if not, every reason why. Pure: views in, answers out.

``verdict`` is kube-scheduler's answer over all nodes with its message; ``explain`` is every reason with the evidence.
"""

from kgpu.fit.explain import explain, explain_pod
from kgpu.fit.model import NodeView, PodView, Preemption, Reason
from kgpu.fit.snapshot import ClusterSnapshot, ClusterView
from kgpu.fit.verdict import FitVerdict, verdict

__all__ = [
    "ClusterSnapshot",
    "ClusterView",
    "FitVerdict",
    "NodeView",
    "PodView",
    "Preemption",
    "Reason",
    "explain",
    "explain_pod",
    "verdict",
]
