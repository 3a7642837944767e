"""How the workload of an example is performed and judged inside this process.

Knows the way from a spec to verdicts without a socket. Does not know what workloads there are, or what a
verdict means to the hunt.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.explore.hunt import Judged
from conformance.explore.inprocess import InProcess
from conformance.explore.perform import Performance
from conformance.explore.script import Json, spec_of
from conformance.history import Facts, Outcome, PlannedRequest, Span, Workload
from conformance.judges import JUDGES
from conformance.plan import PlanError, Unobservable, make_plan
from conformance.planned import Plan
from conformance.spec import Expect, Reload, Spec
from conformance.verdict import Status, Verdict
from engine.build import Parts
from engine.config import EngineConfig

_SALT = "explore"
"""The run's: the same each time, since each workload has an engine of its own."""


class Inside:
    """Judges workloads on engines in this process, a fresh one for each workload and for each solo run."""

    def __init__(self, configs: Mapping[str, EngineConfig], parts: Parts) -> None:
        """`configs` by launch profile."""
        self._configs, self._parts = configs, parts
        self._solos: dict[tuple[tuple[str, ...], str], list[Outcome]] = {}

    @property
    def facts(self) -> Facts:
        """Of the default profile."""
        return self._open("default").facts

    def _open(self, profile: str) -> InProcess:
        return InProcess(self._configs[profile], self._parts)

    def __call__(self, data: Json) -> Judged:
        spec = spec_of(data)
        return judged(spec, self.perform(spec))

    def perform(self, spec: Spec) -> Workload:
        """What happened. What cannot be on this target stands in it as its reason."""
        engine, workload = self._open(spec.serve.profile), Workload(spec.id, "", {})
        try:
            plan = make_plan(
                spec, "", engine.facts, "ci", _SALT, engine.vocabulary, solo_steps=_solo_steps(spec)
            )
        except (PlanError, Unobservable) as reason:
            workload.facts["main"], workload.unobservable = engine.facts, str(reason)
            return workload
        Performance(engine, workload).run(plan)
        if workload.trouble is None and workload.unobservable is None:
            late = {step.requests[place].id for step in plan.steps for place in step.drafts}
            sent = [o.plan for o in workload.outcomes if o.id in late and plan.is_solo(o.plan)]
            ground = spec.serve.profile, *_reloaded(plan)
            self._run_solos(ground, workload, [*plan.solos, *sent])
        return workload

    def _run_solos(self, ground: tuple[str, ...], workload: Workload, requests: list[PlannedRequest]) -> None:
        """Each request alone and cold, one of them twice: the control. `ground`: profile and new adapters."""
        wanted = {request.key: request for request in requests}
        control = min(wanted, key=lambda key: _size(wanted[key]), default=None)
        for key, request in wanted.items():
            runs = self._solos.setdefault((ground, key), [])
            while len(runs) < (2 if key == control else 1):
                runs.append(self._alone(ground, request))
            workload.solos[key] = runs
        at = max((span.end for span in workload.spans), default=0.0)
        detail = {"runs": len(wanted)}
        workload.spans.append(Span(arm="main", step="(solos)", kind="solos", start=at, end=at, detail=detail))

    def _alone(self, ground: tuple[str, ...], request: PlannedRequest) -> Outcome:
        alone = request.model_copy(update={"salt": f"solo-{request.key}", "leave": None})
        profile, *adapters = ground
        engine = self._open(profile)
        for adapter in adapters:
            engine.reload(adapter)
        return Performance(engine, Workload("", "", {}), "solo").one(alone)


def _size(request: PlannedRequest) -> int:
    """What a second run takes, to be compared; the same whatever ran before."""
    return len(str(request.prompt_ids or request.messages)) + request.max_tokens


def _reloaded(plan: Plan) -> list[str]:
    """Adapters that have new weights at the end, when solo runs come."""
    return [step.says.adapter for step in plan.steps if isinstance(step.says, Reload)]


def judged(spec: Spec, workload: Workload) -> Judged:
    """Every expectation; judges that were asked for steps that trouble kept from running say so."""
    return [(expect, _verdict(expect, workload)) for expect in spec.expect]


def _verdict(expect: Expect, workload: Workload) -> Verdict:
    judge = JUDGES[expect.judge]
    args = judge.args.model_validate(expect.args)
    try:
        return judge.run(args, workload, expect.requirement)
    except Exception as error:
        # A judge that crashes must never look like a pass.
        return Verdict(Status.ERROR, expect.requirement, reason=f"{judge.name} crashed: {error!r}")


def _solo_steps(spec: Spec) -> frozenset[str]:
    asked = ((JUDGES[e.judge], e.args) for e in spec.expect)
    return frozenset().union(*(judge.solo_steps(judge.args.model_validate(args)) for judge, args in asked))
