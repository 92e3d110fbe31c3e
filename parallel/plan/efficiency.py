"""Shares of the peak that real training reaches: one table, fitted by `calibration` to published throughputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Efficiency:
    """Shares of an accelerator's peak: arithmetic of matmuls, of flash attention, and memory bandwidth."""

    matmul: float
    attention: float
    memory: float
    source: str = ""


_MEMORY = 0.7  # of the bandwidth; assumed, and of little weight: from 0.5 to 0.9 the fit goes from 0.624 to 0.597
# 910B3 at 313 TFLOPS; the other accelerators for want of published runs of their own.
_FITTED = Efficiency(
    0.607, 0.607, _MEMORY, "calibration of eight dense runs of `throughputs.RUNS` on 910B3 (Atlas 800T A2)"
)
EFFICIENCIES: dict[str, Efficiency] = {"910B3": _FITTED}


def efficiency_of(accelerator: str) -> Efficiency:
    """The shares for an accelerator by its name; one that is not in the table is taken to do as well as the 910B3."""
    return EFFICIENCIES.get(accelerator, _FITTED)
