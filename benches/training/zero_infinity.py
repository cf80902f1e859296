"""DeepSpeed's ZeRO-Infinity on a CPU: stage 3, parameters and optimizer on NVMe by its own asynchronous I/O."""

import os
import sys

import job
from zero_infinity_settings import LARGEST


def configuration(tried, folder, micro_batches):
    """DeepSpeed's own, as JSON would have it."""
    on_nvme = {"device": "nvme", "nvme_path": folder, "pin_memory": False}
    parameters = {"buffer_count": tried["parameter_buffers"], "buffer_size": LARGEST + job.WIDTH, "max_in_cpu": 0}
    states = {
        "buffer_count": tried["optimizer_buffers"],
        "pipeline_read": tried["pipeline"],
        "pipeline_write": tried["pipeline"],
    }
    return {
        "train_micro_batch_size_per_gpu": job.BATCH,
        "gradient_accumulation_steps": micro_batches,
        # It clips where nothing is said; the others do not.
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**on_nvme, **parameters},
            "offload_optimizer": {**on_nvme, **states},
            "sub_group_size": tried["sub_group_size"],
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": tried["prefetch_bucket_size"],
            "stage3_max_live_parameters": tried["max_live_parameters"],
            "stage3_max_reuse_distance": tried["max_live_parameters"],
            "reduce_bucket_size": tried["reduce_bucket_size"],
            "overlap_comm": tried["overlap_comm"],
        },
        "aio": {
            "block_size": tried["block_size"],
            "queue_depth": tried["queue_depth"],
            "intra_op_parallelism": tried["threads"],
            "single_submit": False,
            "overlap_events": True,
        },
        "steps_per_print": 10**9,
    }


def load():
    """Imports DeepSpeed, and builds what it compiles: async_io and its Adam."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    # The compiler's driver lies beside the interpreter.
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    import deepspeed
    from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder

    AsyncIOBuilder().load(verbose=False)
    CPUAdamBuilder().load(verbose=False)
    return f"DeepSpeed {deepspeed.__version__}"


def begin(tried, folder, micro_batches):
    """A function that does one step."""
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    config = configuration(tried, folder, micro_batches)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = job.model()
    optimizer = DeepSpeedCPUAdam(
        model.parameters(), lr=job.LEARNING_RATE, weight_decay=job.WEIGHT_DECAY, adamw_mode=True
    )
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step(batches):
        total = 0.0
        for batch in batches:
            loss = job.loss_of(engine, batch)
            engine.backward(loss)
            engine.step()
            total += loss.detach() / len(batches)
        return total

    return step
