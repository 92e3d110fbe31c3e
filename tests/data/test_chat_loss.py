"""Loss on answers only: which tokens the model itself would have to write."""

import datetime
import json
import os
from pathlib import Path

import numpy as np
import pytest
from data_tokenizers import CHATML, END, START, data_tokenizer, library_tokenizer, save_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.data.tokenizer import open_tokenizer
from mindspeed_ms.errors import RequestError
from mindspeed_ms.text.chat import ChatTemplate, answer_mask
from mindspeed_ms.text.tokenizer import Tokenizer

# ChatML with Hugging Face's own marks around what is to be learnt.
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALKS = [
    [("user", "Hi"), ("assistant", "Hello 你好!")],
    [("system", "Be brief."), ("user", "1"), ("assistant", ""), ("user", "2"), ("assistant", " two\n\n")],
    [("user", "a"), ("assistant", "b"), ("assistant", "c"), ("user", "d")],
    [("assistant", "I begin."), ("user", "assistant\nHello"), ("assistant", "<|im_end|> as text 😀")],
    [("user", "nobody answers")],
]


def messages(talk):
    return [{"role": role, "content": content} for role, content in talk]


def encoded(chat, talk):
    ((ids, mask),) = chat.encode_answers([chat.answers(talk)])
    return ids, mask.tolist()


@pytest.fixture
def chat(tmp_path):
    """A function that makes the template of a source, closed at the end."""
    opened = []

    def make(source=CHATML):
        data = data_tokenizer(tmp_path / "m", template=source)
        opened.append(ChatTemplate(source, Tokenizer(data), data.bos_id, data.eos_id))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize("source", [CHATML, MARKED])
@pytest.mark.parametrize("talk", TALKS[:3])
def test_the_mask_is_that_of_hugging_face_s_generation_marks(chat, tmp_path, source, talk):
    theirs = AutoTokenizer.from_pretrained(save_folder(tmp_path / "hf", template=MARKED))
    expected = theirs.apply_chat_template(
        messages(talk), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = encoded(chat(source), messages(talk))
    assert ids == expected["input_ids"]
    assert mask == expected["assistant_masks"]


def test_the_loss_mask_of_a_prepared_set_is_that_of_hugging_face(tmp_path):
    model, length = save_folder(tmp_path / "hf", template=MARKED), 128
    numbered = [[("user", str(i)), *TALKS[2][1:]] for i in range(9)]
    talks = [messages(talk) for talk in [*TALKS[:3], TALKS[0] + TALKS[1][1:], *numbered]]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    options = {"read": {"messages_key": "messages"}, "arrange": {"boundaries": [length]}}
    manifest = prepare([tmp_path / "talks.jsonl"], tmp_path / "set", model, PrepareConfig.parse(options), workers=1)
    (bucket,) = manifest.buckets
    parts = np.split(
        np.fromfile(tmp_path / "set" / bucket.shards[0].block.path, "<i4"),
        np.cumsum([bucket.rows * length, bucket.rows * bucket.ends]),
    )
    ids, ends, mask = (part.reshape(bucket.rows, -1) for part in parts)
    found = [(i[:end].tolist(), m[:end].tolist()) for i, end, m in zip(ids, ends[:, -1], mask, strict=True)]
    theirs = AutoTokenizer.from_pretrained(model)
    ask = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    asked = [theirs.apply_chat_template(talk, **ask) for talk in talks]
    assert sorted(found) == sorted((each["input_ids"], each["assistant_masks"]) for each in asked)
    assert not mask[ids == theirs.convert_tokens_to_ids("<|endoftext|>")].any()  # the padding


@pytest.mark.parametrize("talk", TALKS)
def test_answers_are_their_text_and_the_end_of_the_turn(chat, talk):
    ids, mask = encoded(chat(), messages(talk))
    learnt = [token for token, learn in zip(ids, mask, strict=True) if learn]
    said = [content for role, content in talk if role == "assistant"]
    assert learnt.count(END) == len(said) and START not in learnt
    decode = library_tokenizer().decode
    assert decode(learnt, skip_special_tokens=False) == "".join(content + "<|im_end|>" for content in said)
    assert chat().encode(messages(talk), add_generation_prompt=False) == ids


def test_a_template_may_know_no_generation_prompt_and_other_ends(chat):
    source = (
        "{{ '<|endoftext|>' }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    text, spans = chat(source).answers(messages([("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")]))
    shown = [text[start:end] for start, end in spans]
    assert [part[:2] for part in shown] == [" a", " b"] and all(part.endswith("|>") for part in shown)


def test_without_a_special_token_at_its_end_an_answer_is_taken_whole(chat):
    source = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    text, spans = chat(source).answers(messages([("user", "q"), ("assistant", "a")]))
    assert [text[start:end] for start, end in spans] == ["a\n\n"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        # Reasoning is cut out of all answers but the last, as Qwen 3 does.
        (
            "{% for m in messages %}{{ m.role }}:{{ m.content if loop.last else m.content.split('</think>')[-1] }}\n"
            "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
            r"messages\[1\]: the answer is written differently once the conversation goes on",
        ),
        (
            "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>{% endif %}",
            r"messages\[1\]: the generation prompt is not how the answer begins",
        ),
        ("{{ raise_exception('no') }}", "no"),
    ],
)
def test_a_template_that_rewrites_history_is_refused_with_the_reason(chat, source, message):
    talk = [("user", "q"), ("assistant", "<x></think>a"), ("user", "r"), ("assistant", "b")]
    with pytest.raises(RequestError, match=f"^chat_template: {message}"):
        encoded(chat(source), messages(talk))


FIRST_IS_READ = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" + CHATML
)


