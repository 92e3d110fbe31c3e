"""Raw chunks to tokens: what is kept, what is counted, and where an error points."""

import functools
import json
import pickle

import numpy as np
import pytest
import xxhash
from data_tokenizers import CHATML, END, EOT, VOCAB, chunk, data_tokenizer, library_tokenizer, sentence_piece
from tokenizers import Tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.clean import COUNTS
from mindspeed_ms.data.encode import Encoder
from mindspeed_ms.errors import ConfigError, DataError
from mindspeed_ms.text import chat

PLAIN = Tokenizer.from_str(library_tokenizer().to_str())
PLAIN.encode_special_tokens = True  # the library's own way to take special tokens as plain text
TEXTS = ["The quick fox.", "你好\n世界  2024", "a <|im_end|> b", " <|endoftext|>"]
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]


@pytest.fixture
def encoder(tmp_path):
    """A function that makes an encoder of nested options; template processes end with the test."""
    opened = []

    def make(names=("a.jsonl", "b.jsonl"), folder=None, **options):
        tokenizer = data_tokenizer(tmp_path / "m", **(folder or {}))
        opened.append(Encoder(tokenizer, PrepareConfig.parse(options), list(names)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def lines(*values):
    return [json.dumps(value).encode() for value in values]


def documents(found):
    return (
        [part.tolist() for part in np.split(found.tokens, np.cumsum(found.lengths)[:-1])] if len(found.lengths) else []
    )


def nonzero(found):
    assert set(found.counts) == set(COUNTS)
    return {name: count for name, count in found.counts.items() if count}


def test_documents_become_the_library_s_tokens_and_an_eos(encoder):
    records = [text.encode() for text in TEXTS]
    found = encoder().encode(chunk(records))
    assert documents(found) == [[*PLAIN.encode(text).ids, END] for text in TEXTS]
    assert (found.tokens.dtype, found.lengths.dtype) == (np.int32, np.int32)
    assert found.sizes.tolist() == [len(record) for record in records]
    assert (found.source, tuple(found.after), found.bytes) == (0, (4, 7), sum(map(len, records)))
    assert found.loss is None and found.signatures is None
    assert nonzero(found) == {"documents_read": 4}


def test_hashes_are_xxh3_128_of_the_cleaned_text(encoder):
    found = encoder().encode(chunk([b"same", b"s\0ame", b"other"]))
    expected = xxhash.xxh3_128_intdigest(b"same")
    assert [(int(high) << 64) + int(low) for high, low in found.hashes][:2] == [expected, expected]
    assert found.hashes.dtype == np.uint64 and len({tuple(pair) for pair in found.hashes.tolist()}) == 2


@pytest.mark.parametrize("bos", [None, True, False])
@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_bos_and_eos_are_added_as_asked(encoder, bos, eos, adds):
    made = encoder(folder={"add_bos_token": adds}, tokenize={"bos": bos, "eos": eos})
    first = [EOT] if (adds if bos is None else bos) else []
    last = [END] if eos else []
    found = made.encode(chunk([b"ab", b" ", b"c d"]))
    assert documents(found) == [[*first, *PLAIN.encode(text).ids, *last] for text in ("ab", "c d")]


def test_special_tokens_are_parsed_only_when_asked_for(encoder):
    record = chunk([b"a <|im_end|> b"])
    assert END not in encoder(tokenize={"eos": False}).encode(record).tokens
    parsed = encoder(tokenize={"eos": False, "special_tokens": "parse"}).encode(record)
    assert documents(parsed) == [library_tokenizer().encode("a <|im_end|> b").ids]


def test_a_tokenizer_whose_texts_cannot_be_cut_gets_whole_ones(tmp_path):
    names = {"eos_token": "</s>", "bos_token": "<s>", "pad_token": None}
    tokenizer = data_tokenizer(tmp_path / "m", tok=sentence_piece(), **names)
    found = Encoder(tokenizer, PrepareConfig(), ["a"]).encode(chunk([b"The dog.\nfox", "你 é".encode()]))
    ids = [sentence_piece().encode(text, add_special_tokens=False).ids for text in ("The dog.\nfox", "你 é")]
    assert documents(found) == [[*each, 2] for each in ids]


def test_json_lines_give_their_text_and_bad_ones_are_counted(encoder):
    records = [
        *lines({"text": "good", "id": 1}, {"other": 1}, {"text": None}, {"text": 5}, [1], "text"),
        b"{", b"", b'{"text": "' + b"[" * 9 + b'"}', b"[" * 100_000, b'{"text": ' + b"9" * 5000 + b"}",
        b'{"text": "tab\tand \x00 NUL", "n": NaN}', b'{"text": "\\ud800"}', b'{"text": "\xff"}',
    ]  # fmt: skip
    found = encoder(tokenize={"eos": False}).encode(chunk(records, "json"))
    assert documents(found) == [PLAIN.encode(text).ids for text in ("good", "[" * 9, "tab\tand  NUL")]
    assert nonzero(found) == {
        "documents_read": len(records), "bad_json": 6, "no_text": 3, "invalid_utf8": 2, "nul_bytes_removed": 1,
    }  # fmt: skip


def test_a_file_without_the_key_is_an_error_that_names_the_keys_there_are(encoder):
    records = lines({"content": "a", "id": 1}, {"content": "b"})
    with pytest.raises(DataError, match=r"^a\.jsonl: no record has the key 'text'; the keys there are: 'content'"):
        encoder().encode(chunk(records, "json"))
    assert nonzero(encoder().encode(chunk(records, "json", first=2))) == {"documents_read": 2, "no_text": 2}
    assert nonzero(encoder().encode(chunk([b"no json"], "json"))) == {"documents_read": 1, "bad_json": 1}
    assert len(encoder(read={"text_key": "content"}).encode(chunk(records, "json")).lengths) == 2


def test_records_that_were_too_long_to_read_are_counted(encoder):
    found = encoder(clean={"max_chars": 3}).encode(chunk([b"abc", b"abcd"], overlong=2))
    assert nonzero(found) == {"documents_read": 4, "too_long": 3} and len(found.lengths) == 1


def test_a_chunk_of_nothing_is_a_chunk_of_no_documents(encoder):
    for kind in ("text", "json", "ids"):
        found = encoder().encode(chunk([], kind))
        assert (found.tokens.shape, found.lengths.shape, found.hashes.shape) == ((0,), (0,), (0, 2))


def test_an_error_names_the_record_by_its_number_in_the_file(encoder):
    made = encoder(clean={"invalid_utf8": "error"})
    with pytest.raises(DataError, match=r"^b\.jsonl: record 11: byte 0 is not UTF-8"):
        made.encode(chunk([b"ok", b"\xff"], source=1, first=9))
    with pytest.raises(DataError, match=r"^a\.jsonl: record 8: byte 0 is not UTF-8"):
        made.encode(chunk([b"ok", b"\xff"], numbers=[3, 7]))


@pytest.mark.parametrize("wrong", [-1, VOCAB, 1 << 40])
def test_an_id_outside_the_vocabulary_is_an_error_that_names_the_record(encoder, wrong):
    ids = [np.array([1, 2]), np.array([], np.int64), np.array([3, wrong])]
    message = rf"^b\.jsonl: record 6: token id {wrong} is outside the vocabulary of {VOCAB}"
    with pytest.raises(DataError, match=message):
        encoder().encode(chunk(ids, "ids", source=1, first=3))


def test_ids_of_text_beyond_the_model_s_vocabulary_are_an_error_too(tmp_path):
    tokenizer = data_tokenizer(tmp_path / "m")
    small = type(tokenizer)(**{**{n: getattr(tokenizer, n) for n in tokenizer.__dataclass_fields__}, "vocab_size": 50})
    with pytest.raises(DataError, match=r"^a: record 2: token id \d+ is outside the vocabulary of 50"):
        Encoder(small, PrepareConfig(), ["a"]).encode(chunk([b"!", "你".encode()]))


def test_tokenized_documents_are_taken_as_they_are(encoder):
    made = encoder(folder={"add_bos_token": True})
    found = made.encode(chunk([np.array([5, 6, 7]), np.array([], np.int64), np.array([8])], "ids"))
    assert documents(found) == [[5, 6, 7], [8]] and nonzero(found) == {"documents_read": 3, "empty": 1}
    digest = xxhash.xxh3_128_intdigest(np.array([5, 6, 7], "<i4").tobytes())
    assert (int(found.hashes[0, 0]) << 64) + int(found.hashes[0, 1]) == digest


def test_token_ids_may_stand_in_json_lines(encoder):
    made = encoder(read={"ids_key": "ids"})
    values = [[5, 6, 7], [], "text", [1.5], ["1"], [[1]], [1, [2]], None, [True], [8]]
    found = made.encode(chunk(lines(*({"ids": value} for value in values)), "json"))
    assert documents(found) == [[5, 6, 7], [8]]
    assert nonzero(found) == {"documents_read": 10, "empty": 1, "no_text": 7}
    for wrong in (-1, VOCAB, 1 << 63, 1 << 70, -(1 << 64)):
        with pytest.raises(DataError, match=rf"^a\.jsonl: record 2: token id {wrong} is "):
            made.encode(chunk(lines({"ids": [1]}, {"ids": [2, wrong]}), "json"))
    with pytest.raises(DataError, match=r"^a\.jsonl: holds text; read\.ids_key is for files of token ids"):
        made.encode(chunk([b"text"]))


# Conversations


def test_conversations_are_rendered_and_only_answers_are_learnt(encoder):
    made = encoder(read={"messages_key": "messages"})
    found = made.encode(chunk(lines({"messages": TALK}, {"messages": TALK[::-1]}), "json"))
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    assert documents(found)[0] == library_tokenizer().encode(text).ids  # neither BOS nor EOS beside the template's
    masks = np.split(found.loss, np.cumsum(found.lengths)[:-1])
    assert found.loss.dtype == np.uint8 and len(found.loss) == len(found.tokens)
    answer = [*library_tokenizer().encode("Hello!").ids, END]
    for ids, mask in zip(documents(found), masks, strict=True):
        assert [token for token, learn in zip(ids, mask, strict=True) if learn] == answer
    assert found.sizes.tolist() == [8, 8] and len(set(map(tuple, found.hashes.tolist()))) == 2


def test_equal_conversations_have_equal_hashes_in_every_worker(encoder):
    one, other = (encoder(read={"messages_key": "m"}) for _ in range(2))
    spaced = {"m": [dict(reversed(message.items())) for message in TALK], "id": 3}
    assert (
        one.encode(chunk(lines({"m": TALK}), "json")).hashes == other.encode(chunk(lines(spaced), "json")).hashes
    ).all()


def test_conversations_are_cleaned_and_counted(encoder):
    made = encoder(read={"messages_key": "m"}, clean={"min_chars": 4, "max_chars": 20})
    answers = ["a\0\x01nswer", "", "x" * 20, "\ud800 bad"]
    talks = [[{"role": "user", "content": "q "}, {"role": "assistant", "content": a}] for a in answers]
    others = [None, [], "text", [{"role": "user"}], TALK[:1] * 3]
    found = made.encode(chunk(lines(*({"m": talk} for talk in [*talks, *others]), {"n": 1}), "json"))
    assert nonzero(found) == {
        "documents_read": 10, "nul_bytes_removed": 1, "control_characters_removed": 1, "too_short": 1, "too_long": 1,
        "invalid_utf8": 1, "no_conversation": 5, "no_answer": 1,
    }  # fmt: skip
    assert "answer<|im_end|>" in library_tokenizer().decode(found.tokens.tolist(), skip_special_tokens=False)


def test_a_message_cannot_hold_control_tokens(encoder):
    talk = [TALK[0], {"role": "assistant", "content": "<|im_end|>"}]
    made = encoder(read={"messages_key": "m"})
    found = made.encode(chunk(lines({"m": talk}), "json"))
    assert found.tokens.tolist().count(END) == 2 and found.tokens[found.loss == 1].tolist().count(END) == 1


REWRITES = CHATML.replace("m['content']", "(m['content'] if loop.last or m['role'] == 'user' else 'x')")
REFUSES = "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}" + CHATML
READS_THE_FIRST = "{% if messages[0].role == 'system' %}{% endif %}" + CHATML
BAD = [
    (REWRITES, [*TALK, TALK[0]], r"messages\[1\]: the answer is written differently once the conversation goes on"),
    (REFUSES, [*TALK, *TALK], "one turn only"),
    (READS_THE_FIRST, TALK[::-1], r"messages\[0\]: the conversation begins with an answer, which .*"),
]


@pytest.mark.parametrize(("source", "talk", "reason"), BAD)
def test_a_conversation_that_the_template_does_not_take_is_an_error_that_names_the_record(
    encoder, source, talk, reason
):
    made = encoder(folder={"template": source}, read={"messages_key": "m"})
    advice = "repair or remove it, or --bad-conversations drop"
    with pytest.raises(DataError, match=rf"^a\.jsonl: record 2: chat_template: {reason}; {advice}$"):
        made.encode(chunk(lines({"m": TALK}, {"m": talk}), "json"))


@pytest.mark.parametrize(("source", "talk", "reason"), BAD)
def test_where_bad_conversations_are_dropped_the_others_stay_and_they_are_counted(encoder, source, talk, reason):
    made = encoder(folder={"template": source}, read={"messages_key": "m", "bad_conversations": "drop"})
    found = made.encode(chunk(lines({"m": TALK}, {"m": talk}, {"m": TALK}), "json"))
    assert nonzero(found) == {"documents_read": 3, "refused_by_template": 1}
    assert documents(found) == documents(made.encode(chunk(lines({"m": TALK}, {"m": TALK}), "json")))


def test_a_conversation_that_takes_too_long_is_an_error_even_where_bad_ones_are_dropped(encoder, monkeypatch, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(chat._WORKER.read_text().replace("SECONDS = 5.0", "SECONDS = 0.5"))
    monkeypatch.setattr(chat, "_WORKER", worker)
    source = "{{ 9 ** (messages[0].content | int) }}" + CHATML
    made = encoder(folder={"template": source}, read={"messages_key": "m", "bad_conversations": "drop"})
    slow = [{"role": "user", "content": "99999999"}, TALK[1]]
    with pytest.raises(
        DataError, match=r"^a\.jsonl: record 1: chat_template: .* too much time .*; repair or remove it$"
    ):
        made.encode(chunk(lines({"m": slow}), "json"))


def test_a_template_that_asks_for_today_gets_the_day_of_the_configuration(encoder):
    source = "{{ strftime_now('%d %b %Y') }}" + CHATML
    for options, day in (({}, "26 Jul 2024"), ({"tokenize": {"date": "1999-12-31"}}, "31 Dec 1999")):
        made = encoder(folder={"template": source}, read={"messages_key": "m"}, **options)
        found = made.encode(chunk(lines({"m": TALK}), "json"))
        assert library_tokenizer().decode(found.tokens.tolist()).startswith(f"{day}user")


def test_plain_text_among_conversations_is_an_error(encoder):
    with pytest.raises(DataError, match=r"^a\.jsonl: holds no JSON; read\.messages_key is for files of conversations"):
        encoder(read={"messages_key": "m"}).encode(chunk([b"text"]))


@pytest.mark.parametrize(
    ("folder", "options", "message"),
    [
        ({"bos_token": None}, {"tokenize": {"bos": True}}, r"^tokenize\.bos is true, but the tokenizer has no BOS"),
        (
            {"template": None},
            {"read": {"messages_key": "m"}},
            r"^read\.messages_key is set, but the tokenizer has no chat",
        ),
    ],
)
def test_options_that_the_tokenizer_cannot_meet_are_refused(encoder, folder, options, message):
    with pytest.raises(ConfigError, match=message):
        encoder(folder=folder, **options)


def test_signatures_are_made_when_near_duplicates_are_looked_for(encoder):
    pytest.importorskip("datasketch")
    options = {"clean": {"near_duplicates": 0.8}}
    found = encoder(**options).encode(chunk([b"one two three four five", b"One, two three four FIVE!", b"six"]))
    assert found.signatures.shape == (3, 128) and found.signatures.dtype == np.uint32
    assert (found.signatures[0] == found.signatures[1]).all() and (found.signatures[0] != found.signatures[2]).any()
    ids = encoder(**options).encode(chunk([np.arange(9), np.arange(9), np.arange(1, 10)], "ids")).signatures
    assert (ids[0] == ids[1]).all() and (ids[0] != ids[2]).any()


def test_a_factory_of_encoders_travels_to_a_worker(tmp_path):
    factory = functools.partial(Encoder, data_tokenizer(tmp_path / "m"), PrepareConfig(), ["a"])
    assert len(pickle.loads(pickle.dumps(factory))()(chunk([b"one"])).lengths) == 1
