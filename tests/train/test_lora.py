"""LoRA on a network: what is wrapped, what is trained, what merging gives, and the files in PEFT's layout."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from mindspeed_ms.errors import ConfigError, WeightsError
from mindspeed_ms.models import build_model, spec_from_hf
from mindspeed_ms.train.adapter import load_adapter, save_adapter
from mindspeed_ms.train.lora import LoraConfig, apply_lora, lora_layers, merge_lora

TINY = {
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
PER_LAYER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(autouse=True)
def _eager():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    yield
    ms.set_context(mode=before)


def tiny():
    model = build_model(spec_from_hf(TINY))
    randomize(model.get_parameters())
    return model


def randomize(parameters, seed=0):
    generator = np.random.default_rng(seed)
    for parameter in parameters:
        parameter.set_data(Tensor(generator.normal(0, 0.3, parameter.shape).astype(np.float32)))


def ids(length=7):
    return Tensor(np.random.default_rng(1).integers(0, 48, (2, length)).astype(np.int32))


def logits(model):
    return model(ids()).asnumpy()


def names(model):
    return [name for name, _ in model.parameters_and_names()]


class Linears(nn.Cell):
    """x [3, 4] through two linear layers, one of them held twice."""

    def __init__(self, activation=None):
        super().__init__()
        self.fc = nn.Dense(4, 4, activation=activation)
        self.both = nn.SequentialCell(self.fc, nn.Dense(4, 2))

    def construct(self, x):
        return self.both(self.fc(x))


def test_all_linear_layers_but_the_output_layer_are_wrapped_and_nothing_else_is_trained():
    model = tiny()
    report = apply_lora(model, LoraConfig(rank=3))
    assert len(report.wrapped) == 2 * len(PER_LAYER)
    assert {path.rpartition(".")[2] for path in report.wrapped} == set(PER_LAYER)
    assert list(report.trained) == [parameter.name for parameter in model.trainable_params()]
    assert all(name.endswith(("lora_A.weight", "lora_B.weight")) for name in report.trained)
    # rank * (inputs + outputs) for q, o: 64 -> 64, k, v: 64 -> 32, gate, up: 64 -> 96, down: 96 -> 64
    assert report.trained_parameters == 2 * 3 * (2 * 128 + 2 * 96 + 3 * 160)
    plain = sum(parameter.size for parameter in tiny().get_parameters())
    assert report.all_parameters == plain + report.trained_parameters
    assert f"{report.share:.2%}" in str(report)


def test_targets_are_the_last_parts_of_names_or_whole_paths():
    report = apply_lora(tiny(), LoraConfig(targets=["q_proj", "model.layers.1.mlp.up_proj"]))
    assert report.wrapped == (
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    )


def test_the_base_keeps_its_parameters_and_their_names():
    model = tiny()
    before = dict(model.parameters_and_names())
    apply_lora(model, LoraConfig())
    after = dict(model.parameters_and_names())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert all(name == parameter.name for name, parameter in after.items())


def test_a_new_adapter_changes_no_output():
    model = tiny()
    before = logits(model)
    apply_lora(model, LoraConfig())
    np.testing.assert_array_equal(logits(model), before)


def test_a_is_drawn_by_name_within_pefts_bound_and_b_is_zero():
    model, other = tiny(), tiny()
    apply_lora(model, LoraConfig(rank=16), seed=5)
    apply_lora(other, LoraConfig(rank=16, targets=["up_proj"]), seed=5)
    layers = lora_layers(model)
    for path, layer in lora_layers(other).items():
        np.testing.assert_array_equal(layer.lora_A.weight.asnumpy(), layers[path].lora_A.weight.asnumpy())
    for layer in layers.values():
        a = layer.lora_A.weight.asnumpy()
        bound = 1 / np.sqrt(a.shape[1])  # kaiming_uniform_(a=sqrt(5)): sqrt(6 / (1 + 5) / inputs)
        assert 0.9 * bound < np.abs(a).max() <= bound
        assert a.std() == pytest.approx(bound / np.sqrt(3), rel=0.1)
        assert not layer.lora_B.weight.asnumpy().any()
    first, second = (layers[f"model.layers.{number}.mlp.up_proj"].lora_A.weight.asnumpy() for number in range(2))
    assert (first != second).all()


@pytest.mark.parametrize(("rslora", "scaling"), [(False, 12 / 4), (True, 12 / 2)])
def test_the_output_is_the_bases_and_the_scaled_product(rslora, scaling):
    net = Linears()
    apply_lora(net, LoraConfig(rank=4, alpha=12, targets=["fc"], use_rslora=rslora))
    randomize(net.get_parameters())
    x = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    w, bias, a, b = (p.asnumpy().astype(np.float64) for p in net.fc.get_parameters())
    expected = x @ w.T + bias + scaling * x @ a.T @ b.T
    np.testing.assert_allclose(net.fc(Tensor(x)).asnumpy(), expected, rtol=1e-5, atol=1e-5)


def test_merging_gives_the_same_outputs_and_the_plain_network_back():
    model = tiny()
    plain = names(model)
    apply_lora(model, LoraConfig(rank=4, dropout=0.2))
    randomize(model.trainable_params())
    model.set_train(False)
    before = logits(model)
    assert len(merge_lora(model)) == 14
    assert names(model) == plain
    np.testing.assert_allclose(logits(model), before, rtol=0, atol=1e-5 * np.abs(before).max())


def test_a_layer_held_twice_is_wrapped_once_in_both_places():
    net = Linears()
    report = apply_lora(net, LoraConfig(rank=2, targets=["fc"]))
    assert report.wrapped == ("fc",)
    assert net.both[0] is net.fc and net.both.cell_list[0] is net.fc
    merge_lora(net)
    assert type(net.fc) is nn.Dense and net.both.cell_list[0] is net.fc


def test_a_network_that_was_compiled_before_runs_with_its_adapter():
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Linears()
    x = Tensor(np.ones((3, 4), np.float32))
    before = net(x).asnumpy()
    apply_lora(net, LoraConfig(rank=2))
    randomize(net.trainable_params())
    adapted = net(x).asnumpy()
    assert np.abs(adapted - before).max() > 0.01
    merge_lora(net)
    np.testing.assert_allclose(net(x).asnumpy(), adapted, rtol=1e-5, atol=1e-6)


def test_gradients_reach_a_and_b_alone_and_are_those_of_the_formula():
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Linears()
    apply_lora(net, LoraConfig(rank=2, alpha=3, targets=["both.1"]))
    randomize(net.get_parameters())
    x = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
    loss = Summed(net)
    weights = ms.ParameterTuple(net.trainable_params())
    _, grads = ms.value_and_grad(loss, None, weights)(Tensor(x))
    fc, last = net.fc, net.both[1]
    hidden = (x @ fc.weight.asnumpy().T + fc.bias.asnumpy()) @ fc.weight.asnumpy().T + fc.bias.asnumpy()
    a, b = last.lora_A.weight.asnumpy(), last.lora_B.weight.asnumpy()
    ones = np.ones((3, 2), np.float32)
    expected = [1.5 * (ones @ b).T @ hidden, 1.5 * ones.T @ (hidden @ a.T)]
    assert [parameter.name for parameter in weights] == ["both.1.lora_A.weight", "both.1.lora_B.weight"]
    for grad, value in zip(grads, expected, strict=True):
        np.testing.assert_allclose(grad.asnumpy(), value, rtol=1e-4, atol=1e-5)


class Summed(nn.Cell):
    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x):
        return self.net(x).sum()


def test_dropout_changes_with_its_seed_and_only_in_training():
    net = Linears()
    apply_lora(net, LoraConfig(rank=4, dropout=0.5, targets=["fc"]), seed=3)
    randomize(net.trainable_params())
    x = Tensor(np.random.default_rng(4).normal(size=(64, 4)).astype(np.float32))
    assert net.dropout_seed.asnumpy().tolist() == [3, 0] and not net.dropout_seed.requires_grad
    net.set_train(False)
    steady = net.fc(x).asnumpy()
    net.set_train(True)
    first, again = net.fc(x).asnumpy(), net.fc(x).asnumpy()
    net.dropout_seed.set_data(Tensor([3, 1], ms.int32))
    second = net.fc(x).asnumpy()
    np.testing.assert_array_equal(first, again)
    assert (first != second).any() and (first != steady).any()
    merge_lora(net)
    assert "dropout_seed" not in names(net)


def test_a_compiled_network_takes_the_seed_that_its_parameter_holds():
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Linears()
    apply_lora(net, LoraConfig(rank=4, dropout=0.5, targets=["fc"]))
    randomize(net.trainable_params())
    net.set_train(True)
    x = Tensor(np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32))
    outputs = []
    for number in (0, 1, 0):
        net.dropout_seed.asnumpy()[1] = number  # a view: nothing is copied, nothing compiled anew
        outputs.append(net(x).asnumpy())
    np.testing.assert_array_equal(outputs[0], outputs[2])
    assert (outputs[0] != outputs[1]).any()


def test_an_adapter_is_read_back_as_it_was_written(tmp_path):
    model, other = tiny(), tiny()
    apply_lora(model, LoraConfig(rank=4, alpha=10, dropout=0.1, targets=["q_proj", "down_proj"], use_rslora=True))
    randomize(model.trainable_params(), seed=7)
    save_adapter(model, tmp_path / "adapter", base="the/base")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    written = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert written["target_modules"] == ["down_proj", "q_proj"] and written["base_model_name_or_path"] == "the/base"
    report = load_adapter(other, tmp_path / "adapter")
    assert len(report.wrapped) == 4
    np.testing.assert_array_equal(logits(other), logits(model))
    layer = next(iter(lora_layers(other).values()))
    assert (layer.config.rank, layer.config.alpha, layer.config.dropout) == (4, 10, 0.1)


def test_names_that_mean_more_layers_than_were_wrapped_are_written_in_full(tmp_path):
    model = tiny()
    apply_lora(model, LoraConfig(targets=["model.layers.1.mlp.up_proj"]))
    save_adapter(model, tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == [
        "model.layers.1.mlp.up_proj"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, r"lora\.rank: 0: expected a whole number from 1"),
        ({"rank": 1.5}, r"lora\.rank: 1\.5"),
        ({"rank": True}, r"lora\.rank: True"),
        ({"alpha": 0}, r"lora\.alpha: 0"),
        ({"alpha": float("nan")}, r"lora\.alpha: nan"),
        ({"dropout": 1.0}, r"lora\.dropout: 1\.0: expected a number from 0 to below 1"),
        ({"targets": "q_proj"}, r"lora\.targets: 'q_proj': expected a list"),
        ({"targets": []}, r"lora\.targets: \[\]: expected one or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        LoraConfig(**options)


def test_an_unknown_target_is_answered_by_the_names_there_are():
    model = tiny()
    with pytest.raises(ConfigError, match="no linear layer is named 'query'; expected some of: q_proj, k_proj, v_proj"):
        apply_lora(model, LoraConfig(targets=["q_proj", "query"]))
    assert not lora_layers(model) and len(model.trainable_params()) == len(names(model))


@pytest.mark.parametrize(
    ("net", "targets", "message"),
    [
        (tiny, ["lm_head"], "'lm_head' is the output layer"),
        (lambda: Linears("relu"), ["fc"], "'fc' has an activation inside"),
        (lambda: nn.SequentialCell(nn.ReLU()), "all-linear", "no linear layers"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(net, targets, message):
    with pytest.raises(ConfigError, match=message):
        apply_lora(net(), LoraConfig(targets=targets))


def test_a_weight_that_other_layers_share_is_refused():
    net = Linears()
    net.tied = nn.Dense(4, 4, has_bias=False)
    net.tied.weight = net.fc.weight
    with pytest.raises(ConfigError, match="shares its weight"):
        apply_lora(net, LoraConfig(targets=["fc"]))


def test_a_second_adapter_and_a_merge_of_none_are_refused():
    model = tiny()
    with pytest.raises(ConfigError, match="no LoRA layers to merge"):
        merge_lora(model)
    with pytest.raises(ConfigError, match="no LoRA layers to save"):
        save_adapter(model, "nowhere")
    apply_lora(model, LoraConfig())
    with pytest.raises(ConfigError, match="has LoRA layers already"):
        apply_lora(model, LoraConfig())


@pytest.fixture
def adapter(tmp_path):
    """A folder, and a function that writes it with another configuration or other tensors."""
    from safetensors.numpy import save_file

    stem = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    tensors = {f"{stem}A.weight": np.ones((2, 64), np.float32), f"{stem}B.weight": np.ones((64, 2), np.float32)}

    def write(config=(), drop=(), **changes):
        save_file(
            {k: v for k, v in {**tensors, **changes}.items() if k not in drop}, tmp_path / "adapter_model.safetensors"
        )
        base = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
        (tmp_path / "adapter_config.json").write_text(json.dumps({**base, **dict(config)}))
        return tmp_path

    write.stem = stem
    return write


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "use_dora is True, which is not supported"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is .* not supported"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"some_new_feature": 3}, "some_new_feature is 3"),
        ({"bias": "all"}, "bias is 'all', expected 'none'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base model"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', expected 'LORA'"),
        ({"r": 0}, "rank: 0"),
        ({"r": "2"}, "rank: '2'"),
        ({"lora_alpha": None}, "alpha: None"),
        ({"r": 4}, r"lora_A.weight' is \[2, 64\], expected \[4, 64\] in this model"),
    ],
)
def test_an_adapter_with_features_we_do_not_have_is_refused_by_name(adapter, config, message):
    model = tiny()
    with pytest.raises(WeightsError, match=message):
        load_adapter(model, adapter(config))
    assert not lora_layers(model)


def test_an_adapter_that_does_not_fit_the_model_is_refused(adapter):
    model, stem = tiny(), adapter.stem
    half = np.ones((2, 31), np.float32)
    bad = np.full((2, 64), np.nan, np.float32)
    cases = [
        ({f"{stem}A.weight": half}, r"\[2, 31\], expected \[2, 64\]"),
        ({f"{stem}A.weight": bad}, "not finite"),
        ({f"{stem}A.weight": np.ones((2, 64), np.int32)}, "of I32, expected a float type"),
        ({f"{stem}magnitude_vector": half}, "is none of base_model"),
        ({"drop": (f"{stem}B.weight",)}, "has only lora_A"),
        ({"drop": (f"{stem}A.weight", f"{stem}B.weight")}, "holds no tensors"),
    ]
    for changes, message in cases:
        with pytest.raises(WeightsError, match=message):
            load_adapter(model, adapter(**changes))
    other = stem.replace("layers.0", "layers.7")
    with pytest.raises(WeightsError, match="'model.layers.7.self_attn.q_proj' is no linear layer of this model"):
        load_adapter(model, adapter(**{f"{other}{part}.weight": np.ones((2, 2), np.float32) for part in "AB"}))
    assert not lora_layers(model)


def test_a_folder_without_a_readable_adapter_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="no such file; expected a folder that PEFT"):
        load_adapter(tiny(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(WeightsError, match="not valid JSON"):
        load_adapter(tiny(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("[]")
    with pytest.raises(WeightsError, match="peft_type is None"):
        load_adapter(tiny(), tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(WeightsError, match="pickled files are not read"):
        load_adapter(tiny(), tmp_path)


def test_a_parameter_of_the_network_that_is_named_as_the_seed_outlives_a_merge():
    net = Linears()
    net.dropout_seed = Parameter(Tensor([1.0], ms.float32), name="dropout_seed")
    apply_lora(net, LoraConfig(rank=1))
    merge_lora(net)
    assert "dropout_seed" in names(net)
