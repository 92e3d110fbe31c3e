"""What a save costs, summed up from medians of steps, which a step that the machine held up does not move."""

import statistics

SAVE_AFTER = 3  # steps of a block, when it has a save


def parts(run: dict) -> dict[str, float]:
    """Seconds a save of one process: in `save`, in the step that copies, in those of the background, at the end."""
    plain = statistics.median(second for row in run["plain"] for second in row["steps"])
    rows = run["saving"]
    copying = statistics.median(row["steps"][SAVE_AFTER] for row in rows) - plain
    calm = statistics.median(second for row in rows for second in row["steps"][SAVE_AFTER + 1 : row["done"]])
    count = statistics.median(row["done"] - SAVE_AFTER - 1 for row in rows)
    return {
        "save()": statistics.median(row["saved"]["blocked"] for row in rows),
        "copy": copying,
        "background": (calm - plain) * count,
        "wait": statistics.median(row["wait"] for row in rows),
    }
