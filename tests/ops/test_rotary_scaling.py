"""Cosines and sines under each kind of rotary scaling, from configuration through the kernel, against the formulas
as they were published: Meta's llama-models (`apply_scaling`) and position interpolation (Chen et al., 2023)."""

import math

import numpy as np
import pytest
from ops_oracle import close

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.ops.native.pack import pack

POSITIONS = np.array([0, 1, 2, 100, 2047, 8191, 8192, 40000, 131071], np.int32)
THETA, DIM = 500000.0, 128
LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def spec(scaling):
    return DecoderSpec(
        model_type="llama", vocab_size=8, hidden_size=DIM, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=DIM, rope_theta=THETA, rope_scaling=scaling,
    )  # fmt: skip


def plain_frequencies():
    return [1 / THETA ** (2 * i / DIM) for i in range(DIM // 2)]


def llama3_frequencies():
    """One frequency at a time: short waves stay, long ones are stretched eightfold, those between are mixed."""
    scaled = []
    for freq in plain_frequencies():
        wavelen = 2 * math.pi / freq
        if wavelen < 8192 / 4.0:
            scaled.append(freq)
        elif wavelen > 8192 / 1.0:
            scaled.append(freq / 8.0)
        else:
            smooth = (8192 / wavelen - 1.0) / (4.0 - 1.0)
            scaled.append((1 - smooth) * freq / 8.0 + smooth * freq)
    return scaled


def table(native, scaling):
    arena, layout = pack({"f": spec(scaling).inv_freq()})
    attrs = {"inv_freq": layout.vectors["f"][0], "head_dim": DIM}
    return native("RopeTable", [POSITIONS, arena], attrs)


def expected(frequencies, positions=POSITIONS):
    # float32 frequencies are what every implementation stores
    angles = np.outer(positions.astype(np.float64), np.float32(frequencies).astype(np.float64))
    return np.concatenate([np.cos(angles), np.sin(angles)], 1)


@pytest.mark.parametrize("scaling", [None, {"type": "default"}], ids=["none", "default"])
def test_default(native, scaling):
    close(table(native, scaling), expected(plain_frequencies()))


def test_linear_divides_the_position(native):
    close(table(native, {"type": "linear", "factor": 4.0}), expected(plain_frequencies(), POSITIONS / 4))


def test_llama3(native):
    frequencies = llama3_frequencies()
    kept = sum(a == b for a, b in zip(frequencies, plain_frequencies(), strict=True))
    assert 0 < kept < DIM // 2, "the case must have waves of each kind"
    np.testing.assert_allclose(spec(LLAMA3).inv_freq(), np.float32(frequencies), rtol=1.2e-7)
    # one unit in the last place of a frequency turns a far position by a thousandth: compare with what is stored
    close(table(native, LLAMA3), expected(spec(LLAMA3).inv_freq()))
