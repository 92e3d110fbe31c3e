"""Operations and seconds of layers against published formulas."""

import pytest

from mindspeed_ms.parallel.plan import compute, parameters
from mindspeed_ms.parallel.plan.compute import Split
from mindspeed_ms.parallel.plan.efficiency import Efficiency
from mindspeed_ms.parallel.plan.model import ModelShape, read_model
from mindspeed_ms.parallel.topology.cluster import Accelerator

GPT3 = ModelShape("gpt3", 96, 12288, 96, 96, 128, 4 * 12288, 51200, gated=False)
# Memory so fast that arithmetic alone counts
FAST = Accelerator("fast", 1 << 40, 1e15, 1e30, "test")
ALL = Efficiency(1.0, 1.0, 1.0)


def test_operations_of_training_are_those_of_the_megatron_formula_with_half_the_attention():
    # Narayanan et al. 2021, appendix: 72 B s l h^2 (1 + s / 6h + V / 12lh) without recompute, all of the square;
    # a causal attention has half of it.
    seq, (l, h, vocab) = 2048, (96, 12288, 51200)
    right = 72 * l * h**2 * (1 + seq / (12 * h) + vocab / (12 * l * h))
    assert compute.model_flops(GPT3, seq) == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("name", ["llama2-7b", "llama2-70b", "qwen2.5-7b"])
def test_operations_of_a_token_are_six_for_each_weight_it_meets_and_attention(name):
    shape = read_model(name)
    seq = 4096
    weights = parameters.active(shape) - shape.vocab * shape.hidden  # looking up a token is no matmul
    attention = 3 * shape.layers * 2 * seq * shape.heads * shape.head_dim
    assert compute.model_flops(shape, seq) == pytest.approx(6 * weights + attention, rel=1e-4)


def test_a_token_of_a_model_with_experts_meets_those_it_is_sent_to():
    shape = read_model("qwen3-30b-a3b")
    weights = compute.layer_weights(shape, True)
    assert weights.chosen == 8 * 3 * 2048 * 768
    assert weights.experts == 128 * 3 * 2048 * 768
    every = shape.layers * (weights.common + weights.chosen) + 2 * shape.vocab * shape.hidden
    assert every == pytest.approx(parameters.active(shape), rel=1e-4)
    assert every == pytest.approx(3.3e9, rel=0.02)  # "30.5B in total and 3.3B activated", Qwen3 model card


def test_latent_attention_multiplies_wide_keys_and_narrow_values():
    # DeepSeek-V2: 128 heads, queries and keys of 128 + 64, values of 128
    shape = ModelShape("mla", 1, 5120, 128, 128, 192, 12288, 102400, kv_lora_rank=512, rope_dim=64, v_head_dim=128)
    assert compute.attention_flops(shape, 4096) == 4096 * 128 * (192 + 128)


def test_seconds_are_operations_over_the_peak_where_memory_is_fast():
    one = compute.layer_time(GPT3, 2048, 2, False, Split(), FAST, ALL)
    tokens, h = 2 * 2048, 12288
    linear, attention = 24 * h**2 * tokens / 1e15, 2 * 2048 * h * tokens / 1e15
    assert one.forward == pytest.approx(linear + attention, rel=1e-6)
    assert one.backward == pytest.approx(2 * linear + 2.5 * attention, rel=1e-6)
    head = compute.head_time(GPT3, 2048, 2, Split(), FAST, ALL)
    assert head.forward == pytest.approx(2 * tokens * h * 51200 / 1e15, rel=1e-6)


def test_tensor_and_context_ranks_share_a_layer_and_the_share_of_the_peak_divides():
    whole = compute.layer_time(GPT3, 2048, 1, False, Split(), FAST, ALL)
    eighth = compute.layer_time(GPT3, 2048, 1, False, Split(tensor=4, context=2), FAST, ALL)
    assert eighth.forward == pytest.approx(whole.forward / 8, rel=1e-6)
    half = compute.layer_time(GPT3, 2048, 1, False, Split(), FAST, Efficiency(0.5, 0.5, 1.0))
    assert half.forward == pytest.approx(2 * whole.forward, rel=1e-6)


def test_a_thin_slice_of_a_layer_is_bound_by_memory():
    slow = Accelerator("slow", 1 << 40, 1e15, 1e12, "test")
    few = compute.layer_time(GPT3, 16, 1, False, Split(), slow, ALL)
    # 16 tokens: reading 12 h^2 weights of two bytes takes longer than multiplying with them.
    assert few.forward > 2 * 12 * 12288**2 / 1e12
    assert few.forward > 10 * compute.layer_time(GPT3, 16, 1, False, Split(), FAST, ALL).forward


def test_attention_without_flash_takes_longer_and_selective_recompute_repeats_it():
    slow = Accelerator("slow", 1 << 40, 1e15, 1e12, "test")
    flash = compute.layer_time(GPT3, 2048, 1, False, Split(), slow, ALL)
    plain = compute.layer_time(GPT3, 2048, 1, False, Split(), slow, ALL, flash=False)
    assert plain.forward > flash.forward
    assert plain.cheap == plain.attention > flash.cheap


def test_the_optimizer_reads_and_writes_its_state_once():
    # AdamW: float32 gradient, weight, two moments read; weight, moments and the bfloat16 copy written: 30 bytes
    slow = Accelerator("slow", 1 << 40, 1e15, 1e12, "test")
    assert compute.optimizer_time(1e9, slow, ALL, (4, 4, 8, 2)) == pytest.approx(0.030)
