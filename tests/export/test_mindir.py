"""MindSpore never sees a graph that is not exactly the one the bundle's description implies."""

import json

import numpy as np
import pytest
from mindspore.train import mind_ir_pb2 as pb

from mindspeed_ms.errors import BundleError
from mindspeed_ms.export.files import describe_file
from mindspeed_ms.export.mindir import verified
from mindspeed_ms.export.reader import open_bundle
from mindspeed_ms.serving.engine.runner import RaggedRunner


@pytest.fixture(scope="module")
def opened(exported):
    return open_bundle(exported)


def parsed(bundle):
    model = pb.ModelProto()
    model.ParseFromString(bundle.mindir)
    return model


def refused(bundle, model, match="expected|which the model does not|than the logits|lacks"):
    with pytest.raises(BundleError, match=match) as caught:
        verified(model.SerializeToString(), bundle.program, "graph.mindir")
    assert "--refresh" in str(caught.value)


def custom(model, entry):
    for primitive in model.primitives:
        found = {attribute.name: attribute for attribute in primitive.attribute}
        if primitive.op_type == "Custom" and found["reg_op_name"].s == entry.encode():
            return primitive, found
    raise AssertionError(entry)


def test_the_exported_graph_is_accepted(opened):
    verified(opened.mindir, opened.program, "graph.mindir")


@pytest.mark.parametrize(
    "function",
    [
        "/tmp/evil.so:Embedding",
        "libc.so.6:system",
        "mindspeed_ms_cpu.so:system",
        "../mindspeed_ms_cpu.so:Embedding",
        "mindspeed_ms_cpu.so:EmbeddingInit",
        "",
    ],
)
def test_a_foreign_library_or_function_is_refused(opened, function):
    model = parsed(opened)
    _, found = custom(model, "Embedding")
    found["func_name"].s = function.encode()
    refused(opened, model, "func_name")
    found["uniq_name"].s = f"Custom_Embedding_{function}".encode()
    found["reg_op_name"].s = function.rpartition(":")[2].encode()
    refused(opened, model)


def test_such_a_bundle_is_refused_before_anything_is_compiled(opened, bundle, own_cache, monkeypatch, tmp_path):
    model = parsed(opened)
    _, found = custom(model, "MlpBlock")
    found["func_name"].s = f"{tmp_path}/evil.so:MlpBlock".encode()
    (bundle / "graph.mindir").write_bytes(model.SerializeToString())
    info = json.loads((bundle / "bundle.json").read_text())
    info["files"]["graph.mindir"] = describe_file(bundle / "graph.mindir").model_dump()
    (bundle / "bundle.json").write_text(json.dumps(info))
    monkeypatch.setattr("mindspore.load", lambda *a, **k: pytest.fail("MindSpore was given the graph"))
    with pytest.raises(BundleError, match="graph.mindir: .*evil.so.*--refresh"):
        RaggedRunner(open_bundle(bundle))


@pytest.mark.parametrize(
    ("name", "value"),
    [("func_type", b"pyfunc"), ("func_type", b"julia"), ("primitive_target", b"Ascend"), ("imply_path", b"/tmp/x.py")],
)
def test_another_kind_of_custom_operator_is_refused(opened, name, value):
    model = parsed(opened)
    _, found = custom(model, "LmHead")
    found[name].s = value
    refused(opened, model, name)


def test_attributes_must_be_the_ones_the_description_implies(opened):
    for entry, change in [
        ("Embedding", lambda a: a["weight"].values[0].ints.__setitem__(0, 128)),
        ("Embedding", lambda a: a["weight"].values[0].ints.append(64)),
        ("Embedding", lambda a: setattr(a["weight"].values[0], "i", 64)),
        ("Embedding", lambda a: a["func_name"].strings.append(b"/tmp/evil.so:Embedding")),
        ("LmHead", lambda a: a["bias"].ints.append(64)),
        ("Embedding", lambda a: a["weight"].values.add(ints=[1], type=pb.AttributeProto.INT64)),
        ("AttentionBlock", lambda a: setattr(a["layer"], "i", 7)),
        ("AttentionBlock", lambda a: setattr(a["eps"], "f", 1.0)),
        ("RopeTable", lambda a: setattr(a["inv_freq"], "i", -4)),
        ("RopeTable", lambda a: setattr(a["head_dim"], "type", pb.AttributeProto.FLOAT)),
        ("LmHead", lambda a: setattr(a["bias"], "i", 1 << 40)),
    ]:
        model = parsed(opened)
        _, found = custom(model, entry)
        change(found)
        refused(opened, model)


