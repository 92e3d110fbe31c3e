"""The block codec of the kernel library on each instruction set, and the NumPy one."""

import sys
from pathlib import Path

import pytest

from mindspeed_ms.checkpoint import codec_reference
from mindspeed_ms.ops.native import checkpoint
from mindspeed_ms.ops.native.build import ISAS, library

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=[*ISAS, "reference"])
def blocks(request):
    """block_encode, block_decode, block_estimate, all_finite and copy_aside of one kind."""
    if request.param == "reference":
        yield codec_reference
        return
    lib = library()
    before = lib.MsmsIsa()
    if lib.MsmsSetIsa(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield checkpoint
    lib.MsmsSetIsa(before)
