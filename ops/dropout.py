"""Dropout (Srivastava et al., 2014) whose mask is a hash of the seed and the element's number: nothing is kept for the
gradient, and the mask depends on neither threads nor machine."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.ops.aot import AscendBody, aot_op, choose
from mindspeed_ms.ops.precision import like, single

# Its gradient: DropoutGradExt. There the mask is the primitive's own, kept for the gradient.
ASCEND = AscendBody("DropoutExt", ("input", "p", "seed", "offset"))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


class DropoutReference(nn.Cell):
    """x float32 of any shape, seed int32 [2] -> x / (1 - p) or 0: the kernel's mask, in int64 arithmetic that wraps."""

    def __init__(self, p: float):
        super().__init__()
        self.threshold = round(p * 2**24)
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        self.factors = [ms.Tensor(_signed(f), ms.int64) for f in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]
        self.low = ms.Tensor(0xFFFFFFFF, ms.int64)

    def shifted(self, x: Tensor, bits: int, width: int) -> Tensor:
        """x xor (x >> bits) of an unsigned number of `width` bits."""
        down = ops.bitwise_right_shift(x, ms.Tensor(bits, ms.int64))
        return ops.bitwise_xor(x, ops.bitwise_and(down, ms.Tensor(2 ** (width - bits) - 1, ms.int64)))

    def construct(self, x: Tensor, seed: Tensor) -> Tensor:
        words = ops.bitwise_and(seed.astype(ms.int64), self.low)
        key = ops.bitwise_left_shift(words[1], ms.Tensor(32, ms.int64)) + words[0]
        key = self.shifted(key, 30, 64) * self.factors[0]
        key = self.shifted(self.shifted(key, 27, 64) * self.factors[1], 31, 64)
        h = ops.arange(x.size)
        for half in (key, ops.bitwise_right_shift(key, ms.Tensor(32, ms.int64))):
            h = ops.bitwise_and(h + half, self.low)
            h = ops.bitwise_and(self.shifted(h, 16, 32) * 0x21F0AAAD, self.low)
            h = ops.bitwise_and(self.shifted(h, 15, 32) * 0xD35A2D97, self.low)
            h = self.shifted(h, 15, 32)
        kept = ops.bitwise_right_shift(h, ms.Tensor(8, ms.int64)) >= self.threshold
        return x * kept.reshape(x.shape).astype(ms.float32) * self.scale


def dropout_native(p: float) -> ops.Custom:
    """The native kernel: (x of any shape, seed int32 [2]) -> like x; it is its own gradient."""
    inputs, outputs, attrs = [("x", "f32"), ("seed", "i32")], [("y", "f32")], {"p": float(p)}
    same = aot_op("Dropout", inputs, outputs, attrs)

    def bprop(x, seed, out, dout):
        return same(dout, seed), ops.zeros_like(seed)

    return aot_op("Dropout", inputs, outputs, attrs, bprop=bprop)


class Dropout(nn.Cell):
    """x float32 of any shape, seed int32 [2] -> x / (1 - p) with probability 1 - p, else 0; x itself when not training.

    Layers and steps need seeds of their own: equal seeds give equal masks. p in [0, 1), else ConfigError.
    """

    reference = DropoutReference

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ConfigError(f"dropout={p!r}: expected a number from 0 to below 1")
        self.p = p
        self.body = choose(lambda: dropout_native(p), lambda: DropoutReference(p)) if p else None

    def construct(self, x: Tensor, seed: Tensor) -> Tensor:
        if self.p == 0 or not self.training:
            return x
        return like(self.body(single(x), seed), x)
