"""Writes docs/answers: a page per common mistake and question of GPU courses, with what the doctor says to that case.

``python tools/answers.py --lab`` breaks a lab in each of these ways and writes down what the doctor says then; without
``--lab`` everything else of the pages is written anew, and with ``--check`` it exits 1 when a page is not current.
What no lab of one machine can show comes from the broken half of an example of the doctor's tests; the page says so.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from kgpu.doctor.model import Report  # noqa: E402
from kgpu.doctor.plan import diagnose  # noqa: E402
from kgpu.doctor.render import as_text  # noqa: E402
from kgpu.doctor.rules import by_id  # noqa: E402
from tests.doctor.example import FOLDER, load  # noqa: E402 - found through the path above
from tests.doctor.lab.breaking import play  # noqa: E402
from tests.doctor.lab.breaks import courses, operated, operators, scheduling, stack, vendors, workloads  # noqa: E402
from tests.doctor.lab.labs import brought_up  # noqa: E402
from tests.doctor.lab.peers import defined  # noqa: E402

ANSWERS = ROOT / "docs" / "answers"
WIDTH = 110
_IN_LAB = "says to a lab that is broken so:"
_OPEN, _CLOSE = "```text\n", "\n```\n"
_TIME, _NOW = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-01-01T10:00:00Z"


@dataclass(frozen=True, slots=True)
class Row:
    """A page: its file's name, the mistake or question as people put it, the short answer, and the example's name."""

    page: str
    title: str
    answer: str
    example: str


ROWS = (
    Row("half-a-gpu", "Why is `nvidia.com/gpu: 0.5` refused?",
        "GPUs are whole numbers to Kubernetes. Share one by time-slicing, MPS, MIG or DRA, and ask for 1.", "QTA-01"),
    Row("gpu-only-in-requests", "Why does a pod with the GPU only in `requests` not work?",
        "Limits must be given, and be equal to requests: the API server refuses the pod.", "QTA-02"),
    Row("nouveau", "The driver does not load beside nouveau",
        "Both want the same device. Keep nouveau from loading and reboot.", "KRN-03"),
    Row("device-plugin-mounts", "The device plugin runs and nothing is offered: its mounts are missing",
        "It needs the kubelet's folder of device plugins from the host.", "DPL-04"),
    Row("mixed-mig-needs-a-driver", "MIG with different GPUs and a 570 driver",
        "Drivers of the 570 series lose MIG devices; use 580.65.06 or later.", "MIG-09"),
    Row("nri-on-crio", "Why does the NRI plugin not work on CRI-O?",
        "What CRI-O has there differs; switch the plugin off for such nodes.", "RUN-15_crio"),
    Row("capacity-or-allocatable", "A GPU fails: what changes, Capacity or Allocatable?",
        "Allocatable falls and Capacity stays. Alerts must watch Allocatable.", "SCH-03"),
    Row("driver-after-a-kernel-update", "The driver pod crashes after the node's system was updated",
        "It builds a kernel module and finds no headers for the new kernel.", "KRN-01"),
    Row("kernel-headers", "The kernel's headers and the running kernel differ",
        "Pin the kernel, install its headers, or use a precompiled driver.", "KRN-02"),
    Row("kubelet-before-toolkit", "After a reboot pods start before the toolkit is there",
        "They were started by an engine that was not configured yet.", "RUN-29"),
    Row("metrics-of-shared-gpus", "Too many series since GPUs are time-sliced",
        "Each replica has series of its own; take fields out of the CSV.", "MET-23"),
    Row("driver-too-old-for-cuda", "CUDA says that the driver is insufficient",
        "The image's CUDA is newer than what the node's driver can do.", "DRV-11"),
    Row("no-kernel-image", "CUDA says that no kernel image is available",
        "The program was not built for this GPU's architecture.", "DRV-15"),
    Row("nvidia-smi-not-found", "`nvidia-smi` is not found in the container",
        "The runtime has not put the driver's files in.", "RUN-24"),
    Row("labels-by-hand", "Labels that were set by hand and are no longer true",
        "Leave labels to feature discovery.", "TNT-13"),
    Row("nvidia-docker2", "A node still has nvidia-docker2",
        "It is the past; the container toolkit with CDI has taken its place.", "RUN-26"),
    Row("xid-79", "Xid 79: what now?",
        "The GPU has fallen off the bus: drain the node, power-cycle it, replace the card if it comes back.",
        "HW-01"),
    Row("time-slicing-configuration", "The configuration's name is not a key of the ConfigMap",
        "The default, and the node's label, must be the name of a key in it.", "DPL-16"),
    Row("no-toleration", "The pod has no toleration for the GPU node's taint",
        "It stays Pending. Add the toleration.", "TNT-01"),
    Row("wrong-product-name", "The node selector has a product that no node has",
        "Labels carry the driver's full name of the GPU.", "SCH-08"),
    Row("which-gpu", "No affinity in a cluster with different GPUs",
        "The pod may land on any of them: a small one that runs out of memory, or a large one that is wasted.",
        "SCH-11"),
    Row("out-of-memory-on-a-shared-gpu", "Out of memory on a shared GPU",
        "Time-slicing sets no limit on memory: a neighbour has taken it.", "TS-06"),
    Row("out-of-memory-alone", "Out of memory on a GPU that nobody else uses",
        "What is loaded does not fit, or memory is in pieces: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
        "TS-14"),
    Row("time-slicing-change", "The time-slicing ConfigMap was changed and nothing happens",
        "The plugin reads its configuration when it starts: restart its DaemonSet.", "TS-01"),
    Row("several-shares", "Do two shares of a time-sliced GPU give twice the time?",
        "No: all containers on a GPU take turns alike, whatever they asked for.", "TS-07"),
    Row("time-slicing-not-named", "A time-slicing ConfigMap alone does nothing",
        "The ClusterPolicy must name it.", "TS-04"),
    Row("mig-and-mps", "MIG and MPS on one GPU", "That is not supported together.", "MPS-05"),
    Row("all-gpus-taken", "More GPUs asked for than are free", "Wait, ask for fewer, or add nodes.", "SCH-01"),
    Row("quota", "The namespace's quota is used up", "Raise it, or end something.", "QTA-04"),
    Row("grep-shows-no-gpu", "`kubectl describe node | grep -A 5 Capacity` shows no GPU",
        "The list is alphabetical and GPUs are its sixth line. Ask for the one number.", "DPL-25"),
    Row("kubectl-run-with-requests", "`kubectl run --requests` is refused",
        "The flag is gone, and requests alone are not enough for a GPU.", "QTA-12"),
    Row("time-slicing-default", "A time-slicing ConfigMap without a default",
        "Without one, only nodes with the label `nvidia.com/device-plugin.config` use it.", "TS-03"),
)  # fmt: skip


def pages(played: dict[str, str]) -> dict[str, str]:
    """Every page by its file's name; ``played``: what was said in the lab, by rule.

    Raises SystemExit for a row whose example is not there or gives another cause.
    """
    found: dict[str, str] = {}
    listed = []
    for row in ROWS:
        rule = by_id().get(row.example.partition("_")[0])
        if rule is None:
            raise SystemExit(f"{row.page}: there is no rule {row.example}")
        if rule.id in played:
            how, said = "a lab that is broken so", played[rule.id]
        else:
            how, said = "such a cluster (written down, not played)", _of_example(row, rule.id)
        found[f"{row.page}.md"] = (
            f"# {row.title}\n{row.answer}\n\nWhat `kgpu doctor` says to {how}:\n\n{_OPEN}{said}{_CLOSE}\n"
            f"Rule `{rule.id}`, {rule.title}: {rule.explain}\n"
        )
        listed.append(f"- [{row.title}]({row.page}.md)")
    found["README.md"] = (
        "# Answers\nCommon mistakes with GPUs on Kubernetes, and questions that courses ask, each with what "
        "[`kgpu doctor`](../how-to/find-out-why-a-pod-is-stuck.md)\nsays to it. "
        "Made by `python tools/answers.py --lab`.\n\n" + "\n".join(listed) + "\n"
    )
    return found


def _of_example(row: Row, rule: str) -> str:
    path = FOLDER / f"{row.example}.yaml"
    if not path.exists():
        raise SystemExit(f"{row.page}: there is no example {row.example}")
    example = load(path)
    report = diagnose(example.snapshot(example.broken), strict=True)
    if not report.findings or report.findings[0].id != rule:
        raise SystemExit(f"{row.page}: the example {row.example} gives {[one.id for one in report.findings]}")
    return _text(report)


def _text(report: Report) -> str:
    """What is found; what could not be looked at is another matter. Times are always the same one."""
    text = as_text(replace(report, missing=()), WIDTH)
    return "\n".join(_TIME.sub(_NOW, line.rstrip()) for line in text.splitlines())


def kept(have: dict[str, str]) -> dict[str, str]:
    """What the pages quote from the lab, by rule."""
    found = {}
    for row in ROWS:
        text = have.get(f"{row.page}.md", "")
        if _IN_LAB in text:
            found[row.example.partition("_")[0]] = text.split(_OPEN, 1)[1].split(_CLOSE, 1)[0]
    return found


def in_labs() -> dict[str, str]:
    """Break a lab in every way that a page asks for and it knows. Some minutes."""
    found: dict[str, str] = {}
    wanted = {row.example.partition("_")[0] for row in ROWS}
    plain = (courses, stack, scheduling, workloads, operators, vendors)
    tables = [one for module in plain for one in module.BREAKS], operated.BREAKS
    for table, operator in zip(tables, (False, True), strict=True):
        breaks = {one.first: one for one in reversed(table) if one.first in wanted - found.keys() and not one.host}
        with tempfile.TemporaryDirectory() as folder:
            for ground in brought_up("answers", Path(folder), operator=operator):
                if not operator:
                    defined(ground)
                for rule, one in breaks.items():
                    found[rule] = _text(play(ground, one))
                    print(f"{rule}: {one.what}", flush=True)
    return found


def main() -> int:
    """Write or check; returns the exit code."""
    have = {path.name: path.read_text() for path in ANSWERS.glob("*.md")} if ANSWERS.is_dir() else {}
    wanted = pages(in_labs() if "--lab" in sys.argv else kept(have))
    stale = sorted(name for name in {*wanted, *have} if wanted.get(name) != have.get(name))
    if "--check" in sys.argv:
        if stale:
            print("not current; run `python tools/answers.py`:", *stale)
        return int(bool(stale))
    ANSWERS.mkdir(exist_ok=True)
    for name in stale:
        if name in wanted:
            (ANSWERS / name).write_text(wanted[name])
        else:
            (ANSWERS / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
