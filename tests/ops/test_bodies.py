"""Which body an operator takes, and that the declared Ascend primitives are what MindSpore offers."""

import inspect

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
from mindspore import ops  # noqa: E402
from mindspore.ops import auto_generate  # noqa: E402

from mindspeed_ms.errors import BuildError, ConfigError  # noqa: E402
from mindspeed_ms.ops import (  # noqa: E402
    aot,
    attention,
    attention_block,
    dense,
    dropout,
    embedding,
    gelu,
    layer_norm,
    linear,
    linear_cross_entropy,
    lm_head,
    mlp_block,
    optimizers,
    paged_attention,
    rms_norm,
    rotary,
    swiglu,
    token_embedding,
)

MODULES = [
    *(rms_norm, rotary, swiglu, attention, paged_attention, embedding, linear),
    *(dense, dropout, gelu, layer_norm, linear_cross_entropy, optimizers, token_embedding),
]
DECLARED = [
    pytest.param(body, id=body.primitive)
    for module in MODULES
    for body in vars(module).values()
    if isinstance(body, aot.AscendBody)
]


def primitive(name):
    return getattr(auto_generate, name, None) or getattr(ops, name)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".")[-1])
def test_every_operator_declares_an_ascend_body(module):
    assert isinstance(module.ASCEND, aot.AscendBody)


@pytest.mark.parametrize("body", DECLARED)
def test_a_declared_primitive_takes_these_inputs_and_attributes(body):
    cls = primitive(body.primitive)
    inputs = [name for name in inspect.signature(cls.__call__).parameters if name != "self"]
    assert tuple(inputs[: len(body.inputs)]) == body.inputs
    required = [
        name
        for name, parameter in inspect.signature(cls.__call__).parameters.items()
        if name != "self" and parameter.default is inspect.Parameter.empty
    ]
    assert set(required) <= set(body.inputs)
    arguments = inspect.signature(cls.__init__).parameters
    assert set(body.attributes) <= set(arguments)
    needed = {n for n, p in arguments.items() if n != "self" and p.default is inspect.Parameter.empty}
    assert needed <= set(body.attributes)


@pytest.mark.parametrize("module", [attention_block, mlp_block, lm_head], ids=["attention", "mlp", "head"])
def test_a_block_declares_a_chain_of_primitives(module):
    for name in module.ASCEND_CHAIN:
        assert issubclass(primitive(name), ops.Primitive)


def test_the_reference_is_chosen_by_the_variable(monkeypatch):
    monkeypatch.setenv(aot.VARIABLE, "reference")
    assert isinstance(swiglu.SwiGLU().body, swiglu.SwiGLUReference)


def test_the_native_kernels_are_the_default_on_a_cpu(monkeypatch):
    monkeypatch.delenv(aot.VARIABLE, raising=False)
    assert aot.kernels() == "native"
    monkeypatch.setenv(aot.VARIABLE, "native")
    assert isinstance(swiglu.SwiGLU().body, ops.Custom)


def test_without_a_compiler_the_reference_takes_over_with_one_notice(monkeypatch, caplog):
    def library_path():
        raise BuildError("no C++ compiler found")

    monkeypatch.setattr("mindspeed_ms.ops.native.build.library_path", library_path)
    monkeypatch.delenv(aot.VARIABLE, raising=False)
    aot._notice.cache_clear()
    for _ in range(2):
        assert isinstance(swiglu.SwiGLU().body, swiglu.SwiGLUReference)
    assert [record.getMessage() for record in caplog.records] == [
        "operators take their slower reference bodies: no C++ compiler found"
    ]
    monkeypatch.setenv(aot.VARIABLE, "native")
    with pytest.raises(BuildError, match="no C"):
        swiglu.SwiGLU()


def test_another_device_takes_the_reference_and_refuses_the_cpu_kernels(monkeypatch):
    monkeypatch.setattr(aot.ms, "get_context", lambda name: "Ascend")
    monkeypatch.delenv(aot.VARIABLE, raising=False)
    assert aot.kernels() == "reference"
    monkeypatch.setenv(aot.VARIABLE, "native")
    with pytest.raises(ConfigError, match="native kernels run on CPU, not on Ascend"):
        aot.kernels()


def test_another_word_is_a_configuration_error(monkeypatch):
    monkeypatch.setenv(aot.VARIABLE, "fast")
    with pytest.raises(ConfigError, match="MINDSPEED_MS_KERNELS='fast': expected native or reference"):
        swiglu.SwiGLU()


def test_a_reference_without_its_arena_says_so(monkeypatch):
    monkeypatch.setenv(aot.VARIABLE, "reference")
    with pytest.raises(ConfigError, match="arena: not given"):
        embedding.Embedding([0, 16, 32, 0, 0, 0, 0])
    with pytest.raises(ConfigError, match="do not fit an arena of 64 bytes"):
        embedding.Embedding([0, 16, 32, 0, 0, 0, 0], np.zeros(64, np.uint8))
