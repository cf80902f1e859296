"""torch.compile inside a block: programs run compiled, with the bits of the same compiled program without a block.

On a GPU inductor's kernels are in Triton (`pytest --device fake`: by Triton's interpreter), on the host in C++.
"""

import contextlib
import functools
import gc
import types
import warnings

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import tidelog
from tidelog.dispatch import _hook
from tidelog.escapes import _compiled
from tidelog.memory._record import CLEAN, SETTLED
from tidelog.storages import _ops
from tidelog.storages._ops import Launch
from tidetest import KIB, MIB, device
from tidetest.bits import assert_same, bits
from tidetest.launches import AllOut, launched

pytestmark = pytest.mark.usefixtures("compiled_once")

WIDTH, HIDDEN, LAYERS, BATCH, STEPS = 64, 128, 6, 32, 5
SHARE = 0.35  # of the peak
KERNEL = "kernel cpp_fused_" if device.is_host() else "kernel triton_"  # how the names of all begin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Broken(nn.Sequential):
    """Model with a graph break in its middle."""

    def forward(self, x):
        for number, layer in enumerate(self):
            if number == LAYERS // 2:
                torch._dynamo.graph_break()
            x = layer(x)
        return x


class Checkpointed(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class Program:
    """A model that trains, what computes its output, and the sizes of its batches."""

    def __init__(self, kind=nn.Sequential, compile=torch.compile, batches=(BATCH,) * STEPS):
        torch.manual_seed(1)
        self.model = kind(*(Layer() for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.forward = compile(self.model)
        self.batches = batches
        self.losses = []

    def step(self, size):
        x = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(size))
        loss = self.forward(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(bits(loss))

    def run(self, boundary=contextlib.nullcontext):
        for size in self.batches:
            with boundary():
                self.step(size)

    def result(self):
        """Returns the state to compare: all that the program holds, tensor by tensor, so that it need not fit at once."""
        state = self.optimizer.state
        named = list(self.model.named_parameters())
        return [
            ("losses", self.losses),
            *((name, bits(each)) for name, each in named),
            *((f"{key} of {name}", bits(state[each][key])) for name, each in named for key in sorted(state[each])),
        ]


def regions(model):
    """Each layer is compiled by itself."""
    for layer in model:
        layer.compile()
    return model


PROGRAMS = {
    "trains": Program,
    "any size": functools.partial(
        Program, compile=functools.partial(torch.compile, dynamic=True), batches=(24, 32, 40, 24, 32)
    ),
    "compiled again in mid-run": functools.partial(Program, batches=(32, 32, 32, 24, 40, 32)),
    "graph break": functools.partial(Program, kind=Broken),
    "regions": functools.partial(Program, compile=regions),
    "checkpoint": functools.partial(Program, kind=Checkpointed),
}
SLOW = {
    "whole graph": functools.partial(Program, compile=functools.partial(torch.compile, fullgraph=True)),
    "max-autotune": functools.partial(
        Program, compile=functools.partial(torch.compile, mode="max-autotune-no-cudagraphs")
    ),
    "reduce-overhead": functools.partial(Program, compile=functools.partial(torch.compile, mode="reduce-overhead")),
    "aot_eager": functools.partial(Program, compile=functools.partial(torch.compile, backend="aot_eager")),
}
EVERY = [*PROGRAMS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
ALL = {**PROGRAMS, **SLOW}


def seen():
    """Returns the counters of Dynamo and inductor since the last reset."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    breaks = sum(counters["graph_break"].values())
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": breaks, "kernels": metrics.generated_kernel_count}


def started_afresh():
    from torch._inductor import metrics

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    metrics.reset()
    gc.collect()


@contextlib.contextmanager
def block(program, pool, tensors, mode="reactive"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tidelog.offload(
            program.model,
            program.optimizer,
            pool=pool,
            memory=device.budget(tensors),
            staging=device.STAGING,
            pool_size=64 * MIB,
            mode=mode,
        ) as tide:
            yield tide


@functools.cache
def plain(name):
    """The result of the program without a block, and what was compiled for it."""
    started_afresh()
    program = ALL[name]()
    program.run()
    return program.result(), seen()


@functools.cache
def peak(name, pool):
    """The bytes of tensors that a budget must have for the program to need no offloading."""
    started_afresh()
    program = ALL[name]()
    with block(program, pool, 16 * MIB) as tide:
        program.run(tide.step)
        assert tide.stats()["evictions"] == 0
        return tide.ledger.peak


def compare(expected, got):
    for (label, one), (other_label, other) in zip(expected, got, strict=True):
        assert label == other_label
        assert_same(one, other, label)


@pytest.mark.parametrize("name", EVERY)
def test_compiled_bits_are_the_compiled_programs(pool, mode, name, tmp_path):
    expected, compiled = plain(name)
    tensors = int(SHARE * peak(name, pool))
    started_afresh()
    program = ALL[name]()
    with launched() as names, block(program, pool, tensors, mode) as tide:
        program.run(tide.step)
        got = program.result()
        figures, phase = tide.stats(), tide.phase
        if phase == "planned" and name == "trains":
            tide.trace(tmp_path / "trace.json")
            assert KERNEL in (tmp_path / "trace.json").read_text()
        assert tide.peak_bytes <= tide.budget
    compare(expected, got)
    assert seen() == compiled, "with a block something else was compiled"
    assert figures["evictions"] > 0
    if name != "aot_eager":
        assert any(each.startswith(KERNEL) for each in names)
    if mode == "auto" and name == "trains":
        assert phase == "planned" and not [each for each in figures["notices"] if "cores" not in each]


def test_every_storage_is_out_between_any_two_launches(pool):
    expected, _ = plain("trains")
    started_afresh()
    program = Program()
    with block(program, pool, int(SHARE * peak("trains", pool))) as tide:
        with launched(all_out := AllOut(tide)) as names:
            program.run(tide.step)
        got = program.result()
    compare(expected, got)
    counts = all_out.counts
    assert len(names) > 300 and len(counts) > len(names) and min(counts[-300:]) > 25


@pytest.mark.parametrize("mode", ["reactive", "auto"])
def test_launches_and_products_go_past_python_once_they_were_seen(pool, mode, monkeypatch):
    expected, _ = plain("trains")
    tensors = int(SHARE * peak("trains", pool))
    started_afresh()
    program, asked = Program(), []
    expected_of = _hook.expected
    monkeypatch.setattr(_hook, "expected", lambda func, *of: (asked.append(str(func)), expected_of(func, *of))[1])
    with block(program, pool, tensors, mode=mode) as tide:
        with launched() as names:
            for number, size in enumerate(program.batches):
                with tide.step():
                    program.step(size)
                if number + 2 == len(program.batches):
                    before = tide.stats()["dispatch"]["ops_past_python"]
                    asked.clear()
        got, figures = program.result(), tide.stats()
    compare(expected, got)
    of_python = [each for each in asked if each in names or each.endswith(".out")]
    assert not of_python and len(names) > 300 and figures["evictions"] > 0, of_python
    assert figures["dispatch"]["ops_past_python"] - before > len(names) // len(program.batches)


def test_launches_count_what_they_make_and_know_what_they_write(pool):
    allocation = _compiled._Allocation(torch._C._dynamo.guards._empty_strided_cpu, torch.float32)
    kernel = _compiled._Kernel("nothing", lambda *_: None, written=[1], count=3)
    size = 64 * KIB
    with tidelog.offload(pool=pool, memory=MIB, staging=device.STAGING, pool_size=64 * MIB, mode="reactive") as tide:
        read, written, *others = [torch.ones(size // 4) for _ in range(20)]  # more than fit
        for _ in range(4):
            for each in others:
                each.sum()  # takes the room
            for each in (read, written):
                tide.evict(each)
                tide.restore(each)
            states = [each.untyped_storage()._tide.state for each in (read, written)]
            before = tide.stats()["dispatch"]["ops_past_python"]
            made = tide._hook.launch(allocation, ((size // 4,), (1,), torch.float32), {})
            tide._hook.launch(kernel, (read, written, 3), {})
            live = tide.ledger.live
            passed = tide.stats()["dispatch"]["ops_past_python"] - before
            assert made.nbytes == size and live <= tide.ledger.limit
            assert states == [CLEAN, CLEAN]
            assert [each.untyped_storage()._tide.state for each in (read, written)] == [CLEAN, SETTLED]
            del made
            assert tide.ledger.live == live - size
        assert passed == 2
        del read, written, others, each


def test_what_was_compiled_before_the_block_is_seen(pool):
    expected, _ = plain("trains")
    started_afresh()
    tensors = int(SHARE * peak("trains", pool))
    program = Program()
    program.forward(torch.randn(BATCH, WIDTH)).sum().backward()
    program.optimizer.zero_grad()
    compiled = seen()
    kernels = kernels_of_inductor()
    assert kernels
    with launched() as names, block(program, pool, tensors) as tide:
        assert not any(isinstance(value, types.BuiltinFunctionType) for value in kernels_of_inductor().values())
        program.run(tide.step)
        got = program.result()
    compare(expected, got)
    assert seen() == compiled and any(each.startswith(KERNEL) for each in names)
    assert kernels_of_inductor() == kernels, "after the block inductor's modules are not as they were"


def kernels_of_inductor():
    from torch._inductor.codecache import PyCodeCache

    return {
        (place, name): value
        for place, module in enumerate(PyCodeCache.modules)
        for name, value in vars(module).items()
        if name.startswith(("cpp_fused", "empty_strided_cpu"))
    }


def test_tensors_without_memory_that_compiling_left_behind_do_not_count(pool):
    """Each is a plain tensor to Python, and has a storage with a size. Found with an autograd function of a model."""
    with FakeTensorMode():
        left = torch._to_functional_tensor(torch.ones(16 * MIB))
    with tidelog.offload(pool=pool, memory=16 * MIB, staging=MIB, pool_size=64 * MIB) as tide:
        assert left.untyped_storage().nbytes() == 64 * MIB
        assert tide.live_bytes < 16 * MIB
        assert torch.ones(4).sum() == 4


def test_what_a_kernel_only_reads_is_not_written_out_again(pool):
    """Parameters of an evaluation: they leave again and again, and are written once."""
    torch.manual_seed(1)
    weights = [torch.randn(WIDTH, WIDTH) for _ in range(24)]
    function = torch.compile(lambda x, weight: torch.tanh(x * weight) + weight)
    x = torch.randn(WIDTH, WIDTH)
    with (
        torch.no_grad(),
        tidelog.offload(
            pool=pool, memory=device.budget(8 * 16 * KIB), staging=device.STAGING, pool_size=64 * MIB, mode="reactive"
        ) as tide,
    ):
        for _ in range(6):
            for weight in weights:
                x = function(x, weight)
        figures = tide.stats()
    assert figures["evictions"] > 60
    assert sum(figures["bytes_written"].values()) < 40 * 16 * KIB, figures


def test_signatures_say_what_is_written(tmp_path):
    module = types.ModuleType("graph")
    module.__file__ = str(tmp_path / "graph.py")
    (tmp_path / "graph.py").write_text(
        "cpp_fused_a_0 = async_compile.cpp_pybinding(['float*', 'const at::BFloat16*', 'bool*', 'const int64_t'], r'''\n"
    )
    signatures = _compiled.signatures_in(module)
    kernel = _compiled.kernel_of("cpp_fused_a_0", print, signatures["cpp_fused_a_0"])
    tensors = [torch.zeros(4) for _ in range(3)]
    storages = [each.untyped_storage() for each in tensors]
    assert _ops.storages(kernel.modified((*tensors, 3), {})) == [storages[0], storages[2]]
    assert _ops.storages(_compiled.kernel_of("unknown", print, None).modified((*tensors, 3), {})) == storages
    assert _compiled.signatures_in(types.ModuleType("lost")) == {}


def test_tuned_kernels_write_what_is_not_an_input():
    """Inductor's kernels in Triton, which need a GPU: how their launches are seen."""

    class Access:
        launches = ()

        def is_elsewhere(self):
            return False

        def launch(self, func, args, kwargs):
            self.launches = (*self.launches, func)
            return func(*args, **kwargs)

    class Tuner:
        fn = types.SimpleNamespace(__name__="triton_poi_fused_add_0")
        mutated_arg_names = ("in_ptr1",)
        triton_meta = {
            "signature": {"in_ptr0": "*fp32", "in_ptr1": "*fp32", "out_ptr0": "*fp32", "n": "i32", "B": "constexpr"}
        }

        def run(self, *args, stream, benchmark_run=False):
            return args, stream, benchmark_run

    access = Access()
    run = _compiled.launching_tuned(access, Tuner.run)
    tuner, tensors = Tuner(), [torch.zeros(4) for _ in range(3)]
    assert run(tuner, *tensors, 4, stream=7) == ((*tensors, 4), 7, False)
    (launch,) = access.launches
    assert isinstance(launch, Launch) and launch.name == "kernel triton_poi_fused_add_0"
    assert _ops.storages(launch.modified((*tensors, 4), {"stream": 7})) == [
        each.untyped_storage() for each in tensors[1:]
    ]
    assert run(tuner, *tensors, 4, stream=7, benchmark_run=True) == ((*tensors, 4), 7, True)
    assert len(access.launches) == 1


@pytest.mark.parametrize("place", ["PyCodeCache.load_by_key_path", "_ASKS_FOR_MODES"])
def test_where_kernels_cannot_be_seen_compiled_code_runs_eagerly(pool, monkeypatch, place):
    started_afresh()
    expected = Program(compile=lambda model: model)
    expected.run()
    expected = expected.result()
    before = Program()
    before.forward(torch.randn(BATCH, WIDTH)).sum().backward()
    del before  # its code stays
    tensors = int(SHARE * peak("trains", pool))
    import torch._inductor.codecache as code

    if place == "_ASKS_FOR_MODES":
        monkeypatch.setattr(_compiled, place, ())
    else:
        monkeypatch.setattr(code, "PyCodeCache", types.SimpleNamespace(modules=code.PyCodeCache.modules))
    program = Program()
    with launched() as names, block(program, pool, tensors) as tide:
        program.run(tide.step)
        got = program.result()
        notices = tide.stats()["notices"]
    compare(expected, got)
    assert not any(each.startswith(("kernel cpp", "kernel triton")) for each in names)
    assert len([each for each in notices if "run eagerly inside the block" in each]) == 1, notices


def test_code_that_hides_its_kernels_is_refused(pool):
    aoti = torch._C._aoti
    x = torch.randn(64)
    with tidelog.offload(pool=pool, memory=device.budget(1 * MIB), staging=device.STAGING, pool_size=64 * MIB):
        with pytest.raises(tidelog.Error, match="cpp_wrapper.*outside the block"):
            aoti.unsafe_alloc_void_ptrs_from_tensors([x])
        with pytest.raises(tidelog.Error, match="AOTInductor.*torch.compile"):
            aoti.AOTIModelPackageLoader.boxed_run(None, [x])
        with pytest.raises(tidelog.Error, match="AOTInductor.*torch.compile"):
            aoti.AOTIModelContainerRunnerCpu.run(None, [x])
    assert aoti.unsafe_alloc_void_ptrs_from_tensors([x])


@pytest.mark.slow
def test_cpp_wrapper_is_refused_also_where_it_was_compiled_before(pool):
    function = torch.compile(lambda x: torch.tanh(x) + 1, options={"cpp_wrapper": True})
    x = torch.randn(64, 64)
    expected = bits(function(x))
    with tidelog.offload(pool=pool, memory=device.budget(1 * MIB), staging=device.STAGING, pool_size=64 * MIB):
        with pytest.raises(tidelog.Error, match="cpp_wrapper"):
            function(x)
    assert_same(expected, bits(function(x)))


def test_graphs_are_left_out_and_that_is_said_once(pool):
    from torch._inductor import output_code
    from torch._inductor.utils import BoxedBool

    with tidelog.offload(pool=pool, memory=device.budget(1 * MIB), staging=device.STAGING, pool_size=64 * MIB) as tide:
        torch.compile(lambda x: x + 1)(torch.zeros(8))
        for _ in range(2):
            wanted = BoxedBool(True)
            graph = types.SimpleNamespace(device_types={"cuda"})
            output_code.cudagraph_post_compile((), graph, wanted, {}, None)
            assert not wanted
        assert len([each for each in tide.stats()["notices"] if "reduce-overhead" in each]) == 1
