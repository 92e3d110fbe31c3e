"""On a table of facts from published configurations: file and commit of each are in its first columns."""

from pathlib import Path

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import parameters, published, published_rows

TABLE = Path(__file__).parent / "data" / "published_plans.csv"
ROWS = published_rows.read(TABLE)
JUDGED = dict(zip([(row["model"], index) for index, row in enumerate(ROWS)], published.judge(ROWS), strict=True))


def judged(name):
    return next(one for (model, _), one in JUDGED.items() if model == name)


def test_every_plan_fits_or_says_why_not():
    for one in JUDGED.values():
        assert one.verdict == "fits" or one.reason, one.name


def test_nearly_all_plans_that_ran_fit_their_cards():
    fits, plans = published.counts(JUDGED.values())
    assert plans == 70
    assert fits >= 66


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lora_llama2_7b", "adapters"),
        ("finetune_llama2_7b_prefixtuning", "prefix"),
        ("run_general_task", "sizes of its model"),
        ("pretrain_qwen3_next_80b_16K_A3_ptd", "linear attention"),
        ("mamba2 32K", "state-space"),
    ],
)
def test_what_is_no_plan_for_a_known_model_says_so(name, words):
    assert judged(name).verdict == "not modelled"
    assert words in judged(name).reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("finetune_qwen2.5_72B_32K", "seqpipe"),
        ("tune_qwen25_32b_4k_full_ms", "as long as its samples"),
    ],
)
def test_a_plan_that_does_not_fit_says_what_is_not_modelled(name, words):
    assert judged(name).verdict == "too large"
    assert words in judged(name).reason


def test_an_uneven_split_that_a_table_leaves_out_is_found_to_be_needed():
    """MindSpeed's script has --num-layer-list 11,13,19,21 on 4 stages; evenly split the first would not fit."""
    row = next(row for row in ROWS if row["model"] == "pretrain_qwen25_32b_32k_ms")
    with_list, without = published.judge([row, {**row, "note": ""}])
    assert with_list.verdict == "fits"
    assert without.verdict == "too large"
    assert "fewer layers on its first stages" in without.reason


def test_measured_memory_is_met_within_a_tenth():
    found = published.measured(ROWS)
    assert [(one.kind, one.recompute, one.measured) for one in found] == [
        ("real", "none", 55405),
        ("real", "full", 35073),
        ("dryrun", "none", 55389),
        ("dryrun", "full", 34946),
    ]
    for one in found:
        assert abs(one.error) < 0.1
        assert one.first == pytest.approx(one.measured, rel=0.02)


def test_measured_memory_is_met_within_a_tenth_whatever_a_table_leaves_out():
    rows = [row for row in ROWS if row["kind"] == "measured-memory" and row["recompute"] == "none"]
    for given in ("", "True", "False"):
        for one in published.measured({**row, "seq_parallel": given} for row in rows):
            assert abs(one.error) < 0.1


def test_caps_are_caps():
    for one in JUDGED.values():
        if one.verdict == "fits" and one.cap and one.memory:
            assert one.memory.pool <= one.cap, one.name


# As the model's name says, in billions.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("finetune_codellama_34b_16p", 33.7),
        ("finetune_llama2_70b", 69.0),
        ("finetune_deepseek_33b", 33.3),
        ("finetune_deepseek2_236B", 236),
        ("pretrain_mixtral-8x7b", 46.7),
        ("finetune_qwen2_57b", 57.4),
        ("pretrain_qwen3_30b_a3b_4k", 30.5),
        ("finetune_telechat_115b", 115),
        ("finetune_qwen1_5_72b", 72),
    ],
)
def test_shapes_have_the_size_in_their_name(name, billions):
    row = next(row for row in ROWS if row["model"] == name)
    assert parameters.total(published_rows.shape_of(row, [])) / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_wrong_table_or_cell_is_refused(tmp_path):
    wrong = tmp_path / "plans.csv"
    wrong.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="the column 'devices' is missing"):
        published_rows.read(wrong)
    row = next(row for row in ROWS if row["model"] == "finetune_llama2_70b")
    (one,) = published.judge([{**row, "tp": "four"}])
    assert one.verdict == "not modelled" and "tp is 'four'" in one.reason
    (one,) = published.judge([{**row, "devices": "63"}])
    assert "= 64 devices, but there are 63" in one.reason


def test_experts_of_no_known_family_are_as_wide_as_the_row_says():
    """TeleChat2-39B-A12B: 16 experts of 6144, four a token."""
    [row] = [row for row in ROWS if row["model"] == "finetune_telechat_39b_a12b"]
    shape = published_rows.shape_of(row, [])
    assert parameters.total(shape) == pytest.approx(39e9, rel=0.02)
    assert parameters.active(shape) == pytest.approx(12e9, rel=0.02)
