"""The ragged decoder as data: which kernels run, on what, with which attributes.

Both the exporter, which turns it into a MINDIR, and the loader, which compares a MINDIR with it, read this one list.
"""

from dataclasses import dataclass

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.export.layout import EMBEDDING, INV_FREQ, OUTPUT, arena_layout
from mindspeed_ms.export.schema import Quantization
from mindspeed_ms.ops.native.pack import LANES, ArenaLayout

ENTRY_POINTS = ("RopeTable", "Embedding", "AttentionBlock", "MlpBlock", "LmHead")
PLACEHOLDER = "mindspeed_ms_cpu.so"  # the library a MINDIR names until it is loaded
Attribute = int | float | list[int]


@dataclass(frozen=True)
class Step:
    """One kernel call: `inputs` are (name in the kernel, value, dtype); the output is `output`, float32 [-1, width]."""

    entry: str
    inputs: tuple[tuple[str, str, str], ...]
    output: str
    width: int
    attrs: dict[str, Attribute]
    side_effect: bool = False


@dataclass(frozen=True)
class Program:
    """All steps in an order that runs, and the graph's inputs: name -> (dtype, shape), None for what varies."""

    steps: tuple[Step, ...]
    inputs: dict[str, tuple[str, tuple[int | None, ...]]]

    def signature(self) -> dict[str, list[str | int]]:
        """The inputs and the output as bundle.json shows them: dtype first, -1 for what varies."""
        inputs: dict[str, list[str | int]] = {
            name: [dtype, *(-1 if size is None else size for size in shape)]
            for name, (dtype, shape) in self.inputs.items()
        }
        return {**inputs, "logits": ["float32", -1, self.steps[-1].width]}


def cache_shape(spec: DecoderSpec, blocks: int, block_size: int) -> tuple[int, ...]:
    """[L, B, 2, Hkv, D16 * bs]: keys and values of every layer; D16 is the head size rounded up to 16."""
    padded = -(-spec.head_dim // LANES) * LANES
    return (spec.num_hidden_layers, blocks, 2, spec.num_key_value_heads, padded * block_size)


def decoder_program(spec: DecoderSpec, quantization: Quantization, kv_dtype: str, block_size: int) -> Program:
    """The program of one model. Raises BundleError when the quantization does not fit the model."""
    layout = arena_layout(spec, quantization)
    layers, _, *rest = cache_shape(spec, 0, block_size)
    inputs: dict[str, tuple[str, tuple[int | None, ...]]] = {
        "token_ids": ("int32", (None,)),
        "positions": ("int32", (None,)),
        "slots": ("int32", (None,)),
        "seq_starts": ("int32", (None,)),
        "block_tables": ("int32", (None, None)),
        "rows": ("int32", (None,)),
        "arena": ("uint8", (None,)),
        "cache": (kv_dtype, (layers, None, *rest)),
    }
    steps = [
        Step(
            "Embedding",
            (("ids", "token_ids", "i32"), ("arena", "arena", "u8")),
            "x0",
            spec.hidden_size,
            {"weight": layout.matrices[EMBEDDING].as_list()},
        ),
        Step(
            "RopeTable",
            (("positions", "positions", "i32"), ("arena", "arena", "u8")),
            "table",
            spec.head_dim,
            {"inv_freq": layout.vectors[INV_FREQ][0], "head_dim": spec.head_dim},
        ),
    ]
    for index in range(spec.num_hidden_layers):
        steps += _layer(spec, layout, index, "f16" if kv_dtype == "float16" else "f32")
    head = EMBEDDING if spec.tie_word_embeddings else OUTPUT
    steps.append(
        Step(
            "LmHead",
            (("x", f"x{2 * spec.num_hidden_layers}", "f32"), ("rows", "rows", "i32"), ("arena", "arena", "u8")),
            "logits",
            spec.vocab_size,
            {
                "eps": spec.rms_norm_eps,
                "norm": layout.vectors["model.norm.weight"][0],
                "weight": layout.matrices[head].as_list(),
                "bias": -1,
            },
        )
    )
    return Program(tuple(steps), inputs)


def _layer(spec: DecoderSpec, layout: ArenaLayout, index: int, kv: str) -> list[Step]:
    prefix = f"model.layers.{index}."

    def matrix(name: str) -> list[int]:
        return layout.matrices[f"{prefix}{name}.weight"].as_list()

    def vector(name: str) -> int:
        return layout.vectors.get(prefix + name, (-1, 0))[0]

    attention: dict[str, Attribute] = {
        "layer": index,
        "eps": spec.rms_norm_eps,
        "scale": spec.head_dim**-0.5,
        "heads": [spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim],
        "norm": vector("input_layernorm.weight"),
        **{f"w{name}": matrix(f"self_attn.{name}_proj") for name in "qkvo"},
        "biases": [vector(f"self_attn.{name}_proj.bias") for name in "qkvo"],
        "qk_norm": [vector(f"self_attn.{name}_norm.weight") for name in "qk"],
    }
    mlp: dict[str, Attribute] = {
        "eps": spec.rms_norm_eps,
        "norm": vector("post_attention_layernorm.weight"),
        **{name: matrix(f"mlp.{name}_proj") for name in ("gate", "up", "down")},
        "biases": [vector(f"mlp.{name}_proj.bias") for name in ("gate", "up", "down")],
    }
    paging = tuple((name, name, "i32") for name in ("positions", "slots", "seq_starts", "block_tables"))
    first, middle, last = (f"x{2 * index + step}" for step in range(3))
    state = (("x", first, "f32"), ("table", "table", "f32"), ("arena", "arena", "u8"), ("cache", "cache", kv))
    return [
        Step("AttentionBlock", state + paging, middle, spec.hidden_size, attention, side_effect=True),
        Step("MlpBlock", (("x", middle, "f32"), ("arena", "arena", "u8")), last, spec.hidden_size, mlp),
    ]
