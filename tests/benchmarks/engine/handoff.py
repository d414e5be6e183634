"""The speed at which KV moves from a prefill engine to a decode engine on one machine, by TCP and shared memory.

    python -m tests.benchmarks.engine.handoff [--tokens 8192]

Both sides are threads of one process here and share its interpreter lock; two processes are a little faster. The
time covers everything: export, checksums on both sides, transfer, and import into the other engine's blocks.
"""

import argparse
import socket
import threading
from time import perf_counter, process_time

import torch
from rich.console import Console

from tests.benchmarks.report import new_table
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.checkpoint.rope_spec import RopeSpec
from workers.engine.disaggregation.channel import blocks_per_slab, open_receiver, open_sender
from workers.engine.disaggregation.messages import Backend, Slab, checksums, receive_as, send_frame
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore

BLOCK = 16


def spec(layers: int = 32, kv_heads: int = 8, head_dim: int = 128) -> ModelSpec:
    """Return the specification of the KV of a model with 8 billion parameters."""
    return ModelSpec(
        architecture="llama",
        vocab_size=8,
        hidden_size=4096,
        intermediate_size=8,
        layers=layers,
        heads=32,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=131_072,
        norm_eps=1e-6,
        rope=RopeSpec(),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * layers,
        tied_head=False,
        dtype="bfloat16",
        eos_ids=frozenset(),
    )


def move(given: KVStore, taken: KVStore, blocks: int, backend: Backend) -> float:
    """Move `blocks` blocks, and return the seconds."""
    one, other = socket.socketpair() if backend == "shm" else _tcp_pair()
    step, size = blocks_per_slab(given.bytes_per_block), given.bytes_per_block

    def give() -> None:
        with open_sender(one, backend, size) as sender:
            for first in range(0, blocks, step):
                sent = range(1 + first, 1 + min(first + step, blocks))
                content = given.export(sent, sender.next_buffer(len(sent)))
                send_frame(one, Slab(first=first, checksums=checksums(content)))
                sender.send(content)
            sender.finish()

    began = perf_counter()
    thread = threading.Thread(target=give)
    thread.start()
    with open_receiver(other, backend, size) as receiver:
        for first in range(0, blocks, step):
            count = min(step, blocks - first)
            slab = receive_as(other, Slab)
            content = receiver.receive(count)
            assert slab.checksums == checksums(content)
            taken.load(range(1 + first, 1 + first + count), content)
    thread.join()
    seconds = perf_counter() - began
    one.close()
    other.close()
    return seconds


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.engine.handoff")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    blocks = options.tokens // BLOCK
    stores = [
        KVStore(
            spec(),
            blocks=blocks + 1,
            block_size=BLOCK,
            codec=kv_codec("auto", torch.bfloat16),
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )
        for _ in range(2)
    ]
    for part in (*stores[0].keys, *stores[0].values):
        part.normal_()
    table = new_table(
        f"{options.tokens} tokens of an 8B model's KV, bfloat16",
        ("way",),
        ("MB", "seconds", "GB/s", "GB per CPU second"),
    )
    size = blocks * stores[0].bytes_per_block
    for backend in ("tcp", "shm"):
        worked = process_time()
        seconds = min(move(stores[0], stores[1], blocks, backend) for _ in range(options.rounds))
        worked = (process_time() - worked) / options.rounds
        table.add_row(
            backend,
            f"{size / 1e6:.0f}",
            f"{seconds:.3f}",
            f"{size / seconds / 1e9:.2f}",
            f"{size / worked / 1e9:.2f}",
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
