"""A decoder layer's weights in an arena, the attributes that name them, and what the fused blocks must compute."""

import numpy as np
import ops_oracle as oracle

from mindspeed_ms.ops.native.pack import pack
from mindspeed_ms.ops.native.quant import quantize_rtn

EPS = 1e-5


class Layer:
    """Random weights of one layer: `scheme` None or (bits, group, asymmetric), `integer` int8 activations."""

    def __init__(
        self, rng, hidden, inner, heads, kv_heads, dim, scheme=None, integer=False, biased=False, qk_norm=False
    ):
        self.hidden, self.inner, self.heads, self.kv_heads, self.dim = hidden, inner, heads, kv_heads, dim
        self.scheme, self.integer, self.scale = scheme, integer, dim**-0.5
        shapes = {
            "q": (heads * dim, hidden), "k": (kv_heads * dim, hidden), "v": (kv_heads * dim, hidden),
            "o": (hidden, heads * dim), "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
        }  # fmt: skip
        self.w = {
            name: (rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32) for name, shape in shapes.items()
        }
        if scheme is not None:
            self.w = {name: quantize_rtn(weight, *scheme) for name, weight in self.w.items()}
        self.b = {
            name: rng.standard_normal(shape[0]).astype(np.float32) if biased else None for name, shape in shapes.items()
        }
        vectors = {"norm": hidden, "q_norm": dim, "k_norm": dim}
        self.n = {name: (1 + 0.3 * rng.standard_normal(size)).astype(np.float32) for name, size in vectors.items()}
        self.qk_norm = qk_norm
        biases = {f"b_{name}": bias for name, bias in self.b.items() if bias is not None}
        self.arena, self.layout = pack({**self.w, **self.n, **biases}, act=int(integer))

    def _matrix(self, name):
        return self.layout.matrices[name].as_list()

    def _biases(self, names):
        return [self.layout.vectors.get(f"b_{name}", (-1,))[0] for name in names]

    def attention_attrs(self, layer=1):
        at = {name: offset for name, (offset, _) in self.layout.vectors.items()}
        return {
            "layer": layer, "eps": EPS, "scale": self.scale, "heads": [self.heads, self.kv_heads, self.dim],
            "norm": at["norm"], "wq": self._matrix("q"), "wk": self._matrix("k"), "wv": self._matrix("v"),
            "wo": self._matrix("o"), "biases": self._biases("qkvo"),
            "qk_norm": [at["q_norm"], at["k_norm"]] if self.qk_norm else [-1, -1],
        }  # fmt: skip

    def mlp_attrs(self):
        names = ("gate", "up", "down")
        return {"eps": EPS, "norm": self.layout.vectors["norm"][0], **{name: self._matrix(name) for name in names},
                "biases": self._biases(names)}  # fmt: skip

    def linear(self, name, x):
        return oracle.linear(x, self.w[name], self.b[name], self.integer)

    def attention(self, x, table, batch, keys, values, half=False):
        """float64 but for what the integer schemes round: the activations of each linear."""
        tokens = len(x)
        h = oracle.rms_norm(x, self.n["norm"], EPS)
        q = self.linear("q", h).reshape(tokens, self.heads, self.dim)
        k = self.linear("k", h).reshape(tokens, self.kv_heads, self.dim)
        v = self.linear("v", h).reshape(tokens, self.kv_heads, self.dim)
        if self.qk_norm:
            q, k = oracle.rms_norm(q, self.n["q_norm"], EPS), oracle.rms_norm(k, self.n["k_norm"], EPS)
        q, k = oracle.rope(q, table), oracle.rope(k, table)
        y = oracle.paged_attention(batch, q, k, v, keys, values, self.scale, half)
        return x + self.linear("o", y.reshape(tokens, -1))

    def mlp(self, x):
        h = oracle.rms_norm(x, self.n["norm"], EPS)
        return x + self.linear("down", oracle.swiglu(self.linear("gate", h), self.linear("up", h)))

    def step(self, rng, past, new, block=16, dtype=np.float32):
        """Inputs of the attention block: (batch, x, table, past keys, past values, cache)."""
        batch = oracle.ragged(past, new, block, rng)
        keys, values = (
            [rng.standard_normal((p, self.kv_heads, self.dim)).astype(np.float32) for p in past] for _ in "kv"
        )
        x = rng.standard_normal((sum(new), self.hidden)).astype(np.float32)
        inv_freq = 10000.0 ** (-np.arange(0, self.dim, 2) / self.dim)
        table = oracle.rope_table(batch.positions, inv_freq).astype(np.float32)
        cache = oracle.empty_cache(2, batch, self.kv_heads, self.dim, dtype)
        oracle.fill_cache(cache, 1, batch, keys, values)
        return batch, x, table, keys, values, cache
