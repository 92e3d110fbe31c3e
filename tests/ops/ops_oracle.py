"""What each operator must compute, in PyTorch float64, and ragged batches to try it on."""

from dataclasses import dataclass

import numpy as np
import torch

from mindspeed_ms.ops.native.quant import QuantTensor


def t64(x) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x, np.float64))


def close(found, expected, bound: float = 1e-5) -> None:
    """max|a - ref64| <= bound * max|ref64|, the measure of every floating-point comparison here."""
    found = found.asnumpy() if hasattr(found, "asnumpy") else np.asarray(found)
    expected = np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    assert np.isfinite(found).all(), "not finite"
    error, top = np.abs(found - expected).max(initial=0), np.abs(expected).max(initial=0)
    assert error <= bound * top, f"error {error:.3g} of {top:.3g}: {error / max(top, 1e-300):.3g} > {bound:g}"


def rms_norm(x, weight, eps):
    return torch.nn.functional.rms_norm(t64(x), (np.shape(x)[-1],), t64(weight), eps).numpy()


def swiglu(gate, up):
    return (torch.nn.functional.silu(t64(gate)) * t64(up)).numpy()


def rope_table(positions, inv_freq):
    angles = torch.outer(t64(positions), t64(inv_freq))
    return torch.cat([angles.cos(), angles.sin()], -1).numpy()


def rope(x, table):
    """As Hugging Face writes it: x * cos + rotate_half(x) * sin, cos and sin repeated for both halves."""
    x, table = t64(x), t64(table)
    half = x.shape[-1] // 2
    cos, sin = table[:, None, :half].repeat(1, 1, 2), table[:, None, half:].repeat(1, 1, 2)
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x * cos + rotated * sin).numpy()


def attention(q, k, v, scale):
    """q [B, T, Hq, D], k, v [B, S, Hkv, D]: PyTorch's own attention with the causal mask aligned to the last key."""
    q, k, v = (t64(x).transpose(1, 2) for x in (q, k, v))
    t, s = q.shape[2], k.shape[2]
    mask = torch.ones(t, s, dtype=torch.bool).tril(s - t)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return y.transpose(1, 2).contiguous().numpy()


def quantize_activations(x, group):
    """The float32 steps that the integer kernels share: codes and scales [T, groups], exact in any precision."""
    x = np.asarray(x, np.float32)
    tokens, columns = x.shape
    width = group or columns
    padded = np.zeros((tokens, -(-columns // width) * width), np.float32)
    padded[:, :columns] = x
    padded = padded.reshape(tokens, -1, width)
    peak = np.abs(padded).max(-1, keepdims=True)
    zero = peak <= 1e-30
    inverse = np.where(zero, 0, np.float32(127) / np.where(zero, 1, peak)).astype(np.float32)
    codes = np.rint(padded * inverse)
    return codes.astype(np.float64) * np.where(zero, 0, peak / np.float32(127)).astype(np.float64)


def linear(x, weight, bias=None, integer=False):
    """x [T, K] by a float32 matrix or a QuantTensor [N, K]; `integer`: with the activations rounded to int8."""
    x64 = np.asarray(x, np.float64)
    if isinstance(weight, QuantTensor):
        if integer:
            x64 = quantize_activations(x, weight.group).reshape(len(x), -1)[:, : weight.shape[1]]
        weight = dequantized(weight)
    y = t64(x64) @ t64(weight).T
    return (y if bias is None else y + t64(bias)).numpy()


def dequantized(weight: QuantTensor) -> np.ndarray:
    """float64 [N, K], formed from the codes alone."""
    rows, columns = weight.shape
    codes = weight.codes().astype(np.float64) - (8 if weight.bits == 4 and weight.mins is None else 0)
    group = np.arange(columns) // (weight.group or columns)
    values = codes * weight.scales.astype(np.float64)[:, group]
    return values if weight.mins is None else values + weight.mins.astype(np.float64)[:, group]


@dataclass
class Ragged:
    """A step over several sequences, and the keys and values it will see."""

    past: list[int]  # tokens already in the cache
    new: list[int]  # tokens of this step
    block: int
    blocks: int
    positions: np.ndarray
    slots: np.ndarray
    seq_starts: np.ndarray
    block_tables: np.ndarray

    @property
    def index(self) -> list[np.ndarray]:
        return [self.positions, self.slots, self.seq_starts, self.block_tables]


def ragged(past, new, block, rng, spare=3) -> Ragged:
    """Sequences with `past` and `new` tokens, their blocks drawn at random."""
    need = [-(-(p + n) // block) for p, n in zip(past, new, strict=True)]
    blocks = sum(need) + spare
    free = list(rng.permutation(blocks))
    tables = np.full((len(past), max([*need, 1])), -1, np.int32)
    for row, count in enumerate(need):
        tables[row, :count] = [free.pop() for _ in range(count)]
    positions = [np.arange(p, p + n) for p, n in zip(past, new, strict=True)]
    slots = [tables[row][x // block] * block + x % block for row, x in enumerate(positions)]
    return Ragged(
        list(past), list(new), block, blocks,
        np.concatenate(positions).astype(np.int32), np.concatenate(slots).astype(np.int32),
        np.cumsum([0, *new]).astype(np.int32), tables,
    )  # fmt: skip


def empty_cache(layers, batch: Ragged, kv_heads, dim, dtype=np.float32, fill=np.nan) -> np.ndarray:
    """A cache whose every slot holds `fill`: NaN shows any read of a slot that was never written."""
    padded = -(-dim // 16) * 16
    return np.full((layers, batch.blocks, 2, kv_heads, padded * batch.block), fill, dtype)


def fill_cache(cache, layer, batch: Ragged, keys, values) -> None:
    """Writes the past keys and values, lists of [past, Hkv, D], where the layout says."""
    for row, past in enumerate(batch.past):
        for position in range(past):
            block, offset = batch.block_tables[row][position // batch.block], position % batch.block
            store(cache, layer, block, offset, keys[row][position], values[row][position])


def store(cache, layer, block, offset, key, value) -> None:
    """One token's key and value [Hkv, D], padded with zeros to D16."""
    kv_heads, dim = key.shape
    padded = -(-dim // 16) * 16
    size = cache.shape[4] // padded
    wide = ((0, 0), (0, padded - dim))
    cache[layer, block, 0].reshape(kv_heads, padded, size)[:, :, offset] = np.pad(key, wide)
    cache[layer, block, 1].reshape(kv_heads, size, padded)[:, offset] = np.pad(value, wide)


def paged_attention(batch: Ragged, q, k, v, keys, values, scale, half=False):
    """Each sequence alone through `attention`; `half`: keys and values as float16 stores them."""
    out = []
    for row in range(len(batch.past)):
        part = slice(batch.seq_starts[row], batch.seq_starts[row + 1])
        if batch.new[row] == 0:
            continue
        kk, vv = np.concatenate([keys[row], k[part]]), np.concatenate([values[row], v[part]])
        if half:
            kk, vv = kk.astype(np.float16), vv.astype(np.float16)
        out.append(attention(q[part][None], kk[None], vv[None], scale)[0])
    return np.concatenate(out)
