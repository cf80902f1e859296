"""Programs whose flow is not the straight loop: accumulation, failures, changing shapes, several models."""

import io

import torch
from torch import nn
from torch.nn import functional

from programs import collect, program, train
from programs.optimizers import perceptron
from tidetest import device


def data(rows=48, width=64):
    return torch.randn(rows, width), torch.randn(rows, width)


@program
def gradient_accumulation(block):
    model, (x, y) = perceptron(), data(96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for _ in range(5):
            with step():
                optimizer.zero_grad()
                for part_x, part_y in zip(x.chunk(4), y.chunk(4)):
                    loss = functional.mse_loss(model(part_x), part_y) / 4
                    loss.backward()
                    losses.append(loss.detach())
                optimizer.step()
        return collect(model, optimizer, losses)


@program
def accumulation_over_step_marks(block):
    """step() around each micro-batch: an update every third one only."""
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for number in range(12):
            with step():
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                losses.append(loss.detach())
                if number % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=number % 2 == 0)
        return collect(model, optimizer, losses)


@program
def exception_in_mid_step(block):
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for number in range(10):
            try:
                with step():
                    optimizer.zero_grad()
                    loss = functional.mse_loss(model(x), y)
                    if number in (4, 7):
                        raise ValueError("a bad batch")
                    loss.backward()
                    if number == 6:
                        raise ValueError("after backward")
                    optimizer.step()
            except ValueError as error:
                losses.append(str(error))
            losses.append(loss.detach())
        return collect(model, optimizer, losses)


@program
def out_of_memory_like_retry(block):
    """A step fails, is cut in two and retried."""
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []

    def attempt(parts, fail):
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(parts), y.chunk(parts)):
            loss = functional.mse_loss(model(part_x), part_y) / parts
            loss.backward()
            if fail:
                raise MemoryError
        optimizer.step()
        losses.append(loss.detach())

    with block(model, optimizer) as step:
        for number in range(8):
            with step():
                try:
                    attempt(1, fail=number == 5)
                except MemoryError:
                    attempt(2, fail=False)
        return collect(model, optimizer, losses)


@program
def changing_batch_sizes(block):
    model, (x, y) = perceptron(), data(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for rows in (32, 32, 32, 32, 17, 64, 32, 1, 32, 32):
            with step():
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x[:rows]), y[:rows])
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return collect(model, optimizer, losses)


@program
def evaluation_between_steps(block):
    model, (x, y) = nn.Sequential(perceptron(), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 64)), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for number in range(8):
            with step():
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            if number % 3 == 2:
                model.eval()
                with torch.inference_mode():
                    losses.append(functional.mse_loss(model(y), x).item())
                model.train()
        return collect(model, optimizer, losses)


@program
def skipped_optimizer_steps(block):
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for number in range(9):
            with step():
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
                if number not in (5, 6) and norm.isfinite():
                    optimizer.step()
                losses.append((loss.detach(), norm))
        return collect(model, optimizer, losses)


@program
def layers_frozen_and_thawed(block):
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for number in range(9):
            model[2 * (number // 3)].requires_grad_(number % 3 == 2)
            with step():
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return collect(model, optimizer, losses)


@program
def no_step_marks_at_all(block):
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer):
        for _ in range(6):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return collect(model, optimizer, losses)


@program
def save_and_resume_inside(block):
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, file = [], io.BytesIO()
    with block(model, optimizer) as step:
        for number in range(10):
            with step():
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            if number == 4:
                torch.save((model.state_dict(), optimizer.state_dict()), file)
            if number == 7:
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
                del saved
        return collect(model, optimizer, losses)


@program
def two_models_in_turn(block):
    """A generator and a discriminator, two optimizers, detached samples."""
    generator, critic = perceptron(48, 4), nn.Sequential(perceptron(48, 4), nn.Linear(48, 1))
    first = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    second = torch.optim.Adam(critic.parameters(), lr=1e-3)
    both = nn.ModuleList([generator, critic])
    real, losses = torch.randn(32, 48), []
    with block(both, first) as step:
        for _ in range(6):
            with step():
                fake = generator(torch.randn(32, 48))
                second.zero_grad()
                verdict = functional.softplus(critic(fake.detach())).mean() + functional.softplus(-critic(real)).mean()
                verdict.backward()
                second.step()
                first.zero_grad()
                deceit = functional.softplus(-critic(fake)).mean()
                deceit.backward()
                first.step()
                losses += [verdict.detach(), deceit.detach()]
        return collect(
            both, first, losses, second=[value for state in second.state.values() for value in state.values()]
        )


@program
def grad_scaled_autocast(block):
    model, (x, y) = perceptron(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    scaler = torch.amp.GradScaler(device.kind(), init_scale=16.0, growth_interval=2)
    losses = []
    with block(model, optimizer) as step:
        for _ in range(6):
            with step():
                optimizer.zero_grad()
                with torch.autocast(device.kind(), dtype=torch.bfloat16):
                    loss = functional.mse_loss(model(x).float(), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                losses.append((loss.detach(), scaler.get_scale()))
        return collect(model, optimizer, losses)


@program
def hooks_that_keep_activations(block):
    model, (x, y) = perceptron(), data()
    kept = []
    for layer in model[::4]:
        layer.register_forward_hook(lambda module, args, output: kept.append(output.detach()))
    return train(
        block,
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        lambda _: functional.mse_loss(model(x), y),
        kept=kept,
    )


@program
def truncated_backpropagation(block):
    cell, head = nn.GRUCell(48, 48), nn.Linear(48, 48)
    model = nn.ModuleList([cell, head, *(nn.Linear(48, 48) for _ in range(3))])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, losses = torch.randn(24, 16, 48), []
    with block(model, optimizer) as step:
        state = torch.zeros(16, 48)
        for chunk in x.split(4):
            with step():
                optimizer.zero_grad()
                total = 0.0
                for row in chunk:
                    state = cell(row, state)
                    value = head(state)
                    for layer in model[2:]:
                        value = layer(value).relu()
                    total = total + (value - row).pow(2).mean()
                total.backward()
                optimizer.step()
                state = state.detach()
                losses.append(total.detach())
        return collect(model, optimizer, losses, state=state)


@program
def inference_only(block):
    model, (x, _) = perceptron(depth=10), data()
    results = []
    with torch.inference_mode(), block(model, None) as step:
        for number in range(5):
            with step():
                results.append(model(x * number).sum(0))
        return collect(model, None, results)


@program
def growing_key_value_cache(block):
    """Generation: tensors that grow by a row per step, and a program whose shapes never repeat."""
    layers = nn.ModuleList(nn.Linear(64, 192) for _ in range(6))
    value, results = torch.randn(4, 1, 64), []
    with torch.no_grad(), block(layers, None) as step:
        caches = [None] * 6
        for _ in range(12):
            with step():
                for number, layer in enumerate(layers):
                    q, k, v = layer(value).view(4, 1, 3, 64).unbind(2)
                    old = caches[number]
                    caches[number] = (k, v) if old is None else (torch.cat([old[0], k], 1), torch.cat([old[1], v], 1))
                    keys, values = caches[number]
                    value = (functional.softmax(q @ keys.mT / 8, -1) @ values).tanh()
                results.append(value.clone())
        return collect(layers, None, results, caches=caches)
