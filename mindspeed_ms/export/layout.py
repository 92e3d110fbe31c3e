"""Where each weight of a model lies in the arena: computed from the configuration alone, the same on every machine."""

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import BundleError
from mindspeed_ms.export.schema import Quantization
from mindspeed_ms.ops.native.pack import F32, W4, W8, ArenaLayout

INV_FREQ = "inv_freq"
EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def arena_layout(spec: DecoderSpec, quantization: Quantization) -> ArenaLayout:
    """Rotary frequencies first, then every parameter in the order of the computation.

    Raises BundleError when the quantization names a weight the model does not have, or no kernel computes it.
    """
    shapes = spec.parameter_shapes()
    for name, form in quantization.weights.items():
        if len(shapes.get(name, ())) != 2:
            raise BundleError(f"quantization: {name[:200]!r} is no matrix of this model; export the model again")
        if form.bits == 4 and form.group == 0 or form.bits == 8 and form.asym:
            raise BundleError(
                f"quantization: {name}: no kernel computes {form.bits} bits, group {form.group}, asym {form.asym}"
            )
    layout = ArenaLayout()
    layout.add_vector(INV_FREQ, spec.head_dim // 2)
    for name, shape in shapes.items():
        if len(shape) == 1:
            layout.add_vector(name, shape[0])
        elif name not in quantization.weights:
            layout.add_matrix(name, shape[0], shape[1], F32)
        else:
            form = quantization.weights[name]
            kind = W4 if form.bits == 4 else W8
            layout.add_matrix(name, shape[0], shape[1], kind, form.group, form.asym, form.act)
    return layout
