"""A decoder in plain NumPy and float64, written from the papers' formulas, to compare bundles with."""

import numpy as np


def rotate(x, positions, theta):
    """x [T, heads, D]: each half-split pair (i, i + D/2) turned by position * theta^(-2i/D)."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def logits(config, weights, tokens):
    """Logits [T, V] of one sequence of tokens."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps, count = config["rms_norm_eps"], len(tokens)
    positions, future = np.arange(count, dtype=np.float64), np.triu(np.ones((count, count), bool), 1)
    x = w["model.embed_tokens.weight"][np.array(tokens)]
    for index in range(config["num_hidden_layers"]):

        def linear(value, name, layer=f"model.layers.{index}."):
            return value @ w[f"{layer}{name}.weight"].T + w.get(f"{layer}{name}.bias", 0)

        h = norm(x, w[f"model.layers.{index}.input_layernorm.weight"], eps)
        q, k, v = (linear(h, f"self_attn.{n}_proj").reshape(count, -1, dim) for n in "qkv")
        if f"model.layers.{index}.self_attn.q_norm.weight" in w:
            q = norm(q, w[f"model.layers.{index}.self_attn.q_norm.weight"], eps)
            k = norm(k, w[f"model.layers.{index}.self_attn.k_norm.weight"], eps)
        q, k = rotate(q, positions, config["rope_theta"]), rotate(k, positions, config["rope_theta"])
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores[:, future] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", scores, v).reshape(count, heads * dim)
        x = x + linear(attended, "self_attn.o_proj")
        h = norm(x, w[f"model.layers.{index}.post_attention_layernorm.weight"], eps)
        gate = linear(h, "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "mlp.up_proj"), "mlp.down_proj")
    x = norm(x, w["model.norm.weight"], eps)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
