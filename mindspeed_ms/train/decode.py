"""A decoder's forward pass in NumPy, for sample texts while it trains: no graph to compile, no copy of the weights.

One token at a time reads each weight once, which is what bounds its speed, as of any implementation.
Shapes: P sequences that are written together, N heads, K key heads, D head size, H hidden, S positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mindspeed_ms.config.decoder import DecoderSpec

Array = np.ndarray
# (path of a linear layer, x [P, in]) -> what is added to its output, or None
Adapters = Callable[[str, Array], Array | None]


class Decoder:
    """ids [P], all at the same position -> logits [P, V] float32; remembers keys and values of earlier calls.

    weights: by Hugging Face's names, float32, as `spec` has them. `room`: positions there may be in all.
    adapters: what LoRA adds to a linear layer's output.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Mapping[str, Array],
        sequences: int,
        room: int,
        adapters: Adapters | None = None,
    ) -> None:
        self.spec, self.weights, self.adapters = spec, weights, adapters
        shape = (spec.num_hidden_layers, sequences, spec.num_key_value_heads, room, spec.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.position = 0
        self._freq = spec.inv_freq().astype(np.float64)
        tied = spec.tie_word_embeddings
        self._output = weights["model.embed_tokens.weight" if tied else "lm_head.weight"]

    def __call__(self, ids: Array) -> Array:
        angles = self.position * self._freq
        turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        x = self.weights["model.embed_tokens.weight"][ids].astype(np.float32)
        for index in range(self.spec.num_hidden_layers):
            layer = f"model.layers.{index}"
            x = x + self._attention(index, self._norm(x, f"{layer}.input_layernorm"), turn)
            inner = self._norm(x, f"{layer}.post_attention_layernorm")
            gate = self._linear(f"{layer}.mlp.gate_proj", inner)
            up = self._linear(f"{layer}.mlp.up_proj", inner)
            x = x + self._linear(f"{layer}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        self.position += 1
        logits: Array = self._norm(x, "model.norm") @ self._output.T
        return logits

    def _attention(self, index: int, x: Array, turn: tuple[Array, Array]) -> Array:
        spec, path = self.spec, f"model.layers.{index}.self_attn"
        rows, dim, kv_heads = len(x), spec.head_dim, spec.num_key_value_heads
        q = self._linear(f"{path}.q_proj", x).reshape(rows, -1, dim)
        k = self._linear(f"{path}.k_proj", x).reshape(rows, kv_heads, dim)
        v = self._linear(f"{path}.v_proj", x).reshape(rows, kv_heads, dim)
        if spec.qk_norm:
            q, k = self._norm(q, f"{path}.q_norm"), self._norm(k, f"{path}.k_norm")
        now = self.position
        self.keys[index, :, :, now], self.values[index, :, :, now] = _rotate(k, turn), v
        q = _rotate(q, turn).reshape(rows, kv_heads, -1, dim)
        scores = q @ self.keys[index, :, :, : now + 1].swapaxes(-1, -2) * dim**-0.5
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return self._linear(f"{path}.o_proj", (scores @ self.values[index, :, :, : now + 1]).reshape(rows, -1))

    def _linear(self, path: str, x: Array) -> Array:
        y: Array = x @ self.weights[f"{path}.weight"].T
        bias = self.weights.get(f"{path}.bias")
        if bias is not None:
            y = y + bias
        more = self.adapters(path, x) if self.adapters else None
        return y if more is None else y + more

    def _norm(self, x: Array, path: str) -> Array:
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.spec.rms_norm_eps))
        return x * scale * self.weights[f"{path}.weight"]


def _rotate(x: Array, turn: tuple[Array, Array]) -> Array:
    """x [P, heads, D]: the halves of each head as real and imaginary parts."""
    cos, sin = turn
    first, second = np.split(x, 2, -1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)
