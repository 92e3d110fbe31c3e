"""Against table 2 of Korthikanti et al. 2022: bytes of activations a layer of a GPT keeps."""

import pytest

from mindspeed_ms.parallel.plan import activations
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.settings import Job

GPT3 = read_model("gpt3-175b")  # and the 22B of their table 3
GPT22 = read_model({"model_type": "gpt2", "n_embd": 6144, "n_layer": 48, "n_head": 64, "vocab_size": 51200})


@pytest.mark.parametrize("shape", [GPT3, GPT22], ids=["175B", "22B"])
@pytest.mark.parametrize(("s", "b", "t"), [(2048, 1, 8), (2048, 4, 8), (1024, 2, 4), (2048, 1, 1)])
def test_a_gpt_layer_keeps_what_the_published_table_says(shape, s, b, t):
    h, a = shape.hidden, shape.heads
    sbh, scores = s * b * h, 5 * a * s / h
    job = Job(seq=s, flash_attention=False, dropout=True)
    plain = activations.layer_bytes(shape, False, job, s * b, t, sequence=False)
    split = activations.layer_bytes(shape, False, job, s * b, t, sequence=True)
    assert plain.none == pytest.approx(sbh * (10 + 24 / t + scores / t))
    assert split.none == pytest.approx(sbh * (34 + scores) / t)
    assert plain.selective == pytest.approx(sbh * (10 + 24 / t))
    assert split.selective == pytest.approx(sbh * 34 / t)
    assert plain.full == pytest.approx(sbh * 2)


def test_flash_attention_does_not_grow_with_the_square_of_the_sequence():
    shape = read_model("llama2-7b")
    short, long = (
        activations.layer_bytes(shape, False, Job(seq=seq), seq, 1, sequence=False).none for seq in (4096, 32768)
    )
    assert long == 8 * short


def test_a_llama_layer_keeps_each_input_that_a_gradient_needs():
    """By hand for one token of Llama 2 7B in bfloat16, without the float32 statistics."""
    shape = read_model("llama2-7b")
    kept = sum(
        saved.bytes for saved in activations.saved_tensors(shape, False, Job(seq=1)) if "statistic" not in saved.name
    )
    norms = 2 * (4096 + 4096)  # input and output of each
    attention = 4 * 4096  # queries, keys, values and the result
    feed_forward = 3 * 11008  # gate, up and their product
    assert kept == 2 * (norms + attention + feed_forward)


def test_grouped_queries_keep_fewer_keys_and_values():
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 32, "vocab_size": 32000}
    every = activations.saved_tensors(read_model(config), False, Job(seq=1))
    few = activations.saved_tensors(read_model({**config, "num_key_value_heads": 8}), False, Job(seq=1))
    assert sum(t.bytes for t in every) - sum(t.bytes for t in few) == 2 * 2 * (4096 - 1024)


def test_experts_keep_what_the_visited_ones_work_on():
    """Qwen3-30B-A3B: each token meets 8 experts of 768."""
    saved = {
        tensor.name: tensor.bytes for tensor in activations.saved_tensors(read_model("qwen3-30b-a3b"), True, Job(seq=1))
    }
    assert saved["tokens sent to experts"] == 2 * 8 * 2048
    assert saved["gate and up"] == 2 * 2 * 8 * 768
