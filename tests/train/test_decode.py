"""The NumPy decoder that writes sample texts gives the logits of Hugging Face's models."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mindspeed_ms.models import spec_from_hf
from mindspeed_ms.train.decode import Decoder

BASE = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama", "tie_word_embeddings": True},
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        {"model_type": "qwen2", "tie_word_embeddings": False},
        {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False},
    ],
    ids=lambda changes: changes["model_type"],
)
def test_logits_are_hugging_faces(changes):
    torch.manual_seed(0)
    config = {**BASE, **changes}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # nothing stays 0 or 1, where a mistake would not show
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    ids = torch.randint(0, 61, (3, 12))
    with torch.no_grad():
        expected = model(ids).logits.numpy()
    weights = {name: p.detach().numpy().astype(np.float32) for name, p in model.named_parameters()}
    decoder = Decoder(spec_from_hf(config), weights, sequences=3, room=12)
    for position in range(12):
        found = decoder(ids[:, position].numpy())
        assert np.abs(found - expected[:, position]).max() < 1e-4 * np.abs(expected).max()
