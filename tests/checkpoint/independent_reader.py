"""Reads a commit by docs/checkpoint-format.md alone: nothing of the package is imported."""

import hashlib
import json
from pathlib import Path

import numpy as np
import xxhash
import zstandard


def read(folder, step, rank=0):
    """(state, {name: array}) of a rank; bfloat16 is uint16."""
    line, digest, rest = (Path(folder) / f"step-{step:08d}.json").read_bytes().split(b"\n")
    assert hashlib.sha256(line).hexdigest().encode() == digest and rest == b"", "manifest"
    manifest = json.loads(line)
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("mindspeed-ms-checkpoint", 1, step)
    files = []
    for name, size in sorted(manifest["files"].items()):
        files.append((Path(folder) / name).read_bytes())
        assert len(files[-1]) == size, name
    tensors = {}
    for entry in sorted(manifest["tensors"], key=lambda entry: entry["rank"] == rank):  # its own come last, and win
        if entry["rank"] == rank or entry["layout"] is None:
            dtype = np.dtype("uint16" if entry["dtype"] == "bfloat16" else entry["dtype"])
            nbytes = int(np.prod(entry["shape"], dtype=object)) * dtype.itemsize
            sizes = [min(manifest["chunk_bytes"], nbytes - at) for at in range(0, nbytes, manifest["chunk_bytes"])]
            assert len(sizes) == len(entry["chunks"])
            data = b"".join(
                chunk(files, record, size, dtype.itemsize) for record, size in zip(entry["chunks"], sizes, strict=True)
            )
            tensors[entry["name"]] = np.frombuffer(data, dtype).reshape(entry["shape"])
    return manifest["rank_states"].get(str(rank), manifest["state"]), tensors


def chunk(files, record, size, itemsize):
    number, offset, stored, used, codec, digest, *base = record
    data = files[number][offset : offset + stored]
    assert xxhash.xxh3_64(data).hexdigest() == digest
    data = data[:used]
    before = np.frombuffer(chunk(files, base[0], size, itemsize), np.uint8) if base else None
    if codec == "raw":
        result = data
    elif codec in ("bytes", "bytes-delta"):
        planes = zstandard.ZstdDecompressor().decompress(data)
        items = np.frombuffer(planes, np.uint8).reshape(itemsize, -1).T.reshape(-1)
        result = (items if before is None else items ^ before).tobytes()
    else:
        result = blocks(data, size // 4, None if before is None else before.view("<u4").tolist())
    assert len(result) == size
    return result


def order(bits):
    """The bits of a float as a number that grows with it, and back."""
    return bits ^ 0x7FFFFFFF if bits >> 31 else bits


def blocks(data, count, base):
    """Blocks of 512 values: a header of 8 bytes, 512 residuals of `width` bits in 16 lanes, tiers, exceptions."""
    values, at = [], 0
    while len(values) < count:
        width, mode, exceptions, reference = np.frombuffer(data, "u1,u1,<u2,<u4", 1, at)[0].item()
        at += 8 + 64 * width
        residuals = lanes(data[at - 64 * width : at], width)
        if mode & 4:
            above, at = tiers(data, at)
            residuals = [low + (k << width) for low, k in zip(residuals, above, strict=True)]
            places = [i for i in range(512) if above[i] == 19]
        else:
            places, at = np.frombuffer(data, "<u2", exceptions, at), at + 2 * exceptions
        for place, value in zip(places, np.frombuffer(data, "<u4", exceptions, at), strict=True):
            residuals[place] = int(value)
        at, mode = at + 4 * exceptions, mode % 4
        for residual in residuals[: count - len(values)]:
            if mode == 2:
                off = residual >> 1 if residual % 2 == 0 else ~(residual >> 1)
                values.append(order((order(base[len(values)]) + reference + off) % 2**32))
            else:
                value = (reference - residual) % 2**32
                values.append(value >> 1 | (value & 1) << 31 if mode == 1 else value)
    assert at == len(data)
    return np.array(values, "<u4").tobytes()


def tiers(data, at):
    """What is above 512 residuals, by four planes of steps and four of the rest's bits, and where the planes end."""
    bits, taken, above, inside = int.from_bytes(data[at : at + 512], "little"), 0, np.zeros(512, int), range(512)
    for plane, weight in enumerate((1, 1, 1, 1, 1, 2, 4, 8)):
        ones = [i for place, i in enumerate(inside, taken) if bits >> place & 1]
        taken, inside = taken + len(inside), ones if plane < 4 else inside
        above[ones] += weight
    return above.tolist(), at + (taken + 7) // 8


def lanes(packed, width):
    """Value 16 i + l is the i-th of lane l: `width` bits from bit i * width of the lane's 32-bit words."""
    words = np.frombuffer(packed, "<u4").reshape(width, 16)
    streams = [sum(int(words[row, lane]) << 32 * row for row in range(width)) for lane in range(16)]
    return [streams[index % 16] >> index // 16 * width & (1 << width) - 1 for index in range(512)]
