"""Settings of vLLM and SGLang that Playhead does not have.

A value that asks for nothing is taken, so that a script that spells out its defaults runs. Any other value is refused
with the reason: a setting that is silently ignored would be worse than an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playhead.errors import NO_POOLING, ConfigError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSetting:
    """A setting of another engine. `idle` are the values that ask for nothing; all do if it is None.

    None, which leaves a setting open, always asks for nothing.
    """

    why: str
    idle: tuple[object, ...] | None = ()
    is_secret: bool = False
    """No error shows its value."""

    def check(self, name: str, value: object) -> None:
        """Nothing, or `ConfigError` with the reason."""
        if value is None or self.idle is None:
            return
        if not any(type(value) is type(one) and value == one for one in self.idle):
            wanted = f"; wanted {' or '.join(map(shown, self.idle))}" if self.idle else ""
            found = "a secret" if self.is_secret else shown(value)
            raise ConfigError(f"{name}: found {found}{wanted}. {self.why}")


NO_STAGES = ForeignSetting(why="Playhead has no stages: set tensor_parallel_size instead.", idle=(1,))
NO_REPLICAS = ForeignSetting(why="An engine is one replica: `playhead serve --replicas N` serves several.", idle=(1,))
NO_CODE = ForeignSetting(why="Playhead never runs code of a checkpoint.", idle=(False,))
NO_LORA = ForeignSetting(why="Playhead has no LoRA adapters: merge the adapter into the weights first.", idle=(False,))
NO_EDITS = ForeignSetting(why="Playhead takes a model as its files say: edit config.json instead.", idle=({},))
TEXT_ONLY = ForeignSetting(why="Playhead runs the text part of a model.", idle=({}, False))
NO_MEDIA = ForeignSetting(
    why="Playhead runs the text part of a model.", idle=({}, {"image": 0}, {"image": 0, "video": 0})
)
TEXT_ONLY_PATH = ForeignSetting(why="Playhead runs the text part of a model.", idle=("",))
NO_SPECULATION = ForeignSetting(why="Playhead has no speculative decoding.", idle=({},))
NO_SIZES = ForeignSetting(why="Graphs are captured up to max_num_seqs.")
NO_BACKEND = ForeignSetting(why="The device decides which kernels run.")
OWN_PLAN = ForeignSetting(why="KV memory is planned from the model's own layers.", idle=(False,))
NO_OFFLOAD = ForeignSetting(why="Playhead keeps all weights on the device.", idle=(0, 0.0))
ONLY_TEXT_OUT = ForeignSetting(why=NO_POOLING, idle=("auto", "generate"))
ONE_GRAMMAR = ForeignSetting(why="Playhead reads grammars by llguidance.", idle=("auto", "guidance", "llguidance"))
NO_EFFECT = ForeignSetting(why="", idle=None)

FOREIGN_SETTINGS: Mapping[str, ForeignSetting] = {
    # Several devices.
    "pipeline_parallel_size": NO_STAGES,
    "data_parallel_size": NO_REPLICAS,
    "dp_size": NO_REPLICAS,
    "pp_size": NO_STAGES,
    "enable_expert_parallel": ForeignSetting(why="tensor_parallel_size divides experts too.", idle=(False,)),
    "distributed_executor_backend": ForeignSetting(
        why="Playhead starts its ranks itself, as processes.", idle=("uni", "mp")
    ),
    "disable_custom_all_reduce": NO_EFFECT,  # ranks meet by torch's own collectives
    # Files.
    "trust_remote_code": NO_CODE,
    "tokenizer_mode": ForeignSetting(why="Playhead reads tokenizer.json.", idle=("auto", "fast")),
    "quantization": ForeignSetting(
        why="Playhead reads what the checkpoint is stored as: MXFP4 and GGUF checkpoints need no setting.",
        idle=("mxfp4", "gguf"),
    ),
    "hf_overrides": NO_EDITS,
    "rope_scaling": NO_EDITS,
    "rope_theta": ForeignSetting(why="Playhead takes a model as its files say: edit config.json instead."),
    "config_format": ForeignSetting(why="Playhead reads config.json or a .gguf file.", idle=("auto", "hf")),
    "model_impl": ForeignSetting(why="Playhead has one implementation of each family.", idle=("auto",)),
    "download_dir": ForeignSetting(why="Set HF_HOME to choose where the hub's files are kept."),
    "hf_token": ForeignSetting(why="Set HF_TOKEN: the hub's own package reads it.", idle=(False,), is_secret=True),
    "model_loader_extra_config": ForeignSetting(why="Playhead has one way to load a model.", idle=({},)),
    "code_revision": NO_CODE,
    "served_model_name": NO_EFFECT,  # names a model to clients of a server
    "use_tqdm_on_load": NO_EFFECT,  # a program's loading is silent; the command line shows a bar
    "override_generation_config": ForeignSetting(why="Give SamplingParams to each call instead.", idle=({},)),
    # Memory.
    "swap_space": NO_EFFECT,  # a preempted request is computed anew, so nothing is swapped
    "cpu_offload_gb": NO_OFFLOAD,
    "kv_cache_dtype": ForeignSetting(why="Playhead keeps KV in the model's dtype.", idle=("auto",)),
    "calculate_kv_scales": ForeignSetting(why="Playhead keeps KV in the model's dtype.", idle=(False,)),
    "num_gpu_blocks_override": ForeignSetting(why="Set kv_memory_bytes instead."),
    "max_total_tokens": ForeignSetting(why="Set kv_memory_bytes instead."),
    "kv_transfer_config": ForeignSetting(why="Playhead keeps KV on its own device.", idle=({},)),
    "swa_full_tokens_ratio": OWN_PLAN,
    "disable_hybrid_kv_cache_manager": OWN_PLAN,
    "disable_hybrid_swa_memory": OWN_PLAN,
    "disable_sliding_window": ForeignSetting(why="Playhead runs a model's windows as its files say.", idle=(False,)),
    "preemption_mode": ForeignSetting(why="A preempted request is computed anew.", idle=("recompute",)),
    # Schedule and graphs.
    "enable_chunked_prefill": ForeignSetting(
        why="Long prompts always run in chunks: raise max_num_batched_tokens to the longest prompt.", idle=(True,)
    ),
    "scheduling_policy": ForeignSetting(
        why="Requests are served by priority, and in their order where it is equal.", idle=("fcfs", "priority")
    ),
    "schedule_policy": ForeignSetting(why="Requests are served in their order.", idle=("fcfs", "lpm")),
    "num_scheduler_steps": ForeignSetting(why="Playhead plans each step by itself.", idle=(1,)),
    "max_seq_len_to_capture": NO_EFFECT,  # graphs depend on the batch, not on the length
    "cuda_graph_max_bs": NO_SIZES,
    "cuda_graph_bs": NO_SIZES,
    "cudagraph_capture_sizes": NO_SIZES,
    "compilation_config": ForeignSetting(why="Set graph_mode, or enforce_eager=True.", idle=({}, 0)),
    "enable_torch_compile": ForeignSetting(why="Playhead captures its graphs itself.", idle=(False,)),
    "attention_backend": NO_BACKEND,
    "sampling_backend": NO_BACKEND,
    "attention_config": NO_BACKEND,
    "enable_deterministic_inference": ForeignSetting(why="Set batch_invariant=True instead.", idle=(False,)),
    "disable_cascade_attn": NO_EFFECT,
    "disable_async_output_proc": NO_EFFECT,
    "enable_sleep_mode": ForeignSetting(why="Close the LLM and make it again.", idle=(False,)),
    # Requests.
    "max_logprobs": NO_EFFECT,  # SamplingParams has the bound
    "logprobs_mode": ForeignSetting(
        why="Logprobs are the model's own, before temperature and filters.", idle=("raw_logprobs",)
    ),
    "speculative_config": NO_SPECULATION,
    "speculative_algorithm": NO_SPECULATION,
    "speculative_model": NO_SPECULATION,
    "num_speculative_tokens": NO_SPECULATION,
    "guided_decoding_backend": ONE_GRAMMAR,
    "grammar_backend": ONE_GRAMMAR,
    "structured_outputs_config": ForeignSetting(
        why="Playhead reads grammars by llguidance.", idle=({}, {"backend": "auto"}, {"backend": "guidance"})
    ),
    "reasoning_parser": ForeignSetting(why="Answers are text: `playhead serve` finds reasoning by the chat template."),
    "logits_processors": ForeignSetting(
        why="Sampling is part of a captured graph: use logit_bias or allowed_token_ids.", idle=([], ())
    ),
    "enable_lora": NO_LORA,
    "lora_paths": NO_LORA,
    "max_loras": NO_EFFECT,  # says nothing without enable_lora
    "max_lora_rank": NO_EFFECT,
    "enable_prompt_adapter": ForeignSetting(why="Playhead has no prompt adapters.", idle=(False,)),
    # What a model is used for.
    "task": ONLY_TEXT_OUT,
    "runner": ONLY_TEXT_OUT,
    "convert": ForeignSetting(why=NO_POOLING, idle=("auto", "none")),
    "is_embedding": ForeignSetting(why=NO_POOLING, idle=(False,)),
    "pooler_config": ForeignSetting(why=NO_POOLING),
    "enable_prompt_embeds": ForeignSetting(
        why="A prompt is text or token ids: Playhead takes no embeddings.", idle=(False,)
    ),
    "limit_mm_per_prompt": NO_MEDIA,
    "mm_processor_kwargs": TEXT_ONLY,
    "enable_multimodal": TEXT_ONLY,
    "allowed_local_media_path": TEXT_ONLY_PATH,
    "allowed_media_domains": NO_EFFECT,  # nothing is fetched
    "language_model_only": NO_EFFECT,  # it always is
    # What is written down.
    "disable_log_stats": NO_EFFECT,  # `LLM.stats` counts, and nothing is logged
    "disable_log_requests": NO_EFFECT,  # no request is logged
    "enable_log_requests": NO_EFFECT,
    "log_level": NO_EFFECT,  # PLAYHEAD_LOG and the logging module
    "enable_metrics": NO_EFFECT,
}
"""By name. The comment beside a setting without effect says why it has none."""
