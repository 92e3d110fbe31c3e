"""MindFormers YAML in and out: meanings as in MindFormers r1.3.0."""

import dataclasses
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.mindformers import not_carried, read_parallel, write_parallel
from mindspeed_ms.parallel.plan.settings import Settings

# The sections that decide, as Llama-2-70B has them for 64 devices (figures of configs/llama2/pretrain_llama2_70b.yaml).
LLAMA = """
runner_config: {epochs: 3, batch_size: 1, sink_mode: True}
parallel:
  enable_parallel_optimizer: True
  parallel_optimizer_config: {gradient_accumulation_shard: False, parallel_optimizer_threshold: 64}
parallel_config: &parallel
  data_parallel: 2
  model_parallel: 4
  pipeline_stage: 8
  use_seq_parallel: True
  micro_batch_num: 128
  vocab_emb_dp: False
  gradient_aggregation_group: 4
micro_batch_interleave_num: 1
recompute_config: {recompute: False, select_recompute: False, mp_comm_recompute: True}
model:
  model_config: {num_layers: 80, offset: 0}
"""


def _llama(**changes):
    root = yaml.safe_load(LLAMA)
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = root
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
    return yaml.safe_dump(root)


def test_the_sections_of_a_published_file_are_read():
    found = read_parallel(LLAMA, "llama.yaml")
    assert found == Settings(
        data=2, tensor=4, pipeline=8, micro_batch=1, micro_batches=128, zero=1, sequence_parallel=True
    )
    # base_trainer.py: batch_size · data_parallel · micro_batch_num · micro_batch_interleave_num
    assert (found.devices, found.global_batch) == (64, 1 * 2 * 128 * 1)


def test_the_section_alone_is_enough():
    assert read_parallel("data_parallel: 4\nmodel_parallel: 2\n", "x") == Settings(data=4, tensor=2)


def test_without_a_pipeline_accumulation_counts_and_micro_batch_num_does_not():
    text = _llama(parallel_config__pipeline_stage=1, runner_config__gradient_accumulation_steps=3)
    assert read_parallel(text, "x").micro_batches == 3
    assert read_parallel(_llama(micro_batch_interleave_num=2), "x").micro_batches == 256


@pytest.mark.parametrize(
    ("options", "zero"),
    [
        ({}, 1),
        ({"gradient_accumulation_shard": False}, 1),
        ({"gradient_accumulation_shard": True}, 2),
        ({"optimizer_level": "level1"}, 1),
        ({"optimizer_level": "level3"}, 3),
    ],
)
def test_the_parallel_optimizer_is_a_zero_stage(options, zero):
    assert read_parallel(_llama(parallel__parallel_optimizer_config=options), "x").zero == zero
    assert read_parallel(_llama(parallel__enable_parallel_optimizer=False), "x").zero == 0


@pytest.mark.parametrize(
    ("value", "kind", "layers"),
    [
        (True, "full", None),
        (False, "none", None),
        ([8, 8, 8, 7, 7, 5, 4, 2], "full", (8, 8, 8, 7, 7, 5, 4, 2)),
        ([0] * 8, "none", None),
        (3, "full", (3,) * 8),
    ],
)
def test_recompute_is_a_flag_or_layers_of_each_stage(value, kind, layers):
    found = read_parallel(_llama(recompute_config__recompute=value), "x")
    assert (found.recompute, found.recompute_layers) == (kind, layers)


def test_select_recompute_takes_flags_lists_and_patterns():
    for value in (True, [r"feed_forward\.mul"], {r"feed_forward\.mul": True}):
        assert read_parallel(_llama(recompute_config__select_recompute=value), "x").recompute == "selective"


def test_offset_moves_layers_between_stages():
    # LayerSetting: layers of a stage = num_layers // stages + offset, here of GLM-4-9B on four stages.
    text = _llama(
        parallel_config__pipeline_stage=4, model__model_config__num_layers=40, model__model_config__offset=[-1, 0, 1, 0]
    )
    assert read_parallel(text, "x").layers == (9, 10, 11, 10)


