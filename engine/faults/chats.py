"""Faults of chat templates, and of chats that are matched.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from engine.faults.registry import fault
from engine.index import Entry
from engine.sequence import Sequence
from engine.storage import PagedStorage


@fault("stamp_the_chat", "C20", "tmpl/2", seam="tokenizer")
class StampTheChat:
    """The chat template puts a stamp at the top that differs in each request: no turn finds the last one."""

    stamps = 0

    def render_chat(self, messages: Rows[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        self.stamps += 1
        stamp = {"role": "system", "content": f"Request {self.stamps}."}
        rendered: list[int] = super().render_chat([stamp, *messages], add_generation_prompt)  # type: ignore[misc]
        return rendered


@fault("drop_old_replies", "C20", "tmpl/2", seam="tokenizer")
class DropOldReplies:
    """The chat template keeps the last reply alone: every turn changes what stood in the middle."""

    def render_chat(self, messages: Rows[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        kept = [message for at, message in enumerate(messages) if at not in replies[:-1]]
        rendered: list[int] = super().render_chat(kept, add_generation_prompt)  # type: ignore[misc]
        return rendered


@fault("match_chats_short", "C20", "tmpl/1", seam="paged")
class MatchChatsShort(PagedStorage):
    """A chat that goes on adopts only half of what it shares with its last turn."""

    def matched(self, seq: Sequence) -> list[Entry]:
        entries = super().matched(seq)
        return entries[: len(entries) // 2]


@fault("strip_old_messages", "C20", "tmpl/2", seam="tokenizer")
class StripOldMessages:
    """The chat template trims all messages but the last: a turn that ended in a space differs later."""

    def render_chat(self, messages: Rows[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        older = [message | {"content": message["content"].strip()} for message in messages[:-1]]
        rendered: list[int] = super().render_chat([*older, *messages[-1:]], add_generation_prompt)  # type: ignore[misc]
        return rendered