def test_added_attributes_are_refused(opened):
    model = parsed(opened)
    primitive, _ = custom(model, "RopeTable")
    primitive.attribute.add(name="func_source_str", s=b"import os", type=pb.AttributeProto.STRING)
    refused(opened, model, "func_source_str")
    primitive.attribute[-1].name = "\x1b[2J\nall is well"  # goes to a terminal: the name is quoted
    refused(opened, model, r"'\\x1b\[2J\\nall is well' is 'import os', expected 'absent'")
    model = parsed(opened)
    primitive, found = custom(model, "RopeTable")
    primitive.attribute.add().CopyFrom(found["func_name"])
    refused(opened, model, "given twice")


@pytest.mark.parametrize("kind", ["MatMul", "Print", "TensorDump", "UpdateState", "Load"])
def test_any_other_primitive_is_refused(opened, kind):
    model = parsed(opened)
    model.primitives.add(name="new", op_type=kind)
    node = model.graph.node.add(op_type="REF::new", name="n", output=["n"], input=[model.graph.input[0].name])
    refused(opened, model, kind)
    node.op_type = kind
    refused(opened, model, "expected kernel calls only")


def test_wiring_must_be_the_models(opened):
    model = parsed(opened)
    for node in model.graph.node:
        if len(node.input) == 2 and node.input[0] == model.graph.input[0].name:
            node.input[0] = model.graph.input[1].name  # the embedding looks up positions
    refused(opened, model, "which the model does not")
    model = parsed(opened)
    del model.graph.node[-2:]
    refused(opened, model, "lacks|other outputs")
    model = parsed(opened)
    model.graph.output[0].name = model.graph.input[0].name
    refused(opened, model, "other outputs")
    model = parsed(opened)
    model.graph.node.add().CopyFrom(model.graph.node[0])
    refused(opened, model, "which the model does not")


def test_shapes_and_types_of_inputs_must_be_the_models(opened):
    model = parsed(opened)
    model.graph.input[7].tensor[0].dims[4] = 1 << 40
    refused(opened, model, "input cache")
    model = parsed(opened)
    model.graph.input[6].tensor[0].data_type = 1
    refused(opened, model, "input arena")
    model = parsed(opened)
    del model.graph.input[7]
    refused(opened, model, "has 7 inputs")


def test_what_we_never_write_is_refused(opened):
    model = parsed(opened)
    model.graph.parameter.add(name="weights")
    refused(opened, model, "field parameter")
    model = parsed(opened)
    model.functions.add(name="more")
    refused(opened, model, "field functions")
    model = parsed(opened)
    model.graph.input[0].tensor[0].external_data.location = "/etc/passwd"
    refused(opened, model, "external_data")
    model = parsed(opened)
    model.graph.bprop_filepath = "/tmp/evil.py"
    refused(opened, model, "file of gradients")
    unknown = opened.mindir + b"\xfa\x3e\x03abc"  # field 1007, which the format does not have
    with pytest.raises(BundleError, match="unknown here"):
        verified(unknown, opened.program, "graph.mindir")


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"\xff" * 100, b"\n" * 1000])
def test_bytes_that_are_no_graph_are_refused(opened, data):
    with pytest.raises(BundleError, match="--refresh"):
        verified(data, opened.program, "graph.mindir")


def test_no_change_of_a_few_bytes_breaks_the_check(opened):
    """Each is refused in one sentence, but for names nobody reads."""
    random, accepted = np.random.default_rng(0), 0
    for _ in range(150):
        data = bytearray(opened.mindir)
        for place in random.integers(0, len(data), random.integers(1, 4)):
            data[place] = random.integers(256)
        try:
            verified(bytes(data), opened.program, "graph.mindir")
            accepted += 1
        except BundleError as error:
            assert "\n" not in str(error)
    assert accepted < 15


def test_no_cut_of_a_graph_is_accepted(opened):
    for length in range(0, len(opened.mindir), 97):
        with pytest.raises(BundleError):
            verified(opened.mindir[:length], opened.program, "graph.mindir")
