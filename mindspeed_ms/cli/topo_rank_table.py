"""mindspeed-ms topo rank-table."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mindspeed_ms.errors import ConfigError

MOST_BYTES = 64 << 20  # 65,536 ranks, the most that a table may have, take 10 MB
_DEVICES = ("910A", "910B", "910_93", "950")


def rank_table(
    file: Annotated[Path | None, typer.Argument(help="A rank table to check.", metavar="[FILE]")] = None,
    device: Annotated[
        str | None, typer.Option(help=f"Its processor, {', '.join(_DEVICES)}; guessed if absent.")
    ] = None,
    rank: Annotated[str | None, typer.Option(help="The rank (or pod) a process asks for.", metavar="R")] = None,
    local_device: Annotated[int | None, typer.Option(min=0, help="The device of that process.", metavar="N")] = None,
    cluster: Annotated[str | None, typer.Option(help="Write a table for this cluster.", metavar="SPEC")] = None,
    servers: Annotated[int, typer.Option(min=1, help="With --cluster: how many servers.", metavar="N")] = 1,
    ips: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE for each server in turn: its hccn.conf, or what hccn_tool printed."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="The slot of each rank from 0, as numbers with commas or a file of them.", metavar="LIST"),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a rank table as HCCL does, with the field and line of each problem; or write one for a cluster."""
    if (file is None) == (cluster is None):
        raise ConfigError("topo rank-table: give either a FILE to check, or --cluster SPEC and --ips to write one")
    if cluster is not None:
        _write(cluster, servers, ips or [], order, output, as_json)
        return
    if device is not None and device not in _DEVICES:
        raise ConfigError(f"--device {device}: expected one of {', '.join(_DEVICES)}")
    assert file is not None
    _check(file, device, rank, local_device, as_json)


def _check(file: Path, device: Any, rank: str | None, local_device: int | None, as_json: bool) -> None:
    import dataclasses
    import json

    from mindspeed_ms.cli.output import read_text, report, table
    from mindspeed_ms.parallel.topology.rank_table import read_rank_table
    from mindspeed_ms.parallel.topology.rank_table_rules import Asked, accepted, validate

    text = read_text(file, MOST_BYTES)
    problems = validate(text, Asked(device=device, rank=rank, local_device=local_device))
    verdict: dict[str, Any] = {"file": str(file), "accepted": accepted(problems)}
    try:
        # The text, not the path: a file may be replaced meanwhile.
        found = read_rank_table(text + "\n", str(file))
        verdict |= {"version": found.version or "group_list", "servers": len(found.servers), "ranks": found.size}
    except ConfigError as error:
        verdict["unreadable"] = str(error)
    if as_json:
        print(json.dumps({**verdict, "problems": [dataclasses.asdict(one) for one in problems]}, ensure_ascii=False))
    else:
        report(verdict, as_json=False)
        table([_row(problem) for problem in problems], as_json=False)
    if not verdict["accepted"]:
        first = next(problem for problem in problems if problem.refused)
        count = sum(problem.refused for problem in problems)
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ConfigError(f"{file}:{first.line}: {first.field}: {first.value}: {first.rule}; {first.code}{more}")


def _row(problem: Any) -> dict[str, Any]:
    code = problem.code or "advice"
    return {"line": problem.line, "field": problem.field, "value": problem.value, "hccl": code, "rule": problem.rule}


def _write(spec: str, servers: int, ips: list[str], order: str | None, output: Path | None, as_json: bool) -> None:
    import dataclasses

    from mindspeed_ms.cli.output import next_step, report
    from mindspeed_ms.parallel.topology.load import load_cluster
    from mindspeed_ms.parallel.topology.rank_table_write import write_rank_table
    from mindspeed_ms.paths import write_whole

    found = load_cluster(spec, servers=servers)
    addresses = read_addresses(ips)
    if addresses and len(addresses) != len(found.servers):
        raise ConfigError(f"--ips: {len(addresses)} servers; {spec} has {len(found.servers)}: give one each")
    if addresses:
        named = [dataclasses.replace(one, name=name) for one, name in zip(found.servers, addresses, strict=True)]
        found = dataclasses.replace(found, servers=tuple(named))
    slots = list(range(found.size)) if order is None else _order(order)
    text = write_rank_table(found, slots, addresses)
    if output is None:
        print(text, end="")
        return
    write_whole(output, text.encode())
    report({"file": str(output), "servers": len(found.servers), "ranks": found.size}, as_json)
    next_step("mindspeed-ms", "topo", "rank-table", str(output))


def read_addresses(ips: list[str]) -> dict[str, dict[int, str]]:
    """Server to device to address, of options NAME=FILE. Raises ConfigError."""
    from mindspeed_ms.cli.output import read_text
    from mindspeed_ms.parallel.topology.hccn import read_hccn_conf, read_hccn_tool

    found: dict[str, dict[int, str]] = {}
    for item in ips:
        name, equals, path = item.partition("=")
        if not name or not equals or not path:
            raise ConfigError(f"--ips {item}: expected NAME=FILE, such as node0=node0/hccn.conf")
        if name in found:
            raise ConfigError(f"--ips {item}: {name} is given twice")
        text = read_text(Path(path), MOST_BYTES)
        found[name] = read_hccn_conf(text, path) if "address_" in text else read_hccn_tool(text, path)
    return found


def _order(order: str) -> list[int]:
    from mindspeed_ms.cli.output import read_text

    text = order if set(order) <= set("0123456789, ") else read_text(Path(order), MOST_BYTES)
    try:
        return [int(part) for part in text.replace(",", " ").replace("[", " ").replace("]", " ").split()]
    except ValueError:
        raise ConfigError(f"--order {order}: expected whole numbers with commas between them") from None
