"""A planned request in the words of one server: its route and its body.

Knows what a dialect says of requests, the model to ask for, and planned requests. Does not know sockets,
headers or replies. The line to paste under a failure is made by what the run itself sent with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conformance.asks import ADAPTER_SALT
from conformance.dialect import Ask, dialects
from conformance.history import Facts, PlannedRequest


@dataclass(frozen=True)
class Rendering:
    """How one server is asked; `logprobs` False: it refuses requests that ask for them."""

    ask: Ask
    model: str
    logprobs: bool = True

    def route(self, planned: PlannedRequest) -> str:
        return self.ask.chat if planned.messages and self.ask.chat else self.ask.route

    def encoded(self, planned: PlannedRequest, *, cold: bool = False, id: str = "") -> bytes:
        """The body as it goes on the wire."""
        return json.dumps(self.body(planned, cold=cold, id=id), separators=(",", ":")).encode()

    def body(self, planned: PlannedRequest, *, cold: bool = False, id: str = "") -> dict[str, Any]:
        """The JSON of a request; `cold` adds the fields that make the server compute everything."""
        ask = self.ask
        fields: dict[str, Any] = {**self._asked(planned), ask.max_tokens: planned.max_tokens}
        fields["stream"] = planned.stream
        fields |= ask.always
        fields |= self._wanted_logprobs(planned)
        fields |= ask.stream if planned.stream else {}
        fields |= {"model": model} if (model := self._model_of(planned)) else {}
        fields |= {ask.salt: self._salt_of(planned)} if ask.salt and planned.salt else {}
        fields |= {ask.id: id} if ask.id and id else {}
        fields |= _sampled(planned.sampling)
        return fields | (ask.cold if cold else {})

    def _asked(self, planned: PlannedRequest) -> dict[str, Any]:
        if planned.messages:
            return {"messages": planned.messages}
        prompt = planned.prompt_text if planned.prompt_ids is None else planned.prompt_ids
        if self.ask.form == "chat":
            return {"messages": [{"role": "user", "content": prompt}]}
        return {"prompt": prompt}

    def _wanted_logprobs(self, planned: PlannedRequest) -> dict[str, Any]:
        if not planned.logprobs or not self.logprobs or not self.ask.logprobs:
            return {}
        return self.ask.chat_logprobs if planned.messages else self.ask.logprobs

    def _model_of(self, planned: PlannedRequest) -> str:
        if planned.adapter is None:
            return self.model
        return self._adapter(planned.adapter)

    def _salt_of(self, planned: PlannedRequest) -> str:
        """The salt, or what this target calls the adapter that the salt names (key/7)."""
        named = planned.salt.removeprefix(ADAPTER_SALT)
        whole = named == planned.salt or named not in self.ask.adapters
        return planned.salt if whole else self._adapter(named)

    def _adapter(self, name: str) -> str:
        return self.ask.adapters.get(name, f"{{model}}:{name}").format(model=self.model)


def rendering_of(facts: Facts) -> Rendering:
    """How the server of a history was asked; in the common form where its family is no longer known."""
    ask = next((known.ask for known in dialects() if known.dialect == facts.dialect), None)
    ask = ask or Ask(always={"temperature": 0}, salt="cache_salt" if facts.has_salt else None)
    return Rendering(ask, facts.asked_model or facts.model, not facts.refuses_logprobs)


def _sampled(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters as a body has them: the prompt's own logprobs are asked for as the top one."""
    return {key: 1 if key == "prompt_logprobs" else value for key, value in sampling.items()}
