"""Published models by name, as the few keys of their `config.json` that decide their shape (Hugging Face hub)."""

from __future__ import annotations

from typing import Any

_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def _model(kind: str, *sizes: int, **more: Any) -> dict[str, Any]:
    return {"model_type": kind, **dict(zip(_KEYS, sizes, strict=True)), "tie_word_embeddings": False, **more}


_V2 = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
}

# hidden, intermediate, layers, heads, key-value heads, vocabulary
MODELS: dict[str, dict[str, Any]] = {
    "llama2-7b": _model("llama", 4096, 11008, 32, 32, 32, 32000),
    "llama2-13b": _model("llama", 5120, 13824, 40, 40, 40, 32000),
    "llama2-70b": _model("llama", 8192, 28672, 80, 64, 8, 32000),
    "codellama-34b": _model("llama", 8192, 22016, 48, 64, 8, 32000),
    "llama3-8b": _model("llama", 4096, 14336, 32, 32, 8, 128256),
    "llama3-70b": _model("llama", 8192, 28672, 80, 64, 8, 128256),
    "llama3.1-405b": _model("llama", 16384, 53248, 126, 128, 8, 128256),
    "smollm2-135m": _model("llama", 576, 1536, 30, 9, 3, 49152, tie_word_embeddings=True),
    "qwen-7b": _model("qwen2", 4096, 11008, 32, 32, 32, 151936),  # the layout of its successor, with other names
    "qwen-14b": _model("qwen2", 5120, 13696, 40, 40, 40, 152064),
    "qwen1.5-7b": _model("qwen2", 4096, 11008, 32, 32, 32, 151936),
    "qwen1.5-72b": _model("qwen2", 8192, 24576, 80, 64, 64, 152064),
    "qwen2.5-0.5b": _model("qwen2", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
    "qwen2.5-1.5b": _model("qwen2", 1536, 8960, 28, 12, 2, 151936, tie_word_embeddings=True),
    "qwen2.5-3b": _model("qwen2", 2048, 11008, 36, 16, 2, 151936, tie_word_embeddings=True),
    "qwen2.5-7b": _model("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "qwen2.5-14b": _model("qwen2", 5120, 13824, 48, 40, 8, 152064),
    "qwen2.5-32b": _model("qwen2", 5120, 27648, 64, 40, 8, 152064),
    "qwen2.5-72b": _model("qwen2", 8192, 29568, 80, 64, 8, 152064),
    "qwen3-0.6b": _model("qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
    "qwen3-1.7b": _model("qwen3", 2048, 6144, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
    "qwen3-4b": _model("qwen3", 2560, 9728, 36, 32, 8, 151936, head_dim=128, tie_word_embeddings=True),
    "qwen3-8b": _model("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "qwen3-14b": _model("qwen3", 5120, 17408, 40, 40, 8, 151936, head_dim=128),
    "qwen3-32b": _model("qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128),
    "qwen3-30b-a3b": _model(
        "qwen3_moe",
        *(2048, 6144, 48, 32, 4, 151936),
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    "qwen3-235b-a22b": _model(
        "qwen3_moe",
        *(4096, 12288, 94, 64, 4, 151936),
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=1536,
    ),
    "qwen3-coder-480b-a35b": _model(
        "qwen3_moe",
        *(6144, 8192, 62, 96, 8, 151936),
        head_dim=128,
        num_experts=160,
        num_experts_per_tok=8,
        moe_intermediate_size=2560,
    ),
    "mixtral-8x7b": _model("mixtral", *(4096, 14336, 32, 32, 8, 32000), num_local_experts=8, num_experts_per_tok=2),
    "mixtral-8x22b": _model("mixtral", *(6144, 16384, 56, 48, 8, 32768), num_local_experts=8, num_experts_per_tok=2),
    "deepseek-v2": _model(
        "deepseek_v2",
        *(5120, 12288, 60, 128, 128, 102400),
        **_V2,
        n_routed_experts=160,
        num_experts_per_tok=6,
        n_shared_experts=2,
        moe_intermediate_size=1536,
        first_k_dense_replace=1,
    ),
    "deepseek-v2-lite": _model(
        "deepseek_v2",
        *(2048, 10944, 27, 16, 16, 102400),
        **{**_V2, "q_lora_rank": None},
        n_routed_experts=64,
        num_experts_per_tok=6,
        n_shared_experts=2,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
    ),
    "deepseek-v3": _model(
        "deepseek_v3",
        *(7168, 18432, 61, 128, 128, 129280),
        **_V2,
        n_routed_experts=256,
        num_experts_per_tok=8,
        n_shared_experts=1,
        moe_intermediate_size=2048,
        first_k_dense_replace=3,
    ),
    "gpt3-175b": {
        "model_type": "gpt2",
        "n_embd": 12288,
        "n_layer": 96,
        "n_head": 96,
        "n_positions": 2048,
        "vocab_size": 51200,  # as padded in Korthikanti et al. 2022, table 3
    },
}
