"""An LLM with everything spelled out, as people copy it from vLLM's documentation."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(
        model=model,
        tokenizer=model,
        tokenizer_mode="auto",
        trust_remote_code=False,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        dtype="float32",
        quantization=None,
        revision=None,
        seed=0,
        gpu_memory_utilization=0.5,
        swap_space=4,
        cpu_offload_gb=0,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        block_size=16,
        disable_log_stats=True,
        disable_custom_all_reduce=True,
        hf_overrides=None,
        task="generate",
    )
    outputs = llm.generate(["Blow, winds,", "and crack your cheeks!"], SamplingParams(max_tokens=4))
    print([output.outputs[0].text for output in outputs])
    assert len(outputs) == 2
    try:
        LLM(model=model, tensor_parallel_size=8)
    except ValueError as error:
        print(error)
    else:
        raise AssertionError("a machine with eight GPUs ran this test")


if __name__ == "__main__":
    main("embedded")
