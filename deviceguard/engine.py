"""The only loop: event, ledger, rules, selection, report, policy. Also where a rule's own failure ends."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from deviceguard.allowing import is_allowed
from deviceguard.backends.devices import present
from deviceguard.context import Context
from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
from deviceguard.events import CallFailed, Event, OptimizerStepped, RunEnded, StepEnded
from deviceguard.findings import Finding
from deviceguard.ignoring import is_ignored
from deviceguard.ledger.ledger import Ledger
from deviceguard.naming.frames import user_site, with_source
from deviceguard.naming.subjects import Subjects
from deviceguard.policies.policy import Policy
from deviceguard.reports.report import Report
from deviceguard.rules.rule import Rule
from deviceguard.settings import Settings
from deviceguard.step_times import StepTimes
from deviceguard.steps import Steps

log = logging.getLogger("deviceguard")

MAX_FAILURES = 5
"""After so many failures of its own the guard switches itself off."""


class Engine:
    """Runs the rules of one session.

    Args:
        settings: the settings in force.
        rules: the rule classes that are on.
        policy: what to do with a finding.
        report: where findings are kept.
    """

    def __init__(self, settings: Settings, rules: Iterable[type[Rule]], policy: Policy, report: Report) -> None:
        self.settings = settings
        self.report = report
        self.policy = policy
        self.steps = Steps(
            settings.full_steps,
            settings.sample_period,
            settings.capture_steps,
            always=settings.policy != "warn" or settings.watches_transfers,
        )
        report.progress = self.steps
        self.ledger = Ledger(self.steps)
        self.times = StepTimes(settings.warmup_steps)
        self.context = Context(settings, self.ledger, self.steps, Subjects(self.ledger), self.times)
        self._by_event: dict[type[Event], list[tuple[Rule, str]]] = {}
        self._off: set[str] = set()
        self._failures = 0
        self._heard = 0
        self._lock = threading.RLock()  # events come from all threads of the run
        self._said: set[str] = set()
        self._rules: dict[str, Rule] = {}
        for cls in rules:
            self._add(cls)
        policy.attach(report, self._rules)

    def _add(self, cls: type[Rule]) -> None:
        try:
            rule = cls(self.context)
        except Exception:
            self.failed(f"rule {cls.code}, which is left out", None)
            return
        self._rules[cls.code] = rule
        for kind, names in cls.handlers().items():
            self._by_event.setdefault(kind, []).extend((rule, name) for name in names)

    @property
    def wanted(self) -> frozenset[type[Event]]:
        """The events somebody here needs; sources that provide none of them are not installed.

        Without an accelerator, real or simulated, rules that have nothing to say then need nothing.
        """
        return frozenset(self._by_rules()) | self.ledger.wanted | Steps.EVENTS | self.policy.wanted

    @property
    def wanted_now(self) -> frozenset[type[Event]]:
        """Those of them that are needed at this moment: hardly any recurring ones while the guard sleeps."""
        if self.steps.listening:
            return self.wanted
        return frozenset(kind for kind in self.wanted if not kind.recurring) | self.steps.followed

    def _by_rules(self) -> Iterator[type[Event]]:
        accelerated = present() is not None
        for kind, entries in self._by_event.items():
            if accelerated or not all(rule.needs_accelerator for rule, _ in entries):
                yield kind

    @property
    def is_off(self) -> bool:
        """True once the guard has switched itself off after failures of its own."""
        return self._failures >= MAX_FAILURES

    def switch_off(self, codes: Iterable[str] | None = None) -> None:
        """Let these rules say nothing more; without codes, take the whole guard out at the end of the running step."""
        if codes is None:
            self._failures = MAX_FAILURES
        else:
            self._off |= set(codes)

    def switch_on(self, codes: Iterable[str]) -> None:
        """Let these rules speak again, as far as they were on when the run began."""
        self._off -= set(codes)

    def change_policy(self, policy: Policy) -> None:
        """Judge by another policy from the next finding on."""
        with self._lock:
            policy.attach(self.report, self._rules)
            self.policy = self.policy.replaced_by(policy)

    def handle(self, event: Event, applying: bool = True) -> None:
        """Take an event through the whole chain.

        Args:
            event: what happened.
            applying: False for a session that only records, because an inner one applies its policy.

        Raises:
            DeviceGuardError, DeviceGuardWarning: only what the policy decides to raise.
        """
        with self._lock:
            self._handle(event, applying)

    def note(self, kind: type[Event], fields: tuple[Any, ...]) -> None:
        """The short way for what only the ledger remembers; the whole chain where a rule asks for it too.

        A model sends several of these for each parameter, so nothing is made or asked that can be spared. They need
        no lock: each is about an object that is being made, and the tables take one entry at a time.

        Args:
            kind: the event's class.
            fields: what the event would be made of.
        """
        if kind in self._by_event:
            self.handle(kind(*fields))
        elif self._failures < MAX_FAILURES:
            try:
                self.ledger.notes[kind](*fields)
            except Exception:
                self.failed(f"the ledger, taking note of {kind.__name__}", None)

    def _handle(self, event: Event, applying: bool) -> None:
        if self.is_off or self._is_heard(event):
            return
        was_awake = self.steps.awake
        ended = self._before_rules(event)
        if not self.steps.awake and event.recurring:
            return
        if not was_awake:
            self.times.interrupt()
        self._time(event, ended)
        findings = self._ask(ended) if ended is not None else []
        findings += self._ask(event)
        for finding in findings:
            self._settle(finding, applying, event)

    def _is_heard(self, event: Event) -> bool:
        """True for the failure of a call whose refusal the rules have heard of already."""
        if not isinstance(event, CallFailed):
            return False
        heard = self._heard == id(event.error)
        self._heard = id(event.error)
        return heard and event.heard_as is None

    def _before_rules(self, event: Event) -> StepEnded | None:
        ended = None
        try:
            ended = self.steps.handle(event)
            if self.steps.awake or not event.recurring or type(event) is OptimizerStepped:
                self.ledger.handle(event)
        except Exception:
            self.failed("the ledger", event)
        return ended

    def _time(self, event: Event, ended: StepEnded | None) -> None:
        try:
            self.times.handle(event, ended)
            if self.settings.policy == "strict" and isinstance(event, OptimizerStepped):
                self.context.place.stepped(sys._getframe(1))
            if isinstance(event, RunEnded) and self._by_event.keys() >= StepTimes.NEEDED:
                self.report.time = self.times.summary()
        except Exception:
            self.failed("the clock of steps", event)

    def _ask(self, event: Event) -> list[Finding]:
        found: list[Finding] = []
        for rule, name in self._by_event.get(event.heard_as or type(event), ()):
            if rule.code in self._off or (event.occurrence and is_allowed(rule.code)):
                continue
            try:
                yielded = getattr(rule, name)(event)
                if yielded is not None:
                    found.extend(yielded)
            except Exception:
                self._off.add(rule.code)
                self.failed(f"rule {rule.code}, which is off from now on", event)
        return found

    def _settle(self, finding: Finding, applying: bool, event: Event) -> None:
        try:
            complete = self._complete(finding, ending=isinstance(event, RunEnded))
            if self._is_silenced(complete):
                return
            is_new = self.report.add(complete)
        except Exception:
            self.failed(f"a finding of {finding.rule}", event)
            return
        if applying:
            self._apply(complete, event, is_new)

    def _apply(self, finding: Finding, event: Event, is_new: bool) -> None:
        try:
            if is_new:
                self.policy.apply(finding, event)
            else:
                self.policy.again(finding, event)
        except (DeviceGuardError, DeviceGuardWarning):
            raise
        except Exception:
            self.failed(f"the policy for {finding.rule}", event)

    def _complete(self, finding: Finding, ending: bool) -> Finding:
        site = with_source(finding.site) if finding.site is not None else user_site()
        step = self.steps.index if self.steps.training and not ending else None
        first = finding.first_step if finding.first_step is not None else step
        last = finding.last_step if finding.last_step is not None else step
        return dataclasses.replace(
            finding,
            site=site,
            first_step=self.steps.number_of(first) if first is not None else None,
            last_step=self.steps.number_of(last) if last is not None else None,
        )

    def _is_silenced(self, finding: Finding) -> bool:
        return is_allowed(finding.rule) or is_ignored(finding.rule, finding.site)

    def failed(self, where: str, event: Event | None) -> None:
        """Count a failure of the guard's own; the first of each kind, and the last one, are told with a traceback."""
        self._failures += 1
        self.report.internal_errors += 1
        if self._failures > MAX_FAILURES or (where in self._said and not self.is_off):
            return
        self._said.add(where)
        doing = f" while handling {type(event).__name__}" if event is not None else ""
        end = " deviceguard switches itself off; the run goes on." if self.is_off else ""
        log.warning("deviceguard failed in %s%s.%s", where, doing, end, exc_info=True)