def test_interleaving_has_a_list_of_offsets_for_each_chunk():
    text = _llama(
        parallel__pipeline_config={"pipeline_interleave": True, "pipeline_scheduler": "1f1b"},
        parallel_config__pipeline_stage=2,
        model__model_config__num_layers=10,
        model__model_config__pp_interleave_num=2,
        model__model_config__offset=[[0, 1], [1, 0]],
        recompute_config__recompute=[[1, 2], [0, 1]],
    )
    found = read_parallel(text, "x")
    assert (found.schedule, found.virtual, found.layers) == ("interleaved", 2, (2, 3, 3, 2))
    assert found.recompute_layers == (1, 3)


def test_interleaving_that_is_not_turned_on_does_not_count():
    assert read_parallel(_llama(model__model_config__pp_interleave_num=2), "x").virtual == 1


def test_layers_that_predict_further_tokens_are_the_last():
    # DeepSeek-V3: 61 layers and one more, on 16 stages.
    text = _llama(
        parallel_config__pipeline_stage=16,
        model__model_config__num_layers=61,
        model__model_config__mtp_depth=1,
        model__model_config__offset=[1] * 15 + [-1],
    )
    assert read_parallel(text, "x").layers == (4,) * 15 + (1,)
    assert any("mtp_depth" in line for line in not_carried(text, "x"))


def test_what_has_no_place_is_told():
    text = _llama(parallel_config__context_parallel_algo="ulysses_cp", parallel_config__new_key=1)
    found = "\n".join(not_carried(text, "x"))
    for key in ("gradient_aggregation_group", "context_parallel_algo", "new_key"):
        assert f"parallel_config.{key}" in found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parallel_config__data_parallel": 0},
            r"llama.yaml: parallel_config.data_parallel: 0; expected a whole number",
        ),
        ({"parallel_config__model_parallel": "four"}, "parallel_config.model_parallel: 'four'"),
        ({"parallel_config__expert_parallel": 4}, "expert_parallel: 4; expected a divisor of data_parallel, 2"),
        ({"parallel_config__micro_batch_num": 4}, "micro_batch_num: 4; expected at least pipeline_stage, which is 8"),
        ({"parallel_config__use_seq_parallel": "yes"}, "use_seq_parallel: 'yes'; expected True or False"),
        ({"model__model_config__offset": [1, 0]}, "8 whole numbers, one for each stage"),
        ({"model__model_config__offset": [1] + [0] * 7}, "a sum of 0"),
        ({"recompute_config__recompute": [1, 2]}, "recompute_config.recompute"),
        ({"parallel__pipeline_config": {"pipeline_scheduler": "seqpipe"}}, "pipeline_scheduler: 'seqpipe'"),
        ({"parallel__pipeline_config": {"pipeline_scheduler": "zero_bubble_v"}}, "zero_bubble_v"),
        ({"parallel_config": [1]}, "expected a section with keys"),
    ],
)
def test_a_bad_value_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        read_parallel(_llama(**changes), "llama.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "x:1: no YAML"), ("- a", "expected a MindFormers YAML"), ("b: 1", "no parallel_config")],
)
def test_what_is_no_such_file_is_said(text, message):
    with pytest.raises(ConfigError, match=message):
        read_parallel(text, "x")


@st.composite
def _settings(draw):
    pipeline = draw(st.sampled_from((1, 2, 4)))
    virtual = draw(st.sampled_from((1, 2))) if pipeline > 1 else 1
    schedules = ("gpipe", "1f1b") if virtual == 1 else ("interleaved",)
    layers = tuple(draw(st.lists(st.integers(1, 5), min_size=pipeline * virtual, max_size=pipeline * virtual)))
    recompute = draw(st.sampled_from(("none", "selective", "full")))
    stages = st.tuples(*[st.integers(0, 3)] * pipeline).filter(any)
    return Settings(
        data=4,
        tensor=draw(st.sampled_from((1, 2))),
        pipeline=pipeline,
        context=draw(st.sampled_from((1, 2))),
        expert=draw(st.sampled_from((1, 2, 4))),
        micro_batch=draw(st.integers(1, 3)),
        micro_batches=draw(st.integers(4, 9)),
        zero=draw(st.integers(0, 3)),
        sequence_parallel=draw(st.booleans()),
        recompute=recompute,
        recompute_layers=draw(st.none() | stages) if recompute != "none" else None,
        schedule=draw(st.sampled_from(schedules)) if pipeline > 1 else "1f1b",
        virtual=virtual,
        layers=layers if len(set(layers)) > 1 else (),
    )


