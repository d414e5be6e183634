"""The records in a segment: nodes of the tree, nodes of requests under way, and the namespaces.

    node         key | words | tree | sequence | depth, used | blocks, level | counts | run | holders
    under way    key | words | depth, requests | blocks, holders | run | holders and their requests
    bytes        0   | words | size | data

`words` is the size of the record, `counts` the number of holders in each chunk. A holder is a pair of a tenure and
a number, four bytes each.
"""

from array import array
from collections.abc import Iterator
from itertools import chain
from struct import Struct

from radix_cache.blocks import Hashes
from radix_cache.in_flight_tree import InFlightNode
from radix_cache.machine.heap import SegmentHeap
from radix_cache.machine.segment import BYTES_NEEDED, WORD, IndexSegment, order_stores
from radix_cache.machine.slot_table import OFFSET_BITS, OFFSET_MASK, TAG_MASK
from radix_cache.shared.log_records import Holders
from radix_cache.shared.node import ReplicaNode

NODE = Struct("<QQ8sQIIII")
IN_FLIGHT = Struct("<QQIIII")
BYTES = Struct("<QQQ")
_PAIR = Struct("<II")
PAIR_BYTES = _PAIR.size
RECORD_WORDS_MAX = 1 << 22
_COUNTS: dict[int, Struct] = {}
_ONE_COUNT = Struct("<I4x")


class RecordHeap:
    """Writes records to the heap of a segment; only the segment's single writer uses it."""

    def __init__(self, segment: IndexSegment, heap: SegmentHeap) -> None:
        self._segment, self._heap = segment, heap
        self._tag = 0

    def write(self, data: bytes) -> int:
        """Write a record of whole words and return the word that refers to it; 0 if there is no room."""
        words = len(data) // WORD
        at = self._heap.allocate(words)
        if not at:
            self._segment.words[BYTES_NEEDED] += len(data)
            return 0
        self._segment.data[at * WORD : at * WORD + len(data)] = data
        order_stores()
        self._tag = self._tag + 1 & TAG_MASK or 1
        return self._tag << OFFSET_BITS | at

    def free(self, word: int) -> None:
        """Free the memory of a record."""
        if word:
            at = word & OFFSET_MASK
            self._heap.free(at, self._segment.words[at + 1])


def read_record(segment: IndexSegment, word: int) -> bytes | None:
    """Return a copy of a record; None if the word refers to no record.

    The copy is torn, a mix of old and new bytes, if the record was replaced meanwhile.
    """
    at = word & OFFSET_MASK
    try:
        size = segment.words[at + 1]
    except IndexError:
        return None
    if size > RECORD_WORDS_MAX:
        return None
    data = segment.data[at * WORD : (at + size) * WORD].tobytes()
    order_stores()
    return data


def encode_node(node: ReplicaNode) -> bytes:
    """Return the record of a node."""
    chunks = node.chunks
    counts = _counts(len(chunks)).pack(*map(len, chunks))
    pairs = array("I", chain.from_iterable(chain.from_iterable(chunk.items() for chunk in chunks)))
    run = node.run
    size = NODE.size + len(counts) + WORD * len(run) + 4 * len(pairs)
    level = len(chunks).bit_length() - 1
    head = NODE.pack(
        *(node.key, size // WORD, node.tree, node.sequence, node.depth, node.used, len(run), level)
    )
    return b"".join((head, counts, run.tobytes(), pairs.tobytes()))


class LazyChunks:
    """The chunks of a node's holders as a list of dictionaries, each decoded when it is first read."""

    __slots__ = ("_chunks", "_data", "_ends")

    def __init__(self, data: bytes, ends: list[int]) -> None:
        self._data, self._ends = data, ends
        self._chunks: dict[int, Holders] = {}

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self._ends) - 1

    def __getitem__(self, chunk: int) -> Holders:
        """Return the holders of one chunk."""
        found = self._chunks.get(chunk)
        if found is None:
            if chunk >= len(self._ends) - 1:
                raise IndexError(chunk)
            pairs = self._data[self._ends[chunk] : self._ends[chunk + 1]]
            found = self._chunks[chunk] = dict(_PAIR.iter_unpack(pairs))
        return found

    def __iter__(self) -> Iterator[Holders]:
        """Yield the holders of all chunks."""
        return map(self.__getitem__, range(len(self)))


def decode_node(data: bytes) -> ReplicaNode:
    """Return the node of a record, without parent and children. Raises struct.error and ValueError if torn."""
    key, _, tree, sequence, depth, used, blocks, level = NODE.unpack_from(data)
    counts = _counts(1 << level) if level else _ONE_COUNT
    runs_at = NODE.size + counts.size
    pairs_at = runs_at + WORD * blocks
    # A view, not a copy: a match reads only a few blocks of the run.
    run: Hashes = memoryview(data)[runs_at:pairs_at].cast("Q")  # type: ignore[assignment]
    node = ReplicaNode(key, tree, run)
    node.sequence, node.depth, node.used = sequence, depth, used
    if not level:
        node.chunks[0] = dict(_PAIR.iter_unpack(data[pairs_at:]))
        return node
    ends = [pairs_at]
    for count in counts.unpack_from(data, NODE.size)[: 1 << level]:
        ends.append(ends[-1] + PAIR_BYTES * count)
    node.mask = (1 << level) - 1
    node.chunks = LazyChunks(data, ends)  # type: ignore[assignment]
    return node


def encode_in_flight(node: InFlightNode[int]) -> bytes:
    """Return the record of a node of requests under way."""
    pairs = array("I", chain.from_iterable(node.by_holder.items()))
    words = (IN_FLIGHT.size + 4 * len(pairs)) // WORD + len(node.run)
    sizes = (node.depth, node.requests, len(node.run), len(pairs) // 2)
    return b"".join((IN_FLIGHT.pack(node.run[0], words, *sizes), node.run.tobytes(), pairs.tobytes()))


def decode_in_flight(data: bytes) -> tuple[int, int, Hashes, list[int]]:
    """Return key, requests, run and holders of a record. Raises struct.error and ValueError if torn."""
    key, _, _, requests, blocks, _ = IN_FLIGHT.unpack_from(data)
    pairs_at = IN_FLIGHT.size + WORD * blocks
    run: Hashes = array("Q", data[IN_FLIGHT.size : pairs_at])
    holders = array("I", data[pairs_at:])[::2].tolist()
    return key, requests, run, holders


def encode_bytes(data: bytes) -> bytes:
    """Return a record that contains these bytes."""
    padding = bytes(-len(data) % WORD)
    return BYTES.pack(0, (BYTES.size + len(data) + len(padding)) // WORD, len(data)) + data + padding


def decode_bytes(record: bytes) -> bytes:
    """Return the bytes of a record. Raises struct.error if torn."""
    size = BYTES.unpack_from(record)[2]
    return record[BYTES.size : BYTES.size + size]


def _counts(chunks: int) -> Struct:
    """Return the format of the number of holders of each chunk, in whole words."""
    found = _COUNTS.get(chunks)
    if found is None:
        if chunks > RECORD_WORDS_MAX:
            raise ValueError(f"a node of {chunks} chunks")
        found = _COUNTS[chunks] = Struct(f"<{chunks}I{'4x' if chunks % 2 else ''}")
    return found
