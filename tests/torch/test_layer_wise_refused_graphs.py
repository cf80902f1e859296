"""Tests of the refusals of tidelog.accumulate, by name: graphs, hooks, and what surrounds a model."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest import process
from tidetest.micro_batches import Dropout, Loop, WIDTH, chain, gradients, loop, refused, rows, square


def test_a_tensor_that_no_block_gets():
    def forward(self, x):
        seen = []
        for layer in self.layers:
            x = layer(x)
            seen.append(x.tanh().sum())
        return x + sum(seen)

    refused(Loop(forward), "uses a tensor that was made at layers.1.*no block got as an argument")


def test_what_is_computed_once_for_all():
    model = chain()
    weight = model[0][0].weight * 2
    refused(model, "with a graph|share what|uses a tensor", loss=lambda model, x: model(x @ weight).sum())


def test_a_graph_in_a_micro_batch():
    model = chain()
    refused(model, "micro-batch 2 has a tensor with a graph", batches=[rows(0), model[0](rows(1))])


def test_what_was_cut_is_an_error_afterwards():
    """Checks that a cut is an error, not a missing gradient."""
    model, other = chain(), nn.Linear(WIDTH, WIDTH)
    shared = other(rows(0))
    refused(model, "uses a tensor", loss=lambda model, x: model(shared).sum())
    with pytest.raises(tidelog.OrderError, match="graph tidelog.accumulate has cut off"):
        model(shared).sum().backward()


def test_reentrant_checkpoints():
    def forward(self, x):
        x = self.head(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return x

    refused(Loop(forward), "use_reentrant=False")
    model = Loop(lambda self, x: [x := layer(x) for layer in self.layers][-1])
    for layer in model.layers:
        inner = layer.forward
        layer.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=True)
    model.layers[0].forward = inner  # gradients come to the others' inputs
    refused(model, "use_reentrant=False")


def test_hooks_on_gradients():
    model = chain()
    handle = model[1][0].weight.register_hook(lambda gradient: gradient * 2)
    refused(model, "1.0.weight has a hook")
    handle.remove()
    model[2][0].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    refused(model, "2.0.bias has a hook")


def test_hooks_on_what_passes_between_blocks():
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x.retain_grad()
        return x

    refused(Loop(forward), "hook, or retain_grad")


def test_one_cast_for_several_places():
    class Model(Loop):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                x = self.head(x)
                for layer in self.layers:
                    x = layer(x)
                return self.head(x)

    with pytest.raises(tidelog.OrderError, match="head.weight is used at several places, in another type"):
        tidelog.accumulate(Model(None), [rows(0), rows(1)], square)


def test_other_kinds_of_tensors():
    class Other(torch.Tensor):
        pass

    model = Loop(lambda self, x: [x := layer(x).as_subclass(Other) for layer in self.layers][-1])
    refused(model, "a Other passes between blocks")


# -- what surrounds it ----------------------------------------------------------------------------


def test_models_compiled_as_a_whole():
    model = chain()
    refused(torch.compile(model), "compiled as a whole.*block.compile")
    model.compile()
    refused(model, "compiled as a whole")


def test_models_of_several_threads():
    refused(nn.DataParallel(chain()), "DataParallel calls copies of the blocks")


SEVERAL_PROCESSES = """
import torch.distributed as dist
from torch.distributed._composable.replicate import replicate
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)

def chain():
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))

for model, words in (
    (FullyShardedDataParallel(chain(), device_id=torch.device("cpu")), "take fully_shard"),
    (replicate(chain()), "take DistributedDataParallel"),
):
    try:
        tidelog.accumulate(model, [torch.ones(2, 8)] * 2, lambda model, x: model(x).sum())
    except tidelog.OrderError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
dist.destroy_process_group()
print("done")
"""


def test_models_of_several_processes(tmp_path):
    process.assert_done(process.run(SEVERAL_PROCESSES, tmp_path))


def test_transforms_of_functions():
    model = chain()

    def function(x):
        tidelog.accumulate(model, [x, x], square)
        return x

    with pytest.raises(tidelog.OrderError, match="torch.func"):
        torch.func.vmap(function)(torch.ones(2, 2, WIDTH))


def test_gradients_that_the_program_computes_itself():
    def backward(model, batch):
        loss = square(model, batch)
        loss.backward()
        return loss

    model = chain()
    with pytest.raises(tidelog.OrderError, match="computes gradients through blocks itself"):
        tidelog.accumulate(model, [rows(0), rows(1)], backward)

    def penalty(model, batch):
        batch = batch.clone().requires_grad_()
        loss = square(model, batch)
        (gradient,) = torch.autograd.grad(loss, batch, create_graph=True, allow_unused=True)
        return loss + (gradient.square().sum() if gradient is not None else 0)

    refused(chain(), "computes gradients through blocks itself", penalty)


def test_one_in_another():
    model = chain()

    def loss(model, batch):
        tidelog.accumulate(model, [batch, batch], square)

    refused(model, "runs already", loss)


def test_a_loss_that_is_none():
    model = chain()
    with pytest.raises(TypeError, match="must return the loss"):
        tidelog.accumulate(model, [rows(0), rows(1)], lambda model, batch: model(batch).sum().item())
    with pytest.raises(RuntimeError, match="does not require grad"):
        tidelog.accumulate(model, [rows(0), rows(1)], lambda model, batch: model(batch).sum().detach())


def test_after_a_refusal_the_loop_gives_its_own_bits():
    model = chain(3, Dropout())
    batches = [rows(number) for number in range(3)]
    torch.manual_seed(5)
    loop(model, batches, square)
    expected = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()
    torch.manual_seed(5)
    refused(model, "both draw", batches=batches)
    loop(model, batches, square)
    assert all(torch.equal(expected[name], gradient) for name, gradient in gradients(model).items())
