"""The engine: whatever runs beside a request, however its prompt is cut, preempted or not, its answer is its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_fakes import VOCAB, HashRunner, files

from mindspeed_ms.errors import RequestError
from mindspeed_ms.serving.engine.batch import Chunk, make_batch
from mindspeed_ms.serving.engine.blocks import BlockManager
from mindspeed_ms.serving.engine.core import Engine
from mindspeed_ms.serving.engine.params import SamplingParams
from mindspeed_ms.serving.engine.sequence import Sequence
from mindspeed_ms.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(files())
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def sequence(ids, params=GREEDY, stop_ids=()):
    return Sequence(list(ids), params, TOKENIZER.stream(params.stop), frozenset(stop_ids))


def run(engine, sequences=()):
    for seq in sequences:
        engine.add(seq)
    while engine.busy:
        engine.step()
    assert engine.blocks.free == engine.blocks.num_blocks
    return [seq.tokens[seq.prompt_len :] for seq in sequences]


def greedy(prompt, count):
    """The answer by the definition: one sequence, no cache, no batch."""
    history = list(prompt)
    for _ in range(count):
        history.append(int(HashRunner().logits(history).argmax()))
    return history[len(prompt) :]


def test_a_batch_lays_chunks_end_to_end():
    batch = make_batch([Chunk([7, 8, 9], 3, [5, 2], [2]), Chunk([4], 0, [1])], block_size=4)
    assert batch.token_ids.tolist() == [7, 8, 9, 4]
    assert batch.positions.tolist() == [3, 4, 5, 0]
    assert batch.slot_mapping.tolist() == [5 * 4 + 3, 2 * 4, 2 * 4 + 1, 4]
    assert batch.seq_starts.tolist() == [0, 3, 4]
    assert batch.block_tables.tolist() == [[5, 2], [1, -1]]
    assert batch.logit_rows.tolist() == [2]


def test_blocks_are_taken_all_or_none_and_given_back():
    blocks = BlockManager(3, 4)
    one, two = [], []
    assert blocks.grow(one, 5) and len(one) == 2
    assert blocks.grow(one, 8) and len(one) == 2
    assert not blocks.grow(two, 5) and two == [] and blocks.free == 1
    blocks.release(one)
    assert blocks.grow(two, 12) and sorted(two) == [0, 1, 2]


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), min_size=1, max_size=6),
    budget=st.integers(1, 24),
    max_seqs=st.integers(1, 6),
    num_blocks=st.integers(8, 20),
)
def test_answers_do_not_depend_on_neighbours_chunks_or_preemption(prompts, budget, max_seqs, num_blocks):
    runner = HashRunner(num_blocks=num_blocks, block_size=4)
    engine = Engine(runner, token_budget=budget, max_seqs=max_seqs)
    assert run(engine, [sequence(p) for p in prompts]) == [greedy(p, 8) for p in prompts]
    assert all(len(batch.token_ids) <= budget for batch in runner.batches)


def test_sampled_answers_survive_preemption_and_neighbours():
    prompts = [[i, i + 1, i + 2] for i in range(6)]
    params = [
        SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.3, seed=i, max_tokens=20) for i in range(6)
    ]
    alone = [run(Engine(HashRunner()), [sequence(p, q)])[0] for p, q in zip(prompts, params, strict=True)]
    sequences = [sequence(p, q) for p, q in zip(prompts, params, strict=True)]
    together = run(Engine(HashRunner(num_blocks=10, block_size=4), token_budget=16), sequences)
    assert sum(seq.preemptions for seq in sequences) > 0
    assert together == alone


def test_prompts_and_decodes_share_a_step_and_decodes_go_first():
    runner = HashRunner(num_blocks=64)
    engine = Engine(runner, token_budget=8)
    first = sequence([1, 2, 3])
    engine.add(first)
    engine.step()
    engine.add(sequence(range(20)))
    for _ in range(2):  # the prompt waits for its first piece, then has run in part
        engine.step()
        batch = runner.batches[-1]
        assert np.diff(batch.seq_starts).tolist() == [1, 7]
        assert batch.logit_rows.tolist() == [0]


def test_the_oldest_request_is_never_preempted():
    sequences = [sequence([i] * 8, SamplingParams(temperature=0, max_tokens=24)) for i in range(4)]
    run(Engine(HashRunner(num_blocks=8, block_size=4)), sequences)
    assert sequences[0].preemptions == 0 and sum(s.preemptions for s in sequences) > 0


def test_a_request_that_can_never_run_is_refused_and_says_why():
    small_cache = Engine(HashRunner(num_blocks=4, block_size=4, max_context=64))
    with pytest.raises(RequestError, match=r"16 tokens: expected fewer than 16 \(the cache; raise kv_tokens\)"):
        small_cache.add(sequence([1] * 16))
    small_context = Engine(HashRunner(max_context=10))
    with pytest.raises(RequestError, match=r"10 tokens: expected fewer than 10 \(the model's context\)"):
        small_context.add(sequence([1] * 10))
    with pytest.raises(RequestError, match="no tokens"):
        small_context.add(sequence([]))
    for bad in (-1, VOCAB):
        with pytest.raises(RequestError, match=f"input_ids: {bad}"):
            small_context.add(sequence([1, bad]))


def test_an_answer_ends_at_the_context():
    seq = sequence([1] * 9, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    (answer,) = run(Engine(HashRunner(max_context=12)), [seq])
    assert len(answer) == 3 and seq.finish_reason == "length"


def test_a_stop_token_ends_the_answer_and_is_not_in_its_text():
    third = greedy([1, 2], 3)[2]
    seq = sequence([1, 2], stop_ids=[third])
    (answer,) = run(Engine(HashRunner()), [seq])
    assert answer == greedy([1, 2], 3)
    assert (seq.finish_reason, seq.stop_reason) == ("stop", third)
    assert seq.text.text == TOKENIZER.decode(answer[:2])


def test_logits_that_are_not_numbers_end_their_request_alone():
    runner = HashRunner()
    plain = runner.logits
    runner.logits = lambda history: plain(history) * (np.nan if history[0] == 9 and len(history) > 3 else 1)
    bad, good = sequence([9, 1]), sequence([1, 2])
    answers = run(Engine(runner), [bad, good])
    assert bad.finish_reason == "error" and "nan" in bad.error
    assert answers == [greedy([9, 1], 2), greedy([1, 2], 8)]


def test_a_failing_step_ends_only_the_request_that_causes_it():
    runner = HashRunner()
    runner.fail_on = 300
    bad, good, other, later = sequence([300, 5]), sequence([1, 2]), sequence([4]), sequence([3])
    engine = Engine(runner)
    answers = run(engine, [good, bad, other])
    assert bad.finish_reason == "error" and "token 300 is not liked" in bad.error
    assert (answers[0], answers[2]) == (greedy([1, 2], 8), greedy([4], 8))
    assert run(engine, [later]) == [greedy([3], 8)]


def test_an_aborted_request_frees_its_blocks():
    engine = Engine(HashRunner())
    gone, waits, stays = sequence([1] * 12), sequence([5]), sequence([1, 2])
    for seq in (gone, stays, waits):
        engine.add(seq)
    engine.step()
    engine.abort(gone)
    engine.abort(waits)
    engine.abort(waits)
    assert run(engine) == [] and stays.tokens[2:] == greedy([1, 2], 8)
    assert gone.finish_reason == waits.finish_reason == "cancelled"


def test_a_profile_says_where_each_step_spends_its_time():
    profile = []
    run(Engine(HashRunner(), profile=profile), [sequence([1, 2, 3])])
    assert [(p.tokens, p.rows) for p in profile] == [(3, 1)] + [(1, 1)] * 7
    assert all(min(p.schedule, p.runner, p.sampling, p.detokenize) > 0 for p in profile)
