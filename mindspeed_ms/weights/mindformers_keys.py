"""The keys of MindFormers 1.9.0's `model.model_config`: which are read, which must be as ours, which do not matter."""

from __future__ import annotations

from typing import Any

# LlamaConfig's and Qwen3Config's defaults: what a YAML leaves out.
LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "n_kv_heads": None,
    "seq_length": 2048, "max_position_embedding": None, "intermediate_size": None, "multiple_of": 256,
    "ffn_dim_multiplier": None, "rms_norm_eps": 1e-5, "theta": 10000.0, "extend_method": "None", "scaling_factor": 1.0,
    "qkv_has_bias": False, "attn_proj_has_bias": False, "qkv_concat": False, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
CORE = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "use_contiguous_weight_layout_attention": False, "use_interleaved_weight_layout_mlp": True,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
# The same setting under the names that MindFormers takes for it.
CORE_ALIASES = {
    "num_layers": "num_hidden_layers", "n_layer": "num_hidden_layers", "num_heads": "num_attention_heads",
    "n_head": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "num_query_groups": "num_key_value_heads",
    "ffn_hidden_size": "intermediate_size", "kv_channels": "head_dim", "layernorm_epsilon": "rms_norm_eps",
    "layer_norm_epsilon": "rms_norm_eps", "rotary_base": "rope_theta", "use_qk_norm": "qk_layernorm",
    "qkv_has_bias": "add_qkv_bias", "attention_bias": "add_qkv_bias",
}  # fmt: skip
# Keys that may have only values with which the model computes what ours does.
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swiglu", "fusedswiglu"), "normalization": ("RMSNorm",), "gated_linear_unit": (True,),
    "add_bias_linear": (False,), "add_mlp_fc1_bias_linear": (False, None),
    "add_mlp_fc2_bias_linear": (False, None), "rope_scaling": (None,), "use_rope_scaling": (False,),
    "position_embedding_type": ("rope",), "partial_rotary_factor": (1, 1.0), "rotary_interleaved": (False,),
    "rotary_percent": (1, 1.0), "rotary_seq_len_interpolation_factor": (None,), "nope_layer_interval": (None,),
    "multi_latent_attention": (False,), "num_moe_experts": (None, 0, 1), "num_experts": (None, 0, 1),
    "expert_num": (None, 0, 1), "n_routed_experts": (None, 0, 1), "softmax_scale": (None,), "window_size": (None,),
    "sandwich_norm": (False,), "apply_residual_connection_post_layernorm": (False,), "use_alibi_mask": (False,),
    "apply_query_key_layer_scaling": (False,), "mtp_num_layers": (None, 0), "mtp_depth": (None, 0),
    "num_nextn_predict_layers": (None, 0), "experimental_attention_variant": (None,), "mla_qkv_concat": (True, False),
    "quantization_config": (None,), "quantization": (None,), "quant_config": (None,), "pet_config": (None,),
}  # fmt: skip
# Precision, speed, memory, distribution, sampling, names: nothing that the weights or their use mean differently by.
NEUTRAL = frozenset(
    """
    type model_type architectures batch_size seq_length checkpoint_name_or_path name_or_path _name_or_path
    pretrained_model_dir mindformers_version tokenizer_class transformers_version torch_dtype auto_map use_cache
    ignore_token_id compute_dtype layernorm_compute_type layernorm_compute_dtype softmax_compute_type
    softmax_compute_dtype rotary_dtype rotary_cos_format param_init_type params_dtype residual_dtype
    embedding_init_type fp32_residual_connection attention_softmax_in_fp32 parallel_config use_past is_dynamic
    use_rope_slice use_flash_attention use_ring_attention use_attn_mask_compression use_eod_attn_mask_compression
    use_eod_reset parallel_optimizer fine_grain_interleave pp_interleave_num offset init_method_std initializer_range
    repetition_penalty max_decode_length max_new_tokens block_size num_blocks top_k top_p temperature do_sample
    fused_rms_norm fused_norm input_sliced_sig rmsnorm_compute_2d chunk_prefill calculate_per_token_loss
    pipeline_stage return_hidden_states is_encoder_decoder is_sample_acceleration max_window_layers layer_types
    apply_rope_fusion bias_swiglu_fusion bias_dropout_fusion qk_layernorm use_qk_norm add_qkv_bias
    untie_embeddings_and_output_weights input_layout sparse_mode mask_func_type use_attention_mask qkv_concat
    multiple_of ffn_dim_multiplier disable_lazy_inline print_separate_loss recompute select_recompute
    mp_comm_recompute parallel_optimizer_comm_recompute vocab_emb_dp pre_process post_process max_position_embedding
    attention_dropout hidden_dropout attention_dropout_rate hidden_dropout_rate use_sliding_window sliding_window
    use_interleaved_weight_layout_mlp use_contiguous_weight_layout_attention scaling_factor context_parallel_algo
    """.split()
)
