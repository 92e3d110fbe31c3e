"""`LLM`: many prompts, streams, conversations, perplexity, and an orderly end."""

import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from serving_fakes import VOCAB, HashRunner, files, library_tokenizer, says

from mindspeed_ms.errors import ConfigError, RequestError, ServeError
from mindspeed_ms.serving.engine.llm import LLM, SamplingParams
from mindspeed_ms.serving.engine.perplexity import perplexity

START = [1]  # <|im_start|>, after which the script of `says` begins


def test_a_scripted_answer_comes_back_as_text(make_llm):
    llm, _ = make_llm(HashRunner(script=says("Hello 你好 😀!")))
    (out,) = llm.generate(START, SamplingParams(temperature=0))
    assert (out.text, out.finish_reason, out.stop_reason, out.prompt_tokens) == ("Hello 你好 😀!", "stop", 2, 1)
    assert out.output_ids == [*library_tokenizer().encode("Hello 你好 😀!").ids, 2]
    assert out.completion_tokens == len(out.output_ids)


def test_a_stream_is_the_answer_in_pieces_of_whole_characters(make_llm):
    llm, _ = make_llm(HashRunner(script=says("Hello 你好 😀!")))
    chunks = list(llm.stream(START, SamplingParams(temperature=0)))
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].output.text == "Hello 你好 😀!"
    assert [chunk.output is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert not any("\ufffd" in chunk.text for chunk in chunks) and len(chunks) > 4


def test_a_stop_string_over_several_tokens_is_never_shown(make_llm):
    llm, _ = make_llm(HashRunner(script=says("one two END three")))
    chunks = list(llm.stream(START, SamplingParams(temperature=0, stop="END")))
    assert "".join(chunk.text for chunk in chunks) == "one two "
    assert (chunks[-1].output.finish_reason, chunks[-1].output.stop_reason) == ("stop", "END")


def test_ignore_eos_goes_on_to_max_tokens(make_llm):
    llm, _ = make_llm(HashRunner(script=says("a")))
    (out,) = llm.generate(START, SamplingParams(temperature=0, ignore_eos=True, max_tokens=4))
    assert out.output_ids[1:] == [2, 2, 2] and (out.text, out.finish_reason) == ("a", "length")


def test_prompts_of_any_kind_and_settings_for_each(make_llm):
    llm, _ = make_llm()
    two = [SamplingParams(temperature=0, max_tokens=2), SamplingParams(temperature=0, max_tokens=3)]
    outs = llm.generate(["ab", [5, 6]], two)
    assert [o.completion_tokens for o in outs] == [2, 3]
    assert llm.generate(np.array([5, 6]), two[1])[0].output_ids == outs[1].output_ids
    assert llm.generate("ab", two[0])[0].output_ids == outs[0].output_ids
    assert llm.generate([]) == []
    with pytest.raises(RequestError, match="params: 2 for 1 prompts"):
        llm.generate("ab", two)


def test_a_prompt_that_cannot_run_leaves_the_others_alone(make_llm):
    llm, runner = make_llm()
    params = SamplingParams(temperature=0, max_tokens=3)
    outs = llm.generate(["", "ab", "x" * 64, [VOCAB], "y" * 100000], params)
    assert [o.finish_reason for o in outs] == ["error", "length", "error", "error", "error"]
    assert outs[0].error == "prompt: empty: expected some text"
    assert outs[2].error == "prompt: 64 tokens: expected fewer than 64 (the model's context)"
    assert outs[3].error == f"input_ids: {VOCAB}: expected token ids from 0 to {VOCAB - 1}"
    assert outs[4].error == "prompt: 100000 characters: expected fewer than 64 tokens"
    assert outs[1].output_ids == llm.generate("ab", params)[0].output_ids
    with pytest.raises(RequestError, match="prompt: empty"):
        llm.stream("")


def test_a_conversation_is_answered(make_llm):
    llm, _ = make_llm(
        HashRunner(script=lambda history: says("fine")([*history[:-1], 1]) if history[-1] == 9 else says("x")([1]))
    )
    out = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(temperature=0, max_tokens=1))
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert out.prompt_tokens == len(library_tokenizer().encode(prompt).ids) and out.text == "x"
    chunks = list(llm.chat_stream([{"role": "user", "content": "hi"}], SamplingParams(temperature=0, max_tokens=1)))
    assert chunks[-1].output == out


