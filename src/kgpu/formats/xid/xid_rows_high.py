"""Xids 100 to 172: rows of the catalogue (see xids.py)."""

from __future__ import annotations

from typing import Final

from kgpu.base.advice import Severity
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.buckets import Bucket as Do
from kgpu.formats.xid.rows import XidRow
from kgpu.formats.xid.xid_rows_low import ALL, ENGINE, MEMORY, OLD, UNUSED, engine

NEW: Final = "HBG"
BLACKWELL: Final = "BG"
GSP: Final = "the GPU's system processor (GSP) hangs or has crashed: firmware or driver error, sometimes the hardware"
LINK5: Final = "an NVLink unit of the GPU, the link, or the device at its other end"
SMOOTHING: Final = "power smoothing of this GPU"


def _unused(code: int, mnemonic: str) -> XidRow:
    return XidRow(code, mnemonic, UNUSED, Do.CONTACT_SUPPORT, Do.NONE, "", 0, OLD)


def _link5(code: int, mnemonic: str, what: str) -> XidRow:
    return XidRow(
        code, mnemonic, what, Do.WORKFLOW_NVLINK5_ERR, Do.WORKFLOW_NVLINK5_ERR, BLACKWELL, 565, LINK5
    )  # fmt: skip


ROWS: Final = (
    engine(100, "ROBUST_CHANNEL_NVJPG2_ERROR", "JPEG engine 2 error", NEW),
    engine(101, "ROBUST_CHANNEL_NVJPG3_ERROR", "JPEG engine 3 error", NEW),
    engine(102, "ROBUST_CHANNEL_NVJPG4_ERROR", "JPEG engine 4 error", NEW),
    engine(103, "ROBUST_CHANNEL_NVJPG5_ERROR", "JPEG engine 5 error", NEW),
    engine(104, "ROBUST_CHANNEL_NVJPG6_ERROR", "JPEG engine 6 error", NEW),
    engine(105, "ROBUST_CHANNEL_NVJPG7_ERROR", "JPEG engine 7 error", NEW),
    XidRow(106, "SMBPBI_TEST_MESSAGE", "test message of the board's management bus", Do.IGNORE, Do.IGNORE, ALL, 0,
           "a test of the management controller"),
    XidRow(107, "SMBPBI_TEST_MESSAGE_SILENT", "silent test message of the management bus", Do.IGNORE, Do.IGNORE, ALL, 0,
           "a test of the management controller"),
    XidRow(108, "NVLINK_REMOTE_TRANSLATION_ERROR", "address of a peer GPU could not be translated", Do.IGNORE,
           Do.XID_137_FLOW, ALL, 0, "a program used a peer GPU's memory wrongly; newer drivers do not report it"),
    XidRow(109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "switching between programs timed out", Do.RESET_GPU,
           Do.CONTACT_SUPPORT, ALL, 570, "a kernel that never ends, or the GPU hangs"),
    XidRow(110, "SEC_FAULT_ERROR", "security fault", Do.RESET_GPU, Do.INVESTIGATE_SW, NEW, 565,
           "failing hardware, or hardware that was changed; a cold start of the machine may be needed"),
    _unused(111, "BUNDLE_ERROR_EVENT"),
    _unused(112, "DISP_SUPERVISOR_ERROR"),
    _unused(113, "DP_LT_FAILURE"),
    _unused(114, "HEAD_RG_UNDERFLOW"),
    _unused(115, "CORE_CHANNEL_REGS"),
    _unused(116, "WINDOW_CHANNEL_REGS"),
    _unused(117, "CURSOR_CHANNEL_REGS"),
    _unused(118, "HEAD_REGS"),
    XidRow(119, "GSP_RPC_TIMEOUT", "the GPU's system processor does not answer", Do.RESET_GPU, Do.INVESTIGATE_SW, ALL,
           0,
           GSP),
    XidRow(120, "GSP_ERROR", "error in the GPU's system processor", Do.RESET_GPU, Do.INVESTIGATE_SW, ALL, 565, GSP),
    XidRow(121, "C2C_ERROR", "corrected errors on the link to the CPU", Do.IGNORE, Do.CONTACT_SUPPORT, "G", 0,
           "signal quality between GPU and Grace CPU; a reset at a quiet hour trains the link anew"),
    _unused(122, "SPI_PMU_RPC_READ_FAIL"),
    _unused(123, "SPI_PMU_RPC_WRITE_FAIL"),
    _unused(124, "SPI_PMU_RPC_ERASE_FAIL"),
    _unused(125, "INFOROM_FS_ERROR"),
    engine(126, "ROBUST_CHANNEL_CE10_ERROR", "copy engine 10 exception", BLACKWELL),
    engine(127, "ROBUST_CHANNEL_CE11_ERROR", "copy engine 11 exception", BLACKWELL),
    engine(128, "ROBUST_CHANNEL_CE12_ERROR", "copy engine 12 exception", BLACKWELL),
    engine(129, "ROBUST_CHANNEL_CE13_ERROR", "copy engine 13 exception", BLACKWELL),
    engine(130, "ROBUST_CHANNEL_CE14_ERROR", "copy engine 14 exception", BLACKWELL),
    engine(131, "ROBUST_CHANNEL_CE15_ERROR", "copy engine 15 exception", BLACKWELL),
    engine(132, "ROBUST_CHANNEL_CE16_ERROR", "copy engine 16 exception", BLACKWELL),
    engine(133, "ROBUST_CHANNEL_CE17_ERROR", "copy engine 17 exception", BLACKWELL),
    engine(134, "ROBUST_CHANNEL_CE18_ERROR", "copy engine 18 exception", BLACKWELL),
    engine(135, "ROBUST_CHANNEL_CE19_ERROR", "copy engine 19 exception", BLACKWELL),
    XidRow(136, "ALI_TRAINING_FAIL", "training of an NVLink failed", Do.RESET_GPU, Do.INVESTIGATE_LINK_SI, "H", 565,
           "signal quality of the link"),
    XidRow(137, "NVLINK_PRIV_ERR", "a peer GPU refused an access", Do.IGNORE, Do.XID_137_FLOW, ALL, 0,
           "a program used a peer GPU's memory wrongly; rarely the driver or the hardware"),
    _unused(138, "ROBUST_CHANNEL_DLA_ERROR"),
    engine(139, "ROBUST_CHANNEL_OFA1_ERROR", "optical flow engine 1 error", BLACKWELL),
    XidRow(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "memory error that could not be dealt with", Do.RESET_GPU,
           Do.CONTACT_SUPPORT, ALL, 0, MEMORY + ", and the driver could not set it aside"),
    XidRow(141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "error on CUDA's fast path", Do.IGNORE, Do.CONTACT_SUPPORT, NEW, 0,
           "the program or the driver; it takes the slow path"),
    XidRow(142, "ROBUST_CHANNEL_NVENC3_ERROR", "video encoder 3 error", Do.CONTACT_SUPPORT, Do.NONE, "G", 0, ENGINE),
    XidRow(143, "GPU_INIT_ERROR", "the GPU could not be initialised", Do.RESET_GPU, Do.CONTACT_SUPPORT, NEW, 575,
           "firmware error, or the GPU is failing"),
    _link5(144, "NVLINK_SAW_ERROR", "NVLink 5 error: SAW"),
    _link5(145, "NVLINK_RLW_ERROR", "NVLink 5 error: RLW"),
    _link5(146, "NVLINK_TLW_ERROR", "NVLink 5 error: TLW"),
    _link5(147, "NVLINK_TREX_ERROR", "NVLink 5 error: TREX"),
    _link5(148, "NVLINK_NVLPW_CTRL_ERROR", "NVLink 5 error: NVLPW_CTRL"),
    _link5(149, "NVLINK_NETIR_ERROR", "NVLink 5 error: NETIR"),
    _link5(150, "NVLINK_MSE_ERROR", "NVLink 5 error: MSE"),
    XidRow(151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", "a key could not be changed (confidential computing)",
           Do.RESTART_VM,
           Do.CONTACT_SUPPORT, NEW, 0, "guest and GPU no longer agree on their keys"),
    XidRow(152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "address fault of the deep learning accelerator", Do.IGNORE,
           Do.CONTACT_SUPPORT, "", 0, "a program of the accelerator; not on data centre GPUs"),
    XidRow(153, "ROBUST_CHANNEL_DLA_TIMEOUT", "the deep learning accelerator timed out", Do.IGNORE, Do.CONTACT_SUPPORT,
           "",
           0, "a program of the accelerator; not on data centre GPUs"),
    XidRow(154, "GPU_RECOVERY_ACTION_CHANGED", "the driver says what the GPU needs", Do.XID_154, Do.NONE, ALL, 0,
           "another Xid just before it: that one has the cause, this one the remedy"),
    XidRow(155, "NVLINK_SW_DEFINED_ERROR", "an NVLink was taken down on purpose", Do.RESET_GPU, Do.INVESTIGATE_SW_USER,
           BLACKWELL, 565, "software or a person put the link down or to sleep"),
    XidRow(156, "RESOURCE_RETIREMENT_EVENT", "a part of the GPU was retired", Do.RESET_GPU, Do.IGNORE, NEW, 565,
           "a unit with errors is set aside; the reset makes it so"),
    XidRow(157, "RESOURCE_RETIREMENT_FAILURE", "a part of the GPU could not be retired", Do.IGNORE, Do.CONTACT_SUPPORT,
           NEW, 0, "no spare is left; the GPU works on, and the same error may come again", severity=Severity.WARNING),
    XidRow(158, "GPU_FATAL_TIMEOUT", "the GPU timed out for good", Do.RESET_GPU, Do.CONTACT_SUPPORT, ALL, 1,
           "the GPU or its firmware hangs"),
    XidRow(159, "ROBUST_CHANNEL_CHI_NON_DATA_ERROR", "error on the coherent link to the CPU", Do.CHECK_UVM,
           Do.SYMPATHETIC,
           BLACKWELL, 1, "follows from another error; see the lines around it"),
    XidRow(160, "CHANNEL_RETIREMENT_EVENT", "a memory channel was retired", Do.IGNORE, Do.INVESTIGATE_SW, BLACKWELL,
           575,
           MEMORY),
    XidRow(161, "CHANNEL_RETIREMENT_FAILURE", "a memory channel could not be retired", Do.IGNORE, Do.INVESTIGATE_SW,
           BLACKWELL, 575, MEMORY, severity=Severity.WARNING),
    XidRow(162, "PSHC_REENGAGED", "power smoothing is on again", Do.NONE, Do.NONE, BLACKWELL, 0, SMOOTHING,
           Action.IGNORE,
           Severity.INFO, "nothing"),
    XidRow(163, "PSHC_DISENGAGED", "power smoothing went off", Do.NONE, Do.NONE, BLACKWELL, 0,
           SMOOTHING + ": heat, or a timeout",
           advice="no reset is needed; if power smoothing is wanted, cool the GPU, or reload the driver "
                  "after a timeout"),
    XidRow(164, "PSHC_LOW_LIFETIME", "power smoothing is nearly worn out", Do.NONE, Do.NONE, BLACKWELL, 0, SMOOTHING,
           advice="find out whether the site can bear swings in power; plan to replace the GPU if not"),
    XidRow(165, "PSHC_ZERO_LIFETIME", "power smoothing is worn out", Do.NONE, Do.NONE, BLACKWELL, 0, SMOOTHING,
           advice="replace the GPU if the site can't bear swings in power; otherwise nothing"),
    XidRow(166, "NVLINK_SECURE_CRYPTO_ERR", "NVLink traffic before encryption was set up", Do.NONE, Do.NONE, BLACKWELL,
           0,
           "confidential computing: the link was used too early"),
    XidRow(167, "PCIE_FATAL_TIMEOUT", "fatal timeout on PCIe", Do.NONE, Do.NONE, NEW, 0, "PCIe link, riser or slot",
           severity=Severity.ERROR),
    XidRow(168, "REDUCED_GPU_MEMORY_CAPACITY", "errors in the driver's protected memory", Do.NONE, Do.NONE, ALL, 0,
           MEMORY + ", while ECC is off", advice="switch ECC on, so that bad rows can be replaced, and reset the GPU"),
    XidRow(169, "SEC2_HALT_ERROR", "a micro-controller halted", Do.NONE, Do.NONE, NEW, 0,
           "firmware error, or failing hardware", severity=Severity.ERROR),
    XidRow(170, "NVLINK_SECURE_OTHER", "NVLink interrupt in confidential computing mode", Do.NONE, Do.NONE, BLACKWELL,
           0,
           "confidential computing"),
    XidRow(171, "UNCORRECTABLE_DRAM_ERROR", "where the error of Xid 48 is: memory", Do.NONE, Do.NONE, ALL, 0, MEMORY,
           advice="follow the Xid 48 beside it"),
    XidRow(172, "UNCORRECTABLE_SRAM_ERROR", "where the error of Xid 48 is: on the chip", Do.NONE, Do.NONE, ALL, 0,
           "a cell on the chip is going bad; no spare rows help there",
           advice="follow the Xid 48 beside it; replace the GPU if nvidia-smi says that its SRAM "
                  "threshold is exceeded"),
)  # fmt: skip
