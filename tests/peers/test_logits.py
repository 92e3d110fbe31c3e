"""Logits equal transformers' on PyTorch: random tiny models of every architecture, and SmolLM2 in float32."""

import os
import pydoc_data.topics
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

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
    if theta and int(transformers.__version__.split(".")[0]) < 5:
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


@pytest.fixture(scope="module")
def smollm2_peer(smollm2):
    pytest.importorskip("accelerate")
    options = {"gguf_file": smollm2.name, "dtype": torch.float32}
    return transformers.AutoModelForCausalLM.from_pretrained(str(smollm2.parent), **options).eval()


@pytest.mark.slow
def test_smollm2_in_float32(smollm2, smollm2_peer):
    assert difference(smollm2_peer, smollm2, 200) <= 1e-3


@pytest.mark.slow
def test_smollm2_perplexity_of_english(smollm2, smollm2_peer):
    """Windows of 1,024 tokens; MINDSPEED_MS_PERPLEXITY_TOKENS=20000 is the full measure, which takes minutes."""
    import mindspore as ms

    from mindspeed_ms.weights import open_model
    from mindspeed_ms.weights.load import load_model

    source = open_model(smollm2)
    tokenizer = Tokenizer.from_buffer(source.tokenizer.tokenizer_json)
    text = os.environ.get("MINDSPEED_MS_ENGLISH")  # else the language reference that comes with Python
    text = Path(text).read_text("utf-8") if text else "\n\n".join(pydoc_data.topics.topics.values())
    count = int(os.environ.get("MINDSPEED_MS_PERPLEXITY_TOKENS", "1024"))
    ids = np.array(tokenizer.encode(text[: 20 * count], add_special_tokens=False).ids[:count], np.int32)
    assert len(ids) == count
    model = load_model(source)
    loss = {"ours": 0.0, "peer": 0.0}
    for start in range(0, count, 1024):
        window = ids[None, start : start + 1024]
        loss["ours"] += nll(torch.from_numpy(model(ms.Tensor(window)).asnumpy()), window)
        with torch.no_grad():
            loss["peer"] += nll(smollm2_peer(torch.tensor(window, dtype=torch.long)).logits, window)
    scored = count - -(-count // 1024)
    ours, peer_ = (np.exp(total / scored) for total in loss.values())
    print(f"perplexity of {count} tokens: ours {ours:.5f}, transformers {peer_:.5f}")
    assert abs(ours / peer_ - 1) <= 1e-3


def nll(logits, window):
    """Summed negative log-likelihood of each token but the first, in float64."""
    logs = logits[0, :-1].double().log_softmax(-1)
    return -logs.gather(1, torch.tensor(window[0, 1:, None], dtype=torch.long)).sum().item()
