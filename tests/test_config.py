"""Configurations: what is accepted, and the one line that says what is wrong."""

import os
from typing import Literal

import pytest

from mindspeed_ms.config.base import Config, load_yaml
from mindspeed_ms.errors import ConfigError


class Rope(Config):
    kind: Literal["default", "linear"] = "default"
    factor: float = 1.0


class Model(Config):
    hidden_size: int
    rope_theta: float = 10000.0
    rope: Rope | None = None
    layers: list[Rope] = []
    by_name: dict[str, Rope] = {}


def refusal(mapping, where="model.yaml"):
    with pytest.raises(ConfigError) as caught:
        Model.parse(mapping, where)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_mapping_becomes_a_typed_configuration():
    model = Model.parse({"hidden_size": 8, "rope": {"factor": 2}})
    assert model.hidden_size == 8
    assert model.rope == Rope(kind="default", factor=2.0)


def test_an_unknown_key_names_the_nearest_known_one():
    assert refusal({"hidden_size": 8, "rope_teta": 1}) == (
        "model.yaml: unknown key 'rope_teta'; did you mean 'rope_theta'?"
    )


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"rope": {"facter": 2}}, "rope.facter"),
        ({"layers": [{}, {"facter": 2}]}, "layers.1.facter"),
        ({"by_name": {"first": {"facter": 2}}}, "by_name.first.facter"),
    ],
)
def test_an_unknown_key_is_found_at_any_depth(mapping, key):
    assert refusal({"hidden_size": 8, **mapping}) == f"model.yaml: unknown key {key!r}; did you mean 'factor'?"


def test_an_unknown_key_like_no_other_lists_the_known_ones():
    assert "known keys: factor, kind" in refusal({"hidden_size": 8, "rope": {"zzz": 1}})


def test_a_misspelt_required_key_is_reported_as_misspelt_not_as_missing():
    assert "did you mean 'hidden_size'? (and 1 more)" in refusal({"hiden_size": 8})


def test_a_missing_key_is_named():
    assert refusal({}) == "model.yaml: the key 'hidden_size' is missing; add it"


def test_a_wrong_value_is_shown_with_what_was_expected():
    message = refusal({"hidden_size": "wide"})
    assert "hidden_size is 'wide'" in message and "valid integer" in message
    assert "'default' or 'linear'" in refusal({"hidden_size": 8, "rope": {"kind": "yarn"}})


def test_a_long_value_is_cut():
    assert len(refusal({"hidden_size": "x" * 10_000})) < 300


def test_what_is_no_mapping_is_refused():
    assert "expected a mapping" in refusal([1, 2])


def test_yaml_is_read_into_a_configuration(tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text("hidden_size: 8\nrope: {factor: 4.0}\n")
    assert load_yaml(file, Model).rope.factor == 4.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden_size: [", "not valid YAML"),
        ("hidden_size: 8\nhidden_size: 9\n", "'hidden_size' is given twice"),
        ("- 1\n", "expected a mapping"),
        ("", "'hidden_size' is missing"),
        ("hidden_size: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("? [1, 2]\n: 3\n", "not valid YAML"),
        ("1: 2\nhidden_size: 8", "1"),
    ],
)
def test_bad_yaml_is_refused_in_one_line_that_names_the_file(tmp_path, text, message):
    file = tmp_path / "model.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(file, Model)
    assert str(file) in str(caught.value) and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_yaml(tmp_path / "none.yaml", Model)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as a text file"):
        load_yaml(tmp_path / "binary.yaml", Model)


@pytest.mark.parametrize(
    "text",
    [
        "hidden_size: " + "9" * 5000,
        "hidden_size: 0x" + "f" * 5000,
        "? 0x" + "f" * 5000 + "\n: 1",
        "hidden_size: 2024-13-45",
        'hidden_size: !!int "abc"',
        'hidden_size: !!int ""',
        'hidden_size: !!timestamp "abc"',
        'hidden_size: !!bool "abc"',
        "hidden_size: " + "[" * 3000,
        "!!map [1]",
        "a: &a [*a]",
        "hidden_size: &a [*a]",
        'hidden_size: 1\nrope: {kind: "\\ud800"}',
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True))
        + "hidden_size: *i\n",
    ],
)
def test_whatever_a_file_holds_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, Model)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value) and len(str(caught.value)) < 6000


class Texts(Config):
    one: str = ""
    many: list[str] = []
    keys: dict[str, str] = {}


@pytest.mark.parametrize("values", [{"one": "\udcff"}, {"many": ["a", "\ud800"]}, {"keys": {"\udcff": "a"}}])
def test_text_that_utf_8_cannot_hold_is_refused(values):
    with pytest.raises(ConfigError, match=r"lone surrogates|unicode"):
        Texts.parse(values)
    assert Texts.parse({"one": "é😀", "many": ["三"]}).one == "é😀"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ConfigError, match="not a plain file"):
            load_yaml(path, Model)
