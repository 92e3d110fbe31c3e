"""The training loss of a decoder: hidden states, output layer and cross entropy without a matrix of all logits."""

import mindspore as ms
from mindspore import Tensor, nn

from mindspeed_ms.ops.linear_cross_entropy import LinearCrossEntropy


class CausalLMLoss(nn.Cell):
    """input_ids, labels, position_ids [B, T] int32 -> (loss [1] float32 summed over tokens, tokens [1] float32).

    A label is the token to predict at its place (already shifted); -100 counts for nothing. `model` is a causal
    language model of mindspeed_ms.models; its parameters keep their names.
    """

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.tied = model.tied
        output = model.model.embed_tokens if self.tied else model.lm_head
        self.cross_entropy = LinearCrossEntropy(weight_grad=output.weight.requires_grad)

    def construct(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.model.model(input_ids, position_ids)
        weight = self.model.model.embed_tokens.weight if self.tied else self.model.lm_head.weight
        labels = labels.reshape((-1,))
        loss, _ = self.cross_entropy(x.reshape((-1, x.shape[-1])), weight, labels)
        return loss, (labels != -100).astype(ms.float32).sum().reshape((1,))
