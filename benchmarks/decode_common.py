"""What both sides of the decoding benchmark share: the same prompts, the same counts, the same memory reading."""

import numpy as np

PREFILL, PROMPT, STEPS_1, STEPS_16, BATCH = 512, 32, 128, 64, 16


def prompts(count: int, length: int) -> list[list[int]]:
    """Fixed token ids; what they say does not matter to the time they take."""
    rng = np.random.default_rng(11)
    return rng.integers(1000, 40000, (count, length)).tolist()


def peak_mb() -> float:
    """The process's peak resident memory in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
