"""How long the tables of a vocabulary keep every other Python thread waiting: `python -m bench.held [--tokens 262144]`.

An engine's beat thread is silent for as long. The tokens are random letters.
"""

from __future__ import annotations

import argparse
import random
import threading
import time

from playhead.grammar.compiler import Vocabulary, built

LETTERS = b"abcdefghijklmnopqrstuvwxyz ,."
TICK_S = 0.01


def random_tokens(count: int) -> list[bytes]:
    """All single bytes, then words of two to nine letters."""
    rng, tokens = random.Random(1), {bytes([i]): None for i in range(256)}
    while len(tokens) < count:
        tokens[bytes(rng.choices(LETTERS, k=rng.randint(2, 9)))] = None
    return list(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=262144)
    args = parser.parse_args()
    vocabulary = Vocabulary(
        token_bytes=random_tokens(args.tokens),
        eos_ids=frozenset([1]),
        special_ids=frozenset([1]),
        encode=lambda text: [ord(letter) for letter in text],
    )
    is_built, gaps_s = threading.Event(), [0.0]

    def tick() -> None:
        last_s = time.perf_counter()
        while not is_built.wait(TICK_S):
            now_s = time.perf_counter()
            gaps_s.append(now_s - last_s)
            last_s = now_s

    ticker = threading.Thread(target=tick)
    ticker.start()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    built(vocabulary)
    took_s, took_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    time.sleep(5 * TICK_S)  # a thread that was kept waiting ticks once more
    is_built.set()
    ticker.join()
    print(f"{args.tokens} tokens: {took_s:.2f} s, {took_cpu_s:.2f} s of computing; a thread waited {max(gaps_s):.2f} s")


if __name__ == "__main__":
    main()
