"""`prepare`: every document once, with its tokens, and clear words about what cannot be used."""

import json
from collections import Counter

import numpy as np
import pytest
from data_corpus import files_of, pieces_of, sentences, small, write_chat_model
from tokenizers import Tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.errors import ConfigError, DataError, MindSpeedError

ARRANGEMENTS = [{}, {"join": True}, {"boundaries": [16, 32, 64], "max_length": None}, {"mode": "pack"}]


@pytest.mark.parametrize("arrange", ARRANGEMENTS, ids=str)
def test_every_document_is_in_the_set_once_with_its_tokens(tmp_path, corpus, tokenizer, arrange):
    manifest = prepare([corpus], tmp_path / "set", tokenizer, small(**arrange), workers=2)
    library = Tokenizer.from_file(str(tokenizer))
    texts = sentences(600) + sentences(300, seed=1)
    wanted = Counter()
    for encoding in library.encode_batch(texts, add_special_tokens=False):
        ids = [*encoding.ids, 0]
        wanted.update(tuple(ids[i : i + 64]) for i in range(0, len(ids), 64))
    assert Counter(pieces_of(tmp_path / "set")) == wanted
    tokens = sum(len(ids) * count for ids, count in wanted.items())
    places = sum(bucket.rows * bucket.length for bucket in manifest.buckets)
    assert (manifest.tokens, manifest.documents) == (tokens, 900)
    assert manifest.padding_share == pytest.approx(1 - tokens / places)
    assert [source.documents for source in manifest.sources] == [600, 300]
    assert [source.name for source in manifest.sources] == ["corpus/a.txt", "corpus/b.jsonl.gz"]
    assert sum(part.documents for part in manifest.lengths) == 900
    assert manifest.lengths[-1].upto == max(len(e.ids) + 1 for e in library.encode_batch(texts)), (
        "exact, not a bin's edge"
    )
    assert len(manifest.buckets[-1].shards) > 1, "several segments"
    named = {entry.path for entry in manifest.files()} | {"manifest.json"}
    assert set(files_of(tmp_path / "set")) == named, "nothing else is left in the folder"


def test_a_stream_is_the_corpus_end_to_end(tmp_path, corpus, tokenizer):
    manifest = prepare([corpus / "a.txt"], tmp_path / "set", tokenizer, small(mode="stream"), workers=1)
    library = Tokenizer.from_file(str(tokenizer))
    encoded = library.encode_batch(sentences(600), add_special_tokens=False)
    wanted = [token for encoding in encoded for token in [*encoding.ids, 0]]
    assert [token for part in pieces_of(tmp_path / "set") for token in part] == wanted
    (bucket,) = manifest.buckets
    assert bucket.rows - len(bucket.shards) <= len(wanted) // 64 <= bucket.rows


def test_the_boundaries_are_those_that_pad_least(tmp_path, corpus, tokenizer):
    """Beside every choice of three boundaries there is."""
    from itertools import combinations

    manifest = prepare([corpus / "a.txt"], tmp_path / "set", tokenizer, small(buckets=3, max_length=40), workers=1)
    lengths = Counter(len(ids) for ids in pieces_of(tmp_path / "set"))
    best = min(
        sum(count * (next(b for b in (*pair, max(lengths)) if b >= n) - n) for n, count in lengths.items())
        for pair in combinations(sorted(lengths)[:-1], 2)
    )
    assert sum(bucket.rows * bucket.length - bucket.tokens for bucket in manifest.buckets) == best


def test_workers_do_not_change_the_bytes(tmp_path, corpus, tokenizer):
    for workers in (1, 2):
        prepare([corpus], tmp_path / f"set{workers}", tokenizer, small(), workers=workers)
    assert files_of(tmp_path / "set1") == files_of(tmp_path / "set2")


def test_copies_and_unusable_documents_are_left_out_and_counted(tmp_path, tokenizer):
    text = tmp_path / "x.txt"
    text.write_bytes(
        b"one text\n\nanother\none text\nwith a \0 in it\nbad \xff\xfe\none text\nlong " + b"x" * 500 + b"\n"
    )
    config = PrepareConfig.parse({"clean": {"max_chars": 100}, "arrange": {"max_length": 64}})
    manifest = prepare([text], tmp_path / "set", tokenizer, config, workers=1)
    library = Tokenizer.from_file(str(tokenizer))
    expected = ["one text", "another", "with a  in it"]
    assert sorted(library.decode(list(ids[:-1])) for ids in pieces_of(tmp_path / "set")) == sorted(expected)
    counted = {name: count for name, count in manifest.cleaning.items() if count}
    assert counted == {
        "documents_read": 8,
        "empty": 1,
        "exact_duplicates": 2,
        "nul_bytes_removed": 1,
        "invalid_utf8": 1,
        "too_long": 1,
    }


