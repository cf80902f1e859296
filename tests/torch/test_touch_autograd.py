"""Autograd holds tensors that no Python name reaches: saved tensors, hooks, graphs that are kept."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tidetest.world import WIDTH


def graph_of(world, layers=3):
    x = world.x
    for layer in list(world.model)[:layers]:
        x = layer(x)
    return x


def test_a_hook_keeps_a_saved_tensor(compare):
    """A module hook's tensor outlives the graph, and is out by the time it is read."""
    kept = []

    def scenario(world):
        kept.clear()
        handle = world.model[2].register_forward_hook(lambda module, args, output: kept.extend([args[0], output]))
        world.steps(1)
        handle.remove()
        world.push_out(*kept)
        world.note("kept", [tensor.detach() for tensor in kept])
        world.steps(1)
        world.push_out(*kept)
        world.note("still", [tensor.detach() for tensor in kept])
        kept.clear()

    compare(scenario)


def test_saved_tensors_are_out_when_backward_needs_them(compare):
    def scenario(world):
        with world.boundary():
            output = graph_of(world)
            node, saved = output.grad_fn, []
            while node is not None:
                saved += [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
                node = node.next_functions[0][0] if node.next_functions else None
            saved = [tensor for tensor in saved if isinstance(tensor, torch.Tensor)]
            assert saved
            world.push_out(*{tensor.untyped_storage()._cdata: tensor for tensor in saved}.values())
            del saved
            output.pow(2).mean().backward()
        world.note(
            "gradients", [parameter.grad for parameter in world.model.parameters() if parameter.grad is not None]
        )

    compare(scenario)


def test_saved_tensors_hooks_that_pack_and_unpack(compare):
    def scenario(world):
        packed = []

        def pack(tensor):
            packed.append(tensor)
            return len(packed) - 1, tensor.shape

        def unpack(place):
            world.push_out(packed[place[0]]) if not packed[place[0]].is_leaf else None
            return packed[place[0]]

        with world.boundary():
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                loss = graph_of(world).pow(2).mean()
            loss.backward()
        world.note(
            "gradients", [parameter.grad for parameter in world.model.parameters() if parameter.grad is not None]
        )

    compare(scenario)


@pytest.mark.host_memory("a GPU's memory cannot become an array without a copy")
def test_saved_tensors_hooks_through_numpy(compare):
    """Packing into an array and back, as compression libraries do."""

    def scenario(world):
        with world.boundary():
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: tensor.detach().clone().numpy(), lambda array: torch.from_numpy(array)
            ):
                loss = graph_of(world).pow(2).mean()
            loss.backward()
        world.note(
            "gradients", [parameter.grad for parameter in world.model.parameters() if parameter.grad is not None]
        )

    compare(scenario)


def test_torchs_own_save_on_cpu(compare):
    def scenario(world):
        with world.boundary():
            with torch.autograd.graph.save_on_cpu():
                loss = graph_of(world).pow(2).mean()
            loss.backward()
        world.note(
            "gradients", [parameter.grad for parameter in world.model.parameters() if parameter.grad is not None]
        )

    compare(scenario)


def test_gradient_hooks(compare):
    def scenario(world):
        seen = []
        parameter = world.model[1].linear.weight
        handles = [
            parameter.register_hook(lambda gradient: gradient * 2),
            parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item())),
        ]
        with world.boundary():
            world.first_half()
            world.activation.register_hook(lambda gradient: seen.append(gradient.norm().item()))
            middle = world.model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))
            world.push_out(parameter, parameter.grad)
            world.second_half()
            middle.remove()
        for handle in handles:
            handle.remove()
        world.note("seen", seen)
        world.note("gradient", parameter.grad)

    compare(scenario)


