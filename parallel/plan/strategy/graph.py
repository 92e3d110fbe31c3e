"""The graph of a network as its MINDIR holds it: operators with their names, inputs and shapes. No weights are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.strategy import wire

Shape = tuple[int, ...]
Scalar = int | float | str | None
Value = Scalar | tuple["Value", ...]

# What only passes a tensor on, or orders side effects: MindSpore gives these no strategy (parallel_node_check.cc).
PASSING = frozenset({"Load", "Cast", "Depend"})
UNSPLIT = PASSING | {"UpdateState", "MakeTuple", "TupleGetItem", "Return", "StopGradient", "TensorMove", "Shape"}

# mind_ir.proto: numbers of fields and of attribute types
_GRAPH, _FUNCTIONS, _PRIMITIVES = 7, 8, 12
_FLOAT, _STRING, _TENSOR, _TENSORS = 1, 8, 17, 19
_TUPLE, _LIST = 20, 21
_MONADS = (23, 24)
_NONE = 25
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}


@dataclass(frozen=True)
class Constant:
    """A value in the graph: a number, a text, a tuple, or the shape of a tensor of which the numbers are unread."""

    value: Value = None
    shape: Shape | None = None
    monad: bool = False


@dataclass(frozen=True)
class Parameter:
    """A weight: its full shape, and the bytes of one number of it."""

    name: str
    shape: Shape
    item_bytes: int


@dataclass(frozen=True)
class Operator:
    """One node: `name` is MindSpore's full name with scope, `inputs` and `output` name values of the graph.

    `shapes` has one entry an output; a tuple's are those of its items.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    shapes: tuple[Shape, ...]
    attributes: Mapping[str, Value]


@dataclass(frozen=True)
class Graph:
    """Operators in an order that runs, parameters by name, inputs with their shapes, and constants."""

    where: str
    operators: tuple[Operator, ...]
    parameters: Mapping[str, Parameter]
    inputs: Mapping[str, Shape]
    constants: Mapping[str, Constant]

    @cached_property
    def by_output(self) -> dict[str, Operator]:
        """The operator that makes a value."""
        return {operator.output: operator for operator in self.operators}

    @cached_property
    def split_operators(self) -> dict[str, Operator]:
        """Those that have a strategy, by their full names."""
        return {operator.name: operator for operator in self.operators if operator.kind not in UNSPLIT}

    def source(self, value: str) -> str:
        """The value behind casts, loads and dependencies."""
        while (operator := self.by_output.get(value)) is not None and operator.kind in PASSING:
            value = operator.inputs[0]
        return value

    def parameter(self, value: str) -> Parameter | None:
        """The parameter that a value is, behind casts and loads; None of any other value."""
        return self.parameters.get(self.source(value))

    def shape(self, value: str) -> Shape | None:
        """The shape of a tensor; None of numbers, tuples and marks of order."""
        if (operator := self.by_output.get(value)) is not None:
            return operator.shapes[0] if operator.kind != "MakeTuple" and len(operator.shapes) == 1 else None
        if value in self.parameters:
            return self.parameters[value].shape
        if value in self.inputs:
            return self.inputs[value]
        return self.constants[value].shape

    def tensors(self, operator: Operator) -> tuple[str, ...]:
        """The inputs that count in a strategy: tensors, scalar ones too, and the items of a tuple of tensors."""
        found: list[str] = []
        for value in operator.inputs:
            maker = self.by_output.get(value)
            items = maker.inputs if maker is not None and maker.kind == "MakeTuple" else (value,)
            found += (item for item in items if self.shape(item) is not None)
        return tuple(found)

    def constant(self, operator: Operator, index: int) -> Value:
        """The number, text or tuple at an input; None where there is none."""
        if index >= len(operator.inputs) or operator.inputs[index] not in self.constants:
            return None
        return self.constants[operator.inputs[index]].value


