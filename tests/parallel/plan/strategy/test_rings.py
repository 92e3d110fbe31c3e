"""The side file of ring groups, against the strategy files and the order of ranks alone."""

import itertools
import json

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.make import make_strategies
from mindspeed_ms.parallel.plan.strategy.read import read_strategy
from mindspeed_ms.parallel.plan.strategy.rings import check_rings, read_rings, ring_groups, tensor_groups, write_rings
from mindspeed_ms.parallel.plan.strategy.write import write_strategies

RINGS = ((0, 1, 2, 3), (4, 5, 6, 7))  # a 910A: two rings of four


@pytest.mark.parametrize("settings", [Settings(data=2, tensor=4), Settings(data=2, tensor=2, pipeline=2)])
def test_from_strategy_files_and_the_order_alone_each_tensor_group_is_inside_one_ring(make_decoder, settings, tmp_path):
    files, _ = make_strategies(make_decoder(), settings)
    write_strategies(files, tmp_path)
    order = (1, 0, 3, 2, 5, 4, 7, 6)  # rank -> slot
    read = [read_strategy(tmp_path / f"stage_{stage}.ckpt") for stage in range(settings.pipeline)]
    groups = tensor_groups(read)
    # plan/settings.py: rank = ((stage · data + d) · context + c) · tensor + t
    expected = [tuple(range(i, i + settings.tensor)) for i in range(0, settings.devices, settings.tensor)]
    assert list(groups) == expected
    for ranks in groups:
        assert any({order[rank] for rank in ranks} <= set(ring) for ring in RINGS)


def test_the_side_file_is_read_back_and_agrees_with_the_strategy_files(make_decoder, tmp_path):
    files, _ = make_strategies(make_decoder(), Settings(data=2, tensor=4))
    groups = {"tensor": [(0, 1, 2, 3), (4, 5, 6, 7)], "data": [(i, i + 4) for i in range(4)]}
    side = ring_groups(groups, range(8), RINGS)
    path = write_rings(side, tmp_path / "rings.json")
    assert read_rings(path) == side
    assert [group.ring for group in side.groups["tensor"]] == [0, 1]
    assert [group.ring for group in side.groups["data"]] == [None] * 4
    check_rings(side, files, "rings.json")


def test_every_order_that_breaks_a_ring_is_found(make_decoder):
    files, _ = make_strategies(make_decoder(), Settings(data=2, tensor=4))
    groups = {"tensor": [(0, 1, 2, 3), (4, 5, 6, 7)]}
    for swapped in itertools.combinations(range(8), 2):
        order = list(range(8))
        order[swapped[0]], order[swapped[1]] = order[swapped[1]], order[swapped[0]]
        broken = swapped[0] < 4 <= swapped[1]
        side = ring_groups(groups, order, RINGS)
        if broken:
            with pytest.raises(ConfigError, match=r"rings\.json: the tensor group of the ranks .* over several rings"):
                check_rings(side, files, "rings.json")
        else:
            check_rings(side, files, "rings.json")


def test_groups_of_another_plan_are_refused(make_decoder):
    files, _ = make_strategies(make_decoder(), Settings(data=4, tensor=2))
    side = ring_groups({"tensor": [(0, 1, 2, 3), (4, 5, 6, 7)]}, range(8), RINGS)
    with pytest.raises(ConfigError, match="ranks 0, 1, which is not among groups.tensor"):
        check_rings(side, files, "rings.json")


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"order": [-1]}, {"more": 1}, {"groups": {"tensor": [{"ranks": [0]}]}}]
)
def test_a_side_file_with_other_keys_or_values_is_refused_by_name(tmp_path, change):
    path = tmp_path / "rings.json"
    path.write_text(json.dumps({"order": [], "rings": [], "groups": {}} | change))
    with pytest.raises(ConfigError, match="rings.json: "):
        read_rings(path)
