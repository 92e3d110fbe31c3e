"""From a row of a table of published plans to a model's shape, parallel settings and a job.

The columns are those of the CSV that `read` describes. What a configuration leaves to its framework is filled in as
that framework does it; what cannot be known is said in the notes of the plan.
"""

from __future__ import annotations

import ast
import csv
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.model import ModelShape, read_model
from mindspeed_ms.parallel.plan.named_models import MODELS
from mindspeed_ms.parallel.plan.settings import Job, Recompute, Settings

Row = dict[str, str]
_WANTED = {"kind", "model", "path", "layers", "hidden", "seq", "devices", "dp", "tp", "pp", "micro_batch", "note"}
# What a name or note says that a model of full training on one kind of attention does not cover.
_OTHER = (
    (r"lora", "trains adapters only"),
    (r"ptuning|prefixtuning", "trains a prefix only"),
    (r"image_to_text|predict|infer", "is inference, not training"),
    (r"next", "has layers of linear attention, whose memory is not modelled"),
    (r"mamba", "is a state-space model, which is not modelled"),
)


@dataclass(frozen=True)
class Plan:
    """One published plan: what it trains, how, on which card; `notes` say what was assumed."""

    name: str
    shape: ModelShape
    settings: Settings
    job: Job
    card: int  # bytes of memory of one device
    cap: int | None = None  # bytes the framework may take at most
    notes: tuple[str, ...] = field(default=())


def read(path: str | Path) -> list[Row]:
    """The rows of a CSV with a header of column names, as text. Raises ConfigError for a file that is no such table."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read as a table of plans: {error}") from None
    missing = sorted(_WANTED - set(reader.fieldnames or ()))
    if missing:
        raise ConfigError(f"{path}: the column {missing[0]!r} is missing; expected a table of published plans")
    return rows


def excuse(row: Row) -> str:
    """Why a row states no plan for training a known model; empty where it does."""
    text = f"{row['model']} {row['path']}".lower()
    for pattern, reason in _OTHER:
        if re.search(pattern, text):
            return reason
    if "throughput" in row["kind"]:
        return "gives a speed and no parallel settings"
    if not (row["layers"] and row["hidden"] and row["seq"]) and _named(row) is None:
        return "does not give the sizes of its model"
    if not (row["dp"] and row["tp"] and row["pp"]):
        return "does not give its degrees"
    if not row["micro_batch"] and "minimum-cards" not in row["kind"]:
        return "does not give its batch"
    return ""


def plan_of(row: Row) -> Plan:
    """The plan in a row that has no excuse. Raises ConfigError where a cell is not the number it should be."""
    notes: list[str] = []
    shape = shape_of(row, notes)
    settings = _settings(row, shape, notes)
    cap = _bytes(row.get("max_device_memory", ""))
    card = (32 if cap is not None and cap <= 32 << 30 else 64) << 30
    job = _job(row, settings, card, notes)
    return Plan(row["model"], shape, settings, job, card, cap, tuple(notes))


def shape_of(row: Row, notes: list[str]) -> ModelShape:
    """The shape of a row's model; what the row leaves out is taken from the nearest published model, or by rule."""
    known = _nearest(row)
    if not row["hidden"] and known is not None:
        return known
    hidden, layers, heads = (
        _number(row, "hidden"),
        _number(row, "layers"),
        _number(row, "heads", known.heads if known else None),
    )
    experts = _number(row, "experts", 0)
    kv_heads = _number(row, "kv_heads", heads)
    ffn = _number(row, "ffn", _ffn(row, hidden, layers, kv_heads))
    text = row["model"].lower()
    # With other experts and another width the nearest published model is none of this family.
    alike = known is not None and (known.experts == experts or known.ffn == ffn)
    expert_ffn = _number(row, "moe_ffn", known.expert_ffn if known and alike else ffn) if experts > 1 else 0
    if known is not None and known.kv_lora_rank and "deepseek" in text:
        shape = replace(known, name=row["model"])
    else:
        head_dim = known.head_dim if known is not None and known.heads == heads else hidden // heads
        shape = ModelShape(row["model"], layers, hidden, heads, kv_heads, head_dim, ffn, vocab=1)
        shape = replace(shape, qkv_bias="qwen" in text and "qwen3" not in text, qk_norm="qwen3" in text)
    if "qwen2_57b" in text:
        shape = replace(shape, shared_ffn=20480, shared_gate=True)  # Qwen2-57B-A14B's config.json
    vocab = _number(row, "vocab", known.vocab if known else None)
    shape = replace(shape, layers=layers, vocab=vocab, ffn=ffn)
    if experts > 1:
        shape = replace(shape, experts=experts, top_k=_number(row, "topk", 8), expert_ffn=expert_ffn)
    return replace(shape, dense_layers=min(shape.dense_layers, layers))


