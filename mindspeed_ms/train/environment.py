"""What a run ran on: versions, machine, memory. For its records; nothing is decided by it."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

_PACKAGES = ("mindspore", "numpy", "safetensors", "tokenizers")


def environment() -> dict[str, Any]:
    """Plain values: versions of what computes, processor, cores that may be used, memory in bytes, system."""
    from mindspeed_ms import __version__

    return {
        "mindspeed_ms": __version__,
        **{name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name in _SETTINGS},
    }


# Variables of the environment that change what a run does or how fast it is.
_SETTINGS = ("MINDSPEED_MS_ISA", "MINDSPEED_MS_KERNELS", "MINDSPEED_MS_THREADS", "OMP_NUM_THREADS")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
