"""Tests of a version of torch: a small GPT trains in each way with the bits of its plain run, and nothing is off. `make
test-versions` runs this with other versions of torch than the one that is installed.
"""

import contextlib
import copy
import ctypes
import functools
import gc
import io
import pickle
import subprocess
import sys
import warnings

import numpy
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tidelog
from tidelog import _versions
from tidelog.escapes import _compiled
from tidelog.native import _built
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits, frozen
from tidetest.process import environment
from tidetest.regions import choosing

pytestmark = pytest.mark.host_memory("versions are compared on the host")

WORDS, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 96, 32, 64, 4, 4, 4
STAGING = 256 * KIB
PARAMETERS = 2 * WORDS * WIDTH + LENGTH * WIDTH + LAYERS * 12 * WIDTH * WIDTH  # without biases and norms
BUDGET = STAGING + PARAMETERS * 4 * 3 // 2  # of four times the parameters, and activations
STEPS = 14


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wider, self.narrower = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.heads(self.before(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrower(functional.gelu(self.wider(self.between(x))))


class Gpt(nn.Module):
    def __init__(self, checkpoints=False):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.checkpoints = checkpoints

    def forward(self, words):
        x = self.words(words) + self.places.weight
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.head(self.norm(x))


class Program:
    """The model, its optimizer, and what each step computes."""

    def __init__(self, compile=None, **options):
        torch.manual_seed(0)
        self.model = Gpt(**options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.forward = compile(self.model) if compile else self.model
        self.losses, self.passed, self.done = [], [], 0

    def train(self, steps=STEPS, tide=None):
        for _ in range(steps):
            words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(self.done))
            before = tide.stats()["dispatch"]["ops_past_python"] if tide else 0
            with tide.step() if tide else contextlib.nullcontext():
                logits = self.forward(words[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses.append(bits(loss))
            if tide:
                self.passed.append(tide.stats()["dispatch"]["ops_past_python"] - before)
            self.done += 1

    def result(self):
        """Yields the state tensor by tensor: in a block it does not fit at once."""
        state, named = self.optimizer.state, list(self.model.named_parameters())
        yield "losses", self.losses
        for name, parameter in named:
            yield name, bits(parameter)
            yield from ((f"{key} of {name}", bits(state[parameter][key])) for key in sorted(state[parameter]))


def block(program, pool, **options):
    options = {"memory": BUDGET, "staging": STAGING, "pool_size": 128 * MIB, **options}
    return tidelog.offload(program.model, program.optimizer, pool=pool, **options)


@functools.cache
def plain(steps=STEPS, **options):
    program = Program(**options)
    program.train(steps)
    return list(program.result())


def assert_is_whole(program, tide):
    """Ops go past Python, tensors move within the budget."""
    stats = tide.stats()
    assert max(program.passed[-4:]) > 200, program.passed  # a step that is learnt again has others
    assert stats["evictions"] > 0 and tide.peak_bytes <= BUDGET
    assert _built._loaded
    assert not any("eagerly" in notice for notice in stats["notices"]), stats["notices"]


@pytest.fixture(autouse=True)
def what_stays_behind_is_compared():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        yield


@pytest.mark.parametrize("learns", ["auto", "reactive"])
@pytest.mark.parametrize("updates", ["own", "lazy", "early"])
def test_it_trains(pool, learns, updates):
    program = Program()
    with block(program, pool, mode=learns, updates=updates) as tide:
        program.train(tide=tide)
        assert_is_whole(program, tide)
        assert tide.phase == ("planned" if learns == "auto" else "reactive"), tide.stats()["held_back"]
        figures = tide.stats()["updates"]
        assert updates == "own" or figures["late" if updates == "lazy" else "early"] > 0, figures
        result = list(program.result())
    assert_same(plain(), result)


@pytest.mark.slow
def test_regions_run_once(pool, monkeypatch):
    choosing(monkeypatch, range(LAYERS))
    program = Program(checkpoints=True)
    with block(program, pool, recompute="best") as tide:
        program.train(2 * STEPS, tide=tide)
        assert_is_whole(program, tide)
        # On a busy machine one was refused at times: what its first run had made was in use for longer.
        assert tide.stats()["recompute"]["kept"] > 0, tide.stats()["recompute"]
        result = list(program.result())
    assert_same(plain(2 * STEPS, checkpoints=True), result)


def compiled(model):
    """Each layer by itself: so there is one graph for all."""
    for layer in model.layers:
        layer.compile()
    return model


@pytest.mark.slow
def test_it_trains_compiled(pool, compiled_once):
    program = Program(compile=compiled)
    with block(program, pool) as tide:
        program.train(tide=tide)
        stats = tide.stats()
        assert (_compiled._hooks.missing, tide.phase) == (None, "planned")
        assert not any("eagerly" in notice for notice in stats["notices"]), stats["notices"]
        assert max(program.passed[-4:]) > 50 and tide.peak_bytes <= BUDGET, program.passed
        result = list(program.result())
    torch._dynamo.reset()
    other = Program(compile=compiled)
    other.train()
    assert_same(list(other.result()), result)


def test_it_goes_on_from_a_checkpoint(pool):
    program = Program()
    with block(program, pool) as tide:
        program.train(STEPS // 2, tide=tide)
        tide.checkpoint("half")
        losses = program.losses
    del program, tide
    gc.collect()
    program = Program()
    program.losses, program.done = losses, STEPS // 2
    with block(program, pool, resume="half") as tide:
        program.train(STEPS - STEPS // 2, tide=tide)
        result = list(program.result())
    assert_same(plain(), result)


def by_address(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def through_a_file(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return torch.load(io.BytesIO(file.getvalue()))


TOUCHES = {
    "torch.save": through_a_file,
    "numpy": lambda tensor: tensor.detach().numpy().copy(),
    "numpy.asarray": lambda tensor: numpy.asarray(tensor.detach()).tobytes(),
    "data_ptr": by_address,
    "tolist": lambda tensor: tensor.tolist(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda tensor: pickle.loads(pickle.dumps(tensor)),
    "DLPack": lambda tensor: torch.from_dlpack(tensor.detach()).clone(),
    "repr": repr,
    "a storage's bytes": lambda tensor: bytes(tensor.untyped_storage()[:64]),
    "item": lambda tensor: tensor.flatten()[7].item(),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES.keys())
def test_what_is_out_is_whole_where_it_is_touched(pool, touch):

    def tensors(program):
        program.train(1)
        weight = program.model.head.weight
        return weight, program.optimizer.state[weight]["exp_avg"]

    expected = [frozen(touch(tensor)) for tensor in tensors(Program())]
    program = Program()
    with block(program, pool) as tide:
        for tensor, plain in zip(tensors(program), expected, strict=True):
            tide.evict(tensor)
            assert not tide.is_resident(tensor)
            assert_same(plain, frozen(touch(tensor)))


def test_what_the_block_looks_for_by_name_is_there(pool):
    """A part of the bridge that finds nothing there does nothing, or says so."""
    import torch._inductor.codecache as code
    import torch._inductor.output_code as graphs
    from torch._dynamo import convert_frame, trace_rules

    with tidelog.offload(pool=pool, memory=64 * MIB, staging=MIB, pool_size=128 * MIB):
        hooks = _compiled._hooks
        hooks.find()
        assert hooks.missing is None
    for owner, names in (
        (torch.autograd.profiler.profile, ("config",)),
        (torch.serialization, ("_get_restore_location",)),
        (torch._C.Future, ("then", "add_done_callback")),
        (torch._C.PyTorchFileWriter, ("write_record",)),
        (torch._C, ("_to_dlpack", "_aoti")),
        (torch._C._aoti, ("unsafe_alloc_void_ptrs_from_tensors", "AOTIModelPackageLoader")),
        (torch._C._dynamo.guards, ("_empty_strided_cpu", "assert_alignment")),
        (torch._C.ScriptModule, ("save", "save_to_buffer")),
        (trace_rules, ("add",)),
        (convert_frame, ("CatchErrorsWrapper",)),
        (graphs, ("cudagraph_post_compile", "cudagraph_partition_post_compile")),
        (code.PyCodeCache, ("load_by_key_path", "modules")),
        (torch.nn.parallel.DistributedDataParallel, ("_get_active_ddp_module",)),
        (torch.utils.checkpoint, ("noop_context_fn", "_enable_checkpoint_early_stop", "_checkpoint_debug_enabled")),
        (torch.UntypedStorage, ("_write_file", "_set_from_file", "_share_fd_cpu_", "_share_filename_cpu_")),
    ):
        assert [name for name in names if not hasattr(owner, name)] == [], owner


def test_the_versions_that_are_refused():
    for text in ("1.13.1", "2.2.0+cpu", "2.9.1+cu128", "2.9.0a0+git1234567"):
        with pytest.raises(ImportError, match="needs torch 2.10 or newer, and this is torch") as caught:
            _versions.refuse_older(text)
        assert text in str(caught.value) and "\n" not in str(caught.value)
    for text in ("2.10.0", "2.11.0+cpu", "2.15.0+cu132", "2.16.0.dev20261101", "3.0.0"):
        _versions.refuse_older(text)


def test_a_torch_that_is_too_old_is_refused_at_import_by_one_sentence():
    """Checks that a torch is refused before anything of it is looked for that it may not have."""
    script = "import torch\ntorch.__version__ = '2.9.1'\ntry:\n    import tidelog\nexcept ImportError as error:\n    print(error)"
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.stdout == (
        "tidelog needs torch 2.10 or newer, and this is torch 2.9.1: pip install 'torch>=2.10'\n"
    ), ended
