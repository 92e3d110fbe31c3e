"""Logits equal transformers' on PyTorch: random tiny models of every architecture, and SmolLM2 in float32."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

TINY = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # 4 * 32 is not 96
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
CASES = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama one kv head": ("Llama", {"num_key_value_heads": 1}),
    "llama without grouping": ("Llama", {"num_key_value_heads": 4}),
    "llama head_dim 80": ("Llama", {"head_dim": 80}),
    "llama head_dim by default": ("Llama", {"hidden_size": 128, "head_dim": None}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", {"hidden_size": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2 tied": ("Qwen2", {"hidden_size": 128, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3 tied, biases": ("Qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
}


def peer(family, changes):
    """A random model with logits of a trained one's size: a few units apart."""
    options = {key: value for key, value in {**TINY, **changes}.items() if value is not None}
    theta = options.get("rope_parameters")
    if theta and not hasattr(transformers.LlamaConfig(), "rope_parameters"):  # before transformers 5
        options["rope_theta"] = theta["rope_theta"]
        options["rope_scaling"] = {
            key: value for key, value in options.pop("rope_parameters").items() if key != "rope_theta"
        }
        if options["rope_scaling"]["rope_type"] == "default":
            del options["rope_scaling"]
    config = getattr(transformers, f"{family}Config")(**options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
        else:
            parameter.data.uniform_(0.5, 1.5) if "norm" in name else parameter.data.normal_(0, 0.3)
    return model


def difference(model, path, length=150):
    import mindspore as ms

    from mindspeed_ms.weights.load import load_model

    vocabulary = model.config.vocab_size
    ids = np.random.default_rng(0).integers(0, vocabulary, (2, length)).astype(np.int32)
    with torch.no_grad():
        right = model(torch.tensor(ids, dtype=torch.long)).logits.float().numpy()
    found = load_model(path)(ms.Tensor(ids)).asnumpy()
    assert found.shape == right.shape and np.abs(right).max() > 1
    return float(np.abs(found - right).max())


@pytest.mark.parametrize("case", CASES)
def test_tiny_models(tmp_path, case):
    model = peer(*CASES[case])
    model.save_pretrained(tmp_path)
    assert difference(model, tmp_path) <= 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_shards_in_every_float_type(tmp_path, dtype):
    peer("Qwen3", {}).to(getattr(torch, dtype)).save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    # read again, so that only the weights were rounded, not the rotary frequencies
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert difference(model, tmp_path) <= 1e-4


@pytest.mark.slow
def test_smollm2_in_float32(smollm2):
    pytest.importorskip("accelerate")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(smollm2.parent), gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    assert difference(model, smollm2, 200) <= 1e-3
