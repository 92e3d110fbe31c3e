"""The optimizers from MindSpore built-ins, for where there is no native kernel: one tensor after the other."""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, nn, ops


def _f32(x: Tensor) -> Tensor:
    return x.astype(ms.float32)


class _Reference(nn.Cell):
    """Reads control = [scale, skip]; `put` writes a tensor unless the step is skipped."""

    def __init__(self, decay: Sequence[bool]):
        super().__init__()
        self.decay = tuple(bool(flag) for flag in decay)
        self.count = len(self.decay)
        self.where = ops.Select()

    def put(self, tensor, value, control):
        skip = ops.broadcast_to(control[1] != 0, tensor.shape)
        ops.assign(tensor, self.where(skip, tensor, value))

    def done(self, control):
        return _f32(control[1:2] == 0)


class AdamWReference(_Reference):
    """(params, means, squares, grads, settings, control) -> [1]: see AdamWUpdate."""

    def __init__(self, decay: Sequence[bool], decoupled: bool):
        super().__init__(decay)
        self.decoupled = decoupled

    def construct(self, params, means, squares, grads, settings: Tensor, control: Tensor) -> Tensor:
        lr, beta1, beta2, eps, weight, step = (
            settings[0], settings[1], settings[2], settings[3], settings[4], settings[5],
        )  # fmt: skip
        size = _f32(lr / (1 - ops.pow(beta1, step)))
        root = _f32(ops.sqrt(1 - ops.pow(beta2, step)))
        rest1, keep2, rest2, floor = _f32(1 - beta1), _f32(beta2), _f32(1 - beta2), _f32(eps)
        shrink, added = _f32(1 - lr * weight), _f32(weight)
        for i in range(self.count):
            p, grad = params[i], grads[i] * control[0]
            if self.decay[i] and not self.decoupled:
                grad = grad + added * p
            mean = means[i] + (grad - means[i]) * rest1
            square = squares[i] * keep2 + grad * grad * rest2
            new = p * shrink if self.decay[i] and self.decoupled else p
            new = new - size * mean / (ops.sqrt(square) / root + floor)
            self.put(means[i], mean, control)
            self.put(squares[i], square, control)
            self.put(p, new, control)
        return self.done(control)


class LionReference(_Reference):
    """(params, means, grads, settings, control) -> [1]: see LionUpdate."""

    def construct(self, params, means, grads, settings: Tensor, control: Tensor) -> Tensor:
        lr, beta1, beta2 = _f32(settings[0]), _f32(settings[1]), _f32(settings[2])
        rest1, rest2 = _f32(1 - settings[1]), _f32(1 - settings[2])
        shrink = _f32(1 - settings[0] * settings[3])
        for i in range(self.count):
            p, mean, grad = params[i], means[i], grads[i] * control[0]
            new = p * shrink if self.decay[i] else p
            new = new - lr * ops.sign(mean * beta1 + grad * rest1)
            self.put(means[i], mean * beta2 + grad * rest2, control)
            self.put(p, new, control)
        return self.done(control)


class SGDReference(_Reference):
    """(params, buffers, grads, settings, control) -> [1]: see SGDUpdate."""

    def __init__(self, decay: Sequence[bool], momentum: bool, nesterov: bool):
        super().__init__(decay)
        self.momentum, self.nesterov = momentum, nesterov

    def construct(self, params, buffers, grads, settings: Tensor, control: Tensor) -> Tensor:
        lr, momentum, damped, weight = (
            _f32(settings[0]), _f32(settings[1]), _f32(1 - settings[2]), _f32(settings[3]),
        )  # fmt: skip
        for i in range(self.count):
            p, grad = params[i], grads[i] * control[0]
            if self.decay[i]:
                grad = grad + p * weight
            if self.momentum:
                first = ops.broadcast_to(settings[4] == 1, p.shape)
                kept = self.where(first, grad, buffers[i] * momentum + grad * damped)
                grad = grad + kept * momentum if self.nesterov else kept
                self.put(buffers[i], kept, control)
            self.put(p, p - grad * lr, control)
        return self.done(control)


class AdafactorReference(_Reference):
    """(params, rows, columns, grads, settings, control) -> [1]: see AdafactorUpdate."""

    def construct(self, params, rows, columns, grads, settings: Tensor, control: Tensor) -> Tensor:
        lr, step, floor = settings[0], settings[6], _f32(settings[2])
        rest = _f32(ops.pow(step, settings[1]))
        rate = _f32(ops.minimum(lr, 1 / ops.sqrt(step)))
        shrink, least, most = _f32(1 - lr * settings[5]), _f32(settings[3]), _f32(settings[4])
        for i in range(self.count):
            p, grad = params[i], grads[i] * control[0]
            alpha = ops.maximum(least, ops.sqrt((p * p).mean())) * rate
            square = grad * grad
            if p.ndim == 2:
                row = rows[i] + (square.mean(1) - rows[i]) * rest
                column = columns[i] + (square.mean(0) - columns[i]) * rest
                self.put(columns[i], column, control)
                estimate = (row / ops.maximum(row.mean(), floor)).reshape((-1, 1)) * column
            else:
                row = rows[i] + (square - rows[i]) * rest
                estimate = row
            self.put(rows[i], row, control)
            update = grad / ops.sqrt(ops.maximum(estimate, floor * floor))
            norm = ops.maximum(ops.sqrt((update * update).mean()) / most, ops.ones_like(rate))
            self.put(p, (p * shrink if self.decay[i] else p) - update * (alpha / norm), control)
        return self.done(control)


class SumSquaresReference(nn.Cell):
    """A tuple of tensors -> [count]: see SumSquares."""

    def __init__(self, count: int):
        super().__init__()
        self.count = count

    def construct(self, tensors) -> Tensor:
        sums = []
        for i in range(self.count):
            sums.append((tensors[i] * tensors[i]).sum().reshape((1,)))
        return ops.concat(sums)


class AccumulateReference(nn.Cell):
    """(sums, grads, keep) -> [1]: see Accumulate."""

    def __init__(self, count: int):
        super().__init__()
        self.count = count
        self.where = ops.Select()

    def construct(self, sums, grads, keep: Tensor) -> Tensor:
        for i in range(self.count):
            anew = ops.broadcast_to(keep[0] == 0, sums[i].shape)
            ops.assign(sums[i], self.where(anew, grads[i], sums[i] * keep + grads[i]))
        return ops.ones_like(keep)