def test_conversations_are_learnt_where_the_assistant_speaks(tmp_path):
    model = write_chat_model(tmp_path / "model")
    turns = [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": "was calm"}]
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": turns}) + "\n" + json.dumps({"messages": turns * 2}) + "\n")
    config = PrepareConfig.parse({"read": {"messages_key": "messages"}, "arrange": {"mode": "pack", "max_length": 256}})
    manifest = prepare([file], tmp_path / "set", model, config, workers=1)
    assert manifest.columns == ["input_ids", "document_ends", "loss_mask"]
    (bucket,) = manifest.buckets
    (shard,) = bucket.shards
    flat = np.fromfile(tmp_path / "set" / shard.block.path, dtype="<i4")
    ids, mask = flat[:256], flat[256 + bucket.ends :]
    library = Tokenizer.from_file(str(model / "tokenizer.json"))
    said = library.decode(ids[mask == 1].tolist(), skip_special_tokens=False)
    assert said.replace("\n", "") == "was calm</s>" * 3


def test_a_context_shorter_than_the_rows_is_refused(tmp_path, corpus):
    model = write_chat_model(tmp_path / "model")
    (model / "config.json").write_text(json.dumps({"vocab_size": 400, "max_position_embeddings": 48}))
    with pytest.raises(ConfigError, match="max_length: rows of 64 tokens, the model's context is 48"):
        prepare([corpus], tmp_path / "set", model, small(), workers=1)
    config = PrepareConfig.parse({"arrange": {"boundaries": [16, 49]}})
    with pytest.raises(ConfigError, match="boundaries: rows of 49 tokens, the model's context is 48"):
        prepare([corpus], tmp_path / "set", model, config, workers=1)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("bad", [-1, 400, 1 << 40])
def test_a_token_id_outside_of_the_vocabulary_names_its_document(tmp_path, tokenizer, bad):
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in ([1, 2], [3, bad, 4])))
    config = PrepareConfig.parse({"read": {"ids_key": "ids"}, "arrange": {"max_length": 64}})
    with pytest.raises(MindSpeedError, match=rf"ids\.jsonl: record 2: token id {bad} is outside the vocabulary of 400"):
        prepare([file], tmp_path / "set", tokenizer, config, workers=1)


def test_no_documents_is_an_error(tmp_path, tokenizer):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match="no document is left after cleaning"):
        prepare([tmp_path / "empty.txt"], tmp_path / "set", tokenizer, small(), workers=1)


@pytest.mark.parametrize("skip", [False, True])
def test_a_damaged_file_is_named_and_the_rest_is_kept_if_asked(tmp_path, corpus, tokenizer, skip):
    good = (corpus / "b.jsonl.gz").read_bytes()
    (corpus / "a2.jsonl.gz").write_bytes(good[: len(good) // 2])
    config = PrepareConfig.parse({"read": {"skip_damaged": skip}, "arrange": {"max_length": 64}, "shard_tokens": 4096})
    if not skip:
        with pytest.raises(DataError, match=r"a2\.jsonl\.gz"):
            prepare([corpus], tmp_path / "set", tokenizer, config, workers=1)
        # What was done is used once the file is mended; it is another corpus then, so the folder is begun anew.
        (corpus / "a2.jsonl.gz").unlink()
        assert prepare([corpus], tmp_path / "set", tokenizer, config, workers=1, restart=True).documents == 900
        return
    manifest = prepare([corpus], tmp_path / "set", tokenizer, config, workers=1)
    assert manifest.cleaning["damaged_files"] == 1
    assert manifest.sources[-1].documents + manifest.sources[1].documents == 300, "copies of a2's are found in b"


def test_a_set_is_no_corpus(tmp_path, corpus, tokenizer):
    prepare([corpus], tmp_path / "set", tokenizer, small(), workers=1)
    with pytest.raises(DataError, match="is a prepared set; give the corpus"):
        prepare([tmp_path / "set"], tmp_path / "again", tokenizer, small(), workers=1)
