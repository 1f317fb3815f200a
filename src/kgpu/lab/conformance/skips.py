"""Which tests are run, and which are not started on which kind of lab, each with its reason. Data only.

``plan.check_skips`` refuses a row that is about no test.
"""

from __future__ import annotations

from typing import Final

from kgpu.lab.conformance.model import Skip
from kgpu.lab.port import EMBEDDED, REAL

# The sigs whose tests are run. Those of storage and networking are about a node's file systems and packets.
SIGS: Final = ("api-machinery", "apps", "architecture", "auth", "cli", "instrumentation", "node", "scheduling")

PROCESSES: Final = 2  # of e2e.test beside each other
LIMIT_S: Final = 1200  # for one of them: the slowest tests wait for minutes, by themselves

_EMBEDDED: Final = (EMBEDDED,)

_BOTH: Final = (EMBEDDED, REAL)

SKIPS: Final = (
    Skip(
        labs=_EMBEDDED,
        pattern=r"AdmissionWebhook|CustomResourceConversionWebhook",
        reason="the embedded API calls no webhooks",
    ),
    Skip(
        labs=_BOTH,
        pattern=r"Aggregator Should be able to support the 1.17 Sample API Server",
        reason="it runs the images sample-apiserver and etcd, which are not built here",
    ),
    Skip(
        labs=_BOTH,
        pattern=r"Update Demo",
        reason="it runs the image nautilus, which is not built here",
    ),
    Skip(
        labs=_BOTH,
        pattern=r"Guestbook application",
        reason="its pods find each other by name, and the labs have no DNS",
    ),
    Skip(
        labs=_BOTH,
        pattern=r"OIDC discovery of service account issuer",
        reason="its pod asks for kubernetes.default.svc by name, and the labs have no DNS",
    ),
    Skip(
        labs=_BOTH,
        pattern=r"(ConfigMap|Secrets) should be consumable (via the environment|as environment variable names)",
        reason="it looks for variables such as data-1, which the shell of this machine's busybox does not pass on",
    ),
    Skip(
        labs=(REAL,),
        pattern=r"should have at least two untainted nodes|Daemon set .* should rollback without unnecessary restarts",
        reason="the real lab has one node",
    ),
    Skip(
        labs=(REAL,),
        pattern=r"should execute (poststart|prestop) exec hook",
        reason="its pod runs curl, which agnhost's image, as it is made here, does not have",
    ),
    Skip(
        labs=_EMBEDDED,
        pattern=r"Ephemeral Containers",
        reason="the embedded API adds no container to a pod that runs",
    ),
    Skip(
        labs=_EMBEDDED,
        pattern=r"Pods should contain environment variables for services",
        reason="containers on simulated nodes are told of the API's Service alone: others lead nowhere",
    ),
    Skip(
        labs=_EMBEDDED,
        pattern=r"retrieving logs from the container over websockets",
        reason="the embedded API upgrades no connection",
    ),
    Skip(
        labs=_EMBEDDED,
        pattern=r"Container Lifecycle Hook|PreStop should call prestop",
        reason="its pods call each other, and pods on simulated nodes have no network between them",
    ),
    Skip(
        labs=_EMBEDDED,
        pattern=r"\[sig-node\] Security Context|Sysctls .* should support sysctls|read only busybox container"
        r"|hostAliases|KubeletManagedEtcHosts|termination message if TerminationMessagePath is set as non-root user",
        reason="containers on simulated nodes are processes of the lab's user, in the machine's own file system",
    ),
    Skip(
        labs=_EMBEDDED,
        pattern=r"Pod InPlace Resize",
        reason="containers on simulated nodes have no limits that could be changed",
    ),
    Skip(
        labs=_EMBEDDED,
        pattern=r"Deployment .* should support proportional scaling"
        r"|Daemon set .* should rollback without unnecessary restarts",
        reason="it stops a rollout by an image that can't be pulled, and simulated nodes have every image",
    ),
)

# What `make test` runs: tests of the API alone, without those that wait for minutes by themselves.
CLAIMS: Final = r"\[DRA\] (control plane|CRUD Tests|ResourceSlice Controller) "
"""The tests of claims that need no kubelet: allocation, reservation and release, with a driver of their own."""
SLOW_CLAIMS: Final = r"ResourceSlice Controller|supports reusing resources"
FAST_SIGS: Final = ("api-machinery", "auth", "instrumentation")
SLOW: Final = (
    r"\[Slow\]|\[Serial\]|CustomResourceDefinition Watch|life of a (configMap|secret|pod|replica set)|API chunking"
    r"|observe add, update, and delete"
)
