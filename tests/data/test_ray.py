"""Ray's actors do what processes do: the same results in the same order, the same errors."""

import os
import sys

import data_pool_work as work
import numpy as np
import pytest
from data_tokenizers import TEXT, data_tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data import ray_pool
from mindspeed_ms.data.encode import Encoder
from mindspeed_ms.data.pool import Pool
from mindspeed_ms.data.ray_pool import RayPool
from mindspeed_ms.errors import ConfigError, DataError

try:
    import ray
except ImportError:
    ray = None

needs_ray = pytest.mark.skipif(ray is None, reason="needs ray: pip install 'mindspeed-ms[ray]'")


@pytest.fixture(scope="module")
def no_cluster_left():
    yield
    ray.shutdown()


@pytest.fixture
def cluster(no_cluster_left):
    """Starting a cluster takes some seconds, so the tests share one until one of them ends it."""
    if not ray.is_initialized():
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": python_path()})


def python_path():
    return {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


@pytest.mark.skipif(ray is not None, reason="Ray is installed")
def test_without_ray_the_error_says_what_to_install():
    with pytest.raises(ConfigError, match=r"^engine ray needs Ray.*pip install 'mindspeed-ms\[ray\]'$"):
        RayPool(work.doer, 2, None)


@needs_ray
def test_two_actors_give_what_two_processes_give(cluster, tmp_path):
    chunks = work.raw_chunks([f"{text} {i}" for i in range(30) for text in TEXT], 7)
    factory = work.partial(Encoder, data_tokenizer(tmp_path / "m"), PrepareConfig(), ["a"])
    with Pool(factory, 2) as processes, RayPool(factory, 2, None) as actors:
        for found, expected in zip(actors.map(iter(chunks)), processes.map(chunks), strict=True):
            assert found.counts == expected.counts and found.after == expected.after
            for name in ("tokens", "lengths", "sizes", "hashes"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@needs_ray
def test_results_come_in_order_and_few_items_are_on_their_way(cluster):
    with RayPool(work.doubler, 2, None) as pool:
        source = iter(range(30))
        results = pool.map(source)
        pids = set()
        for done in range(30):
            value, pid = next(results)
            pids.add(pid)
            assert value == 2 * done and 30 - source.__length_hint__() <= done + 4
    assert len(pids) == 2 and os.getpid() not in pids


@needs_ray
def test_errors_come_in_their_place(cluster):
    with RayPool(work.doer, 2, None) as pool:
        results = pool.map([("echo", 1), ("fail", "damaged"), ("echo", 2)])
        assert next(results) == 1
        with pytest.raises(DataError, match="^file: damaged; copy it again$"):
            next(results)
        assert list(pool.map([("echo", 7)])) == [7]
    with RayPool(work.broken, 2, None) as pool, pytest.raises(ConfigError, match="^option: x: expected y"):
        list(pool.map(range(3)))


@needs_ray
def test_an_actor_that_dies_is_an_error(cluster):
    with (
        RayPool(work.doer, 2, None) as pool,
        pytest.raises(DataError, match=r"^a Ray actor was lost \(.*; run the same"),
    ):
        list(pool.map([("echo", 1), ("stop", "kill"), *[("echo", 2)] * 5]))


@needs_ray
def test_actors_that_the_cluster_has_no_cpu_for_are_an_error_that_says_how_many_it_has(cluster, monkeypatch):
    monkeypatch.setattr(ray_pool, "_START_SECONDS", 3)
    with pytest.raises(DataError, match=r"^ray: [0-4] of 6 workers began within 3 s; .* has 4; give fewer workers, or"):
        RayPool(work.doer, 6, None)
    monkeypatch.undo()
    with RayPool(work.doer, 2, None) as pool:  # nothing of the six is left
        assert list(pool.map([("echo", 1)])) == [1]


@needs_ray
def test_without_a_number_of_workers_each_cpu_of_the_cluster_gets_one(cluster):
    with RayPool(work.doubler, None, None) as pool:
        assert len({pid for _, pid in pool.map(range(12))}) == 4


@needs_ray
def test_an_address_where_no_cluster_is_gives_one_line():
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(DataError, match=r"^ray: no cluster at 127\.0\.0\.1:1 \("):
        RayPool(work.doer, 2, "127.0.0.1:1")


@needs_ray
def test_a_pool_starts_and_ends_a_cluster_of_its_own():
    if ray.is_initialized():
        ray.shutdown()
    with RayPool(work.doer, 2, None) as pool:
        assert list(pool.map([("echo", 1), ("sum", np.ones(3, np.int32))]))[0] == 1
    assert not ray.is_initialized()
