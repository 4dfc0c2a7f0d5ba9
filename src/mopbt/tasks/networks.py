"""Define the networks of the paper's tasks, FT-Transformer and WideResNet.

Both train alone and in a stack. The only hyperparameters inside them are probabilities of
`mopbt.torch.Dropout`, so all members of a population have the same architecture.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mopbt.torch.layers import Dropout


class FTTransformer(nn.Module):
    """Attend from a class token to one token per feature (Gorishniy et al. 2021).

    The input is one tensor (B, numeric + categorical): the numeric columns, then the codes of the
    categorical columns. A feature of c categories has the codes 0 to c - 1. Every other number is
    an unknown category, which has its own embedding.

    The defaults are the paper's network. Blocks are normalized at their inputs, except for the
    first attention. The activation is ReGLU. The last block computes the class token alone. The
    class token comes first; rtdl 0.0.13, which the paper used, put it last. Attention is invariant
    to the order of tokens, so this changes only the order of sums.

    Args:
        numeric: Number of numeric features.
        cardinalities: Number of known categories of each categorical feature.
        outputs: Number of outputs per row.
        blocks: Number of blocks, each with attention and a feed-forward network.
        width: Size of a token, a multiple of `heads`.
        heads: Attention heads; with one head there is no linear map after attention.
        hidden: Hidden units of a feed-forward network, after the activation.
        attention_dropout: Dropout of attention weights: a probability or the name of a
            hyperparameter.
        ffn_dropout: Dropout of the hidden units of the feed-forward networks.
        residual_dropout: Dropout of the residual branches.
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
            for i in range(_check_at_least("blocks", blocks, 1))
        )
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, _check_at_least("outputs", outputs, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, outputs) of rows (B, features)."""
        x = self.tokens(x)
        last = len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            x = block(x, queries=1 if i == last else x.shape[1])
        outputs: Tensor = self.head(x[:, 0])
        return outputs


class Tokens(nn.Module):
    """Turn rows into tokens: the class token, then one for each feature."""

    offsets: Tensor
    unknown: Tensor

    def __init__(self, numeric: int, cardinalities: Sequence[int], width: int) -> None:
        super().__init__()
        sizes = [_check_at_least("cardinalities", c, 1) for c in cardinalities]
        if _check_at_least("numeric", numeric, 0) + len(sizes) == 0:
            raise ValueError("FTTransformer needs features, got `numeric` 0 and no `cardinalities`")
        self.numeric = numeric
        self.register_buffer("unknown", torch.tensor(sizes, dtype=torch.int64), persistent=False)
        starts = [0, *accumulate(size + 1 for size in sizes)]
        self.register_buffer(
            "offsets", torch.tensor(starts[:-1], dtype=torch.int64), persistent=False
        )
        self.token = _uniform(1, _check_at_least("width", width, 1))
        self.weight = _uniform(numeric, width) if numeric else None
        # One embedding table for the categories of all features.
        self.table = _uniform(starts[-1], width) if sizes else None
        self.bias = _uniform(numeric + len(sizes), width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (B, 1 + features, width)."""
        if x.dim() != 2 or x.shape[1] != len(self.bias):
            raise ValueError(
                f"FTTransformer needs rows of {len(self.bias)} columns, "
                f"got a tensor of shape {tuple(x.shape)}"
            )
        n = self.numeric
        parts = [self.token.expand(len(x), 1, -1)]
        if self.weight is not None:
            parts.append(torch.addcmul(self.bias[:n], x[:, :n, None], self.weight))
        if self.table is not None:
            parts.append(F.embedding(self._table_rows(x[:, n:]), self.table) + self.bias[n:])
        return torch.cat(parts, dim=1)

    def _table_rows(self, codes: Tensor) -> Tensor:
        """Return table rows (B, categorical); an unknown code gets its feature's last row."""
        codes = codes.to(torch.int64)
        known = (codes >= 0) & (codes < self.unknown)
        return torch.where(known, codes, self.unknown) + self.offsets


class Block(nn.Module):
    """Add attention, then a feed-forward network, to the tokens."""

    def __init__(
        self, attention: nn.Module, ffn: "FeedForward", dropout: float | str, *, normalized: bool
    ) -> None:
        super().__init__()
        width = ffn.output.out_features
        self.attention = attention
        self.ffn = ffn
        self.attention_norm = nn.LayerNorm(width) if normalized else nn.Identity()
        self.ffn_norm = nn.LayerNorm(width)
        self.attention_residual = Dropout(dropout)
        self.ffn_residual = Dropout(dropout)

    def forward(self, x: Tensor, queries: int) -> Tensor:
        """Transform tokens (B, T, width), and return the first `queries`."""
        added = self.attention(self.attention_norm(x), queries)
        x = x[:, :queries] + self.attention_residual(added)
        total: Tensor = x + self.ffn_residual(self.ffn(self.ffn_norm(x)))
        return total


