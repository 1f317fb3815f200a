"""What programs do to a simulated GPU over time: load profiles, as data rows.

A profile is phases that come once, then phases that come again and again; each phase says for how long, and what share
of the GPU each channel has meanwhile. Everything that moves with load follows from these rows: NVML's utilisation,
samples, process utilisation and GPM, power, heat, energy, PCIe and NVLink traffic. The same start gives the same
readings at the same time, in every process that reads.

The numbers are typical ones, not measurements of one program. Where they come from:

- Training keeps tensor cores at 20-50 % where it is well fed (model FLOPs utilisation in arXiv:2204.02311, table 3),
  draws near the board's limit, and has pauses without use for data, evaluation and checkpoints.
- A served language model is bound by memory bandwidth while it decodes: high DRAM, low tensor activity (NVIDIA,
  "Mastering LLM Techniques: Inference Optimization"); servers take memory beforehand (vLLM's
  `--gpu-memory-utilization` is 0.9).
- GPU_UTIL and GR_ENGINE_ACTIVE say that any kernel ran: one block keeps them at 100 % with 1 of 132 SMs active
  (NVML's and DCGM's definitions of nvmlUtilization_t and DCGM_FI_PROF_SM_ACTIVE).
- A context that nothing runs in costs memory and some watts, no utilisation.
- Ranks that wait in an NCCL collective for one that will not come spin in a kernel that keeps few SMs busy; once the
  watchdog has ended it they hold their memory at 0 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LoadChannel:
    """Something that a phase gives a share of, in percent of the GPU or MIG instance."""

    name: str
    doc: str


CHANNELS: Final = (
    LoadChannel("GR", "load channel: time with any kernel (GPU_UTIL, GR_ENGINE_ACTIVE)"),
    LoadChannel("SM", "load channel: SM_ACTIVE"),
    LoadChannel("OCCUPANCY", "load channel: SM_OCCUPANCY"),
    LoadChannel("TENSOR", "load channel: PIPE_TENSOR_ACTIVE"),
    LoadChannel("DRAM", "load channel: DRAM_ACTIVE, and memory utilisation"),
    LoadChannel("POWER", "load channel: power between idle and full load; heat follows it"),
    LoadChannel("PCIE_TX", "load channel: PCIe traffic to the host, of that at full load"),
    LoadChannel("PCIE_RX", "load channel: PCIe traffic from the host, of that at full load"),
    LoadChannel("NVLINK", "load channel: NVLink traffic, of the line rate"),
)


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """``seconds`` of a profile, and the channels' percent in the order of ``CHANNELS``."""

    seconds: float
    values: tuple[int, ...] = (0,) * len(CHANNELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProfile:
    """One row. ``memory``: share of the device's memory that it holds; ``once``: how many phases come once, first."""

    title: str
    memory: float
    phases: tuple[LoadPhase, ...]
    once: int = 0


# Columns:                           GR   SM  OCC  TEN DRAM  PWR   TX   RX LINK
_STAGING: Final = LoadPhase(5, (3, 2, 1, 0, 4, 6, 1, 60, 0))
LOADS: Final[Mapping[str, LoadProfile]] = {
    "train": LoadProfile(
        title="training that is well fed: steps of compute and gradient exchange, a checkpoint in each cycle",
        memory=0.80,
        once=1,
        phases=(
            _STAGING,
            LoadPhase(26, (98, 90, 46, 44, 62, 88, 6, 30, 14)),
            LoadPhase(4, (91, 64, 30, 12, 40, 66, 4, 12, 46)),
            LoadPhase(26, (98, 90, 46, 44, 62, 88, 6, 30, 14)),
            LoadPhase(4, (4, 2, 1, 0, 3, 12, 70, 2, 0)),
        ),
    ),
    "inference": LoadProfile(
        title="a model server: prompts and decoding, with pauses between requests",
        memory=0.90,
        once=1,
        phases=(
            _STAGING,
            LoadPhase(3, (82, 68, 34, 36, 48, 62, 4, 10, 2)),
            LoadPhase(14, (64, 38, 16, 9, 71, 48, 3, 4, 2)),
            LoadPhase(3, (12, 6, 3, 2, 10, 14, 1, 1, 0)),
            LoadPhase(10, (47, 28, 12, 7, 52, 38, 3, 4, 2)),
        ),
    ),
    "notebook": LoadProfile(
        title="a person at a notebook: a cell runs now and then, and memory is held all the time",
        memory=0.12,
        phases=(
            LoadPhase(6, (55, 34, 15, 8, 30, 34, 4, 12, 0)),
            LoadPhase(54, (0, 0, 0, 0, 0, 4, 0, 0, 0)),
            LoadPhase(3, (71, 48, 22, 14, 38, 46, 2, 6, 0)),
            LoadPhase(117, (0, 0, 0, 0, 0, 4, 0, 0, 0)),
        ),
    ),
    "idle": LoadProfile(
        title="a program that has a context and nothing to do",
        memory=0.0,
        phases=(LoadPhase(60, (0, 0, 0, 0, 0, 4, 0, 0, 0)),),
    ),
    "held": LoadProfile(
        title="a model in memory that nobody asks: nine tenths of the memory at 0 %",
        memory=0.90,
        phases=(LoadPhase(60, (0, 0, 0, 0, 0, 5, 0, 0, 0)),),
    ),
    "one-thread": LoadProfile(
        title="a kernel of one block: 100 % utilisation, one SM at work",
        memory=0.01,
        phases=(LoadPhase(60, (100, 1, 0, 0, 1, 9, 0, 0, 0)),),
    ),
    "flicker": LoadProfile(
        title="0 % in one second, 100 % in the next",
        memory=0.30,
        phases=(LoadPhase(1, (100, 85, 40, 30, 50, 80, 4, 20, 0)), LoadPhase(1, (0, 0, 0, 0, 0, 8, 0, 0, 0))),
    ),
    "keeper": LoadProfile(
        title="a matmul for show that keeps a GPU from looking idle: periodic, little memory, no tensor cores",
        memory=0.02,
        phases=(LoadPhase(20, (100, 70, 35, 0, 8, 40, 0, 0, 0)), LoadPhase(40, (0, 0, 0, 0, 0, 6, 0, 0, 0))),
    ),
    "starved": LoadProfile(
        title="training that waits for its data: short bursts, the bus busy all the time",
        memory=0.60,
        phases=(LoadPhase(1, (40, 30, 14, 12, 20, 34, 2, 80, 2)), LoadPhase(5, (2, 1, 1, 0, 1, 8, 1, 70, 0))),
    ),
    "hung": LoadProfile(
        title="a rank of a gang that has hung: it trains for two minutes, then holds its memory at 0 % for ever",
        memory=0.80,
        once=2,
        phases=(
            _STAGING,
            LoadPhase(115, (98, 90, 46, 44, 62, 88, 6, 30, 14)),
            LoadPhase(60, (0, 0, 0, 0, 0, 5, 0, 0, 0)),
        ),
    ),
}  # fmt: skip
