"""The MindFormers side of scripts/check_mindformers.sh; runs in its environment, knows nothing of mindspeed-ms.

Of one case folder (a process each, since MindFormers' context is set once) it builds the real model from
ours/mindformers.yaml, loads ours/mindformers.ckpt strictly, compares its logits with logits.npy; then
draws new weights and writes theirs/ (YAML, checkpoint) and theirs.npy (logits) for the way back.
"""

import os
import sys
from pathlib import Path

os.environ["RUN_MODE"] = "train"

import mindspore as ms
import numpy as np
import yaml
from mindspore import nn, ops
from mindspore.ops import operations as P

# Operators of the Ascend that a CPU lacks, by their formulas. None of them has a parameter.


class RmsNorm(nn.Cell):
    def __init__(self, epsilon):
        super().__init__(auto_prefix=False)
        self.epsilon = epsilon

    def shard(self, *_):
        return self

    def construct(self, x, weight):
        return (x * ops.rsqrt((x * x).mean(-1, True) + self.epsilon) * weight, 0)


class Outer(nn.Cell):
    def construct(self, a, b):
        return a.reshape(-1, 1) * b.reshape(1, -1)


class FlashAttentionScore(nn.Cell):
    def __init__(self, head_num, keep_prob=1.0, scale_value=1.0, input_layout="BNSD", **_):
        super().__init__(auto_prefix=False)
        assert input_layout == "BNSD", input_layout
        self.scale = scale_value

    def add_prim_attr(self, *_):
        return self

    def shard(self, *_):
        return self

    def construct(self, q, k, v, *_):
        q, k, v = q.astype(ms.float32), k.astype(ms.float32), v.astype(ms.float32)
        b, h, t, d = k.shape
        groups = q.shape[1] // h
        k = ops.broadcast_to(k.reshape(b, h, 1, t, d), (b, h, groups, t, d)).reshape(b, h * groups, t, d)
        v = ops.broadcast_to(v.reshape(b, h, 1, t, d), (b, h, groups, t, d)).reshape(b, h * groups, t, d)
        scores = ops.BatchMatMul(transpose_b=True)(q, k) * self.scale
        scores = scores + ms.Tensor(np.triu(np.full((LENGTH, LENGTH), -1e30, np.float32), 1))
        return (0, 0, 0, ops.BatchMatMul()(ops.softmax(scores, -1), v))


LENGTH = 16
P.RmsNorm = RmsNorm
import mindformers.parallel_core.training_graph.base_models.common.embeddings.rotary_pos_embedding as rotary  # noqa: E402
import mindformers.parallel_core.training_graph.transformer.flash_attention as flash  # noqa: E402
from mindformers.core.context.build_context import build_context  # noqa: E402
from mindformers.models.llama import LlamaConfig, LlamaForCausalLM  # noqa: E402
from mindformers.models.qwen3.configuration_qwen3 import Qwen3Config  # noqa: E402
from mindformers.models.qwen3.modeling_qwen3_train import TrainingQwen3ForCausalLM  # noqa: E402

rotary.Outer, flash.FlashAttentionScore = Outer, FlashAttentionScore


def build(settings):
    """The real network of a YAML; what a CPU cannot run is switched to what computes the same."""
    model = settings["model"]
    values = {**model["model_config"], "seq_length": LENGTH}
    if model.get("arch", {}).get("type") == "LlamaForCausalLM":
        values.pop("type")
        return LlamaForCausalLM(LlamaConfig(**values, use_rope_slice=True, fused_rms_norm=False))
    assert values.pop("architectures") == ["Qwen3ForCausalLM"]
    values.pop("model_type")
    return TrainingQwen3ForCausalLM(Qwen3Config(**values))


def logits(network, ids):
    network.set_train(False)
    found = network(ms.Tensor(ids[None], ms.int32), **mask(network))
    found = found[0] if isinstance(found, tuple) else found
    return found.asnumpy().reshape(len(ids), -1)


def mask(network):
    if isinstance(network, LlamaForCausalLM):
        return {}
    return {"attention_mask": ms.Tensor(np.triu(np.ones((1, 1, LENGTH, LENGTH)), 1), ms.uint8)}


def compare(found, wanted, tolerance, what):
    worst = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    print(f"{what}: largest difference of logits {worst:.2e} of the largest logit", flush=True)
    if not worst <= tolerance:
        sys.exit(f"{what}: expected at most {tolerance:g}")


def one(folder):
    settings = yaml.safe_load((folder / "ours/mindformers.yaml").read_text())
    legacy = settings["use_legacy"]
    build_context({"use_legacy": legacy, "run_mode": "train", "context": {"mode": 0, "device_target": "CPU"},
                   "use_parallel": False})  # fmt: skip
    ids = np.load(folder / "ids.npy")
    # Qwen3's attention is computed in float16 by the model itself.
    tolerance = 1e-4 if legacy else 5e-3
    network = build(settings)
    loaded = ms.load_checkpoint(str(folder / "ours/mindformers.ckpt"), crc_check=True)
    names = {parameter.name for parameter in network.get_parameters()}
    if names != set(loaded):
        sys.exit(f"{folder.name}: names differ: {sorted(names ^ set(loaded))[:6]}")
    missing, unexpected = ms.load_param_into_net(network, loaded, strict_load=True)
    if missing or unexpected:
        sys.exit(f"{folder.name}: missing {missing[:4]}, unexpected {unexpected[:4]}")
    compare(logits(network, ids), np.load(folder / "logits.npy"), tolerance, f"{folder.name}: ours in MindFormers")
    back(folder, settings, ids, legacy)


def back(folder, settings, ids, legacy):
    """New weights in the layout that ours was not exported in, as its trainer would save them."""
    values = settings["model"]["model_config"]
    if legacy:
        values["qkv_concat"] = True
    else:
        values["use_contiguous_weight_layout_attention"] = True
        values["use_interleaved_weight_layout_mlp"] = False
    network = build(settings)
    rng = np.random.default_rng(7)
    for parameter in network.get_parameters():
        scale = 0.2 if parameter.ndim > 1 else 0.5
        drawn = scale * rng.standard_normal(parameter.shape) + (parameter.ndim == 1)
        parameter.set_data(ms.Tensor(drawn.astype(np.float32)))
    theirs = folder / "theirs"
    theirs.mkdir()
    (theirs / "run.yaml").write_text(yaml.safe_dump(settings))
    ms.save_checkpoint(network, str(theirs / "model.ckpt"), append_dict={"epoch_num": 1, "step_num": 5})
    np.save(folder / "theirs.npy", logits(network, ids))


one(Path(sys.argv[1]))
