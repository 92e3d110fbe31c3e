"""What a step says of its compilations is what MindSpore compiled, one graph a bucket."""

from train_models import drawn_weights, make_batch, make_spec, our_model


def test_each_bucket_is_compiled_once_and_said_so(monkeypatch):
    from mindspore.common.api import _CellGraphExecutor

    from mindspeed_ms.train.loss import CausalLMLoss
    from mindspeed_ms.train.optimizer import SGD
    from mindspeed_ms.train.step import TrainStep

    compiled = []
    real = _CellGraphExecutor.compile

    def counting(self, cell, *inputs, **options):
        phase, fresh = real(self, cell, *inputs, **options)
        if fresh:
            compiled.append((type(cell).__name__, tuple(x.shape for x in inputs if len(x.shape) == 2)))
        return phase, fresh

    monkeypatch.setattr(_CellGraphExecutor, "compile", counting)
    spec = make_spec(num_hidden_layers=1)
    step = TrainStep(CausalLMLoss(our_model(spec, drawn_weights(spec))), SGD(), lambda n: 1e-3 / (n + 1))
    small, large = make_batch(0, 2, 8), make_batch(1, 3, 16)
    results = [step(batch) for batch in (small, large, small, large, [small, large], [large, small], small)]
    cells = {"step": "WholeStep", "micro-batch": "MicroStep", "update": "ApplyStep"}
    assert compiled == [(cells[one.graph], one.shapes) for one in step.compilations]
    assert [[one.reason for one in result.compiled] for result in results] == [
        ["first step of [2, 8]"], ["first step of [3, 16]"], [], [],
        ["first micro-batch of [2, 8]", "first micro-batch of [3, 16]", "first update"], [], [],
    ]  # fmt: skip
    assert all(0 < one.seconds <= result.seconds for result in results for one in result.compiled)
