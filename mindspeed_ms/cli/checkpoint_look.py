"""mindspeed-ms checkpoint ls and diff."""

import math
from typing import Annotated, Any

import typer

from mindspeed_ms.cli.checkpoint_folder import Folder, checkpoints, open_store, rules_of

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def ls(folder: Folder, as_json: AsJson = False) -> None:
    """List checkpoints: what each adds to the disk, what it holds, and why it stays. Also while a run is training."""
    import json

    from mindspeed_ms.cli.output import table
    from mindspeed_ms.errors import CheckpointError

    path = checkpoints(folder)
    store = open_store(folder, **rules_of(path))
    kept = store.kept()
    rows: list[dict[str, Any]] = []
    for step in store.steps():
        try:
            found = store.manifest(step)
        except CheckpointError as error:
            if step in store.steps():  # else it was removed meanwhile
                rows.append({"step": step, "error": str(error)})
            continue
        rows.append(
            {
                "step": step,
                "kind": "base" if found.base == step else "delta",
                "base": found.base,
                "bytes": found.own_bytes,
                "raw_bytes": found.raw_bytes,
                "tensors": len(found.tensors),
                "metric": found.metric,
                "kept": kept.get(step),
                "time": found.time,
            }
        )
    if as_json:
        print(json.dumps({"folder": str(path), "checkpoints": rows}, ensure_ascii=False))
        return
    table([_row(row) for row in rows], as_json=False)
    for row in rows:
        if "error" in row:
            print(f"\n{row['error']}")


def _row(row: dict[str, Any]) -> dict[str, Any]:
    if "error" in row:
        return {"step": row["step"], "kind": "damaged", **dict.fromkeys(_COLUMNS, "")}
    ratio = f"{row['raw_bytes'] / row['bytes']:.2f}x" if row["bytes"] else "all shared"
    shown = (
        f"{row['bytes']:,}",
        f"{row['raw_bytes']:,}",
        ratio,
        row["tensors"],
        "" if row["metric"] is None else row["metric"],
        row["kept"] or "goes at the next save",
    )
    return {"step": row["step"], "kind": row["kind"], **dict(zip(_COLUMNS, shown, strict=True))}


_COLUMNS = ("bytes", "raw_bytes", "smaller", "tensors", "metric", "kept")


def diff(
    folder: Folder,
    before: Annotated[int, typer.Argument(min=0, help="A step.", metavar="A")],
    after: Annotated[int, typer.Argument(min=0, help="Another one.", metavar="B")],
    as_json: AsJson = False,
) -> None:
    """What changed from one checkpoint to another: tensors, by how much, and values of the state."""
    import json

    from mindspeed_ms.checkpoint.diff import diff as compare
    from mindspeed_ms.cli.output import busy, table
    from mindspeed_ms.errors import CheckpointError

    store = open_store(folder)
    with busy("Comparing"):
        first, second = store.load(before), store.load(after)
        if first is None or second is None:
            raise CheckpointError(f"{folder}: there is no checkpoint in it yet")
        found = compare(first, second)
    tensors = [
        {
            "tensor": item.name,
            "what": item.what,
            "changed": item.changed,
            "values": item.total,
            "largest_difference": item.largest,
        }
        for item in found.tensors
    ]
    if as_json:
        for item in tensors:  # NaN and infinity are no JSON
            largest = item["largest_difference"]
            item["largest_difference"] = largest if isinstance(largest, float) and math.isfinite(largest) else None
        state = [{"key": item.key, "before": item.before, "after": item.after} for item in found.state]
        print(json.dumps({"before": before, "after": after, "tensors": tensors, "state": state}, ensure_ascii=False))
        return
    for row in tensors:
        row["largest_difference"] = "" if row["largest_difference"] is None else row["largest_difference"]
    table(tensors, as_json=False)
    if found.state:
        print()
        rows = [{"state": x.key, "before": _short(x.before), "after": _short(x.after)} for x in found.state]
        table(rows, as_json=False)
    if not tensors and not found.state:
        print("no difference")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
