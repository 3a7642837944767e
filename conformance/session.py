"""One run of the suite: each workload performed once (or read from a history), each expectation judged on it.

Knows the order of a run: fleet, plan, driver, recorder, judge. Does not know pytest, nor how any of these
do their work. A judge that crashes gives `error`, and so does a workload that could not run; nothing raised
here reaches a user as a traceback (requirements, Verdicts).
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from conformance.archive import Archive
from conformance.backing import Back, FleetLike, Solos, TargetLike
from conformance.baseline import Comparison
from conformance.check import references
from conformance.golden import compare, location, name_of_engine
from conformance.history import Facts, Workload
from conformance.judges import JUDGES, Judge
from conformance.judges.base import unseen
from conformance.load import Loaded
from conformance.permission import refusal
from conformance.plan import Plan, PlanError, Scale, Unobservable, make_plan
from conformance.preflight import is_about_reuse
from conformance.record import HistoryError, Recorder
from conformance.rehearse import Load, Part, imagined, lines_of, load_of, why_not
from conformance.report.terminal import facts_line
from conformance.rungs import bound, spec_digest
from conformance.spec import Expect, Serve, Spec
from conformance.verdict import Status, Verdict

GOLDEN = Path(__file__).parent.parent / "golden"
"""Reviewed outputs; a clone has them beside the package."""

_KEPT = 2
"""Workloads that a replay holds in memory."""

_NOTHING_FIXED = (
    "this server has no field that keeps caches apart, so its prompts begin with a text that differs in "
    "every run: there is nothing fixed to review"
)

Key = tuple[str, str]


@dataclass(frozen=True)
class Options:
    """What a run was asked for, in the harness's own words; `how` decides what else must be there."""

    how: Literal["engine", "serve", "endpoint", "replay"] = "engine"
    scale: Scale = "full"
    history: Path = Path(".conformance/history.jsonl")
    replay: tuple[Path, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    """More for the header of the history; never a secret."""
    allow: frozenset[str] = frozenset()
    """What may be done to an endpoint that others may be using."""
    golden: str | None = None
    """Name of the golden outputs of a target that is not the bundled engine."""
    baseline: Comparison | None = None
    """Recorded footprints to compare with; the scenarios then get fresh processes, as they had there."""
    fresh: frozenset[str] = frozenset()
    """Ids of specs that get a process of their own, whatever they ask for."""
    should: bool = False
    allow_inconclusive: bool = False
    memory: bool = False
    """Whether the footprint is read in every case, and not in those alone that judge it."""
    url: str = "http://127.0.0.1:8000"
    """Where the lines to paste send their request."""
    access: tuple[str, ...] = ()
    """What those lines say of headers and certificates (`access.shown`); never a secret."""
    run_salt: str = field(default_factory=lambda: secrets.token_hex(4))
    """Keeps this run apart from others, and from other traffic, in one cache."""


class BrokenWorkload(Exception):
    """A workload that cannot be judged at all; the message is the reason."""

    def __init__(self, reason: str, status: Status = Status.ERROR) -> None:
        super().__init__(reason)
        self.status = status


class Session:
    """A run. Workloads are performed on first use, one after another, and kept."""

    def __init__(
        self,
        options: Options,
        back: Back,
        tell: Callable[[str], None] = lambda line: None,
        archives: Sequence[Archive] | None = None,
        judges: Mapping[str, Judge] = JUDGES,
    ) -> None:
        self.options, self._back, self._tell, self._judges = options, back, tell, judges
        self.archives = [Archive(path) for path in options.replay] if archives is None else archives
        """The histories of a replay. Raises HistoryError for a file that is none."""
        self._workloads: dict[Key, Workload | BrokenWorkload] = {}
        self._solos: Solos = {}
        self.dead: str | None = None
        """Why the target could not be reached at all; it is not waited for again."""
        self._recorder: Recorder | None = None
        self._fleet: FleetLike | None = None
        self.facts: Facts | None = None

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What is raised when there is no server to talk to."""
        return self._back.errors

    def verdict(self, loaded: Loaded, rung: str, expect: Expect, snapshot: Any = None) -> Verdict:
        """What the judge says about one expectation; never raises for anything but an interrupt.

        `snapshot` is syrupy's fixture, for an expectation that compares golden outputs.
        """
        try:
            workload = self.workload(loaded, rung)
        except BrokenWorkload as broken:
            return Verdict(broken.status, expect.requirement, reason=str(broken))
        asked = self.judge(expect, workload)
        if snapshot is None or asked.status is not Status.NOT_RUN:
            return asked
        return self._compared(loaded.spec, rung, expect, workload, snapshot) or asked

    def _compared(
        self, spec: Spec, rung: str, expect: Expect, workload: Workload, snapshot: Any
    ) -> Verdict | None:
        """The comparison with the golden file; None where nobody said which one a foreign target has."""
        facts = workload.facts["main"]
        name = self.options.golden or (name_of_engine(facts) if facts.how == "engine" else None)
        if name is None:
            return None
        if not facts.has_salt:
            return Verdict(Status.NOT_RUN, expect.requirement, reason=_NOTHING_FIXED)
        try:
            path = location(GOLDEN, name, spec.id, rung, self._scale(spec, rung), expect.id)
        except ValueError as error:
            return Verdict(Status.NOT_RUN, expect.requirement, reason=str(error))
        return compare(snapshot, path, workload, expect.args["of"], expect.requirement)

    def known(self, spec: Spec, rung: str) -> Workload | None:
        """The workload, if it could be performed."""
        found = self._workloads.get((spec.id, rung))
        return found if isinstance(found, Workload) else None

    def history_of(self, spec: Spec, rung: str) -> Path:
        """The file that this workload is written to, or was read from."""
        held = [archive.path for archive in self.archives if (spec.id, rung) in archive.places]
        # What a replay does not hold was not written anywhere either.
        return next(iter([*held, *self.options.replay]), self.options.history)

    def workload(self, loaded: Loaded, rung: str) -> Workload:
        """The facts about one (spec, rung), performed or replayed once. Raises BrokenWorkload."""
        key = (loaded.spec.id, rung)
        if key not in self._workloads:
            self._forget()
            self._workloads[key] = self._made(loaded, rung)
        found = self._workloads[key]
        if isinstance(found, BrokenWorkload):
            raise found
        return found

    def _forget(self) -> None:
        """A replay holds few workloads at a time: what is needed again is read again."""
        if self.options.how == "replay":
            for key in list(self._workloads)[: 1 - _KEPT]:
                del self._workloads[key]

    def judge(self, expect: Expect, workload: Workload) -> Verdict:
        """Ask the judge, unless the workload stopped before the steps that it looks at were over."""
        judge = self._judges[expect.judge]
        if workload.unobservable is not None:
            return unseen(workload, expect.requirement)
        missing = self._missing(judge, expect, workload)
        if missing:
            return Verdict(Status.ERROR, expect.requirement, reason=missing)
        return self._with_trouble(self._asked(judge, expect, workload), workload)

    def _asked(self, judge: Judge, expect: Expect, workload: Workload) -> Verdict:
        try:
            return judge.run(judge.args.model_validate(expect.args), workload, expect.requirement)
        except Exception as error:
            # A judge that crashes must never look like a pass, and must not end the run.
            reason = f"the judge {judge.name} crashed: {type(error).__name__}: {error}"
            return Verdict(Status.ERROR, expect.requirement, reason=reason)

    def _with_trouble(self, verdict: Verdict, workload: Workload) -> Verdict:
        """An error over requests that failed, or took too long, says also why they did."""
        is_failed = verdict.status in (Status.ERROR, Status.TIMEOUT)
        if not is_failed or not workload.trouble or workload.trouble == verdict.reason:
            return verdict
        return replace(verdict, notes=(*verdict.notes, workload.trouble))

    def rehearse(self, loaded: Loaded, rung: str) -> tuple[Load, list[str]]:
        """What a workload would send, and lines that say so and what could not be judged. Nothing is sent.

        Raises what the backend raises when there is no server to ask for its facts.
        """
        spec, title = bound(loaded.spec, rung), f"{loaded.spec.id}[{rung}]" if rung else loaded.spec.id
        parts = [self._part(loaded, rung, arm, serve) for serve, arms in self._servers(spec) for arm in arms]
        per_token = self._open_fleet().per_token()
        load = sum((load_of(part, per_token) for part in parts), Load())
        reasons = [part.reason for part in parts]
        if any(reasons):
            return Load(), list(lines_of(title, load, reasons, ()))
        workload = imagined(spec.id, rung, parts, per_token)
        verdicts = [(e, self._asked(self._judges[e.judge], e, workload)) for e in spec.expect]
        return load, list(lines_of(title, load, reasons, verdicts))

    def _part(self, loaded: Loaded, rung: str, arm: str, serve: Serve) -> Part:
        fleet = self._open_fleet()
        if self.facts is None:
            with fleet.for_serve(Serve()) as main:
                self.facts = main.facts
        try:
            with fleet.for_serve(serve) as target:
                part = Part(arm, target.facts, sample=target.sample(), has_cold=target.has_cold())
                spec = bound(loaded.spec, rung)
                _ask_leave(spec, target.facts, self.options.allow)
                part.plan = self._plan(spec, rung, target, arm)
                return part
        except Unobservable as reason:
            return Part(arm, self.facts, reason=why_not(reason, self.facts))
        except PlanError as error:
            return Part(arm, self.facts, reason=f"{error} ({loaded.path.name})")

    def close(self) -> None:
        """End every process of the run and the history. Safe to call twice."""
        fleet, recorder, self._fleet, self._recorder = self._fleet, self._recorder, None, None
        if fleet is not None:
            fleet.close()
        if recorder is not None:
            recorder.close()

    def _made(self, loaded: Loaded, rung: str) -> Workload | BrokenWorkload:
        try:
            return (
                self._replayed(loaded.spec, rung) if self.options.how == "replay" else self._run(loaded, rung)
            )
        except (BrokenWorkload, HistoryError) as broken:
            return broken if isinstance(broken, BrokenWorkload) else BrokenWorkload(str(broken))

    def _replayed(self, spec: Spec, rung: str) -> Workload:
        key = (spec.id, rung)
        archive = next((a for a in self.archives if key in a.places), None)
        if archive is None:
            raise BrokenWorkload("the history holds no run of this case", Status.NOT_RUN)
        if archive.places[key].digest != spec_digest(spec):
            raise BrokenWorkload("the spec's steps changed since this history was recorded; run it again")
        return self._known(archive.workload(key))

    def repeat(self, loaded: Loaded, number: int) -> Workload:
        """Performs a case of one rung once more, whatever is known of it. Raises BrokenWorkload."""
        return self._run(loaded, "", f"repeat-{number}" if number else "")

    def _run(self, loaded: Loaded, rung: str, label: str = "") -> Workload:
        """`label`: how the history tells runs of one case apart."""
        if self.dead is not None:
            raise BrokenWorkload(self.dead)
        recorder = self._open_recorder()
        recorder.begin(loaded.spec.id, label or rung, spec_digest(loaded.spec))
        workload = recorder.workload
        try:
            self._perform(loaded, rung, recorder)
        finally:
            recorder.end()
        return self._known(workload)

    def _perform(self, loaded: Loaded, rung: str, recorder: Recorder) -> None:
        """All arms of a workload; whatever stops them becomes part of the record."""
        try:
            spec = bound(loaded.spec, rung)
            for serve, arms in self._servers(spec):
                if not recorder.workload.trouble:
                    self._perform_arms(loaded.spec, rung, recorder, serve, arms)
        except Unobservable as reason:
            recorder.unobservable(str(reason))
        except PlanError as error:
            problem = loaded.document.error([loaded.document.problem(error.loc, str(error))])
            recorder.trouble(str(problem))
            raise BrokenWorkload(str(problem)) from None
        except self._back.errors as error:
            recorder.trouble(str(error))
            if self.facts is None and loaded.spec.serve == Serve():
                self.dead = str(error)
            raise BrokenWorkload(str(error)) from None
        except Exception as error:
            # A defect of the harness: said as what it is, and no reason to end the run.
            defect = f"the harness failed: {_where(error)}"
            recorder.trouble(defect)
            raise BrokenWorkload(defect) from error
        except BaseException:
            # Ctrl-C or SIGTERM: a replay must not take a part for the whole.
            recorder.trouble("the run was interrupted")
            raise

    def _perform_arms(
        self, spec: Spec, rung: str, recorder: Recorder, serve: Serve, arms: Sequence[str]
    ) -> None:
        """Arms that run on one server, one after another."""
        with self._open_fleet().for_serve(serve) as target:
            for arm in arms:
                if not recorder.workload.trouble:
                    self._perform_arm(spec, rung, recorder, arm, target)

    def _perform_arm(self, spec: Spec, rung: str, recorder: Recorder, arm: str, target: TargetLike) -> None:
        recorder.facts(arm, target.facts)
        _ask_leave(spec, target.facts, self.options.allow)
        plan = self._plan(spec, rung, target, arm)
        driver = self._back.driver(target, recorder, arm)
        driver.run(plan)
        if arm == "main" and not recorder.workload.trouble:
            driver.run_solos(plan.solos, self._solos)

    def _plan(self, spec: Spec, rung: str, target: TargetLike, arm: str) -> Plan:
        return make_plan(
            spec,
            rung,
            target.facts,
            self.options.scale,
            self.options.run_salt,
            target.vocabulary,
            solo_steps=self._solo_steps(spec),
            arm=arm,
            memory=self.options.memory or any(e.requirement.startswith("foot/") for e in spec.expect),
        )

    def _solo_steps(self, spec: Spec) -> frozenset[str]:
        asked = ((self._judges[e.judge], e.args) for e in spec.expect)
        steps = [judge.solo_steps(judge.args.model_validate(args)) for judge, args in asked]
        return frozenset().union(*steps)

    def _scale(self, spec: Spec, rung: str) -> str:
        places = [archive.places.get((spec.id, rung)) for archive in self.archives]
        recorded = [place.header.get("scale") for place in places if place]
        return str(next(iter(recorded), self.options.scale))

    def _missing(self, judge: Judge, expect: Expect, workload: Workload) -> str:
        """Why a step that the judge looks at never came to its end; empty when all did."""
        stopped = workload.trouble or ("the history ends before this workload did" if workload.cut else None)
        if stopped is None:
            return ""
        named = [name for _, kind, name in references(judge, expect) if kind != "arm"]
        return stopped if any(workload.span(name) is None for name in named) else ""

    def _known(self, workload: Workload) -> Workload:
        """Tell the target's facts once, with the first workload that has any."""
        if self.options.baseline is not None:
            workload.baseline = self.options.baseline.model_dump(exclude_none=True)
        main = workload.facts.get("main")
        if main is not None and self.facts is None:
            self.facts = main
            self._tell(facts_line(main))
        return workload

    def _servers(self, spec: Spec) -> list[tuple[Serve, list[str]]]:
        """Each server that a case needs, with the arms that run on it; the main one first."""
        fresh = {"fresh": True} if spec.id in self.options.fresh else {}
        shared = ["main", *(name for name, arm in spec.arms.items() if arm.serve is None)]
        others = [(arm.serve, [name]) for name, arm in spec.arms.items() if arm.serve is not None]
        return [(spec.serve.model_copy(update=fresh), shared), *others]

    def _open_recorder(self) -> Recorder:
        if self._recorder is None:
            try:
                self._recorder = Recorder(self.options.history)
            except OSError as error:
                self.dead = f"cannot write the history {self.options.history}: {error.strerror}"
                raise BrokenWorkload(self.dead) from None
            baseline = self.options.baseline
            compared = {"baseline": baseline.model_dump(exclude_none=True)} if baseline else {}
            self._recorder.header(
                how=self.options.how, scale=self.options.scale, **self.options.about, **compared
            )
        return self._recorder

    def _open_fleet(self) -> FleetLike:
        if self._fleet is None:
            self._fleet = self._back.open()
        return self._fleet


def _ask_leave(spec: Spec, facts: Facts, allow: frozenset[str]) -> None:
    """Raise Unobservable for what an endpoint was not said to bear, or what several caches leave open."""
    if facts.how == "endpoint" and (reason := refusal(spec, allow)):
        raise Unobservable(reason)
    if facts.several_caches and is_about_reuse(spec.proves):
        raise Unobservable(facts.several_caches)


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
