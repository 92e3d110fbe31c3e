"""Pairs the throughputs of a table of published plans with the configuration of the same model in that table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mindspeed_ms.parallel.plan.published_rows import Row, excuse, plan_of
from mindspeed_ms.parallel.plan.throughputs import Run

_OTHER = {"lora", "qlora", "ptuning", "ptuning2", "prefixtuning", "predict", "auto"}
_PREFERRED = ("bf16", "finetune", "pretrain")


def runs_of(rows: Sequence[Row]) -> tuple[list[Run], list[str]]:
    """Runs to calibrate with, and why other throughputs of the table are none.

    A configuration is of the same model when its path and name hold every word of the throughput's model, it has the
    same sequence length and trains all weights. Of several, one in bfloat16 goes first, then a fine-tuning, then one on
    fewer devices.
    """
    runs, left = [], []
    for row in rows:
        if row["kind"] != "published-throughput":
            continue
        speed = re.match(r"\s*([\d.]+)\s*tokens/s/p", row["published"])
        plans = sorted((item for item in rows if _same_model(row, item)), key=_rank)
        if not speed:
            left.append(f"{row['model']}: {row['published']!r} is no number of tokens/s/p")
        elif not plans:
            left.append(f"{row['model']}: the table has no configuration of it at {row['seq']} tokens")
        else:
            plan = plan_of(plans[0])
            source = f"{row['source_repo']}; {plans[0]['path']}"
            runs.append(Run(plan.shape, plan.settings, plan.job, float(speed[1]), source, "; ".join(plan.notes)))
    return runs, left


def _words(text: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", text.lower()))


def _same_model(row: Row, plan: Row) -> bool:
    if plan["kind"] != "mindformers-yaml" or plan["seq"] != row["seq"] or excuse(plan):
        return False
    words = _words(f"{plan['path']} {plan['model']}")
    return _words(row["model"]) <= words and not words & _OTHER


def _rank(plan: Row) -> tuple[int | bool, ...]:
    words = _words(plan["model"])
    return (*(word not in words for word in _PREFERRED), int(plan["devices"]), -len(plan["path"]))