def test_an_update_inside_backward(compare):
    """The optimizer step per parameter in a post-accumulate hook: gradients never live at the same time."""

    def scenario(world):
        parameters = list(world.model.parameters())
        optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for parameter in parameters}

        def update(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        handles = [parameter.register_post_accumulate_grad_hook(update) for parameter in parameters]
        for _ in range(2):
            with world.boundary():
                ((world.model(world.x) - world.y) ** 2).mean().backward()
        for handle in handles:
            handle.remove()
        world.note("updated", world.model.state_dict())

    compare(scenario)


def test_retained_graph_and_second_backward(compare):
    def scenario(world):
        with world.boundary():
            output = graph_of(world)
            loss = output.pow(2).mean()
            loss.backward(retain_graph=True)
            for parameter in world.model[0].parameters():
                world.push_out(parameter, parameter.grad)
            loss.backward()
        world.note("twice", [parameter.grad for parameter in world.model.parameters() if parameter.grad is not None])
        world.attempt("a third time", loss.backward)

    compare(scenario)


def test_double_backward(compare):
    def scenario(world):
        with world.boundary():
            x = world.x.clone().requires_grad_()
            y = x
            for layer in list(world.model)[:3]:
                y = layer(y)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            world.push_out(gradient, x, world.model[1].linear.weight)
            penalty = (gradient.norm(2, dim=1) - 1).pow(2).mean()
            penalty.backward()
        world.note("penalty", penalty)
        world.note(
            "gradients", [parameter.grad for parameter in world.model.parameters() if parameter.grad is not None]
        )

    compare(scenario)


def test_an_in_place_change_of_a_saved_tensor_is_still_an_error(compare):
    """Moving must not touch version counters: neither hide this error nor raise it by mistake."""

    def scenario(world):
        x = torch.randn(64, 64, requires_grad=True)
        saved = x * 1
        y = saved.exp() * saved
        world.push_out(saved)
        loss = y.sum()
        with torch.no_grad():
            saved.add_(1)
        world.attempt("modified", loss.backward)
        z = x * 2
        product = z * z
        world.push_out(z)
        world.note("read in between", z.sum().detach())
        world.attempt("unmodified", product.sum().backward)
        world.note("gradient", x.grad)

    compare(scenario)


class Scaled(torch.autograd.Function):
    """Saves an input, an output and a tensor of its own; and keeps one as an attribute."""

    @staticmethod
    def forward(ctx, x, factor):
        result = x * factor
        ctx.save_for_backward(x, result, factor)
        ctx.kept = result.detach() + 1
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, result, factor = ctx.saved_tensors
        return gradient * factor + ctx.kept * 0.01, (gradient * x).sum() + result.mean()


def test_custom_functions(compare):
    def scenario(world):
        factor = torch.tensor(1.5, requires_grad=True)
        with world.boundary():
            x = world.loose.clone().requires_grad_()
            y = Scaled.apply(x, factor)
            world.push_out(x, y)
            z = Scaled.apply(y @ world.loose, factor)
            world.push_out(z)
            z.pow(2).mean().backward()
        world.note("gradients", [x.grad, factor.grad])

    compare(scenario)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_recompute_from_what_is_out(compare, reentrant):
    def scenario(world):
        with world.boundary():
            x = world.x.clone().requires_grad_()
            y = x
            for layer in world.model:
                y = checkpoint(layer, y, use_reentrant=reentrant)
                if y.shape[1] == WIDTH and layer is world.model[2]:
                    world.push_out(y)
            y.pow(2).mean().backward()
        world.note("gradients", [x.grad, *(parameter.grad for parameter in world.model.parameters())])

    compare(scenario)


def test_forward_mode_and_functional_gradients(compare):
    def scenario(world):
        tangent = torch.randn(64, 64)
        world.push_out(world.loose, tangent)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(world.loose, tangent)
            world.note("dual", forward_ad.unpack_dual((dual @ dual).sin()).tangent)
        world.push_out(world.loose)
        world.note("jacobian", torch.autograd.functional.jacobian(lambda t: t.sum(0), world.loose[:4, :4].clone()))
        world.push_out(world.loose)
        world.note("per sample", torch.func.vmap(torch.func.grad(lambda row: row.pow(3).sum()))(world.loose))
        state = {name: value for name, value in world.model[0].named_parameters()}
        world.push_out(*state.values())
        world.note("functional", torch.func.functional_call(world.model[0], state, (world.x,)).detach())

    compare(scenario)


def test_autograd_grad_and_accumulation_without_an_optimizer(compare):
    def scenario(world):
        parameters = list(world.model.parameters())
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(3):
            with world.boundary():
                gradients = torch.autograd.grad(((world.model(world.x) - world.y) ** 2).mean(), parameters)
                for one, other in zip(total, gradients):
                    one.add_(other)
        world.push_out(total[0])
        world.note("accumulated", total)

    compare(scenario)


def test_a_graph_kept_over_steps(compare):
    """Truncated backpropagation through time by hand: a state's graph is longer than a step."""

    def scenario(world):
        state = torch.zeros(32, WIDTH)
        losses = []
        for number in range(6):
            with world.boundary():
                state = world.model[number % 3](state + world.x)
                if number % 3 == 2:
                    loss = state.pow(2).mean()
                    loss.backward()
                    world.optimizer.step()
                    world.optimizer.zero_grad()
                    losses.append(loss.detach())
                    state = state.detach()
        world.note("losses", losses)

    compare(scenario)
