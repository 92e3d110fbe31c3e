"""A tiny Llama in our code and in Hugging Face's, with the same weights, and batches of several documents a row."""

import numpy as np

from mindspeed_ms.config.decoder import DecoderSpec

CONFIG = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def make_spec(**changes) -> DecoderSpec:
    return DecoderSpec(model_type="llama", **{**CONFIG, **changes})


def drawn_weights(spec: DecoderSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of a size that makes gradients of every kind matter."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(1, 0.1, shape) if "norm" in name else rng.normal(0, 0.08, shape)).astype(np.float32)
        for name, shape in spec.parameter_shapes().items()
    }


def our_model(spec: DecoderSpec, weights: dict[str, np.ndarray]):
    import mindspore as ms

    from mindspeed_ms.models import build_model

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    model = build_model(spec)
    for name, parameter in model.parameters_and_names():
        parameter.set_data(ms.Tensor(weights[name]))
    return model


def torch_model(spec: DecoderSpec, weights: dict[str, np.ndarray]):
    """Hugging Face's Llama in float64."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = {key: getattr(spec, key) for key in CONFIG}
    model = LlamaForCausalLM(LlamaConfig(**fields, attn_implementation="eager")).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    return model


def torch_loss(model, batch: dict[str, np.ndarray]):
    """(sum of the losses, tokens): every document by itself, so that nothing depends on a mask."""
    import torch

    total, tokens = 0, 0
    for ids, labels, positions in zip(*batch.values(), strict=True):
        cuts = [*np.flatnonzero(positions == 0), len(ids)]
        for begin, end in zip(cuts[:-1], cuts[1:], strict=True):
            wanted = torch.from_numpy(labels[begin:end].astype(np.int64))
            if not (wanted != -100).any():
                continue
            logits = model(torch.from_numpy(ids[begin:end].astype(np.int64))[None]).logits[0]
            total = total + torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-100, reduction="sum")
            tokens += int((wanted != -100).sum())
    return total, tokens


def make_batch(seed: int, rows: int = 3, length: int = 24, vocab: int = 97) -> dict[str, np.ndarray]:
    """Rows of one to three documents and some padding."""
    rng = np.random.default_rng(seed)
    batch = {name: np.zeros((rows, length), np.int32) for name in ("input_ids", "labels", "position_ids")}
    batch["labels"][:] = -100
    for r in range(rows):
        ends = np.sort(rng.choice(np.arange(3, length), rng.integers(1, 4), replace=False))
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            ids = rng.integers(0, vocab, end - begin)
            batch["input_ids"][r, begin:end] = ids
            batch["labels"][r, begin : end - 1] = ids[1:]
            batch["position_ids"][r, begin:end] = np.arange(end - begin)
    return batch
