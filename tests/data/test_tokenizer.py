"""Opening a tokenizer from wherever a model keeps it."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest
from data_tokenizers import CHATML, END, EOT, VOCAB, library_tokenizer, save_folder, sentence_piece, word_piece
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from mindspeed_ms.data.tokenizer import open_tokenizer
from mindspeed_ms.errors import TokenizerError

TEXTS = ["The quick fox", "你好 2024", "a\n b"]


def test_a_hugging_face_folder_without_weights_gives_what_transformers_reads(tmp_path):
    folder = save_folder(tmp_path / "m")
    (folder / "config.json").write_text('{"vocab_size": 512, "max_position_embeddings": 128}')
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = open_tokenizer(folder)
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
    assert (ours.vocab_size, ours.context, ours.chat_template) == (512, 128, CHATML)
    assert ours.sha256 == hashlib.sha256(ours.json).hexdigest()
    copy = Tokenizer.from_buffer(ours.json)
    assert [copy.encode(t).ids for t in TEXTS] == [theirs.encode(t, add_special_tokens=False) for t in TEXTS]
    assert pickle.loads(pickle.dumps(ours)) == ours


def test_without_a_configuration_every_id_of_the_tokenizer_fits(tmp_path):
    ours = open_tokenizer(save_folder(tmp_path / "m"))
    assert (ours.vocab_size, ours.context) == (VOCAB, None)


def test_the_copy_in_a_set_opens_as_the_same_tokenizer(tmp_path):
    ours = open_tokenizer(save_folder(tmp_path / "m"))
    (tmp_path / "tokenizer.json").write_bytes(ours.json)
    again = open_tokenizer(tmp_path / "tokenizer.json")
    assert (again.sha256, again.json) == (ours.sha256, ours.json)
    assert open_tokenizer(tmp_path / "m" / "tokenizer.json") == ours


def test_truncation_and_padding_of_the_file_are_left_out(tmp_path):
    tok = Tokenizer.from_str(library_tokenizer().to_str())
    tok.enable_truncation(3)
    tok.enable_padding(length=9)
    ours = open_tokenizer(save_folder(tmp_path / "cut", tok=tok))
    assert ours.json == open_tokenizer(save_folder(tmp_path / "whole")).json


def test_the_tokenizer_s_own_eos_ends_a_document_not_the_first_of_the_generation_settings(tmp_path):
    folder = save_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOT, END]}))
    assert open_tokenizer(folder).eos_id == END


def test_pad_falls_back_to_eos_and_then_to_zero(tmp_path):
    assert open_tokenizer(save_folder(tmp_path / "a", pad_token=None)).pad_id == END
    bare = open_tokenizer(save_folder(tmp_path / "b", pad_token=None, eos_token=None))
    assert (bare.pad_id, bare.eos_id) == (0, None)


def test_a_file_alone_is_known_by_the_usual_names_of_special_tokens(tmp_path):
    path = tmp_path / "my.json"
    path.write_text(library_tokenizer().to_str(), encoding="utf-8")
    assert (open_tokenizer(path).eos_id, open_tokenizer(path).bos_id) == (EOT, None)
    path.write_text(word_piece().to_str(), encoding="utf-8")
    assert (open_tokenizer(path).eos_id, open_tokenizer(path).pad_id) == (None, 0)
    path.write_text(sentence_piece().to_str(), encoding="utf-8")
    found = open_tokenizer(path)
    assert (found.bos_id, found.eos_id, found.add_bos) == (1, 2, False)
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "tokenizer.json").write_text(sentence_piece().to_str(), encoding="utf-8")
    assert open_tokenizer(tmp_path / "only") == found


def test_a_bundle_gives_its_model_s_tokenizer(tmp_path):
    info = {
        "tokenizer": {"bos_token_id": None, "eos_token_ids": [END], "pad_token_id": EOT, "add_bos": False},
        "spec": {"vocab_size": 448, "max_position_embeddings": 64},
    }
    (tmp_path / "bundle.json").write_text(json.dumps(info))
    (tmp_path / "tokenizer.json").write_text(library_tokenizer().to_str(), encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    ours = open_tokenizer(tmp_path)
    assert (ours.vocab_size, ours.context, ours.eos_id, ours.pad_id) == (448, 64, END, EOT)
    assert ours.chat_template == CHATML
    info["spec"]["vocab_size"] = -1
    (tmp_path / "bundle.json").write_text(json.dumps(info))
    with pytest.raises(TokenizerError, match=r"bundle\.json: a size or token id is no whole number"):
        open_tokenizer(tmp_path)


@pytest.mark.skipif("MINDSPEED_MS_SMOLLM2" not in os.environ, reason="set MINDSPEED_MS_SMOLLM2 to the model's file")
def test_a_gguf_file_gives_its_tokenizer_context_and_template():
    ours = open_tokenizer(Path(os.environ["MINDSPEED_MS_SMOLLM2"]))
    assert (ours.vocab_size, ours.context, ours.bos_id, ours.eos_id, ours.pad_id) == (49152, 8192, 1, 2, 2)
    assert "<|im_start|>" in (ours.chat_template or "")
    assert Tokenizer.from_buffer(ours.json).encode("Hello world").tokens == ["Hello", "Ġworld"]


def damaged(folder: Path, kind: str) -> tuple[Path, str]:
    """A path that cannot be opened, and what its error says."""
    save_folder(folder)
    if kind == "absent":
        return folder / "nothing", "nothing: no such file or folder"
    if kind == "no tokenizer":
        (folder / "tokenizer.json").unlink()
        return folder, r"tokenizer\.json: no such file"
    if kind == "config":
        (folder / "config.json").write_text('{"vocab_size": "many"}')
        return folder, r"config\.json: vocab_size is 'many', expected a whole number"
    if kind == "too small":
        (folder / "config.json").write_text('{"vocab_size": 2}')
        return folder, "eos token has the id 2, which is not below the model's vocab_size 2"
    if kind == "gguf":
        (folder / "x.gguf").write_bytes(b"GGUF\3\0\0\0")
        return folder / "x.gguf", "the file is damaged or truncated"
    (folder / "x.json").write_text("{" if kind == "json" else "[1]")
    return folder / "x.json", "is not a tokenizer"


@pytest.mark.parametrize("kind", ["absent", "no tokenizer", "config", "too small", "gguf", "json", "list"])
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, kind):
    path, message = damaged(tmp_path / "m", kind)
    with pytest.raises(TokenizerError, match=message) as caught:
        open_tokenizer(path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
