"""Training throughputs that were published together with the configuration they were measured with.

Tokens a second and device, from MindFormers' list of models (mindspore-ai/docs, docs/mindformers/docs/source_zh_cn/
start/models.md, "MF" below) and from research/telechat2/README.md of mindspore-lab/mindformers ("TC"); both link the
configuration of each figure. Settings are those of the branches r1.3.0 and r1.5.0. Hardware: Atlas 800T A2, Atlas 900
A2 PoD where noted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindspeed_ms.parallel.plan.model import ModelShape
from mindspeed_ms.parallel.plan.settings import Job, Settings


@dataclass(frozen=True)
class Run:
    """One measured training run: tokens a second of each device."""

    shape: ModelShape
    settings: Settings
    job: Job
    tokens_per_second: float
    source: str
    note: str = ""
    # Published beside the others but kept out of the fit: what it says about the model is a test of it.
    held_out: bool = False


def _model(
    name: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int, kv_heads: int = 0, **more: Any
) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv_heads or heads, hidden // heads, ffn, vocab, **more)


def _job(seq: int, numbers: int) -> Job:
    """numbers: bytes of `param_init_type`, which gradients are reduced in; the optimizer's state is float32."""
    return Job(seq, gradient_bytes=numbers, weight_bytes=numbers, master_bytes=4 if numbers == 2 else 0)


_8: dict[str, Any] = {"data": 8, "zero": 1}
_FINE = "fine_grain_interleave 2 hides a part of the tensor communication, which the model counts in full"
_SHORT = "the list says 8K tokens, the configuration it links 2,048"

RUNS: tuple[Run, ...] = (
    Run(
        _model("llama2_7b", 32, 4096, 32, 11008, 32000),
        Settings(**_8, micro_batches=8),
        _job(4096, 2),
        4160,
        "MF configs/llama2/pretrain_llama2_7b_bf16.yaml",
    ),
    Run(
        _model("llama2_13b", 40, 5120, 40, 13824, 32000),
        Settings(**_8, micro_batch=4, recompute="full"),
        _job(4096, 2),
        1691,
        "MF configs/llama2/finetune_llama2_13b_bf16.yaml",
    ),
    Run(
        _model("llama2_70b", 80, 8192, 64, 28672, 32000, 8),
        Settings(tensor=4, pipeline=8, micro_batches=256, sequence_parallel=True, recompute="selective"),
        _job(4096, 2),
        337,
        "MF configs/llama2/finetune_llama2_70b_bf16_32p.yaml",
        _FINE,
    ),
    Run(
        _model("baichuan2_7b", 32, 4096, 32, 11008, 125696),
        Settings(**_8),
        _job(4096, 2),
        3164,
        "MF research/baichuan2/finetune_baichuan2_7b.yaml",
    ),
    Run(
        _model("baichuan2_13b", 40, 5120, 40, 13696, 125696),
        Settings(**_8, recompute="full"),
        _job(4096, 2),
        1465,
        "MF research/baichuan2/finetune_baichuan2_13b.yaml",
    ),
    Run(
        _model("telechat2_7b", 30, 4096, 32, 12288, 131072),
        Settings(**_8, recompute="full"),
        _job(8192, 4),
        2950,
        "TC research/telechat2/finetune_telechat_7b.yaml",
    ),
    Run(
        _model("telechat2_35b", 64, 6144, 48, 20480, 131072),
        Settings(
            tensor=4, pipeline=4, micro_batches=32, sequence_parallel=True, recompute="full", layers=(15, 17, 17, 15)
        ),
        _job(8192, 4),
        516,
        "TC research/telechat2/finetune_telechat_35b.yaml",
        _FINE,
    ),
    Run(
        _model("telechat2_115b", 96, 8192, 64, 40960, 131072, 8),
        Settings(
            data=8,
            tensor=8,
            pipeline=8,
            micro_batches=8,
            zero=1,
            sequence_parallel=True,
            recompute="selective",
            schedule="interleaved",
            virtual=3,
            layers=(3, 3, 4, 4, 4, 4, 4, 4, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 3),
        ),
        _job(8192, 4),
        158,
        "TC research/telechat2/finetune_telechat_115b.yaml",
        _FINE,
    ),
    Run(
        _model("telechat2_39b_a12b", 30, 4096, 32, 6144, 131072, experts=16, top_k=4, expert_ffn=6144),
        Settings(
            data=128,
            tensor=4,
            pipeline=2,
            expert=2,
            micro_batches=4,
            zero=1,
            sequence_parallel=True,
            recompute="full",
            recompute_layers=(3, 0),
        ),
        _job(8192, 4),
        865,
        "TC research/telechat2/telechat2-39b-a12b/finetune_telechat_39b_a12b.yaml",
        "the only run with experts: what routing and uneven experts cost is not in the model",
        held_out=True,
    ),
    Run(
        _model("llama3_8b", 32, 4096, 32, 14336, 128256, 8),
        Settings(**_8, recompute="full"),
        _job(8192, 2),
        2581,
        "MF research/llama3/finetune_llama3_8b_8k_800T_A2_64G.yaml",
        held_out=True,
    ),
    Run(
        _model("llama3_70b", 80, 8192, 64, 28672, 128256, 8),
        Settings(tensor=8, pipeline=8, micro_batches=256, sequence_parallel=True, recompute="selective"),
        _job(8192, 4),
        337,
        "MF research/llama3/finetune_llama3_70b.yaml, Atlas 900 A2 PoD",
        f"{_FINE}; the figure is that of llama2_70b and of llama3_1_70b, perhaps copied",
        held_out=True,
    ),
    Run(
        _model("llama3_1_8b", 32, 4096, 32, 14336, 128256, 8),
        Settings(**_8, recompute="full"),
        _job(8192, 2),
        2703,
        "MF research/llama3_1/finetune_llama3_1_8b.yaml, Atlas 900 A2 PoD",
        held_out=True,
    ),
    Run(
        _model("qwen_7b", 32, 4096, 32, 11008, 151936),
        Settings(**_8, micro_batch=4),
        _job(2048, 4),
        2955,
        "MF research/qwen/finetune_qwen_7b_bf16.yaml",
        _SHORT,
        held_out=True,
    ),
    Run(
        _model("qwen_14b", 40, 5120, 40, 13696, 152064),
        Settings(**_8, micro_batch=4, recompute="full"),
        _job(2048, 4),
        1106,
        "MF research/qwen/finetune_qwen_14b_bf16.yaml",
        _SHORT,
        held_out=True,
    ),
    Run(
        _model("qwen1_5_7b", 32, 4096, 32, 11008, 151936),
        Settings(**_8, recompute="full"),
        _job(4096, 4),
        2684,
        "MF research/qwen1_5/finetune_qwen1_5_7b.yaml",
        held_out=True,
    ),
    Run(
        _model("qwen1_5_14b", 40, 5120, 40, 13696, 152064),
        Settings(tensor=2, pipeline=4, micro_batches=128, sequence_parallel=True, layers=(9, 11, 11, 9)),
        _job(4096, 4),
        1452,
        "MF research/qwen1_5/finetune_qwen1_5_14b.yaml",
        _FINE,
        held_out=True,
    ),
)