@limits(max_examples=60, deadline=None)
@given(_settings())
def test_what_is_written_reads_back_the_same(settings):
    assert read_parallel(write_parallel(settings), "x") == settings


def test_a_schedule_that_mindformers_has_not_is_not_written_as_another():
    with pytest.raises(ConfigError, match="zero_bubble_v is not ZB-H1"):
        write_parallel(Settings(pipeline=2, micro_batches=4, schedule="zero_bubble"))


def test_a_rest_of_layers_is_given_to_the_first_stages_in_so_many_words():
    text = write_parallel(Settings(pipeline=4, micro_batches=4), layers=10)
    assert yaml.safe_load(text)["model"]["model_config"] == {"offset": [1, 1, 0, 0], "num_layers": 10}
    even = yaml.safe_load(write_parallel(Settings(pipeline=4, micro_batches=4), layers=12))
    assert even["model"]["model_config"] == {"offset": 0, "num_layers": 12}


def test_levels_that_mindspore_refuses_together_are_not_written_together():
    # _auto_parallel_context.py: gradient_accumulation_shard may stand beside level2 only.
    for zero in (1, 2, 3):
        options = yaml.safe_load(write_parallel(Settings(zero=zero)))["parallel"]["parallel_optimizer_config"]
        assert not ({"gradient_accumulation_shard", "optimizer_level"} <= options.keys())


def test_experts_outside_the_data_dimension_cannot_be_written():
    with pytest.raises(ConfigError, match="expert 4"):
        write_parallel(dataclasses.replace(Settings(), data=2, context=2, expert=4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 600, "f: no YAML: nested too deep"),
        ("parallel_config:\n  data_parallel: " + "9" * 5000, "f: no YAML: a value is not of its kind"),
        ("parallel_config:\n  data_parallel: 2020-13-45", "f: no YAML: a value is not of its kind"),
        ("\0", "f: no YAML"),
        ("parallel_config: {}\n---\na: 1", "f:2: no YAML"),
        (
            "parallel_config: {pipeline_stage: 1000000000}",
            "pipeline_stage: 1000000000; expected a whole number from 1 to",
        ),
        (
            "parallel_config: {pipeline_stage: 4000, micro_batch_num: 4000}\n"
            "parallel: {pipeline_config: {pipeline_interleave: true}}\n"
            "model: {model_config: {pp_interleave_num: 4000}}",
            "at most 4096 chunks",
        ),
        ("parallel_config: {data_parallel: '8'}", "data_parallel: '8'; expected a whole number"),
        ("parallel: {pipeline_config: {pipeline_scheduler: []}}\nparallel_config: {}", "pipeline_scheduler"),
        (
            "parallel: {enable_parallel_optimizer: true, parallel_optimizer_config: {optimizer_level: [1]}}\n"
            "parallel_config: {}",
            "optimizer_level",
        ),
        ("parallel_config: {}\nmodel: {model_config: {num_layers: 4, offset: []}}", "offset"),
        ("parallel_config: {}\nmodel: {model_config: {num_layers: 4, offset: 1, mtp_depth: {}}}", "offset"),
        ("parallel_config: {}\nmodel: {model_config: {num_layers: 4, offset: 1, mtp_depth: [1]}}", "mtp_depth"),
    ],
)
def test_what_no_program_could_use_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError) as error:
        read_parallel(text, "f")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("limit", [1000, 10000])  # Python's own, and that of a process with MindSpore
@pytest.mark.parametrize("depth", [65, 600, 30000])
def test_the_same_depth_is_refused_whatever_the_process_allows(limit, depth):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        for text in ("a: " + "[" * depth, "a: " + "[" * depth + "]" * depth):
            with pytest.raises(ConfigError, match="f: no YAML: nested too deep"):
                read_parallel(text, "f")
    finally:
        sys.setrecursionlimit(before)


def test_of_two_equal_keys_the_last_counts_and_is_told():
    text = "\ufeffparallel_config:\r\n  data_parallel: 2\r\n  data_parallel: 4\r\n"
    assert read_parallel(text, "f").data == 4
    assert not_carried(text, "f") == ["data_parallel: given a second time in line 3: the last counts"]


def test_a_pipeline_of_too_few_micro_batches_is_not_written():
    with pytest.raises(ConfigError, match="micro_batches 2: .* at least as many as stages, 4"):
        write_parallel(Settings(pipeline=4, micro_batches=2))
