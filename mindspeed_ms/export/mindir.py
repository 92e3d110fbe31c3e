"""A MINDIR from a bundle, believed only after every node of it has been compared with the program we expect.

A MINDIR names `library:function` in plain text and MindSpore would load whatever it says, so nothing of it reaches
MindSpore before: it may hold the kernel calls of the program, in the program's order, with the program's attributes,
and the few primitives that order side effects. All else is refused.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from mindspore.train import mind_ir_pb2 as pb

from mindspeed_ms.errors import BundleError
from mindspeed_ms.export.program import PLACEHOLDER, Program, Step

_REMEDY = "run `mindspeed-ms export --refresh` on the bundle to remake its graph from its weights"
_DATA_TYPES = {"float32": 1, "uint8": 2, "int32": 6, "float16": 10}
_MONAD = "(monad)"
# Only these fields of each message may be set. Left out on purpose: parameters, functions, external data, user data.
_FIELDS = {
    "ModelProto": {"ir_version", "producer_name", "producer_version", "model_version", "graph", "little_endian"}
    | {"primitives", "mind_ir_version"},
    "GraphProto": {"node", "name", "input", "output", "bprop_hash", "bprop_filepath", "attribute"},
    "NodeProto": {"input", "output", "name", "op_type", "attribute", "domain", "node_attr"},
    "PrimitiveProto": {"name", "op_type", "attribute", "instance_name", "prim_type"},
    "ValueInfoProto": {"name", "tensor"},
    "TensorProto": {"dims", "data_type"},
    "AttributeProto": {"name", "type", "i", "f", "s", "ints", "strings", "values", "tensors"},
}


def parse_model(data: bytes, where: object) -> pb.ModelProto:
    """Bytes -> message. Raises BundleError when they are no MINDIR."""
    model = pb.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError):  # ValueError: text that is no UTF-8
        raise BundleError(f"{where}: is no MINDIR; {_REMEDY}") from None
    return model


def serialize(model: pb.ModelProto) -> bytes:
    """Message -> bytes, without what no reader needs: marks that the compiler left for itself."""
    del model.graph.attribute[:]
    for node in model.graph.node:
        del node.node_attr[:]
    return model.SerializeToString(deterministic=True)


def set_library(model: pb.ModelProto, library: str) -> None:
    """Makes every custom operator take its function from this library."""
    for primitive in model.primitives:
        texts = {attribute.name: attribute for attribute in primitive.attribute}
        if "func_name" in texts:
            old = texts["func_name"].s
            entry = old.rpartition(b":")[2]
            texts["func_name"].s = library.encode() + b":" + entry
            texts["uniq_name"].s = texts["uniq_name"].s.replace(old, texts["func_name"].s)


def verified(data: bytes, program: Program, where: object) -> pb.ModelProto:
    """Parses a MINDIR and compares it with the program. Raises BundleError naming the first thing that differs."""
    model = parse_model(data, where)
    try:
        _only_known_fields(model)
        if not model.little_endian:
            raise _Difference("numbers are big-endian, expected little-endian")
        _Check(model, program, PLACEHOLDER).run()
    except (_Difference, UnicodeDecodeError) as error:
        raise BundleError(f"{where}: {error}; {_REMEDY}") from None
    return model


def write_runnable(data: bytes, program: Program, library: Path, where: object) -> Path:
    """Verifies a MINDIR, names the real library in it, writes it to a private temporary file and returns its path.

    The caller removes the file once it is loaded. Raises BundleError.
    """
    model = verified(data, program, where)
    set_library(model, str(library))
    with tempfile.NamedTemporaryFile(prefix="mindspeed-ms-", suffix=".mindir", delete=False) as file:
        file.write(serialize(model))
    return Path(file.name)


class _Difference(Exception):
    """What differs from the expected graph, and how."""


def _only_known_fields(message: Message) -> None:
    """Refuses fields this version of the format does not have, and those we never write."""
    kind = message.DESCRIPTOR.name
    allowed = _FIELDS.get(kind)
    if allowed is None:
        raise _Difference(f"holds a {kind}, expected none")
    if len(UnknownFieldSet(message)):
        raise _Difference(f"{kind} has fields unknown here, expected none")
    for field, value in message.ListFields():
        if field.name not in allowed:
            raise _Difference(f"{kind} has the field {field.name}, expected it absent")
        parts = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        if field.message_type is not None:
            for part in parts:
                _only_known_fields(part)
        elif field.type == field.TYPE_STRING and not all(isinstance(part, str) for part in parts):
            raise _Difference(f"{kind}.{field.name} is not UTF-8")  # protobuf hands such bytes over as they are


def _value(attribute: pb.AttributeProto) -> Any:
    """An attribute as a Python value, lists as lists. Each kind has one place, and no other may be used."""
    kind = pb.AttributeProto.AttributeType.Name(attribute.type)
    places = {field.name for field, _ in attribute.ListFields()} - {"name", "type"}
    if kind == "LIST" and places <= {"values"}:
        return [_item(item) for item in attribute.values]
    if kind in ("INT64", "BOOL") and places <= {"i"}:
        return bool(attribute.i) if kind == "BOOL" else attribute.i
    if kind == "FLOAT" and places <= {"f"}:
        return attribute.f
    if kind == "STRING" and places <= {"s"}:
        return attribute.s.decode("utf-8", "replace")
    raise _Difference(f"attribute {attribute.name[:80]!r} is a {kind} in {sorted(places)}, expected one plain value")


def _item(item: pb.AttributeProto) -> Any:
    """An element of a list; MindSpore writes it as a list of one."""
    places = {field.name for field, _ in item.ListFields()} - {"type"}
    if item.type == pb.AttributeProto.INT64 and places == {"ints"} and len(item.ints) == 1:
        return item.ints[0]
    if item.type == pb.AttributeProto.STRING and places == {"strings"} and len(item.strings) == 1:
        return item.strings[0].decode("utf-8", "replace")
    raise _Difference(f"an element of a list is set in {sorted(places)}, expected one number or text")


class _Check:
    """Walks the nodes once, giving each value the name it has in the program."""

    def __init__(self, model: pb.ModelProto, program: Program, library: str) -> None:
        self.graph, self.program, self.library = model.graph, program, library
        self.primitives = {primitive.name: primitive for primitive in model.primitives}
        if len(self.primitives) != len(model.primitives):
            raise _Difference("two primitives share a name, expected different names")
        self.names: dict[str, str] = {}
        # No two steps of a program have the same kernel and inputs, so these identify a node.
        self.open = {(step.entry, tuple(value for _, value, _ in step.inputs)): step for step in program.steps}

    def run(self) -> None:
        graph = self.graph
        if graph.bprop_hash or graph.bprop_filepath:
            raise _Difference("names a file of gradients, expected none")
        if len(graph.input) != len(self.program.inputs):
            raise _Difference(f"has {len(graph.input)} inputs, expected {len(self.program.inputs)}")
        for value, (name, (dtype, shape)) in zip(graph.input, self.program.inputs.items(), strict=True):
            self._tensor(f"input {name}", value.tensor, dtype, [-1 if size is None else size for size in shape])
            self._define(value.name, name)
        for node in graph.node:
            self._node(node)
        if self.open:
            entry, inputs = next(iter(self.open))
            raise _Difference(f"lacks {len(self.open)} kernel calls, first {entry} on {', '.join(inputs)}")
        if [self.names.get(value.name) for value in graph.output] != ["logits"]:
            raise _Difference("has other outputs than the logits")

    def _define(self, name: str, meaning: str) -> None:
        if name in self.names:
            raise _Difference(f"defines {name[:80]!r} twice, expected once")
        self.names[name] = meaning

    def _node(self, node: pb.NodeProto) -> None:
        if len(node.output) != 1:
            raise _Difference(f"node {node.name[:80]!r} has {len(node.output)} outputs, expected 1")
        if node.op_type == "Constant":
            if [attribute.type for attribute in node.attribute] != [pb.AttributeProto.UMONAD] or node.input:
                raise _Difference(f"holds the constant {node.name[:80]!r}, expected none but the order mark")
            self._define(node.output[0], _MONAD)
            return
        primitive = self.primitives.get(node.op_type.removeprefix("REF::"))
        if primitive is None or not node.op_type.startswith("REF::"):
            raise _Difference(f"has a node of type {node.op_type[:80]!r}, expected kernel calls only")
        inputs = [self.names.get(name, "(undefined)") for name in node.input]
        if primitive.op_type == "Custom":
            self._custom(node, primitive, inputs)
        elif primitive.op_type == "UpdateState" and inputs and inputs[0] == _MONAD:
            self._attributes("UpdateState", primitive, {})
            self._define(node.output[0], _MONAD)
        elif primitive.op_type == "Depend" and len(inputs) == 2 and inputs[1] == _MONAD:
            self._attributes("Depend", primitive, {"side_effect_propagate": 1})
            self._define(node.output[0], inputs[0])
        else:
            raise _Difference(f"has the primitive {primitive.op_type[:80]!r}, expected kernel calls only")

    def _custom(self, node: pb.NodeProto, primitive: pb.PrimitiveProto, inputs: list[str]) -> None:
        found = {attribute.name: attribute for attribute in primitive.attribute}
        entry = _value(found["reg_op_name"]) if "reg_op_name" in found else ""
        function = _value(found["func_name"]) if "func_name" in found else ""
        values = tuple(inputs[:-1] if inputs[-1:] == [_MONAD] else inputs)
        step = self.open.pop((entry, values), None)
        if step is None:
            raise _Difference(f"calls {str(function)[:200]!r} on ({', '.join(values)}), which the model does not")
        self._attributes(f"kernel call {step.entry} -> {step.output}", primitive, _expected(step, self.library))
        shapes = [tensor for attribute in node.attribute for tensor in attribute.tensors]
        self._tensor(step.output, shapes, "float32", [-1, step.width])
        self._define(node.output[0], step.output)

    def _attributes(self, where: str, primitive: pb.PrimitiveProto, expected: dict[str, Any]) -> None:
        found = {attribute.name: _value(attribute) for attribute in primitive.attribute}
        if len(found) != len(primitive.attribute):
            raise _Difference(f"{where}: an attribute is given twice")
        for name in sorted(found.keys() | expected.keys()):
            if name not in found or name not in expected or not _same(found[name], expected[name]):
                shown = name if name in expected else repr(name[:80])  # a name of theirs may hold anything
                raise _Difference(
                    f"{where}: {shown} is {str(found.get(name, 'absent'))[:200]!r}, "
                    f"expected {str(expected.get(name, 'absent'))[:200]!r}"
                )

    @staticmethod
    def _tensor(where: str, tensors: Iterable[pb.TensorProto], dtype: str, shape: list[int]) -> None:
        found = [(tensor.data_type, list(tensor.dims)) for tensor in tensors]
        if found != [(_DATA_TYPES[dtype], shape)]:
            raise _Difference(
                f"{where} has type and shape {str(found)[:200]}, expected {[(_DATA_TYPES[dtype], shape)]}"
            )


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(found, float) and found == float(np.float32(expected))
    return type(found) is type(expected) and found == expected


def _expected(step: Step, library: str) -> dict[str, Any]:
    """Every attribute MindSpore 2.10 gives a custom operator registered as ops.aot registers it."""
    names = [name for name, _, _ in step.inputs]
    side_effect = {"side_effect_mem": True} if step.side_effect else {}
    return {
        "func_name": f"{library}:{step.entry}",
        "uniq_name": f"Custom_{step.entry}_{library}:{step.entry}",
        "reg_op_name": step.entry,
        "func_type": "aot",
        "primitive_target": "CPU",
        "imply_path": "",
        "cpp_infer_shape": True,
        "cpp_infer_type": True,
        "autodiff": False,
        "multi_output": False,
        "input_names": names,
        "pure_input_names": names,
        "output_names": ["y"],
        "attr_names": list(step.attrs),
        **step.attrs,
        **side_effect,
    }
