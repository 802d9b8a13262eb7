"""ResNets, RevNets and vision transformers as published, on PyTorch's meta device: shapes without numbers."""

from __future__ import annotations

import torch
from torch import nn

from steptime.reversible.reversible_blocks import ReversibleBlock, ReversibleSequence

# Blocks of each of three stages, channels of stem and stages, bottlenecks, reversible: memcnn/config/experiments.json.
RESNETS = {
    "resnet-32": (5, (16, 16, 32, 64), False, False),
    "resnet-110": (18, (16, 16, 32, 64), False, False),
    "resnet-164": (18, (16, 16, 32, 64), True, False),
    "revnet-38": (3, (32, 32, 64, 112), False, True),
    "revnet-110": (9, (32, 32, 64, 128), False, True),
    "revnet-164": (9, (32, 32, 64, 128), True, True),
}


def branch(inside: int, planes: int, *, stride: int = 1, bottleneck: bool = False, first: bool = False) -> nn.Module:
    """What a residual path goes round: norm, ReLU and convolution, two or three times; the very first has no norm before it."""
    wide = [(inside, planes, 3, stride), (planes, planes, 3, 1)]
    narrow = [(inside, planes, 1, 1), (planes, planes, 3, stride), (planes, 4 * planes, 1, 1)]
    found: list[nn.Module] = []
    for number, (a, b, kernel, step) in enumerate(narrow if bottleneck else wide):
        if number or not first:
            found += [nn.BatchNorm2d(a), nn.ReLU(inplace=True)]
        found.append(nn.Conv2d(a, b, kernel, stride=step, padding=kernel // 2, bias=False))
    return nn.Sequential(*found)


class Residual(nn.Module):
    """A block that is not reversible, with a projection where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.across = inner, None
        if stride != 1 or inside != outside:
            self.across = nn.Sequential(nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        out = self.inner(x)
        out += x if self.across is None else self.across(x)
        return out


def resnet(name: str) -> nn.Module:
    """A network for CIFAR-10 of the paper on RevNets, as MemCNN builds it."""
    blocks, channels, bottleneck, reversible = RESNETS[name]
    stem, wider = channels[0], 4 if bottleneck else 1
    found: list[nn.Module] = [nn.Conv2d(3, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU(inplace=True)]
    inside = stem
    for stage, planes in enumerate(channels[1:]):
        chain: list[nn.Module] = []
        for number in range(blocks):
            stride, outside, first = 2 if stage and not number else 1, planes * wider, stage == number == 0
            if reversible and stride == 1 and inside == outside:
                pair = (branch(inside // 2, planes // 2, bottleneck=bottleneck, first=first) for _ in range(2))
                chain.append(ReversibleBlock(*pair, dim=1))
            else:
                inner = branch(inside, planes, stride=stride, bottleneck=bottleneck, first=first)
                found.append(Residual(inside, outside, stride, inner))
            inside = outside
        if chain:
            found.append(ReversibleSequence(chain, dim=1, free_input=True))
    return nn.Sequential(
        *found, nn.BatchNorm2d(inside), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10)
    )


class Attention(nn.Module):
    """Layer norm and attention that keeps its probabilities, as before fused kernels."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = ((q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5).softmax(-1) @ v
        return self.out(found.transpose(1, 2).reshape(batch, tokens, width))


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Plain(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.feed = Attention(width, heads), feed_forward(width)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.feed(x)


class VisionTransformer(nn.Module):
    """ViT on images of 224 x 224 in patches of 16 x 16; reversible: two streams of the full width, alike at first."""

    def __init__(self, *, layers: int, width: int, heads: int, reversible: bool) -> None:
        super().__init__()
        self.patches, self.reversible = nn.Conv2d(3, width, 16, stride=16), reversible
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 197, width))
        wide = 2 * width if reversible else width
        self.blocks: nn.Module = (
            ReversibleSequence([ReversibleBlock(Attention(width, heads), feed_forward(width)) for _ in range(layers)])
            if reversible
            else nn.Sequential(*(Plain(width, heads) for _ in range(layers)))
        )
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, 1000)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.places
        x = torch.cat((x, x), -1) if self.reversible else x
        return self.head(self.norm(self.blocks(x))[:, 0])


class Retaining(torch.autograd.Function):
    """Reversible layers undone as the authors of RevViT publish it (github.com/karttikeya/minREV, rev.py).

    Streams are kept apart from the output that they are joined to, each graph is retained over its own backward pass, and
    gradients of parameters are added where they lie.
    """

    @staticmethod
    def forward(ctx, x, blocks):
        a, b = x.chunk(2, -1)
        with torch.no_grad():
            for block in blocks:
                a, b = block.coupled(a, b)
        ctx.blocks = blocks
        ctx.save_for_backward(a.detach(), b.detach())
        return torch.cat((a, b), -1)

    @staticmethod
    def backward(ctx, dx):
        (a, b), (da, db) = ctx.saved_tensors, dx.chunk(2, -1)
        for block in reversed(ctx.blocks):
            a, b, da, db = _undone(block, a.detach(), b.detach(), da, db)
        return torch.cat((da, db), -1), None


def _undone(block, a, b, da, db):
    with torch.enable_grad():
        a.requires_grad = True
        of_a = block.g(a)
        of_a.backward(db, retain_graph=True)
    with torch.no_grad():
        b = b - of_a
        del of_a
        da, a.grad = da + a.grad, None
    with torch.enable_grad():
        b.requires_grad = True
        of_b = block.f(b)
        of_b.backward(da, retain_graph=True)
    with torch.no_grad():
        a = a - of_b
        del of_b
        db, b.grad = db + b.grad, None
    return a, b.detach(), da, db
