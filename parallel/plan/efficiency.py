"""Shares of the peak that real training reaches, and their calibration by published throughputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Efficiency:
    """Shares of an accelerator's peak: arithmetic of matmuls, of flash attention, and memory bandwidth."""

    matmul: float
    attention: float
    memory: float
    source: str = ""


DEFAULT = Efficiency(0.65, 0.40, 0.70, "guess, to be calibrated")


def efficiency_of(accelerator: str) -> Efficiency:
    """The shares for an accelerator by its name."""
    return DEFAULT
