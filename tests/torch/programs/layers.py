"""Layers and ops, each in a model that trains."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from programs import program, train
from tidetest import device


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


class Attention(nn.Module):
    """Self-attention by scaled_dot_product_attention, with a causal mask."""

    def __init__(self, width=48, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


def attention(block, forward=None, **options):
    model = nn.Sequential(*(Attention() for _ in range(4)))
    x, y = torch.randn(4, 16, 48), torch.randn(4, 16, 48)
    forward = forward or (lambda: model(x))
    return train(block, model, adamw(model, **options), lambda _: functional.mse_loss(forward(), y))


@program
def scaled_dot_product_attention(block):
    return attention(block)


@program
def attention_in_bf16_autocast(block):
    model = nn.Sequential(*(Attention() for _ in range(4)))
    x, y = torch.randn(4, 16, 48), torch.randn(4, 16, 48)

    def loss_of(_):
        with torch.autocast(device.kind(), dtype=torch.bfloat16):
            return functional.mse_loss(model(x).float(), y)

    return train(block, model, adamw(model), loss_of)


@program
def checkpointed_without_reentry(block):
    model = nn.ModuleList(Attention() for _ in range(4))
    x, y = torch.randn(4, 16, 48), torch.randn(4, 16, 48)

    def loss_of(_):
        value = x
        for layer in model:
            value = checkpoint(layer, value, use_reentrant=False)
        return functional.mse_loss(value, y)

    return train(block, model, adamw(model), loss_of)


@program
def checkpointed_with_reentry_and_dropout(block):
    model = nn.ModuleList(nn.Sequential(Attention(), nn.Dropout(0.2)) for _ in range(4))
    x, y = torch.randn(4, 16, 48).requires_grad_(), torch.randn(4, 16, 48)

    def loss_of(_):
        value = x
        for layer in model:
            value = checkpoint(layer, value, use_reentrant=True)
        return functional.mse_loss(value, y)

    return train(block, model, adamw(model), loss_of)


@program
def checkpointed_in_segments(block):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    return train(
        block,
        model,
        adamw(model),
        lambda _: functional.mse_loss(checkpoint_sequential(model, 3, x, use_reentrant=False), y),
    )


@program
def embedding_dense(block):
    model = nn.Sequential(
        nn.Embedding(256, 48), nn.Flatten(), *(nn.Linear(384, 64), nn.ReLU()), nn.Linear(64, 64), nn.Linear(64, 32)
    )
    tokens, target = torch.randint(0, 256, (24, 8)), torch.randint(0, 32, (24,))
    return train(block, model, adamw(model), lambda _: functional.cross_entropy(model(tokens), target))


@program
def embedding_sparse(block):
    """Sparse gradients have no storage of their own: their parts have."""
    embedding = nn.Embedding(512, 48, sparse=True)
    head = nn.Sequential(*(nn.Linear(48, 48) for _ in range(6)), nn.Linear(48, 16))
    model = nn.ModuleList([embedding, head])
    tokens, target = torch.randint(0, 512, (64,)), torch.randint(0, 16, (64,))
    first, second = (
        torch.optim.SparseAdam(embedding.parameters()),
        torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9),
    )

    class Both:
        state = second.state

        def zero_grad(self):
            first.zero_grad()
            second.zero_grad()

        def step(self):
            first.step()
            second.step()

    return train(block, model, Both(), lambda _: functional.cross_entropy(head(embedding(tokens)), target))


@program
def embedding_bag(block):
    model = nn.ModuleList([nn.EmbeddingBag(256, 64, mode="mean"), *(nn.Linear(64, 64) for _ in range(5))])
    tokens, offsets = torch.randint(0, 256, (96,)), torch.arange(0, 96, 4)

    def loss_of(_):
        value = model[0](tokens, offsets)
        for layer in list(model)[1:]:
            value = layer(value).relu()
        return value.pow(2).mean()

    return train(block, model, torch.optim.Adagrad(model.parameters()), loss_of)


@program
def tied_weights(block):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(192, 48)
            self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(8))
            self.head = nn.Linear(48, 192, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            value = self.embedding(tokens)
            for layer in self.layers:
                value = value + layer(value).relu()
            return self.head(value)

    model = Tied()
    tokens = torch.randint(0, 192, (40,))
    return train(block, model, adamw(model), lambda _: functional.cross_entropy(model(tokens), tokens.roll(1)))


@program
def in_place_activations(block):
    layers = []
    for _ in range(6):
        layers += [nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.SiLU(inplace=True)]
    model = nn.Sequential(*layers)
    x, y = torch.randn(48, 64), torch.randn(48, 64)

    def loss_of(_):
        value = model(x).clone()
        value.mul_(2).add_(1).clamp_(-3, 3)
        value[:, :8] += 1
        return functional.mse_loss(value, y)

    return train(block, model, adamw(model), loss_of)


@program
def views_transposes_splits(block):
    weights = nn.ParameterList(torch.randn(64, 96) / 8 for _ in range(6))
    x = torch.randn(48, 64)

    def loss_of(number):
        value = x
        for weight in weights:
            left, middle, right = (value @ weight).chunk(3, dim=1)
            value = torch.cat([left.sigmoid() * middle, right.tanh()], 1)
            value = value.view(24, 2, 64).transpose(0, 1).reshape(48, 64).flip(0)
            value = torch.stack(value.t().split([16, 48])[1].unbind(0)[:4]).mean(0)[:, None] + value
        return value.pow(2).mean()

    return train(block, weights, adamw(weights), loss_of)


@program
def convolutions_and_batch_norm(block):
    layers, channels = [], 3
    for width in (16, 24, 24, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    x, target = torch.randn(4, 3, 12, 12), torch.randint(0, 10, (4,))
    return train(
        block,
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda _: functional.cross_entropy(model(x), target),
    )


@program
def convolutions_strided_transposed_pooled(block):
    model = nn.Sequential(
        nn.Conv2d(4, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.GELU(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(16, 16, 2, stride=2), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.PReLU(), nn.Conv2d(16, 4, 1),
    )  # fmt: skip
    x = torch.randn(3, 4, 16, 16)
    return train(block, model, adamw(model), lambda _: functional.smooth_l1_loss(model(x), x))


@program
def dropout_everywhere(block):
    layers = []
    for probability in (0.1, 0.2, 0.3, 0.4, 0.5):
        layers += [nn.Linear(64, 64), nn.Dropout(probability), nn.GELU(), nn.AlphaDropout(0.1)]
    model = nn.Sequential(*layers)
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    return train(block, model, adamw(model), lambda _: functional.mse_loss(model(x), y))


@program
def noise_and_sampling(block):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    generator = torch.Generator(device.kind()).manual_seed(9)

    def loss_of(_):
        x = torch.randn(48, 64, generator=generator) + torch.rand(48, 64).bernoulli()
        value = model(x)
        return (
            functional.rrelu(value, training=True).pow(2).mean()
            + functional.gumbel_softmax(value, hard=True).sum() * 1e-3
        )

    return train(block, model, adamw(model), loss_of)


@program
def lstm(block):
    model = nn.ModuleList([nn.LSTM(32, 32, num_layers=3, dropout=0.1, batch_first=True), nn.Linear(32, 32)])
    x = torch.randn(6, 12, 32)
    return train(block, model, adamw(model), lambda _: model[1](model[0](x)[0]).pow(2).mean())


@program
def gru_bidirectional_and_a_cell(block):
    model = nn.ModuleList([nn.GRU(24, 24, num_layers=2, bidirectional=True), nn.LSTMCell(48, 48), nn.Linear(48, 48)])
    x = torch.randn(8, 6, 24)

    def loss_of(_):
        value, _ = model[0](x)
        state = None
        for row in value:
            state = model[1](row, state)
        return model[2](state[0]).pow(2).mean()

    return train(block, model, adamw(model), loss_of)


@program
def norms_of_all_kinds(block):
    layers = []
    for norm in (nn.LayerNorm(64), nn.RMSNorm(64), nn.BatchNorm1d(64), nn.GroupNorm(4, 64)):
        layers += [nn.Linear(64, 64), norm, nn.Mish()]
    model = nn.Sequential(*layers)
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    return train(block, model, adamw(model), lambda _: functional.mse_loss(model(x), y))


@program
def mixture_of_experts(block):
    """Routing by topk, scatter and index_add: shapes that depend on data change from step to step."""
    router = nn.Linear(48, 6)
    experts = nn.ModuleList(nn.Sequential(nn.Linear(48, 64), nn.SiLU(), nn.Linear(64, 48)) for _ in range(6))
    model = nn.ModuleList([router, experts])
    x = torch.randn(64, 48)

    def loss_of(number):
        value = x + number / 10
        weights, chosen = router(value).softmax(-1).topk(2)
        result = torch.zeros_like(value)
        for place, expert in enumerate(experts):
            rows, slots = torch.where(chosen == place)
            if len(rows):
                result.index_add_(0, rows, expert(value[rows]) * weights[rows, slots].unsqueeze(1))
        load = torch.zeros(6).scatter_add_(0, chosen.flatten(), torch.ones(chosen.numel()))
        return (result - x).pow(2).mean() + load.var() * 1e-4

    return train(block, model, adamw(model), loss_of)


@program
def gather_scatter_and_sorting(block):
    table = nn.Parameter(torch.randn(128, 48))
    model = nn.ParameterList([table, *(torch.randn(48, 48) / 7 for _ in range(5))])

    def loss_of(number):
        order = (torch.arange(128) * 37 + number) % 128
        value = table[order].cumsum(0) / 10
        for weight in list(model)[1:]:
            value = value @ weight
        best = value.sort(dim=0, descending=True).values
        picked = best.gather(0, torch.arange(48).expand(16, 48))
        return picked.logsumexp(0).mean() + torch.cdist(value[:8], value[8:16]).mean() + value.topk(3).values.mean()

    return train(block, model, adamw(model), loss_of)


@program
def torch_transformer(block):
    model = nn.Transformer(32, 4, 2, 2, 64, dropout=0.1, batch_first=True)
    source, target = torch.randn(4, 8, 32), torch.randn(4, 8, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(8)
    return train(
        block, model, adamw(model), lambda _: functional.mse_loss(model(source, target, tgt_mask=mask), target), steps=4
    )


@program
def multihead_attention_with_weights(block):
    model = nn.ModuleList(nn.MultiheadAttention(48, 4, batch_first=True) for _ in range(4))
    x = torch.randn(4, 12, 48)

    def loss_of(_):
        value, total = x, 0.0
        for layer in model:
            value, weights = layer(value, value, value, need_weights=True)
            total = total + weights.max(-1).values.mean()
        return value.pow(2).mean() + total

    return train(block, model, adamw(model), loss_of)


@program
def complex_numbers_and_fft(block):
    model = nn.ParameterList(torch.randn(32, 32, dtype=torch.complex64) / 6 for _ in range(6))
    x = torch.randn(32, 32)

    def loss_of(_):
        value = torch.fft.fft2(x) / 32
        for weight in model:
            value = torch.view_as_complex(torch.view_as_real(value @ weight).tanh())
        return torch.fft.ifft2(value).abs().mean()

    return train(block, model, adamw(model), loss_of)


@program
def double_precision_linear_algebra(block):
    model = nn.ParameterList(torch.randn(40, 40, dtype=torch.float64) / 6 for _ in range(5))

    def loss_of(_):
        total = torch.zeros((), dtype=torch.float64)
        for weight in model:
            square = weight @ weight.mT + torch.eye(40, dtype=torch.float64)
            total = (
                total
                + torch.linalg.cholesky(square).diagonal().log().sum()
                + torch.linalg.solve(square, weight).pow(2).mean()
            )
            total = total + torch.linalg.svdvals(weight)[0] + torch.linalg.inv(square).trace()
        return total

    return train(block, model, adamw(model), loss_of)


@program
def bfloat16_parameters(block):
    model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(6))).to(torch.bfloat16)
    x, y = torch.randn(48, 96, dtype=torch.bfloat16), torch.randn(48, 96, dtype=torch.bfloat16)
    return train(block, model, adamw(model), lambda _: functional.mse_loss(model(x), y))