class Attention(nn.Module):
    """Compute multi-head self-attention with dropout of the attention weights."""

    def __init__(self, width: int, heads: int, dropout: float | str) -> None:
        super().__init__()
        if width % _check_at_least("heads", heads, 1):
            raise ValueError(f"`width` must be a multiple of `heads` ({heads}), got {width}")
        self.heads = heads
        # One product computes queries, keys and values.
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width) if heads > 1 else nn.Identity()
        self.dropout = Dropout(dropout)
        nn.init.zeros_(self.qkv.bias)
        if isinstance(self.output, nn.Linear):
            nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, queries: int) -> Tensor:
        """Attend from the first `queries` tokens of (B, T, width)."""
        attended = self._attend_first(x) if queries == 1 else self._attend(x)[:, :queries]
        mixed: Tensor = self.output(attended)
        return mixed

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
        attended: Tensor = self.dropout(_softmax(scores)) @ v
        return attended.transpose(1, 2).flatten(2)

    def _attend_first(self, x: Tensor) -> Tensor:
        """Attend from the first token alone, without computing keys and values.

        This uses q (K x) = (q K) x and p (V x) = V (p x). The bias of the keys adds the same to
        all scores of a head, so the softmax ignores it.
        """
        # The weights of a head are (width / heads, width).
        wq, wk, wv = self.qkv.weight.view(3, self.heads, -1, x.shape[-1])
        bq, _, bv = self.qkv.bias.view(3, self.heads, -1)
        q = torch.einsum("bw,hdw->bhd", x[:, 0], wq) + bq
        scores = torch.einsum("bhd,hdw->bhw", q * q.shape[-1] ** -0.5, wk) @ x.transpose(-1, -2)
        # The dimension of queries makes dropout draw the same mask as in `_attend`.
        weights = self.dropout(_softmax(scores)[:, :, None])[:, :, 0]
        attended: Tensor = torch.einsum("bhw,hdw->bhd", weights @ x, wv)
        attended = attended + weights.sum(-1, keepdim=True) * bv
        return attended.flatten(1)[:, None]


class FeedForward(nn.Module):
    """Apply one hidden layer with ReGLU activation and dropout."""

    def __init__(self, width: int, hidden: int, dropout: float | str) -> None:
        super().__init__()
        self.input = nn.Linear(width, 2 * _check_at_least("hidden", hidden, 1))
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual of tokens (B, T, width)."""
        value, gate = self.input(x).chunk(2, -1)
        added: Tensor = self.output(self.dropout(value * F.relu(gate)))
        return added


class WideResNet(nn.Module):
    """Classify images (B, 3, H, W) of any size (Zagoruyko and Komodakis 2016).

    As in the paper's experiments, blocks are pre-activated and have two 3x3 convolutions with
    biases, the second of which is strided. There is no dropout.

    Args:
        depth: Number of layers, 4 plus a multiple of 6: 10, 16, 22, 28. The paper uses 28.
        width: Factor for the 16, 32 and 64 channels of the three groups. The paper uses 2.
        classes: Number of outputs per image.
    """

    def __init__(self, depth: int = 28, width: int = 2, classes: int = 10) -> None:
        super().__init__()
        if not isinstance(depth, int) or depth < 10 or (depth - 4) % 6:
            raise ValueError(
                f"`depth` must be 4 plus a multiple of 6, such as 10, 16, 22 or 28, got {depth!r}"
            )
        channels = [16, *(size * _check_at_least("width", width, 1) for size in (16, 32, 64))]
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1)
        groups = zip(channels, channels[1:], (1, 2, 2), strict=False)
        self.groups = nn.Sequential(
            *(_group(incoming, out, stride, (depth - 4) // 6) for incoming, out, stride in groups)
        )
        self.norm = nn.BatchNorm2d(channels[-1])
        self.head = nn.Linear(channels[-1], _check_at_least("classes", classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, classes) of images (B, 3, H, W)."""
        # With channels last in memory, CPUs train a fifth faster.
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        x = F.relu(self.norm(self.groups(self.stem(x))))
        outputs: Tensor = self.head(x.mean((2, 3)))
        return outputs


class WideBlock(nn.Module):
    """Add two convolutions to the input.

    If the shape changes, the input goes through a 1x1 convolution.
    """

    def __init__(self, incoming: int, out: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(incoming)
        self.second_norm = nn.BatchNorm2d(out)
        self.first = nn.Conv2d(incoming, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1, stride=stride)
        same = incoming == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(incoming, out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, out, H / stride, W / stride)."""
        added = self.first(F.relu(self.first_norm(x)))
        added = self.second(F.relu(self.second_norm(added)))
        total: Tensor = self.shortcut(x) + added
        return total


def _softmax(scores: Tensor) -> Tensor:
    """Normalize scores over the last dimension.

    For a dozen tokens, PyTorch's own softmax takes five times as long on a CPU.
    """
    weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return weights / weights.sum(-1, keepdim=True)


def _uniform(rows: int, width: int) -> nn.Parameter:
    bound = width**-0.5
    return nn.Parameter(torch.empty(rows, width).uniform_(-bound, bound))


def _group(incoming: int, out: int, stride: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(
        WideBlock(incoming, out, stride), *(WideBlock(out, out, 1) for _ in range(blocks - 1))
    )


def _check_at_least(name: str, value: int, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}")
    return value
