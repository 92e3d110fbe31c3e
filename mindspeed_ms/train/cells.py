"""Finding Cells in a network and putting others in their place."""

from collections.abc import Iterator

from mindspore import Parameter, nn


def places(network: nn.Cell, prefix: str = "") -> Iterator[tuple[str, nn.Cell, str, nn.Cell]]:
    """(path, parent, name, cell) of all Cells below `network`, parents first.

    A Cell that is held in several places comes once for each, so that none is forgotten when it is replaced. What is
    put in a place while iterating is what the iteration goes on with.
    """
    for name in list(network._cells):
        cell = network._cells[name]
        if cell is not None:
            yield prefix + name, network, name, cell
            yield from places(network._cells[name], f"{prefix}{name}.")


def put(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    """Hold `cell` at a place that has a Cell already; its Parameters keep their names."""
    parent.insert_child_to_cell(name, cell)
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = list(parent._cells.values())  # what it iterates over


def forget_graphs(network: nn.Cell) -> None:
    """Have MindSpore compile a network anew: it would go on with the graph of the Cells before."""
    for _, cell in network.cells_and_names():
        cell.compile_cache.clear()


def parameter_users(network: nn.Cell) -> dict[int, list[str]]:
    """The paths of the Cells that hold each Parameter, by the Parameter's id; a shared Cell counts once."""
    users: dict[int, list[str]] = {}
    for path, cell in network.cells_and_names():
        for parameter in cell._params.values():
            if isinstance(parameter, Parameter):
                users.setdefault(id(parameter), []).append(path)
    return users


def hide(owner: nn.Cell, name: str, value: object) -> None:
    """Give a Cell an attribute that its tree does not show: the Parameters in it have their names elsewhere."""
    object.__setattr__(owner, name, value)
