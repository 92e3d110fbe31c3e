"""Tiny models on disk for the tests, written by the safetensors and gguf libraries or by hand, never by our code."""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def hf_shapes(config):
    """Names and shapes of the checkpoint that Hugging Face would write for `config`."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj.weight": (q, hidden),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.o_proj.weight": (hidden, q),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        if config["model_type"] == "qwen2":
            layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", q), ("k", kv), ("v", kv))}
        if config["model_type"] == "qwen3":
            layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def random_weights(config, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in hf_shapes(config).items()}


def write_hf(path, weights=None, shards=0, tokenizer=True, **changes):
    """A Hugging Face directory; `shards` > 0 splits the tensors over that many files. `None` in changes drops a key."""
    path.mkdir(parents=True)
    config = {**CONFIG, **changes}
    if weights is None:
        weights = random_weights(config)
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    if shards:
        names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        placed = {name: names[i % shards] for i, name in enumerate(weights)}
        for shard in names:
            save_file({k: v for k, v in weights.items() if placed[k] == shard}, path / shard)
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    else:
        save_file(weights, path / "model.safetensors")
    if tokenizer:
        (path / "tokenizer.json").write_bytes(tokenizer_json())
    return path


def tokenizer_json():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:40]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{c: i + 3 for i, c in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer.to_str().encode()


def safetensors_bytes(header, data=b"", length=None):
    """A safetensors file by hand: `header` is an object or raw bytes, `length` may lie about it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    stem, _, suffix = name.rpartition(".")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in top:
        return f"{top[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}.{suffix}"


def permute(weight, heads):
    """How llama.cpp's converter orders the rows of a Llama's q and k (its conversion script, `permute`)."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write_gguf(path, weights=None, kind="F32", tokenizer=True, extra=None, tensors=None, **changes):
    """A GGUF file as llama.cpp's converter lays it out; matrices in `kind`, vectors in F32.

    `extra(writer)` adds metadata, `tensors` replaces or adds raw tensors by GGUF name.
    """
    config = {**CONFIG, **changes}
    arch = config["model_type"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if tokenizer:
        add_tokenizer(writer)
    if extra:
        extra(writer)
    quant = gguf.GGMLQuantizationType[kind]
    for name, weight in (random_weights(config) if weights is None else weights).items():
        for letter, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"])):
            if arch == "llama" and f".{letter}_proj." in name:
                weight = permute(weight, heads)
        if weight.ndim == 2 and kind != "F32":
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(weight, quant), raw_dtype=quant)
        else:
            writer.add_tensor(gguf_name(name), weight)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer):
    tokens = ["<unk>", "<s>", "</s>", *"abcdefgh", "ab", "cd"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def patched(path, target, old, new):
    """A copy of a file with the only occurrence of some bytes changed."""
    content = Path(path).read_bytes()
    assert content.count(old) == 1, content.count(old)
    target.write_bytes(content.replace(old, new))
    return target
