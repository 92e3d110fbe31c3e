"""Settings and sizes in words."""

from __future__ import annotations

from mindspeed_ms.parallel.plan.settings import Settings


def describe(one: Settings) -> str:
    """Settings in a line, without what is as it is by default."""
    words = [f"{name} {getattr(one, name)}" for name in ("data", "tensor", "pipeline", "context", "expert")]
    words = [word for word in words if not word.endswith(" 1")] or ["data 1"]
    words.append(f"micro-batch {one.micro_batch} x {one.micro_batches}")
    if one.zero:
        words.append(f"ZeRO {one.zero}")
    if one.sequence_parallel:
        words.append("sequence parallel")
    if one.recompute != "none":
        layers = one.recompute_layers
        words.append(f"recompute {one.recompute}" + (f" of {_layers(layers)} layers" if layers else ""))
    if one.pipeline > 1:
        words.append(one.schedule + (f" x {one.virtual}" if one.virtual > 1 else ""))
    if one.layers:
        words.append(f"layers {_layers(one.layers)}")
    return ", ".join(words)


def _layers(numbers: tuple[int, ...]) -> str:
    """Runs of equal numbers as `9x3 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return " ".join(f"{number}x{times}" if times > 1 else str(number) for number, times in runs)


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / (1 << 30):.1f} GiB"
