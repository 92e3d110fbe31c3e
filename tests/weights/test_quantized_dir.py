"""Directories that `mindspeed-ms quantize` writes: matrices come back bit-equal, contradicting parts are named."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from weights_files import CONFIG

from mindspeed_ms.errors import WeightsError
from mindspeed_ms.ops.native.quant import QuantTensor, quantize_rtn
from mindspeed_ms.weights import open_model

NAME = "model.layers.0.mlp.down_proj"


def refused(path, message):
    with pytest.raises(WeightsError, match=message) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)


def quantize_dir(path, tensor, scheme=None, **config):
    """Replace one matrix of a directory by its quantized parts, as the contract of quantized directories says."""
    weights = load_file(path / "model.safetensors")
    del weights[f"{NAME}.weight"]
    weights |= {f"{NAME}.qweight": tensor.q, f"{NAME}.scales": tensor.scales}
    if tensor.mins is not None:
        weights[f"{NAME}.mins"] = tensor.mins
    save_file(weights, path / "model.safetensors")
    scheme = {"format_version": 1, "scheme": "w4a8", "group": tensor.group, **(scheme or {})}
    scheme = {"quant_method": "mindspeed_ms", **scheme}
    (path / "config.json").write_text(json.dumps({**CONFIG, **config, "quantization_config": scheme}))
    return path


@pytest.mark.parametrize(
    ("bits", "group", "asymmetric"), [(4, 32, True), (4, 64, False), (4, 128, True), (8, 0, False), (8, 32, False)]
)
def test_quantized_matrices_come_back_bit_equal(hf_dir, bits, group, asymmetric):
    weight = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    tensor = quantize_rtn(weight, bits, group, asymmetric)
    source = open_model(quantize_dir(hf_dir(), tensor))
    assert source.kind == "quantized" and source.scheme["group"] == group
    found = source.get(f"{NAME}.weight")
    assert isinstance(found, QuantTensor) and (found.bits, found.group) == (bits, group)
    np.testing.assert_array_equal(found.dequantize(), tensor.dequantize())
    assert source.shape(f"{NAME}.weight") == (64, 96)
    assert isinstance(source.get("model.norm.weight"), np.ndarray)


def tensor4():
    return quantize_rtn(np.ones((64, 96), np.float32), 4, 32, True)


def test_quantized_directory_of_another_version(hf_dir):
    refused(quantize_dir(hf_dir(), tensor4(), {"format_version": 2}), "format_version 2 is not 1; quantize")


@pytest.mark.parametrize(
    ("part", "array", "message"),
    [
        ("scales", None, "'model.layers.0.mlp.down_proj.scales' is missing"),
        ("scales", np.ones((64, 5), np.float16), "fit no group size for 96 inputs"),
        ("scales", np.ones((64, 3), np.int8), "scales: int8"),
        ("mins", np.ones((64, 2), np.float16), "mins: float16 .* does not fit"),
        ("qweight", np.ones((64, 47), np.uint8), "qweight: uint8 .* does not fit"),
        ("qweight", np.ones((64, 48), np.int32), "is int32, expected uint8 or int8"),
    ],
)
def test_quantized_parts_that_contradict_each_other(hf_dir, part, array, message):
    path = quantize_dir(hf_dir(), tensor4())
    weights = load_file(path / "model.safetensors")
    weights[f"{NAME}.{part}"] = array
    save_file({name: value for name, value in weights.items() if value is not None}, path / "model.safetensors")
    refused(path, message)


def test_a_matrix_both_quantized_and_not(hf_dir):
    path = quantize_dir(hf_dir(), tensor4())
    weights = load_file(path / "model.safetensors") | {f"{NAME}.weight": np.ones((64, 96), np.float32)}
    save_file(weights, path / "model.safetensors")
    refused(path, "both 'model.layers.0.mlp.down_proj.qweight' and")


def test_a_quantized_vector_is_refused(hf_dir):
    path = quantize_dir(hf_dir(), tensor4())
    weights = load_file(path / "model.safetensors") | {"model.norm.qweight": np.ones((1, 64), np.int8)}
    del weights["model.norm.weight"]
    save_file(weights, path / "model.safetensors")
    refused(path, "'model.norm.qweight' is not a matrix of this llama model")


def test_quantized_parts_in_a_plain_directory_are_foreign(hf_dir):
    path = quantize_dir(hf_dir(), tensor4())
    (path / "config.json").write_text(json.dumps(CONFIG))
    refused(path, "'model.layers.0.mlp.down_proj.weight' is missing")