def read_graph(data: bytes, where: str) -> Graph:
    """A MINDIR -> its graph. `where` names it in errors.

    Raises ConfigError when it is no MINDIR, when shapes are open, or when it has more graphs than one.
    """
    try:
        model = wire.parse(memoryview(data))
        if _GRAPH not in model:
            raise ValueError("holds no graph")
        graph = _Reader(where, model).read(wire.parse(wire.blob(model[_GRAPH])))
    except (ValueError, IndexError, KeyError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{where}: is no MINDIR: {reason}; give a file that mindspore.export wrote") from None
    return graph


class _Reader:
    def __init__(self, where: str, model: wire.Fields) -> None:
        self.where = where
        if model.get(_FUNCTIONS):
            raise ConfigError(
                f"{where}: has {len(model[_FUNCTIONS])} graphs beside the first (control flow, or cells kept apart), "
                "expected one flat graph; export the network without lazy_inline and without conditions"
            )
        self.primitives: dict[str, tuple[str, dict[str, Value]]] = {}
        for primitive in wire.messages(model.get(_PRIMITIVES)):
            attributes = {wire.text(a.get(1)): _value(a) for a in wire.messages(primitive.get(3))}
            self.primitives[wire.text(primitive.get(1))] = wire.text(primitive.get(2)), attributes

    def read(self, graph: wire.Fields) -> Graph:
        self.prefix = wire.text(graph.get(2)) + ":"
        constants: dict[str, Constant] = {}
        operators: list[Operator] = []
        for node in wire.messages(graph.get(1)):
            if wire.text(node.get(4)) == "Constant":
                constants[self._name(node.get(2))] = _constant(node)
            else:
                operators.append(self._operator(node))
        parameters = {}
        for tensor in wire.messages(graph.get(3)):
            name = self._name(tensor.get(7))
            parameters[name] = Parameter(name, _dims(tensor), _BYTES.get(wire.number(tensor.get(2)), 4))
        inputs = {
            self._name(value.get(1)): next((_dims(t) for t in wire.messages(value.get(2))), ())
            for value in wire.messages(graph.get(5))
        }
        if not operators:
            raise ValueError("holds no operator")
        self._known({*constants, *parameters, *inputs}, operators)
        for name, shape in inputs.items():
            self._closed(f"input {name}", shape)
        return Graph(self.where, tuple(operators), parameters, inputs, constants)

    def _operator(self, node: wire.Fields) -> Operator:
        kind = wire.text(node.get(4))
        primitive, attributes = self.primitives.get(kind.removeprefix("REF::"), (kind, {}))
        shapes: tuple[Shape, ...] = ()
        own: dict[str, Value] = {}
        for attribute in wire.messages(node.get(5)):
            if wire.text(attribute.get(1)) == "shape":
                shapes = tuple(_shapes(attribute))
            else:
                own[wire.text(attribute.get(1))] = _value(attribute)
        name = wire.text(node.get(7)) or self._name(node.get(3))
        for shape in shapes:
            self._closed(name, shape)
        inputs = tuple(self._name([value]) for value in node.get(1, ()))
        return Operator(name, primitive, inputs, self._name(node.get(2)), shapes, {**attributes, **own})

    def _name(self, values: list[int | memoryview] | None) -> str:
        return wire.text(values).removeprefix(self.prefix)

    def _known(self, values: set[str], operators: list[Operator]) -> None:
        for operator in operators:
            for value in operator.inputs:
                if value not in values:
                    raise ValueError(f"{operator.name} takes {value[:80]!r}, which nothing before it makes")
            values.add(operator.output)
        names = {operator.name for operator in operators}
        if len(names) < len(operators):
            raise ValueError("two of its operators have the same name")

    def _closed(self, name: str, shape: Shape) -> None:
        if any(size < 0 for size in shape):
            raise ConfigError(
                f"{self.where}: {name} has the shape {list(shape)}, expected sizes that are known; export the network "
                "with a fixed batch and sequence length"
            )


def _constant(node: wire.Fields) -> Constant:
    for attribute in wire.messages(node.get(5)):
        kind = wire.number(attribute.get(16))
        if kind in (_TENSOR, _TENSORS):
            return Constant(shape=next(_shapes(attribute), None))
        return Constant(value=_value(attribute), monad=kind in _MONADS)
    return Constant()


def _shapes(attribute: wire.Fields) -> Iterator[Shape]:
    """The shapes of the tensors of an attribute, of those nested in it too."""
    for tensor in wire.messages(attribute.get(12)):
        yield _dims(tensor)
    for tensor in wire.messages(attribute.get(6)):
        yield _dims(tensor)
    for item in wire.messages(attribute.get(17)):
        yield from _shapes(item)


def _value(attribute: wire.Fields) -> Value:
    kind = wire.number(attribute.get(16))
    if kind in (_TUPLE, _LIST):
        return tuple(_value(item) for item in wire.messages(attribute.get(17)))
    if kind == _STRING:
        parts = attribute.get(5) or attribute.get(11)
        return str(wire.blob(parts), "utf-8", "replace")
    if kind in (_FLOAT, _TENSOR, _TENSORS, _NONE, *_MONADS):
        return None
    listed = wire.numbers(attribute.get(10, ()))
    return wire.number(attribute.get(3)) if not listed else listed[0] if len(listed) == 1 else tuple(listed)


def _dims(tensor: wire.Fields) -> Shape:
    return tuple(wire.numbers(tensor.get(1, ())))