def test_leaving_a_stream_early_frees_its_blocks(make_llm):
    llm, runner = make_llm()
    for _ in llm.stream("Hello", SamplingParams(max_tokens=None, ignore_eos=True)):
        break
    assert llm.on_engine(lambda engine: engine.blocks.free) == runner.num_blocks
    assert llm.pending == 0


def test_the_model_s_own_settings_are_the_defaults(make_llm):
    llm, _ = make_llm()
    assert llm.default_params == SamplingParams()
    generation = {"temperature": 0.6, "min_p": 0.1, "top_p": 0.9, "repetition_penalty": None}
    tuned = LLM.over(HashRunner, files(), generation)
    assert tuned.default_params == SamplingParams(temperature=0.6, top_p=0.9, min_p=0.1)
    tuned.close()
    with pytest.raises(ConfigError, match="^generation_config: top_p: 3: expected"):
        LLM.over(HashRunner, files(), {"top_p": 3})


def test_threads_share_the_engine(make_llm):
    llm, _ = make_llm(HashRunner(num_blocks=40))
    params = SamplingParams(temperature=0, max_tokens=8)
    want = [llm.generate([i, i], params)[0].output_ids for i in range(8)]
    got: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda i=i: got.update({i: llm.generate([i, i], params)[0].output_ids}))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(8)] == want


def test_a_closed_llm_refuses_and_its_requests_end_with_an_error(make_llm):
    release, entered = threading.Event(), threading.Event()

    class Slow(HashRunner):
        def step(self, batch):
            entered.set()
            assert release.wait(30)
            return super().step(batch)

    llm, _ = make_llm(Slow())
    handle = llm.submit("Hello")
    assert entered.wait(30)
    closing = threading.Thread(target=llm.close)
    closing.start()
    release.set()
    assert "closed before the answer was complete" in handle.result().error
    closing.join()
    for call in (lambda: llm.generate("x"), lambda: llm.on_engine(lambda engine: 1)):
        with pytest.raises(ServeError, match="it has been closed"):
            call()


def test_a_runner_that_cannot_be_made_is_the_constructor_s_error():
    def broken():
        raise ConfigError("threads: 0: expected more")

    with pytest.raises(ConfigError, match="threads: 0"):
        LLM.over(broken, files())
    with pytest.raises(ConfigError, match="token_budget: 0: expected a whole number, at least 1"):
        LLM.over(HashRunner, files(), token_budget=0)


def test_leaving_python_with_a_request_in_flight_does_not_hang():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from serving_fakes import HashRunner, files\n"
        "from mindspeed_ms.serving.engine.llm import LLM\n"
        "llm = LLM.over(HashRunner, files()); llm.submit('Hello'); print('bye')\n"
    )
    root = __file__.rsplit("/tests/", 1)
    done = subprocess.run(
        [sys.executable, "-c", code, f"{root[0]}/tests/serving"], cwd=root[0], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"bye\n", b"")


