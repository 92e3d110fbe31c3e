"""What binds a plan, why its choices, its sensitivity, published plans beside ours, and the picture of a step."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from mindspeed_ms.parallel.plan import compare, published_rows, timeline
from mindspeed_ms.parallel.plan.candidates import Limits
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.explain import binds, reasons
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.search import search
from mindspeed_ms.parallel.plan.sensitivity import kinds, sensitivity
from mindspeed_ms.parallel.plan.settings import Job
from mindspeed_ms.parallel.topology.load import load_cluster

GIB = 1 << 30
SHAPE, JOB = read_model("llama2-7b"), Job(4096, 64)


def ranked(cluster=None, **limits):
    cluster = cluster or load_cluster("910b")
    wanted = Limits(**limits)
    evaluator = Evaluator(SHAPE, cluster, JOB, wanted.memory)
    return search(SHAPE, cluster, JOB, wanted, evaluator), evaluator, wanted


def test_memory_binds_by_what_the_step_would_gain_without_its_limit():
    tight, free = ranked(memory=18 * GIB, keep=3), ranked(memory=1000 * GIB, keep=3)
    gain = 1 - free[0].best.seconds / tight[0].best.seconds
    assert dict(binds(*tight))["memory"] == pytest.approx(gain) and gain > 0.01
    assert dict(binds(*free))["memory"] == 0


def test_slow_links_bind_a_job_that_is_made_to_use_them():
    cluster = load_cluster("910b")
    slow = replace(cluster, links={**cluster.links, "HCCS": replace(cluster.links["HCCS"], bandwidth=1e9)})
    assert binds(*ranked(slow, tensor=8))[0][0] == "bandwidth"
    assert binds(*ranked(tensor=1))[0][0] == "compute"


def test_a_pipeline_of_few_micro_batches_is_bound_by_its_bubble():
    what = dict(binds(*ranked(pipeline=8, micro_batch=16, schedules=("1f1b",))))
    assert what["bubble"] > 0.5


def test_reasons_tell_of_recomputation_and_of_what_was_given():
    lines = "\n".join(reasons(*ranked(memory=18 * GIB, tensor=2, keep=3)))
    assert "tensor 2: as given" in lines
    assert re.search(r"recompute \w+: it costs .*; without it .* GiB of 18.0 GiB would be needed", lines)


def test_sensitivity_varies_each_link_memory_and_speed_and_more_is_never_slower():
    ranking, evaluator, limits = ranked(load_cluster("910b", 2), tensor=4, keep=4)
    found = {(one.what, one.factor): one for one in sensitivity(ranking, evaluator, limits)}
    names = ["bandwidth of HCCS", "bandwidth of ROCE", "memory", "speed of computation"]
    assert list(dict.fromkeys(what for what, _ in found)) == names
    for name in names:
        less, more = found[name, 0.8].step_seconds, found[name, 1.2].step_seconds
        assert more <= ranking.best.seconds * (1 + 1e-9) <= less * (1 + 2e-9)


def test_sensitivity_says_when_nothing_fits_any_more():
    ranking, evaluator, limits = ranked(memory=1000 * GIB, tensor=1, zero=0, pipeline=1, context=1, recompute="full")
    tight = replace(evaluator, memory_limit=int(ranking.best.peak * 1.1))
    found = {(one.what, one.factor): one for one in sensitivity(ranking, tight, limits)}
    assert found["memory", 0.8].settings is None and found["memory", 0.8].step_seconds is None
    assert found["memory", 1.2].same


def test_only_links_that_a_cluster_has_are_varied():
    assert kinds(load_cluster("910b")) == ["HCCS"]
    assert set(kinds(load_cluster("910b", 2))) == {"HCCS", "ROCE"}


def row(**cells):
    names = "kind model path layers hidden heads kv_heads ffn vocab seq experts devices dp tp pp micro_batch gbs note"
    plain = dict.fromkeys([*names.split(), "cp", "ep", "vpp", "micro_batch_num", "optimizer_parallel"], "")
    plain |= dict.fromkeys(["seq_parallel", "recompute", "select_recompute", "max_device_memory", "dtype", "topk"], "")
    given = dict(kind="mindspeed-sh-pytorch", model="pretrain_llama2_7b", layers="32", hidden="4096", heads="32")
    given |= dict(ffn="11008", vocab="32000", seq="4096", devices="8", micro_batch="1", gbs="64", path="x", moe_ffn="")
    return {**plain, **given, "published": "", **cells}


def test_published_plans_are_beside_ours_and_say_what_differs():
    rows = [
        row(dp="1", tp="8", pp="1"),
        row(dp="1", tp="8", pp="1"),
        row(dp="2", tp="2", pp="2"),
        row(dp="", tp="", pp=""),
    ]
    found = compare.compare(rows, lambda devices, plan: load_cluster("910b", devices // 8))
    assert len(found) == 2, "equal plans count once, and what states no plan not at all"
    assert compare.share(found) == 1.0
    assert "tensor 8 -> 1" in found[0].why and re.search(r"tensor -[\d.]+ s", found[0].why)
    plan = published_rows.plan_of(rows[0])
    evaluator = Evaluator(plan.shape, load_cluster("910b"), plan.job)
    assert found[0].published.seconds == evaluator.time(plan.settings).total >= found[0].ours.seconds


def test_the_picture_of_a_step_has_a_bar_for_each_piece_and_is_well_formed():
    ranking, evaluator, _ = ranked(pipeline=4, tensor=2, schedules=("1f1b",), micro_batch=4)
    time = evaluator.time(ranking.best.settings)
    bars = [
        timeline.Bar(one.stage, one.start, one.end, "forward" if one.kind == "F" else "backward")
        for one in time.timeline
    ]
    assert len(bars) == 2 * 4 * ranking.best.settings.micro_batches
    picture = timeline.timeline(bars, time.total)
    titles = [node for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("title")]
    assert len(titles) == len(bars) and timeline.omitted(bars, time.total) == ""
    assert timeline.legend(bars) == [("forward", timeline.COLORS["forward"]), ("backward", timeline.COLORS["backward"])]


def test_a_long_step_of_many_stages_is_shown_in_part_and_says_so():
    bars = [timeline.Bar(stage, at + stage, at + stage + 1, "<&") for stage in range(40) for at in range(1000)]
    picture = timeline.timeline(bars, 1040.0)
    assert len(picture) < 1 << 20
    ElementTree.fromstring(picture)
    assert timeline.omitted(bars, 1040.0) == "Shown are 16 of 40 stages and the begin and the end of the step."
    assert "stage 0<" in picture and "stage 39<" in picture