def test_a_conversation_that_begins_with_an_answer_is_refused_by_a_template_that_reads_the_first_message(chat):
    reason = (
        r"^chat_template: messages\[0\]: the conversation begins with an answer, which this template has no prompt for"
    )
    with pytest.raises(RequestError, match=reason) as caught:
        chat(FIRST_IS_READ).answers(messages([("assistant", "I begin."), ("user", "q")]))
    assert "\n" not in str(caught.value)
    text, spans = chat(FIRST_IS_READ).answers(messages([("user", "q"), ("assistant", "a")]))
    assert [text[start:end][:1] for start, end in spans] == ["a"]


def test_the_day_of_a_template_is_the_one_that_is_asked_for_and_else_this_one(chat):
    form, talk = "%d %b %Y %H:%M", messages([("user", "q")])
    made = chat(f"{{{{ strftime_now('{form}') }}}}")
    assert made.answers(talk, date="2024-02-29") == ("29 Feb 2024 00:00", [])
    before = datetime.datetime.now().replace(second=0, microsecond=0)
    for text in (made.answers(talk)[0], made.render(talk)):
        assert before <= datetime.datetime.strptime(text, form) <= datetime.datetime.now()


def test_an_empty_thought_before_the_last_answer_belongs_to_that_one_alone(chat):
    """As Qwen 3's template has it."""
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
        "{{ m.content.strip() + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    talk = [("user", "a"), ("assistant", " b\n"), ("user", "b"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    ids, mask = encoded(chat(source), messages(talk))
    learnt = [token for token, learn in zip(ids, mask, strict=True) if learn]
    expected = "b<|im_end|>b<|im_end|><think>\n\n</think>\n\nd<|im_end|>"
    assert library_tokenizer().decode(learnt, skip_special_tokens=False) == expected


def test_half_a_surrogate_pair_is_refused(chat):
    with pytest.raises(RequestError, match="lone surrogate at character"):
        chat().answers(messages([("user", "q"), ("assistant\ud800", "a")]))


SPANS = st.lists(st.integers(0, 30), max_size=8, unique=True).map(sorted)


@settings(max_examples=300, deadline=None)
@given(SPANS, st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=12))
def test_a_token_counts_as_soon_as_one_of_its_characters_does(bounds, tokens):
    spans = list(zip(bounds[::2], bounds[1::2], strict=False))
    offsets = sorted((start, start + size) for start, size in tokens)
    inside = {c for start, end in spans for c in range(start, end)}
    expected = [int(bool(inside & set(range(start, end)))) for start, end in offsets]
    found = answer_mask(offsets, spans)
    assert found.tolist() == expected and found.dtype == np.uint8


@pytest.mark.skipif("MINDSPEED_MS_SMOLLM2" not in os.environ, reason="set MINDSPEED_MS_SMOLLM2 to the model's file")
def test_smollm2_s_own_template_and_tokenizer():
    data = open_tokenizer(Path(os.environ["MINDSPEED_MS_SMOLLM2"]))
    chat = ChatTemplate(data.chat_template, Tokenizer(data), data.bos_id, data.eos_id)
    talk = messages([("user", "Hi"), ("assistant", "Hello there."), ("user", "Bye"), ("assistant", "Good bye.")])
    ids, mask = encoded(chat, talk)
    chat.close()
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=__import__("tokenizers").Tokenizer.from_buffer(data.json), chat_template=data.chat_template
    )
    assert ids == theirs.apply_chat_template(talk, tokenize=True, return_dict=True)["input_ids"]
    learnt = theirs.decode([token for token, learn in zip(ids, mask, strict=True) if learn])
    assert learnt == "Hello there.<|im_end|>Good bye.<|im_end|>"