def _settings(row: Row, shape: ModelShape, notes: list[str]) -> Settings:
    mindspeed = row["kind"].startswith("mindspeed")
    data, tensor, pipeline = (_number(row, key) for key in ("dp", "tp", "pp"))
    context = _number(row, "cp", 1)
    micro_batch = _number(row, "micro_batch", 1)
    vpp = _number(row, "vpp", 1)
    # MindSpeed's --num-layers-per-virtual-pipeline-stage against MindFormers' pp_interleave_num.
    virtual = max(1, shape.layers // pipeline // vpp) if mindspeed and row.get("vpp") else vpp
    virtual = virtual if pipeline > 1 else 1
    if row.get("gbs"):
        micro_batches = max(1, _number(row, "gbs") // (data * micro_batch))
    else:  # MindFormers splits a batch for its pipeline alone
        micro_batches = _number(row, "micro_batch_num", 1) if pipeline > 1 else 1
    settings = Settings(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=_expert(row, data * context, tensor) if shape.experts else 1,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        zero=_zero(row, micro_batches),
        sequence_parallel=tensor > 1 and _sequence_parallel(row, notes),
        schedule="interleaved" if virtual > 1 else "1f1b",
        virtual=virtual,
    )
    settings = replace(settings, layers=_layers(row, shape, settings, notes))
    return _with_recompute(row, settings, notes)


def _expert(row: Row, replicas: int, tensor: int) -> int:
    """The degree over the data and context dimensions; with `--expert-tensor-parallel-size 1` a degree counts tensor
    ranks too, and one that is larger than those dimensions can mean nothing else."""
    expert = _number(row, "ep", 1)
    return expert if replicas % expert == 0 or expert % tensor else expert // tensor


def _sequence_parallel(row: Row, notes: list[str]) -> bool:
    """As given; MindFormers' default is off, and MindSpeed's published scripts that split tensors have it on."""
    if row.get("seq_parallel") or row["kind"] == "mindformers-yaml":
        return row["seq_parallel"] == "True"
    notes.append("sequence parallelism is not given; on, as in MindSpeed's scripts, is assumed")
    return True


def _zero(row: Row, micro_batches: int) -> int:
    """MindSpore's optimizer parallelism reduces gradients to shards at once where it has none to add up."""
    if row.get("optimizer_parallel") != "True":
        return 0
    return 2 if micro_batches == 1 and not row["kind"].startswith("mindspeed") else 1


def _layers(row: Row, shape: ModelShape, settings: Settings, notes: list[str]) -> tuple[int, ...]:
    """Layers of each chunk, from MindFormers' `offset` or MindSpeed's `--num-layer-list` where the note has them."""
    match = re.search(r"offset=(\[.*\])", row["note"])
    offset = _literal(match.group(1)) if match else None
    given = re.search(r"num-layer-list[ =](\d+(?:,\d+)*)", row["note"])
    if given:
        return tuple(map(int, given.group(1).split(",")))
    even = tuple(stop - first for first, stop in settings.chunks(shape.layers))
    if isinstance(offset, list):
        flat = [number for part in offset for number in (part if isinstance(part, list) else [part])]
        base = shape.layers // len(even)
        if len(flat) == len(even) and sum(flat) + base * len(even) == shape.layers:
            return tuple(base + number for number in flat)
    if "offset" in row["note"] or shape.layers % len(even):
        notes.append("how its layers are split is not given whole; as evenly as can be is assumed")
    return even


def _with_recompute(row: Row, settings: Settings, notes: list[str]) -> Settings:
    """Full recomputation by count, or selective; of both together only the full part, which keeps more."""
    full, select = _literal(row.get("recompute", "")), _literal(row.get("select_recompute", ""))
    counts: tuple[int, ...] | None = None
    kind: Recompute = "none"
    if full == "full":
        kind = "full"
        match = re.search(r"block (\d+)", str(select))
        if match:
            counts = (int(match.group(1)) * settings.virtual,) * settings.pipeline
    elif full is True or isinstance(full, list):
        kind, counts = "full", _by_stage(full, settings)
        if select and full is not True:
            notes.append("its selective recomputation of the other layers is left out")
    elif select is True or isinstance(select, list):
        kind, counts = "selective", _by_stage(select, settings)
    elif select and isinstance(select, str) and select.startswith("{"):
        kind = "selective"
    if kind == "none" and "recompute-activation-function" in row["note"]:
        kind = "selective"
    return replace(settings, recompute=kind, recompute_layers=counts)


def _by_stage(counts: object, settings: Settings) -> tuple[int, ...] | None:
    """MindFormers' list of layers of each stage, or of chunks and stages."""
    if not isinstance(counts, list):
        return None
    rows = counts if isinstance(counts[0], list) else [counts]
    if any(len(row) != settings.pipeline for row in rows):
        return None
    return tuple(sum(column) for column in zip(*rows, strict=True))


def _job(row: Row, settings: Settings, card: int, notes: list[str]) -> Job:
    """How wide the framework keeps each number.

    MindSpeed (Megatron with --bf16): float32 gradients, weights and moments beside the bfloat16 weights;
    --reuse-fp32-param keeps only the other half of the float32 weights. MindFormers r1.3: weights of
    `param_init_type`, mostly a half type, with gradients alike and float32 moments (FP32StateAdamWeightDecay), and
    no float32 weights; under optimizer parallelism each rank has its shard of the weights and, while it computes, all.
    """
    job = Job(seq=_number(row, "seq"), global_batch=settings.global_batch)
    if row["kind"].startswith(("mindspeed", "published-minimum", "measured")):
        if "reuse-fp32-param" in row["note"]:
            job = replace(job, master_bytes=2)
        if "swap-optimizer" in row["note"]:
            notes.append("its optimizer's state is kept by the host")
            job = replace(job, master_bytes=0, moment_bytes=0)
        return job
    # Flash attention needs a 910B.
    return replace(
        job, gradient_bytes=2, master_bytes=2 if settings.zero else 0, fused=False, flash_attention=card > 32 << 30
    )


def _ffn(row: Row, hidden: int, layers: int, kv_heads: int) -> int:
    """As published for a Llama of these sizes, else MindFormers' rule: 8/3 of hidden, up to a multiple of 256."""
    for shape in _shapes():
        if (shape.hidden, shape.layers, shape.kv_heads) == (hidden, layers, kv_heads) and not shape.experts:
            return shape.ffn
    return -(-(8 * hidden // 3) // 256) * 256


@lru_cache(maxsize=1)
def _shapes() -> tuple[ModelShape, ...]:
    return tuple(read_model(name) for name in MODELS)


def _nearest(row: Row) -> ModelShape | None:
    """The published model of that width and most alike in experts, heads and layers."""
    if not row["hidden"]:
        return _named(row)
    hidden, heads, layers = _number(row, "hidden"), _number(row, "heads", 0), _number(row, "layers", 0)
    experts = _number(row, "experts", 0)
    family = "deepseek-v" if re.search(r"deepseek_?v?(2|3|32)(?!\d)", row["model"].lower()) else ""
    alike = [
        shape
        for shape in _shapes()
        if shape.hidden == hidden and (shape.experts > 0) == (experts > 1 or family != "") and family in shape.name
    ]
    return min(
        alike,
        key=lambda shape: (shape.heads != heads, shape.experts != experts, abs(shape.layers - layers)),
        default=None,
    )


def _named(row: Row) -> ModelShape | None:
    """The published model whose name a row's model has, whatever its separators."""
    plain = re.sub(r"[^a-z0-9]", "", row["model"].lower())
    for shape in _shapes():
        if re.sub(r"[^a-z0-9]", "", shape.name) == plain:
            return shape
    return None


def _number(row: Row, key: str, default: int | None = None) -> int:
    text = (row.get(key) or "").strip()
    if not text:
        if default is None:
            raise ConfigError(f"the plan {row['model']}: {key} is not given")
        return default
    if not text.isdecimal():
        raise ConfigError(f"the plan {row['model']}: {key} is {text!r}; expected a whole number")
    return int(text)


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"([\d.]+)\s*GB", text.strip())
    return int(float(match.group(1)) * (1 << 30)) if match else None


def _literal(text: str) -> object:
    """A cell that may hold True, False, a list or plain words."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text.strip()
