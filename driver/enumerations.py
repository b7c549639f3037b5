"""NVML's enumerations as the words that claims already select on.

The numbers are nvml.h's. The words for architecture, brand and addressing mode are those of NVIDIA's
go-nvlib, which the existing driver publishes. A number that is not here becomes the empty text.
"""

from __future__ import annotations

HOPPER = 9
UNKNOWN_ARCHITECTURE = 0xFFFFFFFF

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    HOPPER: "Hopper",
    10: "Blackwell",
    13: "Rubin",
    UNKNOWN_ARCHITECTURE: "Unknown",
}

BRANDS = {
    0: "Unknown",
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}

ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}

NVLINK_VERSIONS = {
    1: "1.0.0",
    2: "2.0.0",
    3: "2.2.0",
    4: "3.0.0",
    5: "3.1.0",
    6: "4.0.0",
    7: "5.0.0",
    8: "6.0.0",
}
"""nvmlNvlinkVersion_t is an enumeration: 6 is NVLink 4.0."""

CORES_PER_MULTIPROCESSOR = {
    (5, 0): 128,
    (5, 2): 128,
    (5, 3): 128,
    (6, 0): 64,
    (6, 1): 128,
    (6, 2): 128,
    (7, 0): 64,
    (7, 2): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 7): 128,
    (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128,
    (10, 3): 128,
    (11, 0): 128,
    (12, 0): 128,
    (12, 1): 128,
}
"""CUDA cores in a streaming multiprocessor, by compute capability (CUDA C++ Programming Guide)."""
