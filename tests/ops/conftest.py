"""Shared by the operator tests: their helper modules, the compiled harness, one MindSpore setting."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """The native library behind the harness: `native(entry, inputs, attrs) -> array`, or a Refused with its code."""
    from ops_harness import Native

    return Native(tmp_path_factory.mktemp("harness"))


@pytest.fixture(params=["portable", "avx2", "avx512"])
def isa(native, request):
    """`native` on each instruction set that this processor has."""
    before = native.isa()
    if not native.set_isa(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield native
    native.set_isa(before)
    native.set_threads(0)


@pytest.fixture(scope="session")
def graph_mode():
    """MindSpore compiles Cells for the CPU."""
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
