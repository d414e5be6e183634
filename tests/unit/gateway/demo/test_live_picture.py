"""The picture of the demo: the prefix tree with the workers that hold it, and the latest requests."""

from gateway.demo.live_picture import BRANCHES_MAX, HOLDS, LACKS, request_lines, tree_lines

COLOURS = {"worker-0": "cyan", "worker-1": "magenta"}


def node(identity, parent=None, *, blocks=1, group="tenant:acme", **holders):
    return {
        "id": identity,
        "parent": parent,
        "group": group,
        "blocks": blocks,
        "block_tokens": 16,
        "holders": {f"worker-{name[1:]}": count for name, count in holders.items()},
    }


def tree(*nodes):
    found = {"nodes": list(nodes), "nodes_total": len(nodes), "blocks_total": sum(n["blocks"] for n in nodes)}
    return [line.plain for line in tree_lines(found, COLOURS)]


def test_an_empty_index_is_a_heading_alone():
    assert tree() == [f"{'prefix tree: 0 blocks in 0 prefixes':<60} worker-0  worker-1 "]


def test_a_shared_prefix_stands_at_the_margin_with_its_conversations_below():
    lines = tree(
        node("a", blocks=24, w0=24, w1=24),
        node("b", "a", blocks=4, w0=4),
        node("c", "b", blocks=6, w0=6),
        node("d", "a", blocks=2, w1=2),
    )
    assert lines[0].startswith("prefix tree: 36 blocks in 4 prefixes")
    assert lines[1].startswith("acme ")
    assert "384 tokens, shared by 2 chats" in lines[1]
    assert lines[1].count(HOLDS) == 2
    assert "|- " in lines[2]
    assert "160 tokens" in lines[2], "of the node and of what continues it"
    assert lines[2][60:].split() == [HOLDS, LACKS]
    assert lines[3][60:].split() == [LACKS, HOLDS]


def test_a_row_has_the_colour_of_the_worker_that_holds_most_of_it():
    nodes = [node("a", blocks=24, w0=4, w1=24)]
    _, row = tree_lines({"nodes": nodes, "nodes_total": 1, "blocks_total": 24}, COLOURS)
    assert next(span.style for span in row.spans) == "magenta"


def test_of_many_conversations_the_longest_are_drawn_and_the_others_counted():
    children = [node(f"c{at}", "a", blocks=at + 1, w0=at + 1) for at in range(9)]
    lines = tree(node("a", blocks=24, w0=24), *children)
    assert len(lines) == 2 + BRANCHES_MAX + 1
    assert "144 tokens" in lines[2]
    assert lines[-1].strip() == f"`- {9 - BRANCHES_MAX} more"


def test_a_conversation_of_which_no_worker_holds_anything_is_drawn():
    assert tree(node("a", group=""))[1][60:].split() == [LACKS, LACKS]


def test_requests_are_listed_with_their_worker():
    asked = {
        "tenant": "acme",
        "prompt_tokens": 416,
        "cached_tokens": 384,
        "worker": "worker-1",
        "ttft_ms": 21.4,
    }
    _, answered, failed = (
        line.plain for line in request_lines([asked, asked | {"worker": None, "ttft_ms": None}], COLOURS)
    )
    assert " ".join(answered.split()) == (
        "acme 416 tokens, 384 of them cached → worker-1 21 ms to the first token"
    )
    assert "first token" not in failed
