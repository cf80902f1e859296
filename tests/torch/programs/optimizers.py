"""Optimizers, in every implementation that torch has, and what is done to gradients before an update."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from programs import collect, program, train


def perceptron(width=64, depth=6):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


def run(block, make, steps=6, **options):
    model = perceptron()
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    return train(
        block, model, make(model.parameters(), **options), lambda _: nn.functional.mse_loss(model(x), y), steps
    )


@program
def adamw_single(block):
    return run(block, torch.optim.AdamW, lr=1e-2, foreach=False)


@program
def adamw_foreach(block):
    return run(block, torch.optim.AdamW, lr=1e-2, foreach=True)


@program
def adamw_fused(block):
    return run(block, torch.optim.AdamW, lr=1e-2, fused=True)


@program
def adamw_amsgrad_maximize(block):
    return run(block, torch.optim.AdamW, lr=1e-3, amsgrad=True, maximize=True, foreach=True)


@program
def adam_with_a_tensor_rate(block):
    return run(block, torch.optim.Adam, lr=torch.tensor(1e-2), foreach=False, weight_decay=0.01)


@program
def sgd_plain(block):
    return run(block, torch.optim.SGD, lr=1e-1)


@program
def sgd_nesterov(block):
    return run(block, torch.optim.SGD, lr=1e-1, momentum=0.9, nesterov=True, weight_decay=1e-3)


@program
def sgd_momentum_foreach(block):
    return run(block, torch.optim.SGD, lr=1e-1, momentum=0.9, dampening=0.1, foreach=True)


@program
def sgd_fused(block):
    return run(block, torch.optim.SGD, lr=1e-1, momentum=0.9, fused=True)


@program
def adagrad(block):
    return run(block, torch.optim.Adagrad, lr=1e-2)


@program
def rmsprop_centered(block):
    return run(block, torch.optim.RMSprop, lr=1e-3, centered=True, momentum=0.5)


@program
def nadam_foreach(block):
    return run(block, torch.optim.NAdam, lr=1e-3, foreach=True)


@program
def adadelta_and_adamax(block):
    model = perceptron()
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    halves = list(model.parameters())
    first, second = torch.optim.Adadelta(halves[:6]), torch.optim.Adamax(halves[6:], foreach=True)
    losses = []
    with block(model, first) as step:
        for _ in range(6):
            with step():
                first.zero_grad()
                second.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                first.step()
                second.step()
                losses.append(loss.detach())
        return collect(
            model, first, losses, second=[value for state in second.state.values() for value in state.values()]
        )


@program
def lbfgs_with_a_closure(block):
    model = perceptron(48, 4)
    x, y = torch.randn(32, 48), torch.randn(32, 48)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.detach())
        return loss

    with block(model, optimizer) as step:
        for _ in range(4):
            with step():
                optimizer.step(closure)
        return collect(model, None, losses)


@program
def parameter_groups_and_a_schedule(block):
    model = perceptron()
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 1e-1}], lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[1e-2, 1e-1], total_steps=10)
    losses = []
    with block(model, optimizer) as step:
        for _ in range(6):
            with step():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append((loss.detach(), schedule.get_last_lr()))
        return collect(model, optimizer, losses)


def clipped(block, clip):
    model = perceptron()
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    norms = []

    def loss_of(_):
        return 100 * nn.functional.mse_loss(model(x), y)

    losses = []
    with block(model, optimizer) as step:
        for number in range(6):
            with step():
                optimizer.zero_grad()
                loss = loss_of(number)
                loss.backward()
                norms.append(clip(list(model.parameters())))
                optimizer.step()
                losses.append(loss.detach())
        return collect(model, optimizer, losses, norms=[norm for norm in norms if norm is not None])


@program
def clip_grad_norm_foreach(block):
    return clipped(block, lambda parameters: clip_grad_norm_(parameters, 0.5, foreach=True))


@program
def clip_grad_norm_single(block):
    return clipped(block, lambda parameters: clip_grad_norm_(parameters, 0.5, foreach=False, norm_type=3.0))


@program
def clip_grad_value(block):
    return clipped(block, lambda parameters: clip_grad_value_(parameters, 0.01, foreach=True))


@program
def averaged_weights_by_lerp(block):
    """An exponential moving average kept beside the model."""
    model = perceptron()
    shadow = [parameter.detach().clone() for parameter in model.parameters()]
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    with block(model, optimizer) as step:
        for _ in range(6):
            with step():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for average, parameter in zip(shadow, model.parameters()):
                        average.lerp_(parameter, 0.1)
                losses.append(loss.detach())
        return collect(model, optimizer, losses, shadow=shadow)


@program
def averaged_model_of_torch(block):
    model = perceptron()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    with block(model, optimizer) as step:
        for _ in range(5):
            with step():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                average.update_parameters(model)
                losses.append(loss.detach())
        return collect(model, optimizer, losses, average=dict(average.state_dict()))


@program
def muon_like_orthogonal_updates(block):
    """A home-made optimizer: Newton-Schulz iterations over each matrix's momentum."""
    model = perceptron()
    x, y = torch.randn(48, 64), torch.randn(48, 64)
    momentum = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}
    losses = []
    with block(model) as step:
        for _ in range(5):
            with step():
                model.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                with torch.no_grad():
                    for parameter, state in momentum.items():
                        state.mul_(0.9).add_(parameter.grad)
                        update = state
                        if state.dim() == 2:
                            update = state / (state.norm() + 1e-7)
                            for _ in range(3):
                                gram = update @ update.mT
                                update = 3.4445 * update + (-4.775 * gram + 2.0315 * gram @ gram) @ update
                        parameter.sub_(update, alpha=0.01)
                losses.append(loss.detach())
        return collect(model, None, losses, momentum=list(momentum.values()))
