"""Batch normalisation with the mean and variance of all ranks' batches, on CPU and GPU.

Each rank sends the count, mean and variance of its own part, once forward; backward sends two sums
a channel. Ranks may have batches of different sizes, also none. They call in the same order at
first, or name the layers. Source: Ioffe, Szegedy, Batch Normalization, ICML 2015; the parts are
combined as in Chan, Golub, LeVeque, Updating Formulae for Computing Sample Variances, 1979.
"""

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from horon.names import own_name
from horon.process_sets import global_process_set
from horon.specs import Sum
from horon.torch.calls import reduce_call, rows_call, set_id


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm1d, 2d and 3d, for inputs of at least two dimensions."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True,
                 track_running_stats=True, process_set=global_process_set, name=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set
        self.name = name

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input):
        self._check_input_dim(input)
        if not self._uses_batch() or self.process_set.size() == 1:
            return self._alone(input)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        name = own_name(self, "sync_batch_norm", self.name, set_id(self.process_set))
        output, mean, variance, count = _Normalise.apply(
            input, self.weight, self.bias, self.eps, self.process_set, name
        )
        if self.training and self.track_running_stats:
            self._remember(mean, variance, count)
        return output

    def _uses_batch(self) -> bool:
        return self.training or self.running_mean is None

    def _alone(self, input):
        running = None, None
        if not self.training or self.track_running_stats:
            running = self.running_mean, self.running_var
        momentum = 0.0
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            momentum = self._momentum()
        return functional.batch_norm(input, *running, self.weight, self.bias, self._uses_batch(),
                                     momentum, self.eps)

    def _momentum(self) -> float:
        """Without a momentum the running values are the mean of all batches so far."""
        if self.momentum is not None:
            return self.momentum
        return 1.0 / float(self.num_batches_tracked)

    @torch.no_grad()
    def _remember(self, mean, variance, count):
        momentum = self._momentum()
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def _statistics(input, dims):
    """[count, means, variances] of this rank's part, in the type they are computed in."""
    count = input.numel() // input.shape[1]
    if count == 0:
        return input.new_zeros(1 + 2 * input.shape[1])
    variance, mean = torch.var_mean(input, dims, correction=0)
    return torch.cat([mean.new_tensor([count]), mean, variance])


def _combine(parts, channels):
    """Mean, variance and count of the union of all parts, one a row."""
    counts, means, variances = parts.double().split([1, channels, channels], dim=1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    variance = (counts * (variances + (means - mean).square())).sum(0) / count
    return mean, variance, float(count)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps, process_set, name):
        channels = input.shape[1]
        dims = [d for d in range(input.dim()) if d != 1]
        wide = _wide(input)
        own = _statistics(wide, dims).unsqueeze(0)
        parts = rows_call(name, "allgather", own, process_set).run()
        mean, variance, count = _combine(parts, channels)
        if count < 2:
            raise ValueError(
                "Expected more than 1 value per channel when training, over all ranks; got "
                f"{int(count)}, here input of size {tuple(input.shape)}"
            )
        shape = [1, channels] + [1] * (input.dim() - 2)
        mean, scale = mean.to(wide.dtype), torch.rsqrt(variance + eps).to(wide.dtype)
        output = (wide - mean.view(shape)) * scale.view(shape)
        if weight is not None:
            output = output * weight.to(wide.dtype).view(shape)
        if bias is not None:
            output = output + bias.to(wide.dtype).view(shape)
        ctx.save_for_backward(input, weight, mean, scale)
        ctx.arguments = (dims, shape, count, process_set, name)
        ctx.has_bias = bias is not None
        variance = variance.to(wide.dtype)
        ctx.mark_non_differentiable(mean, variance)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx, gradient, *_):
        input, weight, mean, scale = ctx.saved_tensors
        dims, shape, count, process_set, name = ctx.arguments
        wide = _wide(gradient)
        normalised = (input.to(wide.dtype) - mean.view(shape)) * scale.view(shape)
        own = torch.stack([wide.sum(dims), (wide * normalised).sum(dims)])
        total = reduce_call(f"{name}.backward", Sum.spec, own, process_set).run()
        from_input = from_weight = from_bias = None
        if ctx.needs_input_grad[0]:
            factor = scale if weight is None else scale * weight.to(wide.dtype)
            means = (total / count).view(2, *shape)
            from_input = (wide - means[0] - normalised * means[1]) * factor.view(shape)
            from_input = from_input.to(input.dtype)
        # Those of the parameters stay this rank's own: the optimizer reduces them.
        if weight is not None and ctx.needs_input_grad[1]:
            from_weight = own[1].to(weight.dtype)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            from_bias = own[0].to(weight.dtype if weight is not None else wide.dtype)
        return from_input, from_weight, from_bias, None, None, None


def _wide(tensor):
    """Sums of 16-bit numbers are taken in float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
