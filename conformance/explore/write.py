"""A workload as a spec file: YAML that a person would write, with a comment of what failed.

Knows the look of a file. Does not know why a workload failed beyond what the judges said.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from conformance.explore.hunt import Failure, Judged
from conformance.explore.script import Json, requirements

_SCHEMA = "# yaml-language-server: $schema={up}spec.schema.json\n"
_WIDTH = 100


def text_of(data: Json) -> str:
    """The content of a file; small mappings stand on one line."""
    out = StringIO()
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = _WIDTH
    yaml.dump(_laid_out(data), out)
    return out.getvalue()


def _laid_out(data: Json) -> Any:
    """Steps and expectations a line each, what is inside them in flow style."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    def flow(value: Any) -> Any:
        if isinstance(value, dict):
            made = CommentedMap({key: flow(inner) for key, inner in value.items()})
            made.fa.set_flow_style()
            return made
        if isinstance(value, list):
            items = CommentedSeq([flow(inner) for inner in value])
            items.fa.set_flow_style()
            return items
        # Flow style reads `off` as a word in YAML 1.2, but a reader of 1.1 does not.
        return value

    def block(entries: list[Any]) -> Any:
        rows = CommentedSeq()
        for entry in entries:
            row = CommentedMap({key: flow(value) for key, value in entry.items()})
            row.fa.set_block_style()
            rows.append(row)
        rows.fa.set_block_style()
        return rows

    whole = CommentedMap()
    for key, value in data.items():
        if key in ("steps", "expect"):
            whole[key] = block(value)
        elif key == "texts":
            whole[key] = CommentedMap({name: flow(text) for name, text in value.items()})
            whole[key].fa.set_block_style()
        else:
            whole[key] = flow(value)
    whole.fa.set_block_style()
    return whole


def pruned(data: Json, accusers: Judged) -> Json:
    """The same workload with the expectations that failed alone, and nothing that only others needed."""
    ids = {(expect.judge, expect.id) for expect, _ in accusers}
    expect = [e for e in data["expect"] if next((j, a.get("id", j)) for j, a in e.items()) in ids]
    named = set(_words(expect))
    steps = [step for step in data["steps"] if "mark" not in step or step["mark"] in named]
    steps = [
        step for i, step in enumerate(steps) if i == 0 or step != {"wait": "idle"} or steps[i - 1] != step
    ]
    return {**data, "proves": requirements(expect), "steps": steps, "expect": expect}


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _words(inner)
    elif isinstance(value, str):
        yield value


def id_of(data: Json) -> str:
    """A name that is the same for the same workload."""
    digest = hashlib.sha256(repr((data["steps"], data["expect"])).encode()).hexdigest()[:8]
    return f"explored/{'-'.join(next(iter(data['expect'][0])).split('_'))}-{digest}"


def written(folder: Path, failure: Failure, about: Sequence[str]) -> Path:
    """Writes the failure below `folder` and says where; `about` are lines on where it was found."""
    data = {**failure.data, "id": id_of(failure.data)}
    path = folder / f"{data['id']}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = _SCHEMA.format(up="../") + "".join(f"# {line}\n" for line in [*about, *_said(failure)])
    path.write_text(head + text_of(data), encoding="utf-8")
    return path


def _said(failure: Failure) -> Iterator[str]:
    for expect, verdict in failure.accusers:
        why = verdict.witness or verdict.reason
        said = f"{expect.judge} ({verdict.requirement}) said {verdict.status}: {why}"
        yield from textwrap.wrap(said, _WIDTH - 2)
