"""What the return codes of the native kernels mean."""

import re

from mindspeed_ms.errors import DeviceLostError

CODES: dict[int, str] = {
    1: "wrong number of inputs for this kernel",
    2: "an input's shape contradicts the others or the weights",
    3: "an input's dtype or rank is not the expected one",
    4: "a weight or vector lies outside the arena: the graph and the weights do not belong together",
    5: "a token id is outside the vocabulary",
    6: "a cache slot does not match its position and block table",
    7: "a block table names a block outside the cache",
    8: "a position is negative, not consecutive, or beyond its block table",
    9: "seq_starts must begin with 0, not decrease, and end with the number of tokens",
    10: "a row of logits is asked for that is not among the tokens",
    11: "an attribute is missing or contradicts another",
    12: "out of memory for the kernel's scratch space",
}


def kernel_error(error: RuntimeError) -> DeviceLostError:
    """The sentence behind a kernel's number. MindSpore refuses all later steps of the process, so this is final."""
    found = re.search(r"function\((\w+)\) is (\d+)", str(error))
    if found and int(found[2]) in CODES:
        return DeviceLostError(f"{found[1]}: {CODES[int(found[2])]}; restart the process, MindSpore cannot run on")
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("-")]
    return DeviceLostError(f"the graph failed: {' '.join(lines)[:300]}; restart the process, MindSpore cannot run on")
