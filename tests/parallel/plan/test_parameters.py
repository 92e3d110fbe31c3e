import pytest

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.parallel.plan import parameters
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.settings import Settings

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
CONFIGS = [
    {"model_type": "llama", **SMALL},
    {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    {"model_type": "llama", **SMALL, "head_dim": 32},
    {"model_type": "mistral", **SMALL},
    {"model_type": "qwen2", **SMALL},
    {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
    {"model_type": "qwen3", **SMALL, "head_dim": 32},
    {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 32},
    {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 32, "mlp_only_layers": [1]},
    {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 32, "decoder_sparse_step": 2},
    {"model_type": "qwen2_moe", **SMALL, **EXPERTS, "shared_expert_intermediate_size": 96},
    {"model_type": "mixtral", **SMALL, "num_local_experts": 8, "num_experts_per_tok": 2},
    {"model_type": "deepseek_v2", **SMALL, **LATENT},
    {"model_type": "deepseek_v2", **SMALL, **LATENT, "q_lora_rank": None},
    {"model_type": "deepseek_v3", **SMALL, **LATENT},
    {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 320},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_counts_equal_the_tensors_of_transformers_own_models(config):
    import torch
    import transformers

    settings = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **settings)
        )
    expected = sum(parameter.numel() for parameter in model.parameters())
    explicit = {"tie_word_embeddings": model.config.tie_word_embeddings}
    assert parameters.total(read_model({**explicit, **config})) == expected


@pytest.mark.parametrize("kind", [{}, {"qkv_bias": True}, {"qk_norm": True}, {"tie_word_embeddings": True}])
def test_counts_equal_the_tensors_of_our_own_models(kind):
    spec = DecoderSpec.parse({"model_type": "qwen2", **SMALL, "head_dim": 32, **kind})
    expected = 0
    for shape in spec.parameter_shapes().values():
        numbers = 1
        for size in shape:
            numbers *= size
        expected += numbers
    model_type = "qwen3" if spec.qk_norm else "qwen2" if spec.qkv_bias else "llama"
    config = {"model_type": model_type, **SMALL, "head_dim": 32, "tie_word_embeddings": spec.tie_word_embeddings}
    assert parameters.total(read_model(config)) == expected


# Numbers of parameters as the model cards and papers print them, in billions: all, and those a token meets.
@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama2-7b", 6.74, None),  # sum of model.safetensors.index.json: 13.48 GB of float16
        ("llama2-70b", 68.98, None),
        ("qwen2.5-7b", 7.61, None),  # 6.53 without embeddings
        ("qwen2.5-72b", 72.7, None),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235, 22),
        ("mixtral-8x7b", 46.7, 12.9),
        ("deepseek-v2", 236, 21),
        ("deepseek-v3", 671, 37),
        ("gpt3-175b", 175, None),
    ],
)
def test_counts_of_named_models_are_the_published_ones(name, billions, active):
    shape = read_model(name)
    assert parameters.total(shape) / 1e9 == pytest.approx(billions, rel=0.005)
    if active is not None:
        assert parameters.active(shape) / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize("name", ["llama2-7b", "qwen3-30b-a3b", "deepseek-v2", "qwen2.5-0.5b"])
def test_ranks_and_stages_together_hold_the_whole_model(name):
    shape = read_model(name)
    tensor, expert, pipeline = 2, 2, 3
    settings = Settings(data=2, tensor=tensor, expert=expert, pipeline=pipeline)
    held = 0
    for stage in range(pipeline):
        count = parameters.stage_count(shape, settings, stage)
        held += count.dense * tensor + count.expert * tensor * expert
    pieces = [parameters.embedding_pieces(shape), parameters.head_pieces(shape)]
    pieces += [parameters.layer_pieces(shape, shape.has_experts(layer)) for layer in range(shape.layers)]
    whole = sum(piece.numbers for group in pieces for piece in group if piece.split == "whole")
    twice = shape.vocab * shape.hidden if shape.tied else 0  # on the first and on the last stage
    assert held == parameters.total(shape) + (tensor - 1) * whole + twice


def test_layers_given_by_hand_go_to_the_stage_that_runs_their_chunk():
    shape = read_model("llama2-7b")
    layer = sum(piece.numbers for piece in parameters.layer_pieces(shape, False))
    settings = Settings(pipeline=2, virtual=2, schedule="interleaved", layers=(10, 9, 8, 5))
    first, last = (parameters.stage_count(shape, settings, stage).total for stage in (0, 1))
    embedding = shape.vocab * shape.hidden
    assert first == 18 * layer + embedding
    assert last == 14 * layer + embedding + shape.hidden
