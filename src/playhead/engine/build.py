"""From a model's name to an engine: files are described, sizes are fixed, weights are read."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Unpack

import torch

from playhead.engine.config import EMBEDDED, EngineConfig, ModelName, config_from
from playhead.engine.engine import Engine
from playhead.engine.keywords import EngineKeywords
from playhead.engine.memory import worker_config
from playhead.engine.ranks import check_ranks, first_shard, lead, other_ranks
from playhead.engine.resolve import check_batch_invariant, check_load_format, resolve_device, resolve_dtype
from playhead.engine.tokenizer_files import resolve_model_name, tokenizer_at, tokenizer_path
from playhead.errors import ConfigError
from playhead.kernels.early import prepare_triton
from playhead.logs import event, set_up_logging
from playhead.models.checkpoint.fill import LoadProgress, OnProgress
from playhead.models.load import ModelDescription, describe_model, load_generation_config, load_weights
from playhead.models.text.ids_only import LateTokenizer
from playhead.models.text.tokenizer import Tokenizer
from playhead.sampling_params import SamplingParams
from playhead.step.build import build_worker
from playhead.types import LoadFormat

LOG = logging.getLogger(__name__)
IMPORTED_IN = os.getpid()


def build_engine(
    model: ModelName = EMBEDDED,
    config: EngineConfig | None = None,
    *,
    on_load_progress: OnProgress | None = None,
    reads_text: bool = True,
    **settings: Unpack[EngineKeywords],
) -> Engine:
    """An engine of a model: the embedded one, a directory, a .gguf file or a hub id.

    Settings are those of `EngineConfig`, as one object or as keywords. `Engine.config` has the values in use. Without
    `reads_text` prompts come as ids that another process has checked: that process reads the tokenizer's files.
    """
    set_up_logging()
    started_s = time.perf_counter()
    config = config_from(config, settings)
    device = resolve_device(config)
    prepare_fork(device)
    is_dummy = config.load_format is LoadFormat.DUMMY
    description = describe_model(resolve_model_name(model), revision=config.revision, config_only=is_dummy)
    check_load_format(config, description)
    check_batch_invariant(config, description.spec)
    check_ranks(config, description.spec, device)
    sizes = worker_config(description, config, device)  # before the weights: what cannot fit is refused at once
    dtype = resolve_dtype(config, device, description)
    with other_ranks(config, description, sizes, (device, dtype)) as ranks:
        with ThreadPoolExecutor(2, thread_name_prefix="playhead load") as beside:
            reading = beside.submit(load_tokenizer if reads_text else late_tokenizer, description, config)
            if device.type == "cuda":
                beside.submit(prepare_triton)
            try:
                decoder = load_weights(
                    description,
                    dtype=dtype,
                    device=device,
                    load_format=config.load_format,
                    shard=first_shard(config),
                    on_progress=partial(check_beside, reading, on_load_progress),
                )
            finally:
                tokenizer = reading.result()  # an error of the tokenizer is raised before one of the weights
            worker = build_worker(decoder, sizes)
        lead(worker, ranks)
    generation = load_generation_config(description, tokenizer)
    defaults = generation.sampling if config.generation_config == "auto" else SamplingParams()
    engine = Engine(worker, tokenizer, config=config, default_params=defaults, name=os.fspath(model))
    log_start(engine, time.perf_counter() - started_s)
    return engine


def check_beside(reading: Future[Tokenizer], tell: OnProgress | None, progress: LoadProgress) -> None:
    """Report how far the weights are loaded. If the tokenizer turned out to be unusable, loading them ends."""
    if reading.done():
        reading.result()
    if tell is not None:
        tell(progress)


def prepare_fork(device: torch.device) -> None:
    """Make torch usable in a forked child, or `ConfigError`. In the process that imported Playhead nothing is done.

    A child has one of its parent's threads. Torch would wait for its other threads, which are gone.
    """
    if os.getpid() == IMPORTED_IN:
        return
    if device.type == "cuda" and torch.cuda._is_in_bad_fork():
        raise ConfigError(
            "device: this process was forked from one that has used the GPU, and CUDA does not work in such a child. "
            "Start the child by multiprocessing.get_context('spawn'), or set device='cpu'."
        )
    if device.type == "cpu" and torch.get_num_threads() > 1:
        LOG.warning("This process was forked, so torch runs on one thread. Start it by 'spawn' to use more.")
        torch.set_num_threads(1)


def log_start(engine: Engine, seconds: float) -> None:
    """Write down what was loaded and what memory was planned for it."""
    config, limits = engine.config, engine.worker.config.limits
    weights = sum(weight.numel() * weight.element_size() for weight in engine.worker.model.decoder.parameters())
    event(
        LOG,
        logging.INFO,
        "model loaded",
        model=engine.name,
        device=config.device,
        dtype=config.dtype,
        weight_bytes=weights,
        seconds=seconds,
    )
    event(
        LOG,
        logging.INFO,
        "KV memory planned",
        bytes=engine.worker.config.kv_memory_bytes,
        max_model_len=limits.max_context_tokens,
        max_num_seqs=limits.max_running,
        max_num_batched_tokens=limits.chunk_tokens,
    )


def load_tokenizer(description: ModelDescription, config: EngineConfig | None = None) -> Tokenizer:
    """From the files beside the weights or the GGUF file's metadata; ids only where the configuration has no text."""
    config = config or EngineConfig()
    path = tokenizer_path(description.path, config)
    return tokenizer_at(path, config, description.gguf if path == description.path else None)


def late_tokenizer(description: ModelDescription, config: EngineConfig) -> Tokenizer:
    """The same, read when a grammar is compiled. It holds no file of the model open."""
    return LateTokenizer(partial(tokenizer_at, tokenizer_path(description.path, config), config))
