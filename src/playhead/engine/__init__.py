"""The engine: requests in, tokens out, and what runs around it: configuration, memory, threads, timing."""
