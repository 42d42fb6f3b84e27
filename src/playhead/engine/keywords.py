"""The settings of an engine as typed keywords, for type checkers and editors. No torch.

`LLM(max_model_len=64, enforce_eager=True)`: each name is a field of `EngineConfig`, another engine's spelling of it, or
a setting of vLLM or SGLang that asks for nothing here (`foreign.py`). A test keeps the names equal to those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from playhead.types import LoadFormat, Mode, TPMode

if TYPE_CHECKING:
    import torch


class EngineKeywords(TypedDict, total=False):
    """Settings by keyword, each with its type. What each means stands at `EngineConfig`."""

    device: str | None
    dtype: str | torch.dtype
    load_format: LoadFormat | str
    revision: str | None
    tokenizer: str | None
    tokenizer_path: str | None
    tokenizer_revision: str | None
    chat_template: str | None
    generation_config: str
    seed: int | None
    random_seed: int | None
    skip_tokenizer_init: bool
    max_model_len: int | None
    context_length: int | None
    max_num_seqs: int | None
    max_running_requests: int | None
    max_num_batched_tokens: int | None
    chunked_prefill_size: int | None
    gpu_memory_utilization: float | None
    mem_fraction_static: float | None
    kv_memory_bytes: int | None
    kv_cache_memory_bytes: int | None
    page_size: int | None
    block_size: int | None
    graph_mode: Mode | str | None
    enforce_eager: bool | None
    disable_cuda_graph: bool
    enable_prefix_caching: bool | None
    no_enable_prefix_caching: bool
    disable_radix_cache: bool
    overlap: bool | None
    forced_tokens: bool
    batch_invariant: bool
    tensor_parallel_size: int
    tp: int
    tp_size: int
    tp_mode: TPMode | str
    async_scheduling: bool | None
    disable_overlap_schedule: bool
    strict_ledger: bool | None
    ledger_audit_steps: int | None

    # Other engines' settings: taken where they ask for nothing, refused with the reason where they ask for something.
    pipeline_parallel_size: int
    data_parallel_size: int
    dp_size: int
    pp_size: int
    enable_expert_parallel: bool
    distributed_executor_backend: str | None
    disable_custom_all_reduce: bool
    trust_remote_code: bool
    tokenizer_mode: str
    quantization: str | None
    hf_overrides: Mapping[str, object] | None
    rope_scaling: Mapping[str, object] | None
    rope_theta: float | None
    config_format: str
    model_impl: str
    download_dir: str | None
    hf_token: str | bool | None
    model_loader_extra_config: Mapping[str, object] | None
    code_revision: str | None
    served_model_name: str | Sequence[str] | None
    use_tqdm_on_load: bool
    override_generation_config: Mapping[str, object] | None
    swap_space: float
    cpu_offload_gb: float
    kv_cache_dtype: str
    calculate_kv_scales: bool
    num_gpu_blocks_override: int | None
    max_total_tokens: int | None
    kv_transfer_config: Mapping[str, object] | None
    swa_full_tokens_ratio: float | None
    disable_hybrid_kv_cache_manager: bool | None
    disable_hybrid_swa_memory: bool
    disable_sliding_window: bool
    preemption_mode: str | None
    enable_chunked_prefill: bool | None
    scheduling_policy: str
    schedule_policy: str
    num_scheduler_steps: int
    max_seq_len_to_capture: int
    cuda_graph_max_bs: int | None
    cuda_graph_bs: Sequence[int] | None
    cudagraph_capture_sizes: Sequence[int] | None
    compilation_config: Mapping[str, object] | int | None
    enable_torch_compile: bool
    attention_backend: str | None
    sampling_backend: str | None
    attention_config: Mapping[str, object] | None
    enable_deterministic_inference: bool
    disable_cascade_attn: bool
    disable_async_output_proc: bool
    enable_sleep_mode: bool
    max_logprobs: int
    logprobs_mode: str
    speculative_config: Mapping[str, object] | None
    speculative_algorithm: str | None
    speculative_model: str | None
    num_speculative_tokens: int | None
    guided_decoding_backend: str
    grammar_backend: str | None
    structured_outputs_config: Mapping[str, object] | None
    reasoning_parser: str | None
    logits_processors: Sequence[object] | None
    enable_lora: bool
    lora_paths: Sequence[str] | None
    max_loras: int
    max_lora_rank: int
    enable_prompt_adapter: bool
    task: str
    runner: str
    convert: str
    is_embedding: bool
    pooler_config: object
    enable_prompt_embeds: bool
    limit_mm_per_prompt: Mapping[str, int] | None
    mm_processor_kwargs: Mapping[str, object] | None
    enable_multimodal: bool | None
    allowed_local_media_path: str
    allowed_media_domains: Sequence[str] | None
    language_model_only: bool
    disable_log_stats: bool
    disable_log_requests: bool
    enable_log_requests: bool
    log_level: str
    enable_metrics: bool
