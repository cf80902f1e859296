"""Torch beyond the layer: double backward, custom functions, torch.func, parametrizations, frozen copies."""

import copy

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from programs import collect, program, train
from programs.flow import data
from programs.optimizers import perceptron


@program
def gradient_penalty(block):
    """Double backward in every step."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.Softplus()) for _ in range(5)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(32, 48)

    def loss_of(_):
        point = x.clone().requires_grad_()
        value = model(point)
        (slope,) = torch.autograd.grad(value.sum(), point, create_graph=True)
        return value.pow(2).mean() + (slope.norm(dim=1) - 1).pow(2).mean()

    return train(block, model, optimizer, loss_of)


@program
def teacher_and_student(block):
    """A frozen copy gives targets: weights that are only ever read."""
    model, (x, _) = perceptron(), data()
    teacher = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return train(
        block, model, optimizer, lambda _: functional.mse_loss(model(x), teacher(x)), teacher=teacher.state_dict()
    )


class Square(torch.autograd.Function):
    """A custom function that saves, marks dirty and returns several outputs."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x @ weight).square(), x.sum(1)

    @staticmethod
    def backward(ctx, gradient, gradient_of_sum):
        x, weight = ctx.saved_tensors
        inner = 2 * gradient * (x @ weight)
        return inner @ weight.t() + gradient_of_sum[:, None], x.t() @ inner


@program
def custom_autograd_function(block):
    weights, (x, y) = nn.ParameterList(torch.randn(64, 64) / 9 for _ in range(5)), data()
    optimizer = torch.optim.SGD(weights.parameters(), lr=1e-3, momentum=0.9)

    def loss_of(_):
        value, total = x, 0.0
        for weight in weights:
            value, sums = Square.apply(value.tanh(), weight)
            total = total + sums.mean()
        return functional.mse_loss(value, y) + total

    return train(block, weights, optimizer, loss_of)


@program
def functional_ensemble_by_vmap(block):
    """Five models stacked into one set of tensors, trained by torch.func."""
    members = [nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)) for _ in range(5)]
    skeleton = copy.deepcopy(members[0]).to("meta")
    parameters, buffers = stack_module_state(members)
    holder = nn.ParameterList(value.detach() for value in parameters.values())
    x, y = torch.randn(24, 32), torch.randn(24, 32)

    def loss_of_one(params, buffers, batch, target):
        return functional.mse_loss(functional_call(skeleton, (params, buffers), (batch,)), target)

    losses = []
    with block(holder, None) as step:
        for _ in range(6):
            with step():
                current = dict(zip(parameters, (value.detach() for value in holder)))
                slopes = vmap(grad(loss_of_one), in_dims=(0, None, None, None))(current, buffers, x, y)
                with torch.no_grad():
                    for value, slope in zip(holder, slopes.values()):
                        value.sub_(slope, alpha=0.1)
                losses.append(vmap(loss_of_one, in_dims=(0, None, None, None))(current, buffers, x, y))
        return collect(holder, None, losses)


@program
def per_sample_gradients(block):
    model, (x, y) = perceptron(32, 4), data(12, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []

    def loss_of(params, row, target):
        return functional.mse_loss(functional_call(model, params, (row[None],)), target[None])

    with block(model, optimizer) as step:
        for _ in range(5):
            with step():
                params = {name: value.detach() for name, value in model.named_parameters()}
                slopes = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
                for name, value in model.named_parameters():
                    norms = slopes[name].flatten(1).norm(dim=1).clamp(min=1)
                    value.grad = (slopes[name] / norms.view(-1, *[1] * value.dim())).mean(0)
                optimizer.step()
                losses.append(functional.mse_loss(model(x), y).detach())
        return collect(model, optimizer, losses)


@program
def parametrized_weights(block):
    model = nn.Sequential(
        *(parametrizations.weight_norm(nn.Linear(64, 64)) for _ in range(3)),
        *(parametrizations.spectral_norm(nn.Linear(64, 64)) for _ in range(2)),
        parametrizations.orthogonal(nn.Linear(64, 64)),
    )
    x, y = data()
    return train(
        block, model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda _: functional.mse_loss(model(x), y)
    )


@program
def pruned_weights(block):
    model, (x, y) = perceptron(), data()
    for number in (0, 4, 8):
        prune.l1_unstructured(model[number], "weight", amount=0.5)
    return train(
        block, model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda _: functional.mse_loss(model(x), y)
    )
