"""Tags of very many tenants: the same turns as by looking at all of them."""

from array import array
from contextlib import closing
from random import Random

from policies.simulation.trace import TraceRequest
from policies.simulation.turns.queue_rule import QueueRule


def request(tenant, tokens):
    return TraceRequest(at=0, prompt_tokens=tokens, output_tokens=20, blocks=array("Q"), tenant=tenant)


def next_by_tag(queue, now, passed=()):
    """Return which request has its turn by the order of tags, except those that were passed over."""
    with closing(queue.in_turn(now, passed)) as in_turn:
        return next(in_turn, None)


def next_of_all(queue, now, passed=()):
    """Return the same by a look at all tenants."""
    search = queue.search(now)
    for number in passed:
        queue.pass_over(search, number)
    return queue.next_number(now, search)


def turns(*, by_tag):
    """Return the numbers in the order of their turns, of requests that come and go at random."""
    random, queue, given = Random(5), QueueRule(weights={"t1": 3.0}).queue(by_tag=by_tag), []
    next_number = next_by_tag if by_tag else next_of_all
    requests = {}
    for number in range(400):
        requests[number] = request(f"t{random.randrange(12)}", random.randint(1, 5000))
        queue.arrive(number, requests[number], requests[number].prompt_tokens, 30, float(number))
        queue.wait(number, float(number))
        if random.random() < 0.1:
            queue.leave(random.randrange(number + 1))
        passed = set()
        while random.random() < 0.7 and (found := next_number(queue, float(number), passed)) is not None:
            if random.random() < 0.3:
                passed.add(found)
                continue
            queue.take()
            given.append(found)
            if random.random() < 0.2:
                queue.cancel(found)
            else:
                queue.finish(found, requests[found], random.randrange(requests[found].prompt_tokens + 1))
    while (found := next_number(queue, 1000.0)) is not None:
        queue.take()
        given.append(found)
    assert not len(queue)
    return given


def test_turns_are_the_same_as_by_looking_at_all_tenants():
    assert turns(by_tag=True) == turns(by_tag=False)


def test_one_search_yields_the_requests_that_single_ones_find():
    queues = [QueueRule().queue(by_tag=True) for _ in range(2)]
    random = Random(7)
    for number in range(200):
        each = request(f"t{random.randrange(40)}", random.randint(1, 5000))
        for queue in queues:
            queue.arrive(number, each, each.prompt_tokens, 30, float(number))
            queue.wait(number, float(number))
    one, other = queues
    found, passed = list(one.in_turn(500.0, ())), list[int]()
    while (number := next_of_all(other, 500.0, passed)) is not None:
        passed.append(number)
    assert found == passed
    assert len(found) > 100
