"""Calls to training kernels: several outputs, inputs changed in place, all thread counts alike; PyTorch's gradients."""

import ctypes

import numpy as np
import torch
from ops_harness import _check, _describe, _words

# Test processes share the cores: PyTorch's threads would wait for each other.
torch.set_num_threads(1)


def call(native, entry, inputs, attrs, outputs, names=None):
    """Runs `entry`; `outputs` are shapes. Inputs are handed over as they are, so a kernel that writes writes into them.

    `names` overrules the dtypes, to call a kernel wrongly. Raises Refused.
    """
    arrays = [*inputs, *(np.full(shape, np.nan, np.float32) for shape in outputs)]
    assert all(x.flags["C_CONTIGUOUS"] for x in arrays)
    text = ";".join(f"{name} {_words(value)}" for name, value in attrs.items())
    handle = ctypes.c_void_p(native.harness.Open(native.path.encode(), entry.encode(), text.encode()))
    assert handle.value, f"{entry}: not all four functions are in {native.path}"
    try:
        ndims, shapes, types = _describe(arrays, names or [str(x.dtype) for x in arrays])
        _check(native.harness.Start(handle, ndims, shapes, types))
        pointers = (ctypes.c_void_p * len(arrays))(*[x.ctypes.data for x in arrays])
        _check(native.harness.Call(handle, len(arrays), pointers, ndims, shapes, types))
    finally:
        native.harness.Close(handle)
    return arrays[len(inputs) :]


def on_any_threads(native, entry, inputs, attrs, outputs):
    """The outputs, after the same call on 1, 2 and 3 threads gave the same bits."""
    found = []
    for threads in (1, 2, 3):
        native.set_threads(threads)
        found.append(call(native, entry, [x.copy() for x in inputs], attrs, outputs))
    native.set_threads(0)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
    return found[0]


def near(found, expected, tolerance=1e-5):
    """max |found - expected| <= tolerance * max |expected|."""
    expected = np.asarray(expected, np.float64)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if expected.size:
        error, size = np.abs(found - expected).max(), np.abs(expected).max()
        assert error <= tolerance * size, f"off by {error:.3g} where the largest is {size:.3g}"


def torch_gradients(function, *arrays, dy=None):
    """y and the gradients of all arrays for the seed dy, by PyTorch in float64."""
    tensors = [torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in arrays]
    y = function(*tensors)
    y.backward(torch.tensor(np.asarray(dy, np.float64)))
    return y.detach().numpy(), [x.grad.numpy() for x in tensors]
