"""Real small training programs. Each is `program(block)`: it builds a model, opens `block(model, optimizer)`,
trains with `step()` around its steps, and returns what a wrong bit would show in: see `collect`.

The same function runs plain (where block and step do nothing), under a ledger, and offloaded.
"""

import torch

from tidetest.bits import frozen

PROGRAMS = {}


def program(function):
    """Registers a program by its name."""
    assert function.__name__ not in PROGRAMS, function.__name__
    PROGRAMS[function.__name__] = function
    return function


def collect(model, optimizer, losses, **more):
    """Losses, parameters, buffers, gradients and optimizer state, as bytes. Called inside the block."""
    found = [("losses", frozen(losses))]
    found += [(f"parameter {name}", frozen(value)) for name, value in model.named_parameters()]
    found += [
        (f"gradient {name}", frozen(value.grad)) for name, value in model.named_parameters() if value.grad is not None
    ]
    found += [(f"buffer {name}", frozen(value)) for name, value in model.named_buffers()]
    if optimizer is not None:
        for number, state in enumerate(optimizer.state.values()):
            found += [(f"{key} {number}", frozen(value)) for key, value in state.items()]
    found += [(name, frozen(value)) for name, value in more.items()]
    found.append(("random state", frozen(torch.get_rng_state())))
    return found


def train(block, model, optimizer, loss_of, steps=6, **more):
    """The plain loop: zero, loss, backward, update."""
    losses = []
    with block(model, optimizer) as step:
        for number in range(steps):
            with step():
                optimizer.zero_grad()
                loss = loss_of(number)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return collect(model, optimizer, losses, **more)


from programs import flow, functional, layers, library, models, optimizers  # noqa: E402, F401
