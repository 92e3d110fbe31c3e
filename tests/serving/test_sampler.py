"""Sampling, against the published definitions computed in float64 and against the law of large numbers."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import RequestError
from mindspeed_ms.serving.engine.params import SamplingParams
from mindspeed_ms.serving.engine.sampler import RowSampler, _candidates, sample


def expected(logits, params):
    """Probabilities after Hugging Face's processors in their order: temperature, top_k, top_p, min_p."""
    x = np.array(logits, np.float64) / params.temperature
    order = np.argsort(-x, kind="stable")
    keep = np.ones(len(x), bool)
    if params.top_k:
        keep[order[params.top_k :]] = False
    p = np.where(keep, np.exp(x - x.max()), 0)
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    keep[order[before >= params.top_p]] = False  # the token that reaches top_p stays
    keep &= p >= params.min_p * p.max()
    p = np.where(keep, p, 0)
    return p / p.sum()


def probabilities(logits, params):
    ids, weights = _candidates(np.asarray(logits, np.float32), params)
    p = np.zeros(len(logits))
    p[np.arange(len(logits)) if ids is None else ids] = weights
    return p / p.sum()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1000),
    vocab=st.sampled_from([5, 100, 3000]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 2, 40, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_the_kept_tokens_and_their_probabilities(seed, vocab, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = np.random.default_rng(seed).standard_normal(vocab).astype(np.float32) * 2
    np.testing.assert_allclose(probabilities(logits, params), expected(logits, params), rtol=1e-4, atol=1e-9)


def test_a_flat_distribution_needs_more_than_the_first_guess():
    logits = np.random.default_rng(0).standard_normal(20000).astype(np.float32) * 0.1
    params = SamplingParams(top_p=0.9)
    assert (probabilities(logits, params) > 0).sum() == (expected(logits, params) > 0).sum() > 10000


def test_draws_follow_the_probabilities():
    logits = np.array([[2.0, 1.0, 0.0, -1.0, -8.0]], np.float32)
    params = SamplingParams(temperature=0.8, top_k=4, seed=7)
    row = RowSampler(params, [])
    counts = np.bincount([sample(logits, [row])[0].token_id for _ in range(20000)], minlength=5)
    want = expected(logits[0], params) * 20000
    assert counts[4] == 0
    assert ((counts - want)[:4] ** 2 / want[:4]).sum() < 16.3  # chi-square, 3 degrees, p = 0.001


def test_the_repetition_penalty_counts_prompt_and_answer_once():
    logits = np.array([[3.0, 2.9, -1.0, -1.1]], np.float32)
    params = SamplingParams(temperature=0, repetition_penalty=1.5)
    row = RowSampler(params, [0, 0, 2])
    assert sample(logits, [row])[0].token_id == 1  # 3.0 / 1.5 = 2.0
    assert sample(logits, [row])[0].token_id == 0  # 2.9 / 1.5 = 1.93
    np.testing.assert_array_equal(logits, [np.array([3.0, 2.9, -1.0, -1.1], np.float32)])
    below_zero = np.array([[-1.0, -1.2, -9.0, -9.0]], np.float32)
    assert sample(below_zero, [RowSampler(params, [0])])[0].token_id == 1  # -1.0 * 1.5 = -1.5


def test_a_seed_gives_the_same_draws_whatever_the_neighbours():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((30, 500)).astype(np.float32)
    params = SamplingParams(seed=3, top_p=0.95)

    def draws(neighbours):
        rows = [RowSampler(params, []), *(RowSampler(SamplingParams(seed=9 + i), []) for i in range(neighbours))]
        return [sample(np.repeat(row[None], len(rows), 0), rows)[0].token_id for row in logits]

    assert draws(0) == draws(3)
    other = RowSampler(SamplingParams(seed=4, top_p=0.95), [])
    assert draws(0) != [sample(row[None], [other])[0].token_id for row in logits]


def test_logprobs_are_of_the_raw_logits():
    logits = np.array([[1.0, 3.0, 2.0, 2.0]], np.float32)
    row = RowSampler(SamplingParams(temperature=0.01, seed=0, repetition_penalty=9.0, logprobs=3), [1])
    (drawn,) = sample(logits, [row])
    want = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    assert drawn.logprobs.logprob == pytest.approx(want[drawn.token_id], abs=1e-6)
    assert drawn.logprobs.top == pytest.approx({1: want[1], 2: want[2], 3: want[3]}, abs=1e-6)
    assert list(drawn.logprobs.top) == [1, 2, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_a_number_is_an_error_of_that_row(bad):
    logits = np.zeros((2, 4), np.float32)
    logits[0, 2] = bad
    logits[1, 3] = 1
    bad_row, good_row = sample(
        logits, [RowSampler(SamplingParams(seed=0), []), RowSampler(SamplingParams(temperature=0), [])]
    )
    assert bad_row.error and good_row.token_id == 3
    assert sample(np.full((1, 4), -np.inf, np.float32), [RowSampler(SamplingParams(seed=0), [])])[0].error


def test_sixteen_greedy_rows_of_a_large_vocabulary_take_under_a_millisecond():
    logits = np.random.default_rng(0).standard_normal((16, 49152)).astype(np.float32)
    rows = [RowSampler(SamplingParams(temperature=0), []) for _ in range(16)]

    def seconds():
        start = time.perf_counter()
        sample(logits, rows)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(200)) < 1e-3  # a busy machine has a quiet moment among so many


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", "hot"), ("temperature", True),
        ("top_k", -1), ("top_k", 1.5), ("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1), ("min_p", 2),
        ("repetition_penalty", 0), ("seed", -1), ("seed", 2**64), ("max_tokens", 0), ("logprobs", 21),
        ("stop", ""), ("stop", ["a", ""]), ("stop", 3), ("stop", ["x" * 257]), ("stop", ["x"] * 17),
        ("stop_token_ids", [-1]), ("stop_token_ids", 3), ("ignore_eos", 1),
    ],
)  # fmt: skip
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(RequestError, match=f"^{field}: .*: expected "):
        SamplingParams(**{field: value})


def test_an_unknown_field_names_the_nearest_known_one():
    with pytest.raises(RequestError, match=r"^temprature: unknown field; did you mean temperature\?$"):
        SamplingParams.parse({"temprature": 1})
    with pytest.raises(RequestError, match=r"^zzz: unknown field; known are temperature, top_k"):
        SamplingParams.parse({"zzz": 1})


def test_a_request_s_fields_go_over_the_model_s_defaults():
    params = SamplingParams.parse({"top_k": 5, "stop": "x"}, SamplingParams(temperature=0.6, top_k=20))
    assert (params.temperature, params.top_k, params.stop) == (0.6, 5, ("x",))
