"""The engine's scheduler with a plain function in place of a model, on a clock that the test moves."""

from dataclasses import dataclass, field

from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import SampledTokens, StepItem, StepPlan
from workers.engine.scheduler.policy import SchedulingPolicy
from workers.engine.scheduler.scheduler import Scheduler
from workers.engine.scheduler.sequence import Sequence
from workers.engine.scheduler.speculation import SpeculationController


def next_token(tokens: list[int]) -> int:
    """Return the token that follows: it depends on the whole text, so that a wrong resumption shows."""
    return (sum((place + 3) * token for place, token in enumerate(tokens)) * 31 + 7) % 97


def text_of(prompt: list[int], count: int) -> list[int]:
    """Return the `count` tokens that the model generates after the prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def verified(item: StepItem) -> SampledTokens:
    """Return what the model samples for an item: the drafts that it accepts, and one token of its own."""
    tokens = list(item.sequence.tokens)
    for draft in item.sequence.drafts[: item.drafts]:
        tokens.append(next_token(tokens))
        if tokens[-1] != draft:
            break
    else:
        tokens.append(next_token(tokens))
    return SampledTokens(tokens=tuple(tokens[len(item.sequence.tokens) :]))


@dataclass
class ModelFreeScheduler:
    """A scheduler whose plans are computed by the function above."""

    blocks: int = 64
    block_size: int = 4
    budget: int = 16
    running_max: int = 8
    waiting_max: int = 100
    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    speculation: SpeculationController | None = None
    now: float = 0.0
    plans: list[StepPlan] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.tree = PrefixTree(BlockPool(self.blocks, self.block_size))
        self.scheduler = Scheduler(
            self.tree,
            token_budget=self.budget,
            running_max=self.running_max,
            waiting_max=self.waiting_max,
            policy=self.policy,
            speculation=self.speculation,
        )

    def submit(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int = 4,
        salt: str = "",
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Sequence:
        """Submit a request that arrives now."""
        self.count += 1
        sequence = Sequence(
            id=name,
            order=self.count,
            tokens=list(prompt),
            num_prompt=len(prompt),
            params=SamplingParams(max_tokens=max_tokens),
            seed=0,
            salt=salt,
            stop_ids=frozenset(),
            arrival=self.now,
            priority=priority,
            deadline=deadline,
        )
        self.scheduler.submit(sequence)
        return sequence

    def step(self) -> str:
        """Plan and commit one step, and return the plan as text."""
        plan = self.scheduler.plan(self.now)
        self.plans.append(plan)
        for item in plan.items:
            assert item.count > 0
            assert len(item.sequence.blocks.ids) * self.block_size >= item.start + item.count
        self.scheduler.commit(plan, [verified(item) for item in plan.items if item.samples])
        self.tree.check()
        return str(plan)

    def finish_all(self) -> list[str]:
        """Step until nothing is left, and return the plans."""
        said = []
        while self.scheduler.has_work:
            said.append(self.step())
            assert len(said) < 2000
        return said

    def steps(self, count: int) -> list[str]:
        """Make so many steps, and return their plans."""
        return [self.step() for _ in range(count)]
