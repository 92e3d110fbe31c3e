"""The search finds what looking at every setting finds, and says what is wrong where there is nothing to find."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan import memory
from mindspeed_ms.parallel.plan.candidates import Limits, divisors, even
from mindspeed_ms.parallel.plan.evaluate import Evaluator
from mindspeed_ms.parallel.plan.model import ModelShape, read_model
from mindspeed_ms.parallel.plan.search import search
from mindspeed_ms.parallel.plan.settings import Job, Settings
from mindspeed_ms.parallel.topology.cluster import Server
from mindspeed_ms.parallel.topology.groups import arrange
from mindspeed_ms.parallel.topology.load import load_cluster

sys.path.insert(0, str(Path(__file__).parent))
from brute_force import all_costs

GIB = 1 << 30
DENSE = ModelShape("small", layers=4, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=5504, vocab=32000)
EXPERTS = replace(DENSE, name="experts", experts=4, top_k=2, expert_ffn=2048)
PAIRS = (("X", "PIX", "SYS", "SYS"), ("PIX", "X", "SYS", "SYS"), ("SYS", "SYS", "X", "PIX"), ("SYS", "SYS", "PIX", "X"))
LATENT = dict(q_lora_rank=768, kv_lora_rank=512, head_dim=192, rope_dim=64, v_head_dim=128)  # as DeepSeek has
DEEP = replace(EXPERTS, name="deep", layers=3, experts=8, dense_layers=1, shared_ffn=2048, **LATENT)
MESH = tuple(tuple("X" if a == b else "HCCS" for a in range(4)) for b in range(4))


def cluster_of(kinds, servers=1):
    whole = load_cluster("910b")
    return replace(whole, name="four", servers=(Server("four", (0, 1, 2, 3), kinds),) * servers)


CASES = {
    "dense": (DENSE, cluster_of(MESH), Job(2048, 4)),
    "dense over PCIe": (replace(DENSE, layers=5, vocab=64000), cluster_of(PAIRS), Job(4096, 2)),
    "experts": (EXPERTS, cluster_of(MESH), Job(2048, 4)),
    "latent attention, experts but in the first layer, two servers": (DEEP, cluster_of(MESH, 2), Job(4096, 2)),
    "two servers": (replace(DENSE, layers=3), cluster_of(MESH, 2), Job(4096, 8)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    shape, cluster, job = CASES[request.param]
    return shape, cluster, job, all_costs(shape, cluster, job)


def test_the_best_is_that_of_every_setting_there_is_at_any_limit_of_memory(case):
    shape, cluster, job, costs = case
    peaks = sorted(peak for _, peak, _ in costs)
    for share in (0.0, 0.02, 0.1, 0.4, 1.0):
        limit = peaks[int(share * (len(peaks) - 1))]
        best = search(shape, cluster, job, Limits(memory=limit)).best
        assert best.seconds == pytest.approx(min(time for time, peak, _ in costs if peak <= limit), rel=1e-9)
        assert best.peak == memory.peak(shape, best.settings, job).total <= limit


@pytest.mark.parametrize(
    "fixed", [{"pipeline": 2}, {"tensor": 2}, {"pipeline": 2, "tensor": 2}, {"zero": 1}, {"context": 2}]
)
def test_the_best_with_something_fixed_is_that_of_every_setting_with_it(case, fixed):
    shape, cluster, job, costs = case
    kept = [(time, peak) for time, peak, one in costs if all(getattr(one, name) == fixed[name] for name in fixed)]
    peaks = sorted(peak for _, peak in kept)
    for share in (0.0, 0.1):
        limit = peaks[int(share * (len(peaks) - 1))]
        best = search(shape, cluster, job, Limits(memory=limit, **fixed)).best
        assert best.seconds == pytest.approx(min(time for time, peak in kept if peak <= limit), rel=1e-9)


def test_the_ranking_holds_the_best_of_each_degrees_in_their_order(case):
    shape, cluster, job, costs = case
    ranking = search(shape, cluster, job, Limits(memory=1 << 40, keep=5))

    def degrees(one):
        return one.data, one.tensor, one.pipeline, one.context, one.expert

    best = {}
    for seconds, _, one in costs:
        best[degrees(one)] = min(seconds, best.get(degrees(one), seconds))
    expected = sorted(best.values())[:5]
    assert [one.seconds for one in ranking.candidates] == pytest.approx(expected, rel=1e-9)
    assert [best[degrees(one.settings)] for one in ranking.candidates] == pytest.approx(expected, rel=1e-9)


def test_no_bound_is_above_what_it_bounds(case):
    shape, cluster, job, costs = case
    evaluator = Evaluator(shape, cluster, job)
    for seconds, _, settings in costs[::7]:
        assert evaluator.bound(settings) <= seconds * (1 + 1e-9)
        plain = replace(settings, recompute="none", recompute_layers=None)
        assert evaluator.bound(plain) <= seconds * (1 + 1e-9)
        assert evaluator.quick(plain) <= seconds * (1 + 1e-9)
        assert evaluator.coarse(plain, (settings.zero,)) <= seconds * (1 + 1e-9)


def test_no_settings_need_less_memory_than_what_rules_them_out(case):
    shape, cluster, job, costs = case
    for _, peak, settings in costs[::7]:
        one = Evaluator(shape, cluster, job, memory_limit=peak)
        assert one.coarse(settings, (settings.zero,)) < float("inf")
    assert Evaluator(shape, cluster, job, memory_limit=1 << 20).coarse(costs[0][2]) == float("inf")


def test_sequence_parallelism_is_never_slower_nor_larger_where_the_search_leaves_out_what_has_none(case):
    shape, cluster, job, costs = case
    by_settings = {settings: (seconds, peak) for seconds, peak, settings in costs}
    evaluator = Evaluator(shape, cluster, job)
    compared = 0
    for settings, (seconds, peak) in by_settings.items():
        split = replace(settings, sequence_parallel=True)
        if settings.tensor > 1 and not settings.sequence_parallel and split in by_settings:
            compared += 1
            assert evaluator.sequence_parallel_wins(settings)
            assert by_settings[split][0] <= seconds * (1 + 1e-9) and by_settings[split][1] <= peak
    assert compared > 100


def test_sequence_parallelism_that_is_slower_for_the_time_its_messages_take_is_said_to_be():
    far = {kind: replace(link, latency=1e-2) for kind, link in cluster_of(PAIRS).links.items()}
    slow = replace(cluster_of(PAIRS), links=far)
    one = Settings(data=2, tensor=2, micro_batch=1)
    evaluator = Evaluator(DENSE, slow, Job(2048, 4))
    with_it = evaluator.time(replace(one, sequence_parallel=True)).total
    assert evaluator.sequence_parallel_wins(one) == (with_it <= evaluator.time(one).total)


@pytest.mark.parametrize("spec", ["910b", "910a", "910b-box16", "a3"])
def test_where_ranks_are_said_to_sit_in_their_own_order_the_arrangement_agrees(spec):
    cluster = load_cluster(spec, 2)
    evaluator = Evaluator(DENSE, cluster, Job(2048, 64))
    for tensor in divisors(cluster.size):
        for context in divisors(cluster.size // tensor):
            settings = Settings(data=cluster.size // tensor // context, tensor=tensor, context=context)
            order = arrange(cluster, settings).order
            assert (evaluator.order(settings) or tuple(range(cluster.size))) == order


def test_for_deepseek_v3_few_settings_of_the_many_are_timed():
    cluster = load_cluster("910b", 32)
    ranking = search(read_model("deepseek-v3"), cluster, Job(4096, 32), Limits(keep=1))
    assert ranking.best.settings.devices == 256 and ranking.best.peak <= ranking.limit
    assert ranking.evaluated < ranking.groups / 10


def test_for_70b_on_1024_devices_few_settings_are_timed():
    cluster = load_cluster("910b", 128)
    ranking = search(read_model("llama2-70b"), cluster, Job(4096, 1024))
    assert ranking.best.settings.devices == 1024 and ranking.best.settings.global_batch == 1024
    assert ranking.pruned > 5 * ranking.evaluated


def test_a_cluster_too_small_says_by_how_many_bytes_and_devices():
    shape, job, limits = DENSE, Job(2048, 16), Limits(memory=2 * GIB)
    with pytest.raises(
        ConfigError, match=r"on 4 devices of 2.0 GiB: .* need .* GiB on a device, .* GiB more; "
    ) as error:
        search(shape, cluster_of(MESH), job, limits)
    needed, more = map(int, re.findall(r"(\d+) (?:such devices|more)", str(error.value).split("; ")[1]))
    assert needed == 4 + more > 4
    assert search(shape, cluster_of(MESH, needed // 4), job, limits).best.peak <= limits.memory


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"tensor": 3}, r"tensor 3 = 3: the job has 4 devices, .* tensor 1, 2, 4 would"),
        ({"tensor": 2, "pipeline": 3}, r"tensor 2 x pipeline 3 = 6: .*; pipeline 1, 2 would"),
        ({"data": 2, "tensor": 2, "pipeline": 2, "context": 2}, r"= 16: the job has 4 devices.*; change several"),
        ({"layers": (1, 2)}, r"layers adds up to 3; small has 4 layers"),
        ({"layers": (1, 1, 1)}, r"layers names 3 chunks, which no number of stages on 4 devices divides"),
        ({"tensor": 2, "pipeline": 2, "data": 2}, r"data 2 x tensor 2 x pipeline 2 = 8: the job has 4 devices"),
        (
            {"tensor": 1, "pipeline": 1, "data": 2, "context": 1},
            r"= 2: the job has 4 devices, which that does not use up",
        ),
        ({"micro_batch": 3}, r"micro_batch 3: does not divide a global batch of 8.*these do: 1, 2, 4, 8"),
        ({"virtual": 2, "schedules": ("1f1b",)}, r"only the interleaved schedule has chunks"),
        ({"virtual": 2, "pipeline": 1}, r"virtual 2 with pipeline 1"),
        ({"layers": (3, 2), "pipeline": 2}, r"layers adds up to 5; small has 4 layers"),
        ({"devices": 5}, r"devices 5: the cluster four has 4"),
        ({"expert": 2}, r"expert 2: small has no experts"),
        ({"sequence_parallel": True, "tensor": 1}, r"sequence_parallel"),
        ({"zero": 4}, r"zero is 4; expected 0, 1, 2 or 3"),
        ({"tensor": 0}, r"tensor is 0; expected a whole number from 1"),
    ],
)
def test_what_contradicts_itself_is_refused_with_what_would_do(limits, message):
    with pytest.raises(ConfigError, match=message):
        search(DENSE, cluster_of(MESH), Job(2048, 8), Limits(**limits))


def test_degrees_that_do_not_divide_heads_are_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"tensor 4 does not divide the 6 .*1, 2"):
        search(replace(DENSE, heads=6, kv_heads=2), cluster_of(MESH), Job(2048, 8), Limits(tensor=4))


def test_layers_that_do_not_divide_are_spread_with_the_longer_chunks_in_the_middle():
    assert even(7, 4) == (2, 2, 2, 1) or sorted(even(7, 4)) == [1, 2, 2, 2]
    assert even(10, 4)[0] == even(10, 4)[-1] == 2 and sum(even(10, 4)) == 10
    assert even(8, 4) == (2, 2, 2, 2)
