"""Runs the native library's entry points on NumPy arrays, in microseconds, with its return codes as exceptions."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np

SOURCES = Path(__file__).parents[2] / "ops" / "native" / "src"
DTYPES = {"float32": "float32", "float16": "float16", "int32": "int32", "uint8": "uint8", "int64": "int64"}


class Refused(Exception):
    """A kernel returned a code other than 0."""

    def __init__(self, code: int):
        super().__init__(f"code {code}")
        self.code = code


class Native:
    """native(entry, inputs, attrs) -> float32 output; raises Refused."""

    def __init__(self, folder: Path):
        from mindspeed_ms.ops.native.build import library_path

        self.path = str(library_path())
        target = folder / "harness.so"
        subprocess.run(
            ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{SOURCES}",
             str(Path(__file__).with_name("harness.cc")), "-o", str(target), "-ldl"],
            check=True,
        )  # fmt: skip
        self.harness = ctypes.CDLL(str(target))
        self.harness.Open.restype = ctypes.c_void_p
        self.harness.Open.argtypes = [ctypes.c_char_p] * 3
        for name in ("Close", "Start", "Shape", "Call"):
            getattr(self.harness, name).argtypes = None
        self.library = ctypes.CDLL(self.path)
        self.library.MsmsSetIsa.argtypes = [ctypes.c_char_p]
        self.library.MsmsIsa.restype = ctypes.c_char_p

    def isa(self) -> str:
        return self.library.MsmsIsa().decode()

    def set_isa(self, name: str) -> bool:
        """Chooses the instruction set; False when this processor lacks it."""
        self.library.MsmsSetIsa(name.encode())
        return self.isa() == name

    def set_threads(self, count: int) -> None:
        self.library.MsmsSetThreads(count)

    def __call__(self, entry: str, inputs, attrs: dict, out_shape=None, dtypes=None, count=None) -> np.ndarray:
        """`out_shape`, `dtypes` and `count` overrule what the arrays say, to call a kernel wrongly."""
        inputs = [np.ascontiguousarray(x) for x in inputs]
        text = ";".join(f"{name} {_words(value)}" for name, value in attrs.items())
        handle = ctypes.c_void_p(self.harness.Open(self.path.encode(), entry.encode(), text.encode()))
        assert handle.value, f"{entry}: not all four functions are in {self.path}"
        try:
            names = [*(dtypes or [DTYPES[str(x.dtype)] for x in inputs]), "float32"]
            arrays = list(inputs)
            ndims, shapes, types = _describe(arrays, names)
            _check(self.harness.Start(handle, ndims, shapes, types))
            found = (ctypes.c_int64 * 8)()
            rank = self.harness.Shape(handle, ndims, shapes, found)
            shape = tuple(found[:rank]) if out_shape is None else out_shape
            if any(size < 0 for size in shape) or rank == 0:
                shape = (1,)  # refused at inference; the kernel must refuse it as well
            output = np.full(shape, np.nan, np.float32)
            arrays.append(output)
            ndims, shapes, types = _describe(arrays, names)
            pointers = (ctypes.c_void_p * len(arrays))(*[x.ctypes.data for x in arrays])
            number = len(arrays) if count is None else count
            _check(self.harness.Call(handle, number, pointers, ndims, shapes, types))
            return output
        finally:
            self.harness.Close(handle)

    def prepared(self, entry: str, inputs, attrs: dict):
        """The same call with everything made ready once: returns (run, output), for timing a kernel alone."""
        arrays = [np.ascontiguousarray(x) for x in inputs]
        output = self(entry, arrays, attrs)
        text = ";".join(f"{name} {_words(value)}" for name, value in attrs.items())
        handle = ctypes.c_void_p(self.harness.Open(self.path.encode(), entry.encode(), text.encode()))
        arrays.append(output)
        names = [DTYPES[str(x.dtype)] for x in arrays]
        ndims, shapes, types = _describe(arrays, names)
        _check(self.harness.Start(handle, ndims, shapes, types))
        pointers = (ctypes.c_void_p * len(arrays))(*[x.ctypes.data for x in arrays])
        call, count = self.harness.Call, len(arrays)

        def run(_keep=(arrays, pointers, shapes)) -> None:
            call(handle, count, pointers, ndims, shapes, types)

        return run, output


def _words(value) -> str:
    return " ".join(repr(v) for v in value) if isinstance(value, list | tuple) else repr(value)


def _describe(arrays, names):
    # room for the inference of an operator that expects a higher rank
    shapes = [(ctypes.c_int64 * 8)(*x.shape, *[-1] * (8 - x.ndim)) for x in arrays]
    pointers = (ctypes.POINTER(ctypes.c_int64) * len(arrays))(
        *[ctypes.cast(s, ctypes.POINTER(ctypes.c_int64)) for s in shapes]
    )
    pointers._keep = shapes
    return (
        (ctypes.c_int * len(arrays))(*[x.ndim for x in arrays]),
        pointers,
        (ctypes.c_char_p * len(names))(*[name.encode() for name in names]),
    )


def _check(code: int) -> None:
    if code:
        raise Refused(code)
