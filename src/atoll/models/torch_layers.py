"""The layers in PyTorch: where parameters lie in memory, the network forwards, and a step of SGD written out by hand.

Images stay rows × height × width × channels between layers, as everywhere in Atoll; PyTorch's convolutions see them
through strides, so nothing is copied. No loop over samples lives here, and no method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch.nn import functional

from atoll.core.tree import Array
from atoll.models.layers import Conv, Dense, Embed, Flatten, Image, Layer, Lstm, Pool, Relu, Shape, Tensor
from atoll.models.model import Network
from atoll.models.net import Net

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)  # how to permute the axes of the other into this


@dataclass(frozen=True)
class Slot:
    """Where a leaf stands: its axes are put in the order `memory` once a fit, and PyTorch sees those as `view`."""

    name: str
    start: int
    stop: int
    shape: Shape
    memory: Shape
    view: Shape


def orders(net: Net) -> dict[str, tuple[Shape, Shape]]:
    """Convolutions are stored out × height × width × in and seen as out × in × height × width; LSTMs transposed."""
    found: dict[str, tuple[Shape, Shape]] = {}
    for leaf, i, name, _ in net.parameters:
        layer = net.layers[i]
        if isinstance(layer, Conv) and name == "w":
            found[leaf] = ((3, 0, 1, 2), NCHW)
        if isinstance(layer, Lstm) and not layer.peephole and name in ("wi", "wh"):
            found[leaf] = ((1, 0), (0, 1))
    return found


@dataclass(frozen=True)
class MemoryLayout:
    """Where a network's parameters lie: flat vectors of Atoll's layout go in (`load`) and come out (`store`)."""

    slots: tuple[Slot, ...]
    dtype: str

    def load(self, w: Array) -> Tensor:
        """Copy a flat vector of Atoll's layout into one of PyTorch's."""
        out = np.array(w, self.dtype)
        for s in self._moved:
            out[s.start : s.stop] = w[s.start : s.stop].reshape(s.shape).transpose(s.memory).ravel()
        return torch.from_numpy(out)

    def store(self, v: Tensor) -> Array:
        """Undo `load`."""
        out = v.numpy().copy()
        for s in self._moved:
            stored = out[s.start : s.stop].reshape([s.shape[axis] for axis in s.memory])
            out[s.start : s.stop] = stored.transpose(np.argsort(s.memory)).ravel()
        return out

    def views(self, v: Tensor) -> list[Tensor]:
        """See the leaves inside the flat vector, without a copy, in the shapes that PyTorch's operations want."""
        return [v[s.start : s.stop].view([s.shape[axis] for axis in s.memory]).permute(s.view) for s in self.slots]

    def flat(self, leaves: Sequence[Tensor]) -> Tensor:
        """Undo `views`, with a copy."""
        pairs = zip(self.slots, leaves, strict=True)
        return torch.cat([leaf.permute(tuple(np.argsort(s.view))).reshape(-1) for s, leaf in pairs])

    @property
    def _moved(self) -> list[Slot]:
        return [s for s in self.slots if s.memory != tuple(sorted(s.memory))]


def layout(net: Network, dtype: str) -> MemoryLayout:
    """Lay the leaves out end to end, each in the order of axes that is fastest for PyTorch."""
    found, other = [], orders(net) if isinstance(net, Net) else {}
    for name, a, b, shape in net.schema.slots():
        same = tuple(range(len(shape)))
        found.append(Slot(name, a, b, shape, *other.get(name, (same, same))))
    return MemoryLayout(tuple(found), dtype)


# --- forwards ---------------------------------------------------------------------------------------------------------

TorchStep = tuple[Layer, dict[str, Tensor], Shape]


def stages(net: Net, parameters: dict[str, Tensor]) -> list[TorchStep]:
    """Pair every layer with its parameters and the shape that it gives."""
    found: list[TorchStep] = []
    shape = net.shape
    for i, layer in enumerate(net.layers):
        shape, _ = layer.shapes(shape)
        found.append((layer, {name: parameters[leaf] for leaf, j, name, _ in net.parameters if j == i}, shape))
    return found


