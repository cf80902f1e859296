"""Programs as found in the wild: a byte-level GPT, a VAE, a diffusion step, a graph network, a policy gradient."""

import torch
from torch import nn
from torch.nn import functional

from programs import collect, program, train
from programs.layers import Attention


@program
def byte_level_gpt(block):
    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.place = nn.Embedding(256, 48), nn.Embedding(24, 48)
            self.blocks = nn.Sequential(*(Attention() for _ in range(3)))
            self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 256, bias=False)

        def forward(self, tokens):
            return self.head(self.norm(self.blocks(self.token(tokens) + self.place.weight[: tokens.shape[1]])))

    model = Gpt()
    text = torch.tensor(list(__doc__.encode()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def loss_of(number):
        batch = torch.stack([text[start : start + 25] for start in range(number, number + 32, 8)])
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    return train(block, model, optimizer, loss_of)


@program
def variational_autoencoder(block):
    encoder = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 96))
    model = nn.ModuleList([encoder, decoder])
    x = torch.rand(48, 96)

    def loss_of(_):
        mean, spread = encoder(x).chunk(2, 1)
        sample = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return functional.binary_cross_entropy_with_logits(decoder(sample), x) + 1e-3 * divergence

    return train(block, model, torch.optim.Adam(model.parameters(), lr=1e-2), loss_of)


@program
def denoising_step(block):
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()) for _ in range(6))
    )
    x = torch.randn(4, 8, 12, 12)

    def loss_of(_):
        level = torch.rand(4, 1, 1, 1)
        noise = torch.randn_like(x)
        return functional.mse_loss(model(x * (1 - level).sqrt() + noise * level.sqrt()), noise)

    return train(block, model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss_of)


@program
def graph_network(block):
    model = nn.ModuleList(nn.Linear(128, 64) for _ in range(5))
    nodes, edges = torch.randn(60, 64), torch.randint(0, 60, (2, 150))

    def loss_of(_):
        value = nodes
        for layer in model:
            message = layer(torch.cat([value[edges[0]], value[edges[1]]], 1)).relu()
            summed = torch.zeros_like(value).index_add(0, edges[1], message)
            count = torch.bincount(edges[1], minlength=60).clamp(min=1).unsqueeze(1)
            value = functional.normalize(summed / count + value)
        return (value @ value.t()).pow(2).mean()

    return train(block, model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss_of)


@program
def sparse_adjacency(block):
    weights = nn.ParameterList(torch.randn(64, 64) / 8 for _ in range(5))
    nodes = torch.randn(64, 64)
    adjacency = (torch.rand(64, 64) > 0.9).float().to_sparse()

    def loss_of(_):
        value = nodes
        for weight in weights:
            value = torch.sparse.mm(adjacency, value @ weight).tanh()
        return value.pow(2).mean()

    return train(block, weights, torch.optim.AdamW(weights.parameters(), lr=1e-2), loss_of)


@program
def policy_gradient(block):
    """Actions are sampled and read by item(): the flow depends on values."""
    policy = nn.Sequential(*(m for _ in range(5) for m in (nn.Linear(48, 48), nn.Tanh())), nn.Linear(48, 4))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
    losses = []
    with block(policy, optimizer) as step:
        for _ in range(6):
            with step():
                state, terms = torch.randn(48), []
                for _ in range(4):
                    distribution = torch.distributions.Categorical(logits=policy(state))
                    action = distribution.sample()
                    state = state.roll(action.item())
                    terms.append(distribution.log_prob(action) * state[0].item())
                optimizer.zero_grad()
                loss = -torch.stack(terms).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return collect(policy, optimizer, losses)


@program
def connectionist_temporal_classification(block):
    model = nn.ModuleList(
        [nn.Conv1d(16, 48, 3, padding=1), nn.GRU(48, 32, batch_first=True), nn.Linear(32, 48), nn.Linear(48, 20)]
    )
    x, target = torch.randn(4, 16, 24), torch.randint(1, 20, (4, 6))

    def loss_of(_):
        value = model[1](model[0](x).relu().transpose(1, 2))[0]
        scores = model[3](model[2](value).relu()).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, target, torch.full((4,), 24), torch.full((4,), 6))

    return train(block, model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss_of)


@program
def contrastive_pairs_with_a_queue(block):
    """A queue of old keys that is written in place, and a momentum copy of the encoder."""
    encoder = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5)))
    keys = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5))).requires_grad_(False)
    keys.load_state_dict(encoder.state_dict())
    model = nn.ModuleList([encoder, keys])
    model.register_buffer("queue", functional.normalize(torch.randn(96, 64)))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)

    def loss_of(number):
        x = torch.randn(16, 64)
        query = functional.normalize(encoder(x))
        with torch.no_grad():
            for slow, fast in zip(keys.parameters(), encoder.parameters()):
                slow.mul_(0.99).add_(fast, alpha=0.01)
            key = functional.normalize(keys(x + 0.1))
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ model.queue.clone().t()], 1) / 0.1
        model.queue[16 * (number % 6) : 16 * (number % 6 + 1)] = key
        return functional.cross_entropy(logits, torch.zeros(16, dtype=torch.long))

    return train(block, model, optimizer, loss_of)
