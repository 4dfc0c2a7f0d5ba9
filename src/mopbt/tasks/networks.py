"""The networks of the paper's tasks: FT-Transformer for tables and WideResNet for images.

Both train one by one and stacked. What is tuned inside them are probabilities of `mopbt.torch.Dropout`, so their structure is the
same for all members of a population.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mopbt.torch.layers import Dropout


class FTTransformer(nn.Module):
    """FT-Transformer (Gorishniy et al. 2021): each feature becomes a token, and a class token reads the others by attention.

    The input is one tensor (B, numeric + categorical): first the numeric columns, then the codes of the categorical ones. A
    feature of c categories has the codes 0 to c - 1; c, and every other number, stands for a category that is not known, which has
    an embedding of its own.

    The defaults are the paper's network. Blocks are normalized at their inputs, but for the first attention; the activation is
    ReGLU; the last block computes the class token alone. The class token stands first, where rtdl 0.0.13, which the paper used,
    put it last: attention does not know places, so this changes nothing but the order of sums.

    Args:
        numeric: Numeric features.
        cardinalities: Known categories of each categorical feature.
        outputs: Numbers that are computed for each row.
        blocks: Pairs of attention and feed-forward network.
        width: Numbers in a token, a multiple of the heads.
        heads: Heads of attention; with one there is no linear map after it.
        hidden: Numbers after the activation of a feed-forward network.
        attention_dropout: Of the attention's probabilities: a probability, or the name of a hyperparameter.
        ffn_dropout: Of the hidden numbers of the feed-forward networks.
        residual_dropout: Of what attention and feed-forward network add to the tokens.
    """

    def __init__(
        self,
        numeric: int,
        cardinalities: Sequence[int] = (),
        *,
        outputs: int = 2,
        blocks: int = 3,
        width: int = 192,
        heads: int = 8,
        hidden: int = 256,
        attention_dropout: float | str = 0.0,
        ffn_dropout: float | str = 0.0,
        residual_dropout: float | str = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = Tokens(numeric, cardinalities, width)
        self.blocks = nn.ModuleList(
            Block(
                Attention(width, heads, attention_dropout),
                FeedForward(width, hidden, ffn_dropout),
                residual_dropout,
                normalized=i > 0,
            )
            for i in range(_at_least("blocks", blocks, 1))
        )
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, _at_least("outputs", outputs, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, outputs) of rows (B, features)."""
        x, last = self.tokens(x), len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            x = block(x, queries=1 if i == last else x.shape[1])
        outputs: Tensor = self.head(x[:, 0])
        return outputs


class Tokens(nn.Module):
    """Rows as tokens: the class token, a scaled and shifted vector for each number, an embedding for each category."""

    offsets: Tensor
    unknown: Tensor

    def __init__(self, numeric: int, cardinalities: Sequence[int], width: int) -> None:
        super().__init__()
        sizes = [_at_least("cardinalities", c, 1) for c in cardinalities]
        if _at_least("numeric", numeric, 0) + len(sizes) == 0:
            raise ValueError("FTTransformer needs features, got `numeric` 0 and no `cardinalities`")
        self.numeric = numeric
        self.register_buffer("unknown", torch.tensor(sizes, dtype=torch.int64), persistent=False)
        starts = [0, *accumulate(size + 1 for size in sizes)]
        self.register_buffer(
            "offsets", torch.tensor(starts[:-1], dtype=torch.int64), persistent=False
        )
        self.token = _drawn(1, _at_least("width", width, 1))
        self.weight = _drawn(numeric, width) if numeric else None
        self.table = (
            _drawn(starts[-1], width) if sizes else None
        )  # of all categories, feature by feature
        self.bias = _drawn(numeric + len(sizes), width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, 1 + features, width)."""
        if x.dim() != 2 or x.shape[1] != len(self.bias):
            raise ValueError(
                f"FTTransformer takes rows of {len(self.bias)} columns, got a tensor of shape {tuple(x.shape)}"
            )
        parts, n = [self.token.expand(len(x), 1, -1)], self.numeric
        if self.weight is not None:
            parts.append(torch.addcmul(self.bias[:n], x[:, :n, None], self.weight))
        if self.table is not None:
            parts.append(F.embedding(self._places(x[:, n:]), self.table) + self.bias[n:])
        return torch.cat(parts, dim=1)

    def _places(self, codes: Tensor) -> Tensor:
        """Return the rows (B, categorical) of the table; what is no known code takes its feature's last."""
        codes = codes.to(torch.int64)
        known = (codes >= 0) & (codes < self.unknown)
        return torch.where(known, codes, self.unknown) + self.offsets


class Block(nn.Module):
    """Attention, then a feed-forward network, each adding to the tokens."""

    def __init__(
        self, attention: nn.Module, ffn: "FeedForward", dropout: float | str, *, normalized: bool
    ) -> None:
        super().__init__()
        width = ffn.output.out_features
        self.attention, self.ffn = attention, ffn
        self.attention_norm = nn.LayerNorm(width) if normalized else nn.Identity()
        self.ffn_norm = nn.LayerNorm(width)
        self.attention_residual, self.ffn_residual = Dropout(dropout), Dropout(dropout)

    def forward(self, x: Tensor, queries: int) -> Tensor:
        """Return the first `queries` of tokens (B, T, width)."""
        added = self.attention(self.attention_norm(x), queries)
        x = x[:, :queries] + self.attention_residual(added)
        total: Tensor = x + self.ffn_residual(self.ffn(self.ffn_norm(x)))
        return total


