"""Blocks of 512 values: every bit comes back, all makers write the same bytes, no stream does harm."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindspeed_ms.checkpoint import codec_reference
from mindspeed_ms.errors import KernelError

SIZES = (0, 1, 2, 15, 16, 17, 511, 512, 513, 1024, 1500, 4099)
SPECIAL = [
    0x7F800000,
    0xFF800000,
    0x7FC00001,
    0xFFC12345,
    0x7F800001,
    0x80000000,
    0,
    1,
    0x80000001,
    0x007FFFFF,
    0xFFFFFFFF,
]


def documented_decode(stored: bytes, base, n: int) -> list[int]:
    """The format as its document tells it, value by value."""
    values, at = [], 0
    for first in range(0, n, 512):
        width, mode, exceptions, reference = struct.unpack_from("<BBHI", stored, at)
        words = struct.unpack_from(f"<{16 * width}I", stored, at + 8)
        at += 8 + 64 * width
        residuals = []
        for i in range(512):
            v, lane = divmod(i, 16)
            lane_bits = sum(
                words[16 * k + lane] << 32 * k for k in range(v * width // 32, min(width, v * width // 32 + 2))
            )
            residuals.append(lane_bits >> v * width & (1 << width) - 1)
        if mode & 4:
            above, at = documented_tiers(stored, at)
            residuals = [(r + (k << width)) % 2**32 for r, k in zip(residuals, above, strict=True)]
            positions = [i for i, k in enumerate(above) if k == 19]
            assert len(positions) == exceptions
        else:
            positions = struct.unpack_from(f"<{exceptions}H", stored, at)
            at += 2 * exceptions
        for i, residual in zip(positions, struct.unpack_from(f"<{exceptions}I", stored, at), strict=True):
            residuals[i] = residual
        at += 4 * exceptions
        mode &= 3
        for i in range(first, min(n, first + 512)):
            r = residuals[i - first]
            if mode == 2:
                near = int(base[i])
                near = near ^ 0x7FFFFFFF if near >> 31 else near
                moved = (near + reference + (-(r + 1) // 2 if r & 1 else r // 2)) % 2**32
                values.append(moved ^ 0x7FFFFFFF if moved >> 31 else moved)
            else:
                y = (reference - r) % 2**32
                values.append(y >> 1 | (y & 1) << 31 if mode == 1 else y)
    assert at == len(stored)
    return values


def documented_tiers(stored: bytes, at: int) -> tuple[list[int], int]:
    """What lies above the residuals of a block in tiers, and where its planes end."""
    taken = 8 * at

    def plane(places: list[int]) -> list[int]:
        nonlocal taken
        ones = []
        for place in places:
            if stored[taken // 8] >> taken % 8 & 1:
                ones.append(place)
            taken += 1
        return ones

    above, inside = [0] * 512, list(range(512))
    for _ in range(4):
        inside = plane(inside)
        for i in inside:
            above[i] += 1
    for bit in range(4):
        for i in plane(inside):
            above[i] += 2**bit
    while taken % 8:
        assert not stored[taken // 8] >> taken % 8 & 1
        taken += 1
    return above, taken // 8


def drawn(n: int, kind: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "bits":
        return rng.integers(0, 2**32, n, np.uint32)
    if kind == "special":
        return rng.choice(np.array(SPECIAL, np.uint32), n)
    if kind == "integers":
        return rng.integers(-300, 300, n, np.int32).view(np.uint32)
    if kind == "sizes":  # as many of each number of bits from 6 to 20, of which a block in tiers has exceptions
        return rng.integers(0, 2**20, n, np.uint32) >> np.minimum(rng.geometric(0.5, n), 14).astype(np.uint32)
    if kind == "squares":
        return np.square(rng.standard_normal(n), dtype=np.float64).astype(np.float32).view(np.uint32)
    x = rng.standard_normal(n).astype(np.float32)
    if kind == "mixed" and n:
        x[rng.integers(0, n, n // 60 + 1)] = np.float32(np.nan)
        x[rng.integers(0, n, n // 60 + 1)] = 1e-42
    return x.view(np.uint32)


def encoded(module, x, base=None) -> np.ndarray:
    out = np.full(x.nbytes + 8 * (x.size // 512 + 1) + 2048, 0xA5, np.uint8)
    used = module.block_encode(x, base, out)
    assert (out[used:] == 0xA5).all()
    return out[:used].copy()


@pytest.mark.parametrize("kind", ["bits", "special", "integers", "sizes", "squares", "normal", "mixed"])
@pytest.mark.parametrize("delta", [False, True])
def test_all_makers_write_the_documented_bytes_and_bring_every_bit_back(blocks, kind, delta):
    for n in SIZES:
        x = drawn(n, kind)
        base = np.where(np.arange(n) % 7 < 3, x, x + np.uint32(n % 977)).astype(np.uint32) if delta else None
        stored = encoded(blocks, x, base)
        assert stored.tobytes() == encoded(codec_reference, x, base).tobytes()
        back = np.zeros(n, np.uint32)
        blocks.block_decode(stored, base, back)
        assert back.tobytes() == x.tobytes()
        if n <= 1500:
            assert documented_decode(stored.tobytes(), base, n) == x.tolist()
        assert blocks.block_estimate(x, base, 10**6) == stored.size
        assert blocks.block_estimate(x, base, 3) == codec_reference.block_estimate(x, base, 3)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.integers(0, 2**32 - 1) | st.sampled_from(SPECIAL) | st.integers(0, 255), max_size=700),
    shift=st.none() | st.integers(0, 2**32 - 1),
)
def test_any_values_come_back(blocks, values, shift):
    x = np.array(values, np.uint32)
    base = None if shift is None else x[::-1].copy() + np.uint32(shift)
    stored = encoded(blocks, x, base)
    back = np.zeros_like(x)
    blocks.block_decode(stored, base, back)
    assert back.tobytes() == x.tobytes() and stored.tobytes() == encoded(codec_reference, x, base).tobytes()


def modes(stored: np.ndarray, count: int) -> list[tuple[int, int, int]]:
    """Width, mode and exceptions of blocks."""
    found, at = [], 0
    for _ in range(count):
        width, mode, exceptions = struct.unpack_from("<BBH", stored, at)
        found.append((width, mode, exceptions))
        at += 8 + 64 * width
        at = documented_tiers(stored.tobytes(), at)[1] + 4 * exceptions if mode & 4 else at + 6 * exceptions
    assert at == stored.size
    return found


def test_a_block_takes_tiers_only_where_they_are_smaller(blocks):
    flat = np.random.default_rng(1).integers(0, 1024, 4096, np.uint32)
    flat[::512] = 1023
    assert [mode for _, mode, _ in modes(encoded(blocks, flat), 8)] == [0] * 8
    normal = drawn(4096, "normal")
    assert {mode for _, mode, _ in modes(encoded(blocks, normal), 8)} == {5}
    assert {mode for _, mode, _ in modes(encoded(blocks, np.abs(normal.view("f4")).view("u4")), 8)} == {4}
    moved = normal + np.random.default_rng(2).laplace(0, 3000, 4096).astype(np.int32).view(np.uint32)
    assert {mode for _, mode, _ in modes(encoded(blocks, moved, normal), 8)} == {6}


def test_tiers_count_every_step_and_every_exception(blocks):
    for n in (512, 300):
        residuals = np.arange(n, dtype=np.uint32) % 64
        residuals[:40] = np.arange(40, dtype=np.uint32) * 32 + 5  # each k from 0 to 39 with five bits
        residuals[n - 1] = 2**31 - 1
        x = np.uint32(2**31 - 1) - residuals
        stored = encoded(blocks, x)
        ((width, mode, exceptions),) = modes(stored, 1)
        assert (width, mode, exceptions) == (5, 4, 40 - 19 + 1)
        back = np.zeros(n, np.uint32)
        blocks.block_decode(stored, None, back)
        assert (x == back).all()
        assert documented_decode(stored.tobytes(), None, n) == x.tolist()


def tiered(planes: bytes, values=(), *, width=0, mode=4, exceptions=0) -> np.ndarray:
    """One block in tiers without residuals."""
    head = struct.pack("<BBHI", width, mode, exceptions, 100)
    return np.frombuffer(head + planes + struct.pack(f"<{len(values)}I", *values), np.uint8)


def test_tiers_that_contradict_themselves_are_refused(blocks):
    def decoded(bad: np.ndarray, n=512) -> np.ndarray:
        back = np.zeros(n, np.uint32)
        blocks.block_decode(bad, None, back)
        return back

    def refused(bad: np.ndarray, n=512) -> str:
        with pytest.raises(KernelError) as caught:
            decoded(bad, n)
        return str(caught.value)

    first, none = bytes([1]) + bytes(63), bytes(64)
    assert (decoded(tiered(none)) == 100).all()
    one = decoded(tiered(first + b"\0"))  # the plane of the one value that goes on is a bit
    assert one[0] == 99 and (one[1:] == 100).all()
    assert decoded(tiered(first + b"\x01"))[0] == 98
    assert decoded(tiered(first + b"\x07"))[0] == 100 - 4
    assert decoded(tiered(first + b"\x3f"))[0] == 100 - 4 - 7
    assert decoded(tiered(first + b"\x7f", [77], exceptions=1))[0] == 23
    assert "contradict" in refused(tiered(first + b"\x7f", exceptions=0))
    assert "contradict" in refused(tiered(first + b"\x3f", [77], exceptions=1))
    assert "contradict" in refused(tiered(first + b"\x80"))  # a bit that nothing asks for
    assert "contradict" in refused(tiered(bytes(63) + b"\x80" + b"\0"), 511)
    assert decoded(tiered(bytes(63) + b"\x40" + b"\0"), 511)[510] == 99
    assert "ends too early" in refused(tiered(first))
    assert "ends too early" in refused(tiered(none[:-1]))
    assert "ends too early" in refused(tiered(first + b"\x7f", exceptions=1))
    assert "goes on after" in refused(tiered(none + b"\0"))
    assert "no known width or mode" in refused(tiered(bytes(64 * 33), width=32))
    for mode in (3, 6, 7, 8, 12):
        assert "no known width or mode" in refused(tiered(none, mode=mode))
    everything = bytes([255]) * 512
    assert "contradict" in refused(tiered(everything, range(511), exceptions=511))
    assert (decoded(tiered(everything, range(512), exceptions=512)) == 100 - np.arange(512, dtype=np.uint32)).all()


def test_nothing_is_written_beyond_the_capacity(blocks):
    x = drawn(5000, "normal")
    stored = encoded(blocks, x)
    room = np.full(stored.size + 4096, 0xA5, np.uint8)
    for capacity in (0, 7, 8, 2000, stored.size - 1):
        assert blocks.block_encode(x, None, room[:capacity]) is None
        assert (room[capacity:] == 0xA5).all()
    assert blocks.block_encode(x, None, room[: stored.size]) == stored.size


def test_an_unchanged_block_takes_eight_bytes(blocks):
    x = drawn(2048, "bits")
    assert encoded(blocks, x, x.copy()).size == 4 * 8


def test_streams_that_no_encoder_makes_are_refused(blocks):
    x = drawn(1300, "mixed")
    stored = encoded(blocks, x)
    back = np.zeros(1300, np.uint32)

    def refused(bad: np.ndarray, base=None) -> str:
        with pytest.raises(KernelError) as caught:
            blocks.block_decode(bad, base, back)
        return str(caught.value)

    for end in (0, 7, 8, stored.size // 2, stored.size - 1):
        assert "ends too early" in refused(stored[:end].copy())
    assert "goes on after" in refused(np.append(stored, np.uint8(0)))
    assert "no known width or mode" in refused(np.concatenate([[33], stored[1:]]).astype(np.uint8))
    assert "no known width or mode" in refused(stored, x)  # not a difference
    assert "no known width or mode" in refused(np.array([0, 0, 255, 255, 0, 0, 0, 0] * 2, np.uint8))
    one = np.frombuffer(struct.pack("<BBHIHI", 0, 0, 1, 9, 512, 5), np.uint8)
    back = np.zeros(512, np.uint32)
    assert "outside its block" in refused(one)
    twice = np.frombuffer(struct.pack("<BBHIHHII", 0, 0, 2, 9, 3, 3, 5, 5), np.uint8)
    assert "outside its block" in refused(twice)


def test_thousands_of_damaged_streams_end_in_values_or_an_error_as_in_the_reference(blocks):
    rng = np.random.default_rng(3)
    x, base = drawn(1030, "mixed"), drawn(1030, "mixed", 1)
    for against in (None, base):
        stored = encoded(blocks, x, against)
        for _ in range(1500 if blocks is not codec_reference else 100):
            bad = stored.copy()
            spots = rng.integers(0, rng.choice([8, 40, bad.size]), rng.integers(1, 4))
            bad[spots] ^= rng.integers(1, 256, spots.size).astype(np.uint8)
            bad = bad[: rng.integers(0, bad.size)] if rng.random() < 0.2 else bad
            back = np.zeros(1030, np.uint32)
            try:
                blocks.block_decode(bad, against, back)
            except KernelError:
                continue
            again = np.zeros(1030, np.uint32)
            codec_reference.block_decode(bad, against, again)
            assert again.tobytes() == back.tobytes()


def test_the_wrapper_refuses_arrays_it_cannot_hand_over():
    from mindspeed_ms.ops.native import checkpoint

    x, out = np.zeros(8, np.uint32), np.zeros(99, np.uint8)
    for bad in (x[::2], x.astype(np.float32), x.reshape(2, 4)):
        with pytest.raises(KernelError, match="expected contiguous uint32"):
            checkpoint.block_encode(bad, None, out)
    with pytest.raises(KernelError, match="7 values for 8"):
        checkpoint.block_encode(x, x[:7], out)
    out.flags.writeable = False
    with pytest.raises(KernelError, match="read-only"):
        checkpoint.block_encode(x, None, out)
    with pytest.raises(KernelError, match="one size"):
        checkpoint.copy_aside([x[:7]], [x])
    with pytest.raises(KernelError, match="expected float16, bfloat16"):
        checkpoint.all_finite(x)


def test_finite_sees_each_value_that_is_not(blocks):
    for dtype in (np.float16, np.float32, np.float64):
        for n in (0, 1, 4095, 4097, 10000):
            x = np.full(n, np.finfo(dtype).max, dtype)
            assert blocks.all_finite(x)
            for at, bad in ((0, np.nan), (n // 2, np.inf), (n - 1, -np.inf)) if n else ():
                y = x.copy()
                y[at] = bad
                assert not blocks.all_finite(y)
    brain = np.array([0x7F7F, 0xFF7F, 0x7C00], np.uint16)
    assert blocks.all_finite(brain, "bfloat16") and not blocks.all_finite(brain | np.uint16(0x7F80), "bfloat16")


def test_copies_of_many_sizes_at_any_address(blocks):
    rng = np.random.default_rng(0)
    sizes = (0, 1, 63, 4095, 4096, 70001, (1 << 20) + 3, 5 << 20)
    sources = [rng.integers(0, 256, size + 3, np.uint8)[3:] for size in sizes] + [np.arange(12.0).reshape(3, 4)]
    targets = [np.zeros(size + 1, np.uint8)[1:] for size in sizes] + [np.zeros((3, 4))]
    blocks.copy_aside(targets, sources)
    assert all(np.array_equal(to, source) for to, source in zip(targets, sources, strict=True))
