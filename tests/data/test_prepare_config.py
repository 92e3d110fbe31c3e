"""What may be asked of a preparation: a setting that would do nothing is refused, by its name."""

import datetime

import pytest

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.errors import ConfigError

OTHERS = {
    "read.text_key": "body",
    "read.txt_by": "file",
    "read.encoding": "latin-1",
    "read.bad_conversations": "drop",
    "clean.min_chars": 2,
    "tokenize.bos": False,
    "tokenize.eos": False,
    "tokenize.special_tokens": "parse",
    "tokenize.date": "2024-07-27",
}
REFUSED = {
    "text_key": {"read.bad_conversations", "tokenize.date"},
    "messages_key": OTHERS.keys() - {"read.bad_conversations", "tokenize.date", "clean.min_chars"},
    "ids_key": set(OTHERS),
}


def options(kind, name):
    section, key = name.split(".")
    made = {"read": {kind: "k"}}
    made.setdefault(section, {})[key] = OTHERS[name]
    return made


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_without_effect_is_refused_by_its_name_and_why(kind, name):
    if name not in REFUSED[kind]:
        section, key = name.split(".")
        assert getattr(getattr(PrepareConfig.parse(options(kind, name)), section), key) == OTHERS[name]
        return
    why = "without read.messages_key" if kind == "text_key" else f"with(out)? read.(messages|{kind[:-4]})_key"
    with pytest.raises(ConfigError, match=rf"^options: {name} has no effect {why}: .*; leave it out$") as caught:
        PrepareConfig.parse(options(kind, name), where="options")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_configuration_with_all_its_defaults_written_out_is_the_same(kind):
    config = PrepareConfig.parse({"read": {kind: "k"}})
    assert PrepareConfig.parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "day", ["2024-02-30", "20240229", "2024-W09-4", "29.2.2024", "today", "", "2024-02-29T00:00:00"]
)
def test_a_date_is_a_day_of_the_calendar_in_one_spelling(day):
    with pytest.raises(ConfigError, match=rf"^configuration: tokenize.date is '{day}'; expected a day .*2024-07-26$"):
        PrepareConfig.parse({"read": {"messages_key": "m"}, "tokenize": {"date": day}})


def test_a_date_that_yaml_has_read_as_one_is_that_day():
    values = {"read": {"messages_key": "m"}, "tokenize": {"date": datetime.date(2024, 2, 29)}}
    assert PrepareConfig.parse(values).tokenize.date == "2024-02-29"


@pytest.mark.parametrize(
    "values",
    [
        {"arrange": {"max_length": 10**23}},
        {"arrange": {"boundaries": [1, 2, 10**20]}},
        {"arrange": {"mode": "pack", "max_documents": 10**20}},
        {"clean": {"near_duplicates": 0.999999999}},
        {"clean": {"max_chars": 1 << 40}},
        {"shard_tokens": 10**11},
    ],
    ids=str,
)
def test_numbers_have_an_end_before_anything_is_read(values):
    with pytest.raises(ConfigError, match="less than or equal to") as error:
        PrepareConfig.parse(values)
    assert "\n" not in str(error.value)
