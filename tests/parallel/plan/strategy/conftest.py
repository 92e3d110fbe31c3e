"""A small decoder layer as a MINDIR, put together byte by byte, and the real networks' graphs, exported once."""

from collections.abc import Callable

import pytest

from mindspeed_ms.parallel.plan.strategy import wire
from mindspeed_ms.parallel.plan.strategy.graph import Graph, read_graph

_TENSOR, _INT, _TUPLE, _BOOL = 19, 7, 20, 9


class Mindir:
    """Nodes of a graph named `net`, in the fields of mind_ir.proto."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.primitives: dict[str, bytes] = {}
        self.constants = 0

    def parameter(self, name: str, *shape: int) -> str:
        self.parts.append(wire.put_bytes(3, tensor(shape) + wire.put_bytes(7, f"net:{name}".encode())))
        return name

    def input(self, name: str, *shape: int) -> str:
        self.parts.append(
            wire.put_bytes(5, wire.put_bytes(1, f"net:{name}".encode()) + wire.put_bytes(2, tensor(shape)))
        )
        return name

    def constant(self, value: int | bool | tuple[int, ...]) -> str:
        self.constants += 1
        name = f"c{self.constants}"
        self._node("Constant", [], name, "", wire.put_bytes(5, wire.put_bytes(1, b"value") + number(value)))
        return f"!{name}"

    def node(self, kind: str, name: str, inputs: list[str], *shape: int) -> str:
        """`name` is the operator's scope; the value it makes is called alike."""
        self.primitives[kind] = wire.put_bytes(1, kind.encode()) + wire.put_bytes(2, kind.encode())
        attribute = wire.put_bytes(1, b"shape") + wire.put_bytes(12, tensor(shape)) + wire.put_number(16, _TENSOR)
        self._node(f"REF::{kind}", inputs, f"net:{name}", f"Default/{name}", wire.put_bytes(5, attribute))
        return name

    def _node(self, kind: str, inputs: list[str], output: str, full: str, attributes: bytes) -> None:
        names = [value[1:] if value.startswith("!") else f"net:{value}" for value in inputs]
        body = b"".join(wire.put_bytes(1, name.encode()) for name in names)
        body += wire.put_bytes(2, output.encode()) + wire.put_bytes(3, output.encode())
        body += wire.put_bytes(4, kind.encode()) + attributes + wire.put_bytes(7, full.encode())
        self.parts.append(wire.put_bytes(1, body))

    def data(self) -> bytes:
        graph = wire.put_bytes(2, b"net") + b"".join(self.parts)
        return wire.put_bytes(7, graph) + b"".join(wire.put_bytes(12, p) for p in self.primitives.values())

    def graph(self) -> Graph:
        return read_graph(self.data(), "net.mindir")


def tensor(shape: tuple[int, ...]) -> bytes:
    return b"".join(wire.put_number(1, size) for size in shape) + wire.put_number(2, 1)


def number(value: int | bool | tuple[int, ...]) -> bytes:
    if isinstance(value, tuple):
        items = b"".join(wire.put_bytes(17, wire.put_number(10, item) + wire.put_number(16, _INT)) for item in value)
        return items + wire.put_number(16, _TUPLE)
    return wire.put_number(3, int(value)) + wire.put_number(16, _BOOL if isinstance(value, bool) else _INT)


def add_linear(net: Mindir, x: str, weight: str, rows: int, inputs: int, outputs: int) -> str:
    """x [rows, inputs] by a weight [outputs, inputs]."""
    net.parameter(weight, outputs, inputs)
    loaded = net.node("Load", f"{weight}/Load-op0", [weight], outputs, inputs)
    flags = [net.constant(False), net.constant(True)]
    return net.node("MatMul", f"{weight}/MatMul-op0", [x, loaded, *flags], rows, outputs)


def decoder(layers: int = 2, batch: int = 4, seq: int = 8, hidden: int = 16, inner: int = 32, vocab: int = 64) -> Graph:
    """An embedding, layers of a gated inner layer with a residual and a norm's weight, and a head."""
    net = Mindir()
    rows = batch * seq
    ids = net.input("ids", batch, seq)
    net.parameter("embed.weight", vocab, hidden)
    table = net.node("Load", "embed/Load-op0", ["embed.weight"], vocab, hidden)
    zero = net.constant(0)
    x = net.node("Gather", "embed/Gather-op0", [table, ids, zero, zero], batch, seq, hidden)
    x = net.node("Reshape", "flat/Reshape-op0", [x, net.constant((rows, hidden))], rows, hidden)
    for layer in range(layers):
        name = f"layers.{layer}"
        net.parameter(f"{name}.norm.weight", hidden)
        scale = net.node("Load", f"{name}/Load-op0", [f"{name}.norm.weight"], hidden)
        y = net.node("Mul", f"{name}/Mul-op0", [x, scale], rows, hidden)
        gate = add_linear(net, y, f"{name}.gate.weight", rows, hidden, inner)
        up = add_linear(net, y, f"{name}.up.weight", rows, hidden, inner)
        y = net.node("Mul", f"{name}/Mul-op1", [gate, up], rows, inner)
        y = add_linear(net, y, f"{name}.down.weight", rows, inner, hidden)
        x = net.node("Add", f"{name}/Add-op0", [x, y], rows, hidden)
    add_linear(net, x, "head.weight", rows, hidden, vocab)
    return net.graph()


@pytest.fixture
def mindir() -> type[Mindir]:
    return Mindir


@pytest.fixture
def make_decoder() -> Callable[..., Graph]:
    return decoder


@pytest.fixture
def linear() -> Callable[..., str]:
    return add_linear
