"""Files of weights: safetensors, GGUF, the hub; and the way from named tensors to the parameters of a decoder."""
