"""Whether HCCL accepts a rank table, and if not, which field on which line breaks which rule.

The verdict follows CfgGetClusterInfo of hcomm and what each communicator checks next (topoinfo_parse.cc). What the file
cannot say is in `Asked`: the processor, and the rank and device of the process that opens the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspeed_ms.parallel.topology.rank_table_concise import check_concise
from mindspeed_ms.parallel.topology.rank_table_fields import Asked, Device, Fields, Problem
from mindspeed_ms.parallel.topology.rank_table_json import Document, JsonError, extract, parse, show
from mindspeed_ms.parallel.topology.rank_table_mixed import check_mixed
from mindspeed_ms.parallel.topology.rank_table_old import check_old
from mindspeed_ms.parallel.topology.rank_table_v2 import check_v2

_MOST_TABLES = 8  # that are told of, of one file

__all__ = ["Asked", "Problem", "accepted", "guess_device", "validate"]


def validate(text: str, asked: Asked | None = None) -> list[Problem]:
    """All problems of a table in the order of the file; those with a code are HCCL's, the others are advice."""
    try:
        document = parse(text)
    except JsonError as error:
        rule = f"{error.message}; HCCL reads JSON without comments and without text before it"
        return [Problem("(the file)", error.line, "no JSON", rule, "HCCL_E_PARA"), *_inside(text, asked)]
    return _validate(document, asked or Asked())


def _inside(text: str, asked: Asked | None) -> list[Problem]:
    # A table copied from a log or a document: what would HCCL say of it, once it is cut out?
    try:
        tables = extract(text)
    except JsonError:
        return []
    found = []
    for document in tables[:_MOST_TABLES]:
        refused = [problem for problem in _validate(document, asked or Asked()) if problem.refused]
        verdict = f"would be refused, line {refused[0].line}: {refused[0].field}" if refused else "would be accepted"
        rule = f"cut out into a file of its own it {verdict}"
        found.append(Problem("(the file)", document.line(()), "a table", rule))
    if len(tables) > _MOST_TABLES:
        more = tables[_MOST_TABLES]
        rule = f"and {len(tables) - _MOST_TABLES} more tables, not looked at"
        found.append(Problem("(the file)", more.line(()), "a table", rule))
    return found


def _validate(document: Document, asked: Asked) -> list[Problem]:
    fields = Fields(document)
    root = document.value if isinstance(document.value, dict) else {}
    if document.rest:
        fields.problems.append(Problem("(the file)", document.rest, "text", "HCCL ignores what follows the table"))
    for path, line in document.doubled[:_MOST_TABLES]:
        rule = "the key occurs twice in its object: HCCL takes the last"
        fields.problems.append(Problem(show(path), line, "a second time", rule))
    device = asked.device or guess_device(root)
    if device == "950":
        check_v2(fields, root)
    elif _ready(fields, root):
        _check_910(fields, root, asked, device)
    return sorted(fields.problems, key=lambda problem: problem.line)


def accepted(problems: Sequence[Problem]) -> bool:
    """Whether HCCL takes the table."""
    return not any(problem.refused for problem in problems)


def guess_device(root: dict[str, Any]) -> Device:
    """The processor a table seems to be for, where nobody says.

    Version 2.0 is the 950's, 1.2 the A3's. A server with more than 8 devices, or ports of devices, tell of a 910B; else
    the strictest is taken, the 910A.
    """
    version = root.get("version")
    if version == "2.0":
        return "950"
    if version == "1.2":
        return "910_93"
    servers = root.get("server_list")
    lists = (
        [server.get("device") for server in servers if isinstance(server, dict)] if isinstance(servers, list) else []
    )
    devices = [found for found in lists if isinstance(found, list)]
    ports = any(isinstance(one, dict) and "device_port" in one for found in devices for one in found)
    return "910B" if ports or any(len(found) > 8 for found in devices) else "910A"


def _ready(fields: Fields, root: dict[str, Any]) -> bool:
    status = fields.text((), root, "status")
    if status is None:
        return False
    if status != "completed":
        rule = "must be completed; HCCL reads the file again for 30 minutes and then gives up"
        fields.refuse(("status",), status, rule, "HCCL_E_TIMEOUT")
    return True


def _check_910(fields: Fields, root: dict[str, Any], asked: Asked, device: Device) -> None:
    if "version" not in root:
        check_old(fields, root, asked, device)
        return
    version = fields.text((), root, "version")
    if version in ("1.0", "1.2"):
        check_concise(fields, root, asked, device)
    elif version == "1.1":
        check_mixed(fields, root, asked)
    elif version is not None:
        rule = "must be 1.0, 1.1 or 1.2 on the 910 family (2.0 is for the 950), or be left out of a group_list"
        fields.refuse(("version",), version, rule, "HCCL_E_NOT_SUPPORT")
