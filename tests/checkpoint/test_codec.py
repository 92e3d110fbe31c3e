"""Chunks of tensors: which codec each takes, what it gains, that every bit comes back, that damage is told."""

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.checkpoint import byte_planes, codec, kernels
from mindspeed_ms.checkpoint.codec import CODECS, Encoder, decode, takes_base
from mindspeed_ms.errors import BuildError, CheckpointError, ConfigError

rng = np.random.default_rng(0)
WEIGHTS = (rng.standard_normal(1 << 18) * 0.02).astype(np.float32)
DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


def stored(x, base=None, name="w", encoder=None, **how):
    """(codec, ratio of raw to stored bytes); it is decoded again and compared."""
    data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    before = None if base is None else np.ascontiguousarray(base).reshape(-1).view(np.uint8)
    out = np.zeros(data.size, np.uint8)
    read = None if before is None else lambda: before
    chosen, used = (encoder or Encoder()).encode(name, data, x.itemsize, read, out, **how)
    if chosen == "same":
        assert np.array_equal(data, before)
        return chosen, float("inf")
    assert chosen in CODECS and used <= data.size
    back = np.zeros(data.size, np.uint8)
    decode(chosen, out[:used].copy(), x.itemsize, before if takes_base(chosen) else None, back)
    assert back.tobytes() == data.tobytes()
    return chosen, data.size / max(used, 1)


def adamw(steps: int, lr: float):
    """Weights and both moments after AdamW has run to its steady state, then `steps` later."""
    draw = np.random.default_rng(1)
    n = 1 << 17
    p = draw.standard_normal(n) * 0.02
    m, v, scale = np.zeros(n), np.zeros(n), np.exp(draw.standard_normal(n)) * 1e-3
    for t in range(1, 200 + steps + 1):
        g = draw.standard_normal(n) * scale
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        p -= lr * ((m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8) + 0.1 * p)
        if t == 200:
            before = [a.astype(np.float32) for a in (p, m, v)]
    return before, [a.astype(np.float32) for a in (p, m, v)]


def test_normal_weights_take_a_seventh_less():
    chosen, ratio = stored(WEIGHTS)
    assert chosen == "block" and ratio >= 1.16


def test_weights_that_an_optimizer_moved_are_stored_as_their_difference():
    before, after = adamw(1, 1e-5)
    chosen, ratio = stored(after[0], before[0])
    assert chosen == "block-delta" and ratio >= 1.5


def test_a_few_changed_rows_take_their_share():
    rows = WEIGHTS.copy().reshape(256, -1)
    rows[::20] += np.float32(0.01)
    chosen, ratio = stored(rows, WEIGHTS)
    assert chosen == "block-delta" and ratio >= 10


def test_what_equals_its_base_is_the_same():
    for dtype in DTYPES:
        x = (WEIGHTS * 1000).astype(dtype)
        assert stored(x, x.copy()) == ("same", float("inf"))
        assert stored(x, x.copy(), plain=True)[0] == "same"
    assert stored(WEIGHTS[:5], WEIGHTS[:5].copy())[0] == "same"


