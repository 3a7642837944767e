"""One choice of one request: its tokens, its blocks, how far it has come.

Knows state. Does not know how any of it changes: the scheduler moves it, a storage fills its table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from engine.messages import Request, Token


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(eq=False)
class Sequence:
    """`tokens` is the prompt and what was generated; rows [0, computed) of them are written.

    `root` stands for the identity, `keys` chains the full blocks of `tokens` from there; `published` counts
    those given to the index under `epoch` (a reset starts a new one: work begun before it publishes nothing,
    reset/4).
    """

    request: Request
    choice: int = 0
    tokens: list[int] = field(default_factory=list)
    phase: Phase = Phase.WAITING
    table: list[int] = field(default_factory=list)
    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    computed: int = 0
    adopted: int = 0
    """Tokens whose rows were pinned instead of computed (a multiple of B)."""
    cached: int = 0
    """Tokens reported as cached (a multiple of G, count/1)."""
    published: int = 0
    limit: int = 0
    """Rows that a paged storage promised it at admission."""
    epoch: int = 0
    branches: list[Sequence] = field(default_factory=list)
    """Further choices, which branch off after the prompt and hold nothing before it."""
    holding: Any = None
    """What a dense storage moved here; None in a paged one."""
    scored: list[Token] = field(default_factory=list)
    """Prompt tokens from the second on with their logprobs, where they were asked for."""
    trace: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.request.prompt)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def longest(self) -> int:
        """Rows this sequence writes at most."""
        return self.request.longest

    @property
    def identity(self) -> tuple[str, ...]:
        """What else than tokens a key depends on, each tagged by what stands before it (key/1, key/7)."""
        adapter = self.request.adapter
        weights = () if adapter is None else ("adapter", adapter.name, "version", str(adapter.version))
        return ("salt", self.request.salt, *weights)

    @property
    def adopts(self) -> bool:
        """Whether stored rows can serve it: they hold no logits, which prompt logprobs need (out/4)."""
        return self.request.params.prompt_logprobs is None

    @property
    def width(self) -> int:
        """Rows this sequence takes in a batch, now or after its prompt."""
        return 1 + len(self.branches)

    def restart(self) -> None:
        """Nothing is computed any more; what was generated stays and is computed again (evict/7)."""
        self.phase = Phase.WAITING
        self.computed = self.adopted = self.published = 0
        self.trace = {}