def test_the_engine_and_the_client_need_no_mindspore_and_the_client_no_protobuf():
    code = (
        "import sys, mindspeed_ms.serving.client\n"
        "assert not {'google.protobuf', 'mindspore', 'tokenizers', 'pydantic'} & set(sys.modules)\n"
        "import mindspeed_ms.serving.engine.llm, mindspeed_ms.serving.api.server\n"
        "assert 'mindspore' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=__file__.rsplit("/tests/", 1)[0], check=True, timeout=60)


@pytest.mark.parametrize(("context", "stride"), [(64, 64), (16, 16), (16, 5), (16, 1)])
def test_perplexity_predicts_each_token_once_from_its_window(make_llm, context, stride):
    runner = HashRunner(num_blocks=16, block_size=4, max_context=64)
    llm, _ = make_llm(runner)
    text = "The quick brown fox jumps over the lazy dog. " * 2
    ids = library_tokenizer().encode(text).ids
    total, count, done = 0.0, 0, 1
    for begin in range(0, len(ids), stride):  # the loop of Hugging Face's guide, with every token weighted the same
        end = min(begin + context, len(ids))
        for i in range(max(done, begin + 1), end):
            row = runner.logits(ids[begin:i]).astype(np.float64)
            total += np.log(np.exp(row).sum()) - row[ids[i]]
            count += 1
        done = end
        if end == len(ids):
            break
    got = perplexity(llm, text, context, stride)
    assert got["predicted"] == count and got["tokens"] == len(ids)
    assert got["mean_nll"] == pytest.approx(total / count, rel=1e-6)
    assert got["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-6)
    assert llm.on_engine(lambda engine: engine.blocks.free) == 16


@pytest.mark.parametrize(
    ("text", "context", "stride", "why"),
    [
        ("ab cd", 65, 1, "context: 65"),
        ("ab cd", 1, 1, "context: 1:"),
        ("ab cd", 8, 9, "stride: 9"),
        ("", 8, 4, "text: 0 tokens"),
    ],
)
def test_perplexity_refuses_what_it_cannot_do(make_llm, text, context, stride, why):
    llm, _ = make_llm()
    with pytest.raises((ConfigError, RequestError), match=f"^{why}"):
        perplexity(llm, text, context, stride)


@pytest.mark.parametrize("prompts", [None, 5, {"a": 1}, b"abc", {1}])
def test_prompts_that_are_none_are_named(make_llm, prompts):
    with pytest.raises(RequestError, match="prompts: .*: expected a text, token ids or a list of either"):
        make_llm()[0].generate(prompts)


@pytest.mark.parametrize("prompt", [None, 1.5, b"x", [1.5], [True], [[1]], {"a": 1}])
def test_a_prompt_that_is_none_fails_alone(make_llm, prompt):
    good, bad = make_llm()[0].generate(["a", prompt], SamplingParams(temperature=0, max_tokens=2))
    assert good.finish_reason == "length"
    assert bad.finish_reason == "error" and "expected text or a list of token ids" in bad.error


def test_settings_that_are_no_sampling_params_are_refused(make_llm):
    with pytest.raises(RequestError, match="params: dict: expected SamplingParams"):
        make_llm()[0].submit("a", {"temperature": 0})


def test_numpy_numbers_are_numbers():
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), stop_token_ids=[np.int32(7)])
    assert (params.temperature, params.top_k, params.stop_token_ids) == (0.5, 3, (7,))
    assert [type(v) for v in (params.temperature, params.top_k, params.stop_token_ids[0])] == [float, int, int]
    for field in ("temperature", "top_k"):
        with pytest.raises(RequestError, match=f"{field}: a number of thousands of digits: expected"):
            SamplingParams(**{field: 10**5000})


@pytest.mark.parametrize("extra", [object(), 10**5000, {(1,): 2}], ids=["object", "number", "key"])
def test_a_message_that_json_cannot_hold_is_a_bad_request(make_llm, extra):
    llm, _ = make_llm()
    with pytest.raises(RequestError, match="messages: .*expected values that JSON can hold"):
        llm.chat([{"role": "user", "content": "hi", "extra": extra}])
    deep = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(RequestError, match="messages: .*recursion.*expected values|chat_template: .*recursion"):
        llm.chat([{"role": "user", "content": "hi"}], extra=deep)
    two = SamplingParams(temperature=0, max_tokens=2)
    assert llm.chat([{"role": "user", "content": "hi"}], two).completion_tokens == 2


def test_a_conversation_far_longer_than_the_context_is_not_even_tokenized(make_llm):
    llm, _ = make_llm()
    long = "x" * (256 * llm.max_context + 1)
    with pytest.raises(RequestError, match="messages: .* characters in the template: expected at most"):
        llm.chat([{"role": "user", "content": long}])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork_the_child_is_told_and_the_parent_goes_on(make_llm):
    llm, _ = make_llm()
    child = os.fork()
    if not child:
        try:
            llm.generate("a")
        except ServeError as error:
            llm.close()
            os._exit(7 if "after the fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert llm.generate("a", SamplingParams(temperature=0, max_tokens=2))[0].completion_tokens == 2


@pytest.mark.parametrize("value", ["x", 1.5, True, 0])
def test_a_size_that_is_no_whole_number_is_refused(value):
    with pytest.raises(ConfigError, match="max_seqs: .*: expected a whole number"):
        LLM.over(HashRunner, files(), max_seqs=value)