def test_one_changed_bit_is_not_the_same():
    for size in (1, 100, 1 << 18):
        x = WEIGHTS[:size].copy()
        base = x.copy()
        x.view(np.uint32)[size // 3] ^= 1
        assert stored(x, base)[0] != "same"


def test_random_bits_stay_as_they_are():
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        bits = rng.integers(0, np.iinfo(dtype).max, 100000, dtype)
        assert stored(bits)[0] == "raw"
        assert stored(bits, bits[::-1].copy())[0] == "raw"


def test_a_base_is_raw_unless_it_is_less_than_half():
    assert stored(WEIGHTS, plain=True)[0] == "raw"
    assert stored(WEIGHTS, WEIGHTS + np.float32(1e-6), plain=True)[0] == "raw"
    chosen, ratio = stored(np.zeros_like(WEIGHTS), plain=True)
    assert not takes_base(chosen) and ratio > 20
    brain = (WEIGHTS.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    chosen, ratio = stored(brain, plain=True)
    assert chosen == "bytes" and ratio > 2


def test_half_precision_goes_by_its_bytes():
    half = (WEIGHTS.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # bfloat16
    chosen, ratio = stored(half)
    assert chosen == "bytes" and ratio > 1.2
    moved = half.copy()
    moved[::3] += 1
    chosen, ratio = stored(moved, half)
    assert chosen == "bytes-delta" and ratio > 3


def test_a_base_is_read_once_where_it_never_helps():
    reads = []

    def base():
        reads.append(1)
        return (WEIGHTS[::-1] * np.float32(3)).copy().view(np.uint8)

    encoder, out = Encoder(), np.zeros(WEIGHTS.nbytes, np.uint8)
    for _ in range(5):
        assert encoder.encode("m", WEIGHTS.view(np.uint8), 4, base, out)[0] == "block"
    assert len(reads) == 1
    encoder.encode("other", WEIGHTS.view(np.uint8), 4, base, out)
    assert len(reads) == 2


@pytest.mark.parametrize("plain", [False, True])
def test_a_tensor_of_which_some_chunks_are_unchanged_has_its_base_read_throughout(plain):
    encoder = Encoder()
    other = (WEIGHTS[::-1] * np.float32(3)).copy()
    assert stored(WEIGHTS, WEIGHTS.copy(), encoder=encoder, plain=plain)[0] == "same"
    assert stored(WEIGHTS, other, encoder=encoder, plain=plain)[0] == ("raw" if plain else "block")
    assert stored(WEIGHTS, WEIGHTS.copy(), encoder=encoder, plain=plain)[0] == "same"


@settings(max_examples=150)
@given(data=st.data())
def test_any_chunk_of_any_dtype_comes_back(data):
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    n = data.draw(st.sampled_from([0, 1, 3, 64, 511, 512, 513, 1025]))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kind = data.draw(st.sampled_from(["bits", "normal", "few", "zeros"]))
    if kind == "bits" and dtype.kind != "b":
        x = np.frombuffer(draw.bytes(n * dtype.itemsize), dtype)  # payloads of NaN too
    else:
        x = (draw.standard_normal(n) * {"few": 2, "zeros": 0}.get(kind, 50)).astype(dtype)
    base = x.copy()
    base.view(np.uint8)[:: data.draw(st.integers(1, 40))] ^= 1
    against = data.draw(st.sampled_from([None, base]))
    stored(x, against, plain=data.draw(st.booleans()))


def test_the_reference_writes_the_same_chunks(monkeypatch):
    def all_of() -> list[bytes]:
        chunks = []
        for x, base in ((WEIGHTS, None), (WEIGHTS, WEIGHTS + np.float32(1e-6)), (WEIGHTS.astype(np.float16), None)):
            out = np.zeros(x.nbytes, np.uint8)
            read = None if base is None else lambda base=base: base.view(np.uint8)
            name, used = Encoder().encode("w", x.view(np.uint8), x.itemsize, read, out)
            chunks.append(name.encode() + out[:used].tobytes())
        return chunks

    native = all_of()
    monkeypatch.setenv("MINDSPEED_MS_KERNELS", "reference")
    assert all_of() == native


def test_without_a_compiler_numpy_does_it_with_one_notice(monkeypatch, caplog):
    def none():
        raise BuildError("no C++ compiler found")

    monkeypatch.setattr(kernels.build, "library", none)
    kernels._missing.cache_clear()
    kernels._notice.cache_clear()
    try:
        assert stored(WEIGHTS)[0] == "block" and stored(WEIGHTS)[0] == "block"
        assert caplog.text.count("no C++ compiler found") == 1
        monkeypatch.setenv("MINDSPEED_MS_KERNELS", "native")
        with pytest.raises(BuildError):
            kernels.kernels()
        monkeypatch.setenv("MINDSPEED_MS_KERNELS", "fast")
        with pytest.raises(ConfigError, match="'fast'"):
            kernels.kernels()
    finally:
        kernels._missing.cache_clear()


def refused(name, data, itemsize, base, size, match):
    with pytest.raises(CheckpointError, match=match) as caught:
        decode(name, np.frombuffer(bytes(data), np.uint8), itemsize, base, np.zeros(size, np.uint8))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_is_refused():
    x = WEIGHTS[:1000].view(np.uint8)
    refused("raw", x[:-1], 4, None, 4000, "3999 bytes for a chunk of 4000")
    refused("pickle", x, 4, None, 4000, "'pickle': expected raw, block")
    refused("block-delta", x, 4, None, 4000, "needs a base of 4000 bytes, none is there")
    refused("bytes-delta", x, 4, x[:-1], 4000, "it has 3999")
    refused("block", x, 1, None, 4001, "no whole number")
    refused("bytes", x, 4, None, 4000, "zstandard")
    refused("bytes", zstandard.compress(bytes(4001)), 4, None, 4000, "a frame of 4001 bytes")
    refused("bytes", zstandard.compress(bytes(4000)) + b"more", 4, None, 4000, "zstandard")
    with pytest.raises(CheckpointError, match="w: a base of 8 bytes for 4"):
        Encoder().encode("w", np.zeros(4, np.uint8), 4, lambda: np.zeros(8, np.uint8), np.zeros(4, np.uint8))


def test_a_frame_that_claims_terabytes_allocates_nothing():
    huge = b"\x28\xb5\x2f\xfd\xe0" + (1 << 42).to_bytes(8, "little") + b"\x01\x00\x00"
    assert zstandard.get_frame_parameters(huge).content_size == 1 << 42
    refused("bytes", list(huge), 4, None, 4000, "a frame of 4398046511104 bytes")
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4000))
    refused("bytes", list(unknown), 4, None, 4000, "a frame of")


@pytest.mark.parametrize("name", ["block", "block-delta", "bytes", "bytes-delta"])
def test_thousands_of_damaged_chunks_end_in_bytes_or_a_checkpoint_error(name):
    draw = np.random.default_rng(7)
    x = WEIGHTS[:2100]
    base = np.where(np.arange(2100) % 3 == 0, x, x * np.float32(1.001))
    data, before = x.view(np.uint8), base.astype(np.float32).view(np.uint8)
    against = before if takes_base(name) else None
    if name.startswith("block"):
        out = np.zeros(data.size + 99, np.uint8)
        y = None if against is None else against.view(np.uint32)
        whole = out[: kernels.kernels().block_encode(x.view(np.uint32), y, out)].copy()
    else:
        whole = np.frombuffer(byte_planes.encode(data, 4, against), np.uint8)
    for _ in range(1500):
        bad = whole.copy()
        spots = draw.integers(0, draw.choice([8, 60, bad.size]), draw.integers(1, 4))
        bad[spots] ^= draw.integers(1, 256, spots.size).astype(np.uint8)
        bad = bad[: draw.integers(0, bad.size)] if draw.random() < 0.2 else bad
        try:
            decode(name, bad, 4, against, np.zeros(data.size, np.uint8))
        except CheckpointError:
            pass


def test_codecs_that_take_a_base_say_so():
    assert [name for name in codec.CODECS if takes_base(name)] == ["block-delta", "bytes-delta"]