def apply(net: Net, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Run rows through the network."""
    return forward(stages(net, parameters), x)


def forward(chain: Sequence[TorchStep], x: Tensor) -> Tensor:
    i = 0
    while i < len(chain):
        layer, p, out = chain[i]
        if isinstance(layer, Lstm) and not layer.peephole:
            stack = 1
            while i + stack < len(chain) and chain[i + stack][0] == layer:
                stack += 1
            x = _lstm(layer.units, [q for _, q, _ in chain[i : i + stack]], x)
            i += stack
        else:
            x = _layer(layer, p, x, out)
            i += 1
    return x


def _layer(layer: Layer, p: dict[str, Tensor], x: Tensor, out: Shape) -> Tensor:
    match layer:
        case Dense():
            y = torch.addmm(p["b"], x, p["w"]) if x.ndim == 2 else x @ p["w"] + p["b"]
        case Relu():
            y = x.relu()
        case Conv():
            y = _conv(layer, p, x.permute(NCHW)).permute(NHWC)
        case Pool():
            y = functional.max_pool2d(x.permute(NCHW), 2).permute(NHWC)
        case Embed():
            y = functional.embedding(x, p["w"])
        case Lstm():
            y = _peephole(x, p)
        case Image() | Flatten():
            y = x.reshape(len(x), *out)
    return y


def _conv(layer: Conv, p: dict[str, Tensor], x: Tensor) -> Tensor:
    before, after = (0, 0) if layer.padding == "valid" else ((layer.kernel - 1) // 2, layer.kernel // 2)
    if before != after:
        x = functional.pad(x, (before, after, before, after))
        before = 0
    return torch.conv2d(x, p["w"], p["b"], padding=before)


def _lstm(units: int, layers: list[dict[str, Tensor]], x: Tensor) -> Tensor:
    """Run equal LSTM layers in one fused call, time first; PyTorch's second bias is zero."""
    none = x.new_zeros(4 * units)
    weights = [leaf for p in layers for leaf in (p["wi"], p["wh"], p["b"], none)]
    zero = x.new_zeros(len(layers), len(x), units)
    time_first = x.transpose(0, 1).contiguous()
    learns = torch.is_grad_enabled()
    out = torch.lstm(time_first, (zero, zero), weights, True, len(layers), 0.0, learns, False, False)
    return out[0].transpose(0, 1)


def _peephole(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    steps = x.transpose(0, 1)
    t, n, f = steps.shape
    z = torch.addmm(p["b"], steps.reshape(t * n, f), p["wi"]).view(t, n, -1)
    return _Recur.apply(z, p["wh"], p["peep"]).transpose(0, 1)


class _Recur(torch.autograd.Function):  # type: ignore[misc]  # PyTorch's way to give an operation its own gradient
    """The LSTM with peepholes; the gradient of the recurrent weights is one product after the backward pass."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, z: Tensor, wh: Tensor, peep: Tensor) -> Tensor:
        t, n, _ = z.shape
        units = len(wh)
        h, c = z.new_zeros(t + 1, n, units), z.new_zeros(t + 1, n, units)
        gates, squashed = torch.empty_like(z), z.new_empty(t, n, units)
        for s in range(t):
            a = torch.addmm(z[s], h[s], wh, out=gates[s])
            i, f, g, o = a.chunk(4, 1)
            i.addcmul_(c[s], peep[0]).sigmoid_()
            f.addcmul_(c[s], peep[1]).sigmoid_()
            torch.mul(f, c[s], out=c[s + 1]).addcmul_(i, g.tanh_())
            o.addcmul_(c[s + 1], peep[2]).sigmoid_()
            torch.mul(o, torch.tanh(c[s + 1], out=squashed[s]), out=h[s + 1])
        ctx.save_for_backward(h, c, gates, squashed, wh, peep)
        return h[1:]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c, gates, squashed, wh, peep = ctx.saved_tensors
        t, n, units = squashed.shape
        i, f, g, o = gates.view(t, n, 4, units).unbind(2)
        # Everything that does not depend on the carried gradient, in one pass over all steps.
        to_c, to_o = o * (1 - squashed * squashed), squashed * o * (1 - o)
        to_ifg = torch.stack([g * i * (1 - i), c[:-1] * f * (1 - f), i * (1 - g * g)], 2)
        dz, back = torch.empty_like(gates).view(t, n, 4, units), wh.t()
        dh, dc = above.new_zeros(n, units), above.new_zeros(n, units)
        for s in range(t - 1, -1, -1):
            dh = dh + above[s]
            do = torch.mul(dh, to_o[s], out=dz[s, :, 3])
            dc = dc.addcmul(dh, to_c[s]).addcmul_(do, peep[2])
            ifg = torch.mul(dc[:, None], to_ifg[s], out=dz[s, :, :3])
            dc = (dc * f[s]).addcmul_(ifg[:, 0], peep[0]).addcmul_(ifg[:, 1], peep[1])
            dh = dz[s].view(n, -1) @ back
        seen = torch.stack([c[:-1], c[:-1], c[1:]])
        dpeep = (dz[:, :, [0, 1, 3]].movedim(2, 0) * seen).sum((1, 2))
        flat_dz = dz.view(t * n, -1)
        return flat_dz.view(t, n, -1), h[:-1].reshape(t * n, units).t() @ flat_dz, dpeep


# --- a step of SGD by hand --------------------------------------------------------------------------------------------


def by_hand(net: Network) -> TypeGuard[Net]:
    """Say whether `descent` knows all layers: dense ones and convolutions under a softmax."""
    if not isinstance(net, Net) or net.loss != "cross_entropy":
        return False
    shape = net.shape
    for layer in net.layers:
        match layer:
            case Dense() if len(shape) != 1:
                return False
            case Conv(kernel=kernel, padding="same") if kernel % 2 == 0:
                return False
            case Embed() | Lstm():
                return False
        shape, _ = layer.shapes(shape)
    return len(shape) == 1 and any(isinstance(layer, Dense) for layer in net.layers)


def descent(chain: Sequence[TorchStep], lr: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return one step of plain SGD on the mean cross-entropy: rows and one-hot labels in, parameters changed in place.

    It returns the loss of all rows before the step. The gradient that runs back is multiplied by the rate once, so
    every layer just subtracts its own part of it.
    """
    first = next(i for i, (_, p, _) in enumerate(chain) if p)
    pairs = [_pair(layer, p, out, i - first) for i, (layer, p, out) in enumerate(chain)]
    forths, backs = [forth for forth, _ in pairs], [back for _, back in pairs[first:]][::-1]

    def step(x: Tensor, target: Tensor) -> Tensor:
        saved = []
        for forth in forths:
            x, kept = forth(x)
            saved.append(kept)
        d = torch.softmax(x, 1)
        loss = -(d * target).sum(1).clamp_min_(torch.finfo(d.dtype).tiny).log_().sum()
        d = d.sub_(target).mul_(lr / len(x))
        for back in backs:
            d = back(d, saved.pop())
        return loss

    return step


Forth = Callable[[Tensor], tuple[Tensor, Tensor]]  # input to output and what the backward pass needs
Back = Callable[[Tensor, Tensor], Tensor]  # gradient of the output, and what was kept, to the gradient of the input


def _pair(layer: Layer, p: dict[str, Tensor], out: Shape, after: int) -> tuple[Forth, Back]:
    """Return both passes of a layer; `after` counts from the first with parameters, below which none runs back."""
    match layer:
        case Dense():
            return _dense_pair(p["w"], p["b"], after > 0)
        case Relu():
            return _relu_pair(after > 0)
        case Conv():
            return _conv_pair(layer, p, after > 0)
        case Pool():
            return _pool_pair()
        case _:
            return lambda x: (x.reshape(len(x), *out), x.shape), lambda d, shape: d.reshape(shape)


def _dense_pair(w: Tensor, b: Tensor, on: bool) -> tuple[Forth, Back]:
    turned = w.t()

    def back(d: Tensor, x: Tensor) -> Tensor:
        below = torch.mm(d, turned) if on else None
        w.addmm_(x.t(), d, alpha=-1)
        b.sub_(d.sum(0))
        return below

    return lambda x: (torch.addmm(b, x, w), x), back


def _relu_pair(ours: bool) -> tuple[Forth, Back]:
    """ReLU overwrites its input, unless that is the data."""
    mask = torch.ops.aten.threshold_backward.default

    def forth(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.relu_() if ours else x.relu()
        return x, x

    return forth, lambda d, x: mask(d, x, 0)


def _conv_pair(layer: Conv, p: dict[str, Tensor], on: bool) -> tuple[Forth, Back]:
    w, b = p["w"], p["b"]
    side = 0 if layer.padding == "valid" else layer.kernel // 2
    how = ([len(b)], (1, 1), (side, side), (1, 1), False, (0, 0), 1, (on, True, True))
    gradients = torch.ops.aten.convolution_backward.default

    def forth(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.permute(NCHW)
        return torch.conv2d(x, w, b, padding=side).permute(NHWC), x

    def back(d: Tensor, x: Tensor) -> Tensor:
        below, dw, db = gradients(d.permute(NCHW), x, w, *how)
        w.sub_(dw)
        b.sub_(db)
        return below.permute(NHWC) if on else None

    return forth, back


def _pool_pair() -> tuple[Forth, Back]:
    pool = torch.ops.aten.max_pool2d_with_indices.default
    unpool = torch.ops.aten.max_pool2d_with_indices_backward.default

    def forth(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = x.permute(NCHW)
        top, where = pool(x, (2, 2), (2, 2))
        return top.permute(NHWC), (x, where)

    def back(d: Tensor, kept: tuple[Tensor, Tensor]) -> Tensor:
        x, where = kept
        return unpool(d.permute(NCHW), x, (2, 2), (2, 2), (0, 0), (1, 1), False, where).permute(NHWC)

    return forth, back
