"""Where targets come from: the endpoint, or servers started for the session and ended with it.

Knows how a server is started in the state that a case wants, and when it must be started again. Does not know
requests or replies (`target.py`), specs or judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from conformance import connecting, launch, preflight
from conformance.asking import Asker
from conformance.dialect import Dialect, dialects
from conformance.launch import Child, LaunchError
from conformance.plan import Unobservable
from conformance.probe import TargetError
from conformance.spec import Serve
from conformance.target import QUICK, Target, TargetOptions
from conformance.vocabulary import Words


class Fleet:
    """The session's servers: one that most cases share, and others for cases that need their own."""

    def __init__(self, options: TargetOptions) -> None:
        self.options = options
        self._main: Target | None = None
        self._cold: Target | None = None
        self._lost: str | None = None
        """Why the endpoint could not be reached any more when it was last needed."""

    def main(self) -> Target:
        """The session's server, started at first need and again when a launched one has died.

        An endpoint that died is looked for again at each case, briefly: TargetError while it is gone.
        """
        if self._lost is not None and self._main is not None and not self._main.is_back():
            raise TargetError(self._lost)
        if self._main is not None and (reason := self._main.gone()):
            if self._main.child is None:
                self._lost = reason
                raise TargetError(reason)
            self._forget()
        elif self._lost is not None:
            # One that came back may have been started otherwise.
            self._forget()
        if self._main is None:
            self._main = self._start(())
            if self.options.how != "engine" and not self.options.dry:
                self._main.facts = preflight.checked(self._main)
        return self._main

    def _forget(self) -> None:
        if self._main is not None:
            self._main.close()
        self._main = self._lost = None

    @contextmanager
    def for_serve(self, serve: Serve) -> Iterator[Target]:
        """A server as the case wants it. Unobservable when this target cannot be started that way."""
        if serve.profile == "default" and not serve.fresh:
            yield self.main()
            return
        flags = self._flags(serve.profile, bool(serve.optional))
        if self.options.dry:
            yield self.main()
            return
        target = self._start(flags)
        try:
            yield target
        finally:
            target.close()

    def per_token(self) -> float:
        """Characters that a token stands for, where prompts go as text."""
        words = self.main().vocabulary
        return words.per_token if isinstance(words, Words) else 1.0

    def _cold_server(self) -> AbstractContextManager[Target | None]:
        """One more server, for the session, on which nothing is reused."""
        if self._cold is None or self._cold.gone():
            profile = self.main().dialect.cold_profile or ""
            self._cold = self._start(self._flags(profile))
        return nullcontext(self._cold)

    def close(self) -> None:
        for target in (self._main, self._cold):
            if target is not None:
                target.close()
        self._main = self._cold = None

    def _flags(self, profile: str, optional: bool = False) -> tuple[str, ...]:
        if self.options.how == "endpoint":
            need = f"needs a server process of its own (profile {profile})"
            raise Unobservable(f"{need}; this run is attached to one that runs already")
        dialect = _engine() if self.options.how == "engine" else self.main().dialect
        if optional and profile not in dialect.profiles:
            return ()
        if profile not in dialect.profiles:
            raise Unobservable(f"{dialect.name} has no launch profile {profile!r}")
        return tuple(dialect.profiles[profile].args)

    def _start(self, flags: tuple[str, ...]) -> Target:
        options = self.options
        if options.how == "endpoint":
            return Target(options.url, options)
        target: Target | None = None
        try:
            child, url = self._launch(flags)
        except LaunchError as error:
            raise TargetError(str(error)) from None
        try:
            target = Target(url, options, child, _engine() if options.how == "engine" else None)
        except TargetError as error:
            raise TargetError(f"{error}{child.quoted()}") from None
        finally:
            if target is None:
                child.close()
        if options.how == "engine":
            target.facts.machine[launch.COMMAND] = launch.engine_line((*options.engine_flags, *flags))
        if target.dialect.cold_profile is not None:
            target.cold = self._cold_server
        return target

    def _launch(self, flags: tuple[str, ...]) -> tuple[Child, str]:
        options = self.options
        if options.how == "engine":
            return launch.launch_engine((*options.engine_flags, *flags), options.timeout, options.progress)
        return launch.launch_command(options.command, flags, _answers, options.timeout, options.progress)


def open_target(options: TargetOptions) -> Fleet:
    """The servers of a session; nothing is contacted or started yet."""
    return Fleet(options)


def _engine() -> Dialect:
    return next(known for known in dialects() if known.dialect == "engine")


def _answers(url: str) -> bool:
    """Whether any family's ready route answers 200: before that, the family cannot be told."""
    asker = Asker(connecting.parse_address(url), {})
    try:
        return any(_ok(asker, route) for route in sorted({known.ready for known in dialects()}))
    finally:
        asker.close()


def _ok(asker: Asker, route: str) -> bool:
    page = asker.ask("GET", route, timeout=QUICK)
    return page is not None and page.status == 200
