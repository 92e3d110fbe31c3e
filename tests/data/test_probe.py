"""Tokenizer files that nobody vouches for: one line says what is wrong, whatever the library does with them."""

import json
import os
import subprocess
import sys

import pytest
from data_tokenizers import library_tokenizer

from mindspeed_ms.data import probe
from mindspeed_ms.data.tokenizer import open_tokenizer
from mindspeed_ms.errors import TokenizerError


def write(folder, **changes):
    data = json.loads(library_tokenizer().to_str())
    for key, value in changes.items():
        data[key] = {**data[key], **value} if key == "model" else value
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder / "tokenizer.json"


def refusal(path):
    with pytest.raises(TokenizerError) as caught:
        open_tokenizer(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)


def growing(levels):
    return {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}] * levels,
    }


def test_a_text_that_grows_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_SECONDS", 1)
    message = refusal(write(tmp_path, normalizer=growing(50)))
    assert "damaged or hostile" in message
    monkeypatch.undo()
    prepend = {"type": "Prepend", "prepend": "ab " * 30_000}
    assert "tokens of a line of" in refusal(write(tmp_path, normalizer=prepend))


def test_a_panic_of_the_library_is_one_line_and_no_trace(tmp_path, capfd):
    pre_tokenizer = {"type": "FixedLength", "length": 0}
    assert "is not a tokenizer" in refusal(write(tmp_path, pre_tokenizer=pre_tokenizer))
    assert capfd.readouterr().err == ""


def test_padding_to_any_length_does_no_harm(tmp_path):
    plain = open_tokenizer(write(tmp_path))
    padding = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert open_tokenizer(write(tmp_path, padding=padding)).json == plain.json


def test_ids_beyond_int32_are_refused(tmp_path):
    vocab = {**json.loads(library_tokenizer().to_str())["model"]["vocab"], "zzz": 2**31}
    assert "has the id 2147483648" in refusal(write(tmp_path, model={"vocab": vocab}))


def test_dropout_is_left_out_of_the_copy(tmp_path):
    plain = open_tokenizer(write(tmp_path))
    assert open_tokenizer(write(tmp_path, model={"dropout": 0.5})).json == plain.json


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    code = "import sys; from mindspeed_ms.data.tokenizer import open_tokenizer; open_tokenizer(sys.argv[1])"
    for path in (tmp_path, tmp_path / name):
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
        assert f"{name}: cannot be read (not a plain file)" in done.stderr


def test_a_device_is_not_read():
    assert "not a plain file" in refusal("/dev/zero")