class Attention(nn.Module):
    """Self-attention of several heads with dropout of its probabilities."""

    def __init__(self, width: int, heads: int, dropout: float | str) -> None:
        super().__init__()
        if width % _at_least("heads", heads, 1):
            raise ValueError(f"`width` must be a multiple of the heads {heads}, got {width}")
        self.heads = heads
        self.qkv = nn.Linear(
            width, 3 * width
        )  # queries, keys and values one below the other: one product, not three
        self.output = nn.Linear(width, width) if heads > 1 else nn.Identity()
        self.dropout = Dropout(dropout)
        nn.init.zeros_(self.qkv.bias)
        if isinstance(self.output, nn.Linear):
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, queries: int) -> Tensor:
        """Return what the first `queries` of tokens (B, T, width) read, shape (B, queries, width)."""
        mixed: Tensor = self.output(
            self._read_by_first(x) if queries == 1 else self._read(x)[:, :queries]
        )
        return mixed

    def _read(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
        read: Tensor = self.dropout(scores.softmax(-1)) @ v
        return read.transpose(1, 2).flatten(2)

    def _read_by_first(self, x: Tensor) -> Tensor:
        """Return what the first token reads, without keys and values of the others: q (K x) = (q K) x, and p (V x) = V (p x).

        The bias of the keys adds the same to all scores of a head, which the softmax does not see.
        """
        wq, wk, wv = self.qkv.weight.view(
            3, self.heads, -1, x.shape[-1]
        )  # of each head: (width / heads, width)
        bq, _, bv = self.qkv.bias.view(3, self.heads, -1)
        q = torch.einsum("bw,hdw->bhd", x[:, 0], wq) + bq
        scores = torch.einsum("bhd,hdw->bhw", q * q.shape[-1] ** -0.5, wk) @ x.transpose(-1, -2)
        shares = self.dropout(scores.softmax(-1)[:, :, None])[
            :, :, 0
        ]  # a query's place: the mask is that of `_read`
        read: Tensor = (
            torch.einsum("bhw,hdw->bhd", shares @ x, wv) + shares.sum(-1, keepdim=True) * bv
        )
        return read.flatten(1)[:, None]


class FeedForward(nn.Module):
    """A network of one hidden layer with the activation ReGLU and dropout behind it."""

    def __init__(self, width: int, hidden: int, dropout: float | str) -> None:
        super().__init__()
        self.input = nn.Linear(width, 2 * _at_least("hidden", hidden, 1))
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to tokens (B, T, width)."""
        value, gate = self.input(x).chunk(2, -1)
        added: Tensor = self.output(self.dropout(value * F.relu(gate)))
        return added


class WideResNet(nn.Module):
    """WideResNet (Zagoruyko and Komodakis 2016) for images (B, 3, H, W) of any size, as the paper's experiments had it.

    Pre-activated blocks of two 3x3 convolutions, which have biases; the second one of a block is the one that strides; no dropout.

    Args:
        depth: Layers: 4 and a multiple of 6, as in 10, 16, 22 and 28; 28 in the paper.
        width: How many times wider than 16, 32 and 64 channels the three groups of blocks are; 2 in the paper.
        classes: Numbers that are computed for each image.
    """

    def __init__(self, depth: int = 28, width: int = 2, classes: int = 10) -> None:
        super().__init__()
        if not isinstance(depth, int) or depth < 10 or (depth - 4) % 6:
            raise ValueError(
                f"`depth` must be 4 and a multiple of 6, such as 10, 16, 22 or 28, got {depth!r}"
            )
        channels = [16, *(size * _at_least("width", width, 1) for size in (16, 32, 64))]
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1)
        groups = zip(channels, channels[1:], (1, 2, 2), strict=False)
        self.groups = nn.Sequential(
            *(_group(inside, out, stride, (depth - 4) // 6) for inside, out, stride in groups)
        )
        self.norm = nn.BatchNorm2d(channels[-1])
        self.head = nn.Linear(channels[-1], _at_least("classes", classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, classes) of images (B, 3, H, W)."""
        x = (
            x.movedim(1, -1).contiguous().movedim(-1, 1)
        )  # channels last in memory: CPUs train a fifth faster
        x = F.relu(self.norm(self.groups(self.stem(x))))
        outputs: Tensor = self.head(x.mean((2, 3)))
        return outputs


class WideBlock(nn.Module):
    """Two convolutions that add to what comes in, or to a linear map of it where the shape changes."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(inside), nn.BatchNorm2d(out)
        self.first = nn.Conv2d(inside, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1, stride=stride)
        same = inside == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inside, out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, out, H / stride, W / stride)."""
        added = self.first(F.relu(self.first_norm(x)))
        added = self.second(F.relu(self.second_norm(added)))
        total: Tensor = self.shortcut(x) + added
        return total


def _drawn(rows: int, width: int) -> nn.Parameter:
    reach = width**-0.5
    return nn.Parameter(torch.empty(rows, width).uniform_(-reach, reach))


def _group(inside: int, out: int, stride: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(
        WideBlock(inside, out, stride), *(WideBlock(out, out, 1) for _ in range(blocks - 1))
    )


def _at_least(name: str, value: int, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {value!r}")
    return value
