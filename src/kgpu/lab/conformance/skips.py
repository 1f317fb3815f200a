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

SKIPS: Final = (
    Skip(
        labs=_EMBEDDED,
        pattern=r"AdmissionWebhook|CustomResourceConversionWebhook",
        reason="the embedded API calls no webhooks, and a webhook's pod would have to serve from its image",
    ),
    Skip(
        labs=(EMBEDDED, REAL),
        pattern=r"Aggregator Should be able to support the 1.17 Sample API Server",
        reason="it runs the images sample-apiserver and etcd, which are not built here",
    ),
)

# What `make test` runs: tests of the API alone, without those that wait for minutes by themselves.
FAST_SIGS: Final = ("api-machinery", "auth", "instrumentation")
SLOW: Final = r"\[Slow\]|\[Serial\]"
