"""The folder of a plan: all files of it, checked as they are written."""

import pytest

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Settings
from mindspeed_ms.parallel.plan.strategy.folder import notes, write_checked
from mindspeed_ms.parallel.plan.strategy.propagate import propagate
from mindspeed_ms.parallel.plan.strategy.read import read_strategy
from mindspeed_ms.parallel.plan.strategy.rings import check_rings, read_rings, ring_groups, write_rings
from mindspeed_ms.parallel.plan.strategy.spread import Mesh


def test_a_folder_holds_both_forms_of_every_stage_and_the_rings_that_fit_them(make_decoder, tmp_path):
    groups = {"tensor": [(0, 1), (2, 3), (4, 5), (6, 7)], "data": [(0, 2), (1, 3), (4, 6), (5, 7)]}
    settings = Settings(data=2, tensor=2, pipeline=2)
    made, paths, _ = write_checked(make_decoder(), settings, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert [read_strategy(path) for path in paths if path.suffix == ".json"] == list(made)
    side = ring_groups(groups, range(8), [(0, 1, 2, 3), (4, 5, 6, 7)])
    write_rings(side, tmp_path / "rings.json")
    assert side == read_rings(tmp_path / "rings.json")
    check_rings(side, [read_strategy(path) for path in paths if path.suffix == ".ckpt"], "rings.json")


def test_nothing_is_written_for_a_graph_that_cannot_be_split(make_decoder, tmp_path):
    with pytest.raises(ConfigError, match="batch"):
        write_checked(make_decoder(), Settings(data=3), tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_notes_tell_of_weights_kept_whole_and_of_what_is_moved(make_decoder, mindir, linear):
    assert notes(propagate(make_decoder(), Mesh(data=2, tensor=2))) == []
    assert "layers.0.down.weight/MatMul-op0" in notes(propagate(make_decoder(inner=30), Mesh(tensor=4)))[0]
    net = mindir()
    y = linear(net, net.input("x", 8, 16), "head.weight", 8, 16, 32)
    net.node("LogSoftmax", "loss/LogSoftmax-op0", [y, net.constant(-1)], 8, 32)
    (line,) = notes(propagate(net.graph(), Mesh(data=2, tensor=2)))
    assert "[data, tensor] to [data*tensor, -]" in line and "Default/loss/LogSoftmax-op0" in line
