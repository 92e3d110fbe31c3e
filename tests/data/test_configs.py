"""Each shipped configuration of data loads, names every key, and tells the truth about its defaults."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from mindspeed_ms.config.base import load_yaml
from mindspeed_ms.config.data import PrepareConfig

FILES = sorted((Path(__file__).resolve().parents[2] / "configs" / "data").glob("*.yaml"))
COMMENT = re.compile(r"^ *# (?P<meaning>.+) \[(?P<type>.+); default: (?P<default>.+)\]$")
KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+): .+$")


def defaults(model: type[BaseModel], section: str = "") -> dict[tuple[str, str], object]:
    found: dict[tuple[str, str], object] = {}
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= defaults(field.annotation, key)
        else:
            found[section, key] = field.default
    return found


def test_there_are_configurations_to_copy():
    assert [file.stem for file in FILES] == ["chat", "pack", "pretrain"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_configuration_loads_and_each_of_its_lines_has_its_effect(file):
    loaded = load_yaml(file, PrepareConfig).model_dump(mode="json")
    assert loaded == yaml.safe_load(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_key_is_there_with_its_meaning_type_and_true_default(file):
    section, told = "", {}
    lines = file.read_text(encoding="utf-8").splitlines()
    for above, line in pairwise(lines):
        if re.fullmatch(r"\w+:", line):
            section = line[:-1]
        elif key := KEY.match(line) if not line.lstrip().startswith("#") else None:
            comment = COMMENT.match(above)
            assert comment, f"{line!r} has no comment that ends with [type; default: value]"
            told[section if key["indent"] else "", key["key"]] = yaml.safe_load(comment["default"])
    assert told == defaults(PrepareConfig)


def test_the_chat_configuration_reads_conversations_and_the_pack_configuration_packs():
    by_name = {file.stem: load_yaml(file, PrepareConfig) for file in FILES}
    assert by_name["chat"].read.messages_key == "messages"
    assert by_name["pack"].arrange.mode == "pack"
    assert by_name["pretrain"].arrange.join
