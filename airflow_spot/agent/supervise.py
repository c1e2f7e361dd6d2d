"""The life of an agent: claim, hold, restore, train, save, leave.

One thread decides; it never waits for the network. Others look at the run directory, at the instance's metadata, at
the checkpoint directory and at the trainer's requests, and put what they find into its inbox.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import airflow_spot
from airflow_spot.agent import report
from airflow_spot.agent.aside import is_used, mark, put_aside
from airflow_spot.agent.channel import Channel
from airflow_spot.agent.directory import Directory, states
from airflow_spot.agent.fence import Identity, Order, Ruling
from airflow_spot.agent.inbox import Done, Inbox, Signalled
from airflow_spot.agent.notices import Instance, Metadata, Watch
from airflow_spot.agent.process import Trainer
from airflow_spot.agent.progress import Progress
from airflow_spot.agent.reporter import Reporter
from airflow_spot.agent.saver import Saver
from airflow_spot.agent.session import Session
from airflow_spot.agent.staging import Stage, files
from airflow_spot.agent.stopping import FENCED_SECONDS, Step, StopPlan, plan, seconds_needed
from airflow_spot.errors import SpotError, StoreDenied, StoreError, StoreUnavailable
from airflow_spot.rundir import attempts, checkpoints
from airflow_spot.rundir.artifacts import commit_artifacts
from airflow_spot.rundir.conditional import Refused
from airflow_spot.rundir.values import Claim, End, Heartbeat, Notice, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_spot.agent.settings import Settings
    from airflow_spot.agent.staging import Staged
    from airflow_spot.rundir.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")

EXIT_UNAVAILABLE = 69
EXIT_NOT_SAVED = 74
EXIT_LEFT = 75
EXIT_MISCONFIGURED = 78
EXIT_CANNOT_EXECUTE = 126
EXIT_NOT_FOUND = 127

LAST_WORD_SECONDS = 5.0
"""To write the end file even when the time is up: the machine may live a little longer."""
EARLY_SECONDS = 60.0
"""For the end file of an attempt that has nothing to save."""
LEASE_SECONDS = 600.0
"""For the last save of an attempt that nobody waits for."""
_EVERY_INCARNATION = 10**9
"""What a node other than the first calls itself: none is newer."""
_WAITS = (0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Why this agent leaves.

    :param reason: as in the end file.
    :param commit: whether what is not saved yet may still be.
    :param code: exit code, where the trainer gives none.
    """

    reason: str
    message: str = ""
    commit: bool = True
    code: int = EXIT_LEFT


class Left(Exception):
    """This agent leaves before a trainer was started."""


class Supervisor:
    """Runs one attempt.

    :param environment: what the trainer inherits.
    """

    def __init__(self, settings: Settings, store: Store, environment: Mapping[str, str]) -> None:
        self.settings, self.store, self._environment = settings, store, dict(environment)
        self.inbox = Inbox()
        self._began = time.monotonic()
        self._trained_at: float | None = None
        self._incarnation = 0
        self._claimed = False
        self._claim_settled = threading.Event()
        self._claim_settled.set()
        self._sequence = 0
        self._phase = Phase.HOLDING
        self._ruling = Ruling(order=Order.GO_ON)
        self._leaving: Leaving | None = None
        self._deadline = self._ended_at = math.inf
        self._plan = StopPlan()
        self._taken: frozenset[Step] = frozenset()
        self._signalled = False
        self._notice: Notice | None = None
        self._instance = Instance()
        self._restored = checkpoints.Restored()
        self._progress = Progress()
        self._stage = Stage(settings.checkpoint_dir)
        self._saver = Saver(self._commit, self._stage, may_commit=self._confirm, on_done=self.inbox.wake)
        self._reporter: Reporter | None = None
        self._session: Session | None = None
        self._trainer: Trainer | None = None
        self._watch: Watch | None = None
        self._closers: list[Callable[[], None]] = [self._stage.close, self._saver.close]

    # -- the life ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Live, and return the exit code. Blocks; call it once, from the main thread."""
        try:
            self._watch_notices()
            try:
                self._claim()
                self._hold()
                self._restore()
                return self._train()
            except Left:
                return self._leave_early()
        finally:
            for close in reversed(self._closers):
                close()

    def signal(self, number: int) -> None:
        """Take a signal; safe in a signal handler."""
        self.inbox.put(Signalled(number))

    def _claim(self) -> None:
        """Say which job is this attempt, and that it lives. Nothing else is done before."""
        if not self.settings.commits:
            self._incarnation = _EVERY_INCARNATION
        else:
            self._try(self._claim_once, what="claim the attempt")
        me = Identity(
            attempt=self.settings.attempt,
            job=self.settings.job,
            incarnation=self._incarnation,
            orphan_after_seconds=self.settings.orphan_after_seconds,
            record_patience_seconds=self.settings.record_patience_seconds,
        )
        self._reporter = Reporter(
            self.store, me, report=self._heartbeat, on_ruling=self.inbox.put, every=self.settings.hold_seconds
        )
        self._closers.append(self._reporter.close)
        self._try(self._reporter.report, what="write the first heartbeat")
        self._reporter.start()

    def _claim_once(self) -> None:
        self._claim_settled.clear()
        try:
            self._claim_next()
        finally:
            self._claim_settled.set()

    def _claim_next(self) -> None:
        while not self._claimed:
            found = attempts.claims(self.store, self.settings.attempt)
            other = next((claim.job for claim in found if claim.job != self.settings.job), None)
            if other is not None:
                self._leave("fenced", f"job {other} has claimed attempt {self.settings.attempt}", commit=False)
                return
            self._incarnation = max((claim.incarnation for claim in found), default=0) + 1
            claim = Claim(
                attempt=self.settings.attempt,
                job=self.settings.job,
                incarnation=self._incarnation,
                agent_version=airflow_spot.__version__,
            )
            self._claimed = not isinstance(attempts.claim(self.store, claim), Refused)

    def _hold(self) -> None:
        """Wait until the record makes this attempt live."""
        said = ""
        while self._ruling.order is not Order.TRAIN:
            if self._ruling.message != said and self._ruling.order is Order.HOLD:
                said = self._ruling.message
                log.info("holding: %s", said)
            if self._reporter and self._reporter.denied and not self._reporter.ever_read:
                self._misconfigured("read the record", self._reporter.denied)
            self._pump()

    def _restore(self) -> None:
        """Fill the checkpoint directory from the pin."""
        self._phase = Phase.RESTORING
        pin, directory = self._ruling.pin, self.settings.checkpoint_dir
        if (pin is not None or is_used(directory)) and (target := put_aside(directory)):
            log.warning("%s was not empty; what lay there is now in %s", directory, target)
        if pin is not None:
            found = self._reporter.record if self._reporter else None
            self._restored = self._try(
                partial(checkpoints.restore_furthest, self.store, pin, directory, record=found), what=f"restore {pin}"
            )
            self._say_restored(pin)
        mark(directory, self.settings.attempt)
        self._saver.continue_from(self._restored.manifest)

    def _say_restored(self, pin: str) -> None:
        if self._restored.bad:
            log.warning("damaged, not used: %s", ", ".join(self._restored.bad))
        if self._restored.checkpoint is None:
            log.warning("nothing before %s is intact: training begins from the beginning", pin)
        else:
            log.info("restored step %d (%s)", self._restored.step, self._restored.checkpoint)

    def _train(self) -> int:
        """Start the trainer, stay with it to its end, and return the exit code."""
        self._phase = Phase.TRAINING
        restored = self._restored
        self._session = session = Session(
            progress=self._progress,
            saver=self._saver,
            stage=self._stage,
            fixed_interval=self.settings.save_interval_seconds,
            resume=(self.settings.checkpoint_dir, restored.step) if restored.checkpoint else None,
        )
        session.market = self._instance.market
        channel = Channel(session.handle, session.left)
        self._closers.append(channel.close)
        there = states(self.settings.checkpoint_dir)
        try:
            self._trainer = Trainer(self.settings.command, self._trainer_environment(channel.path), self.inbox.wake)
        except OSError as error:
            code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_CANNOT_EXECUTE
            return self._end(code, message=f"{self.settings.command[0]!r} cannot be started: {error.strerror}")
        self._trained_at = time.monotonic()
        self._progress.begin(restored.step if restored.checkpoint else None)
        directory = self._watched(session, there)
        while self._trainer.exit_code is None:
            self._pump()
            self._pace()
        return self._finish(self._trainer, session, directory)

    def _watched(self, session: Session, there: dict[str, Any]) -> Directory | None:
        if not self.settings.commits or self._trainer is None:
            return None
        directory = Directory(
            self.settings.checkpoint_dir,
            members=self._trainer.members,
            restored=there,
            saver=self._saver,
            session=session,
            progress=self._progress,
            complete=self.settings.complete,
            step_from=self.settings.step_from,
            every=self.settings.scan_seconds,
            begun=self._restored.step,
        )
        directory.start()
        self._closers.append(directory.close)
        return directory

    def _trainer_environment(self, path: str) -> dict[str, str]:
        given = {
            "AIRFLOW_SPOT_CHECKPOINT_DIR": str(self.settings.checkpoint_dir),
            "AIRFLOW_SPOT_OUTPUT_DIR": str(self.settings.output_dir),
            "AIRFLOW_SPOT_SOCKET": path,
            "AIRFLOW_SPOT_RESTORED_STEP": str(self._restored.step),
        }
        return {**self._environment, **given}

    def _finish(self, trainer: Trainer, session: Session, directory: Directory | None) -> int:
        """After the trainer's first process has ended: nothing of it is left, all is saved, the last word is said."""
        code, self._ended_at = trainer.exit_code or 0, time.monotonic()
        log.info("the trainer ended with exit code %d", code)
        self._clear_away(trainer)
        self._phase = Phase.SAVING
        leaving = self._leaving
        fenced = leaving is not None and not leaving.commit
        if directory is not None and not fenced:
            directory.last(clean=code == 0 or (self._signalled and not trainer.by_signal))
        saved = not fenced and self._drain()
        lost = self._saver.lost
        completed = code == 0 and saved and self._is_complete(session)
        artifacts, message = None, leaving.message if leaving else ""
        if completed and self.settings.commits:
            artifacts, problem = self._artifacts(session)
            completed, message = not problem, problem or message
        if lost or not (saved or fenced):
            # A model that is stored proves the end of the training; with neither model nor save nothing does.
            completed = completed and artifacts is not None
            what = f"the last save did not get into the store: {lost or self._saver.tally.last_error}"
            log.error("%s", what)
            message = f"{message}; {what}" if message else what
        return self._end(code, completed=completed, artifacts=artifacts, message=message)

    def _clear_away(self, trainer: Trainer) -> None:
        """End what the trainer left behind: a moment for helpers that are about to end, then SIGKILL."""
        if not trainer.gone():
            trainer.send(signal.SIGTERM)
            until = time.monotonic() + min(2.0, max(0.0, self._deadline - time.monotonic()) / 4)
            while not trainer.gone() and time.monotonic() < until:
                time.sleep(0.02)
        if not trainer.gone():
            log.warning("the trainer left processes behind: %s; they are killed", sorted(trainer.members()))
            if not trainer.end():
                log.error("processes of the trainer cannot be killed: %s", sorted(trainer.members()))

    def _is_complete(self, session: Session) -> bool:
        told = session.told and session.ever_attached
        if session.finished is None:
            return not (self._signalled or told)
        pace = self._progress.pace()
        short = pace.step is not None and pace.total_steps is not None and pace.step < pace.total_steps
        if short and (self._signalled or told):
            log.warning(
                "finish() was called at step %s of %s after the trainer was asked to stop: taken for interrupted",
                pace.step,
                pace.total_steps,
            )
            return False
        return True

    def _drain(self) -> bool:
        """Wait until every save is in the store, or time or the fence ends it."""
        while self._saver.busy and time.monotonic() < self._give_up_at:
            self._pump(limit=0.5)
            if self._leaving is not None and not self._leaving.commit:
                return False
        return not self._saver.busy

    def _artifacts(self, session: Session) -> tuple[str | None, str]:
        """Commit the model; return its prefix, and what went wrong."""
        work = partial(self._commit_model, session.finished.output if session.finished else None)
        try:
            return self._persist(work), ""
        except (SpotError, OSError) as error:
            log.error("the model could not be saved: %s", error)
            return None, f"the model could not be saved: {error}"

    def _commit_model(self, named: Staged | None) -> str | None:
        """Commit what ``finish(output=)`` named, else what lies in the output directory."""
        if named is None and not any(files(self.settings.output_dir)):
            return None
        staged = named or self._stage.take(self.settings.output_dir)
        step = self._progress.step or 0
        return commit_artifacts(self.store, self.settings.attempt, staged.directory, step=step, job=self.settings.job)

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _leave_early(self) -> int:
        leaving = self._leaving or Leaving(reason="fenced")
        log.warning("leaving before the trainer was started: %s", leaving.message)
        self._ended_at = time.monotonic()
        self._deadline = min(self._deadline, self._ended_at + EARLY_SECONDS)
        # A claim that is on its way gets its end file, too.
        self._claim_settled.wait(LAST_WORD_SECONDS)
        if self._claimed:
            self._end(-1, message=leaving.message)
        return leaving.code

    def _end(self, code: int, *, completed: bool = False, artifacts: str | None = None, message: str = "") -> int:
        """Write the last heartbeat and the end file, and return the agent's exit code."""
        self._phase = Phase.LEAVING
        self._ended_at = min(self._ended_at, time.monotonic())
        leaving = self._leaving
        end = report.end(
            self._author,
            exit_code=code,
            completed=completed,
            interrupted=not completed and (self._signalled or leaving is not None),
            reason=leaving.reason if leaving and not completed else "exit",
            message=message,
            pace=self._progress.pace(),
            tally=self._saver.tally,
            restored=self._restored,
            finished=self._session.finished if self._session else None,
            artifacts=artifacts,
            notice=self._notice,
        )
        if self.settings.commits:
            self._say_last(end)
        return self._exit_code(end)

    def _say_last(self, end: End) -> None:
        if self._reporter is not None:
            self._reporter.close()
        try:
            self._persist(self._last_heartbeat, at_least=LAST_WORD_SECONDS)
            self._persist(partial(attempts.write_end, self.store, end), at_least=LAST_WORD_SECONDS)
        except (SpotError, OSError) as error:
            log.error("the end file could not be written: %s", error)

    def _last_heartbeat(self) -> None:
        try:
            if self._reporter is not None:
                self._reporter.report()
        except StoreDenied as error:
            log.warning("the last heartbeat could not be written: %s", error)

    def _exit_code(self, end: End) -> int:
        if end.exit_code == -1:
            return self._leaving.code if self._leaving else EXIT_LEFT
        if end.exit_code == 0 and not end.completed:
            return EXIT_LEFT if end.interrupted else EXIT_NOT_SAVED
        return end.exit_code

    def _leave(self, reason: str, message: str, *, commit: bool = True, code: int = EXIT_LEFT) -> None:
        """Note that this agent leaves; the first reason stands, but the fence always closes."""
        if self._leaving is None:
            log.warning("leaving (%s): %s", reason, message)
            self._leaving = Leaving(reason=reason, message=message, commit=commit, code=code)
        elif self._leaving.commit and not commit:
            log.warning("no more commits: %s", message)
            self._leaving = replace(self._leaving, commit=False)

    def _misconfigured(self, what: str, error: Exception) -> None:
        from airflow_spot.agent.role import role_name

        sentence = (
            f"cannot {what} in {self.store.uri} as {role_name(self._environment)}: {error}. "
            "The job role must be allowed to list and read the run directory and to put objects under attempts/, "
            "checkpoints/ and artifacts/ (with a KMS key: to use it); see jobRoleArn of the job definition"
        )
        log.error("MISCONFIGURED: %s", sentence)
        self._leave("misconfigured", sentence, commit=False, code=EXIT_MISCONFIGURED)
        raise Left

    # -- the inbox ---------------------------------------------------------------------------------------------------

    def _pump(self, limit: float = 1.0) -> object:
        """Take one message, or none in that time, and act on it and on what is due."""
        message = self.inbox.get(min(limit, self._plan.next_at - time.monotonic()))
        self._take(message)
        self._act()
        if self._leaving is not None and self._trainer is None and self._phase is not Phase.LEAVING:
            raise Left
        return message

    def _take(self, message: object) -> None:
        match message:
            case Signalled():
                self._on_signal(message.number)
            case Ruling():
                self._on_ruling(message)
            case Notice():
                self._on_notice(message)
            case Instance():
                self._instance = message
                if self._session:
                    self._session.market = message.market
            case _:
                pass

    def _on_signal(self, number: int) -> None:
        name, grace = signal.Signals(number).name, self.settings.stop_grace_seconds
        log.warning("%s received: the trainer has up to %.0f s", name, grace)
        now = time.monotonic()
        if self._notice is None or self._notice.source == "rebalance":
            self._notice = Notice(source="sigterm", seconds_left=grace)
        self._deadline = min(self._deadline, now + grace)
        self._leave("notice", f"the agent received {name}", code=128 + number)
        self._stop(now, now + grace)

    def _on_notice(self, notice: Notice) -> None:
        if notice.source == "rebalance":
            log.info("the instance is at higher risk of a reclaim: saving early")
            self._notice = self._notice or notice
            if self._session:
                self._session.ask_save()
            return
        now, left = time.monotonic(), notice.seconds_left or 0.0
        self._notice = notice
        self._deadline = min(self._deadline, now + left)
        log.warning("notice: the instance will be reclaimed (%s) in %.0f s", notice.action, left)
        if self._trainer is None:
            self._leave("notice", "the instance is about to be reclaimed")
            return
        needed = seconds_needed(self._saver.tally.seconds, left)
        self._stop(now + left - needed, now + left)

    def _on_ruling(self, ruling: Ruling) -> None:
        if ruling.order is Order.GO_ON and ruling.message != self._ruling.message:
            log.warning("%s", ruling.message)
        self._ruling = ruling
        now = time.monotonic()
        if ruling.order is Order.LEAVE:
            never_read = self._reporter is not None and not self._reporter.ever_read
            code = EXIT_UNAVAILABLE if never_read else EXIT_LEFT
            self._leave(ruling.reason, ruling.message, commit=False, code=code)
            self._stop(now, now + min(FENCED_SECONDS, self.settings.stop_grace_seconds))
        elif ruling.order is Order.SAVE_AND_LEAVE and self._leaving is None:
            self._leave(ruling.reason, ruling.message)
            if ruling.reason == "lease":
                self._deadline = min(self._deadline, now + LEASE_SECONDS)
            self._stop(now, now + self.settings.stop_grace_seconds + 2 * (self._saver.tally.seconds or 0.0))

    def _stop(self, begin: float, end: float) -> None:
        """Plan the trainer's end; an earlier plan is only ever brought forward."""
        session = self._session
        gently = session is not None and session.attached and not session.handles_term
        self._plan = self._plan.merged(plan(begin=begin, end=end, gently=gently), self._taken)

    def _act(self) -> None:
        for step in self._plan.due(time.monotonic()) if self._trainer is not None else ():
            self._taken |= {step}
            self._plan = self._plan.merged(StopPlan(), self._taken)
            self._measure(step, self._trainer)

    def _measure(self, step: Step, trainer: Trainer | None) -> None:
        if trainer is None or trainer.exit_code is not None:
            return
        if step is Step.TELL:
            self._leave("notice", "the instance is about to be reclaimed")
            if self._session:
                self._session.tell_stop()
        elif step is Step.TERM:
            self._signalled = True
            trainer.send(signal.SIGTERM)
        else:
            log.warning("the trainer did not end in time and is killed")
            self._signalled = True
            trainer.send(signal.SIGKILL)

    def _pace(self) -> None:
        if self._reporter is not None:
            leaving = self._leaving is not None
            self._reporter.pace(self.settings.hold_seconds if leaving else self.settings.heartbeat_seconds)

    # -- work that may take long -------------------------------------------------------------------------------------

    def _outcome(self, work: Callable[[], T]) -> T:
        """Do work in a thread while messages are taken.

        :raises Left: a reason to leave came first.
        """
        token = self.inbox.start(work)
        while True:
            message = self._pump()
            if isinstance(message, Done) and message.token is token:
                if message.error is not None:
                    raise message.error
                value: T = message.value
                return value

    def _try(self, work: Callable[[], T], *, what: str) -> T:
        """Do what must succeed before anything else; a store that gives no answer is asked again for a while."""
        begun, tries = time.monotonic(), 0
        while True:
            try:
                return self._outcome(work)
            except StoreUnavailable as error:
                waited = time.monotonic() - begun
                if waited > self.settings.record_patience_seconds:
                    self._leave("misconfigured", f"cannot {what}: {error}", commit=False, code=EXIT_UNAVAILABLE)
                    raise Left from error
                log.warning("cannot %s yet: %s", what, error)
            except StoreError as error:
                self._misconfigured(what, error)
            until = time.monotonic() + _WAITS[min(tries, len(_WAITS) - 1)]
            tries += 1
            while (left := until - time.monotonic()) > 0:
                self._pump(limit=left)

    def _persist(self, work: Callable[[], T], *, at_least: float = 0.0) -> T:
        """Do what comes after the trainer; a store that gives no answer is asked again until time is up.

        :param at_least: seconds to try even where time was up before.
        :raises StoreUnavailable: time is up.
        """
        give_up = max(self._give_up_at, time.monotonic() + at_least)
        tries = 0
        while True:
            done = self._await(self.inbox.start(work), give_up)
            if done is not None and done.error is None:
                value: T = done.value
                return value
            error = done.error if done else StoreUnavailable("there was no time left to wait for the store")
            if done is None or not isinstance(error, StoreUnavailable) or time.monotonic() > give_up:
                raise error if error is not None else AssertionError
            self._await(None, min(give_up, time.monotonic() + _WAITS[min(tries, len(_WAITS) - 1)]))
            tries += 1

    def _await(self, token: object | None, until: float) -> Done | None:
        while (left := until - time.monotonic()) > 0:
            message = self.inbox.get(min(left, 1.0))
            if isinstance(message, Done) and message.token is token:
                return message
            self._take(message)
        return None

    @property
    def _give_up_at(self) -> float:
        """When not to wait for the store any more, once the trainer has ended."""
        return min(self._deadline, self._ended_at + self.settings.orphan_after_seconds)

    # -- what others ask of it ---------------------------------------------------------------------------------------

    def _commit(self, directory: Path, **options: Any) -> Any:
        return checkpoints.commit(
            self.store, directory, attempt=self.settings.attempt, job=self.settings.job, **options
        )

    def _confirm(self) -> None:
        if not self.settings.commits:
            raise checkpoints.Fenced("only the first node commits")
        if self._reporter is not None:
            self._reporter.confirm()

    def _watch_notices(self) -> None:
        if self.settings.metadata_endpoint is None:
            return
        self._watch = Watch(
            Metadata(self.settings.metadata_endpoint),
            every=self.settings.notice_seconds,
            on_instance=self.inbox.put,
            on_notice=self.inbox.put,
        )
        self._closers.append(self._watch.close)
        self._watch.start()

    def _heartbeat(self) -> Heartbeat | None:
        if not self.settings.commits:
            return None
        now = time.monotonic()
        self._sequence += 1
        saving = self._phase is Phase.TRAINING and self._leaving is not None and self._saver.busy
        return report.heartbeat(
            self._author,
            phase=Phase.SAVING if saving else self._phase,
            sequence=self._sequence,
            now=now,
            began=self._began,
            trained_at=self._trained_at,
            pace=self._progress.pace(),
            tally=self._saver.tally,
            interval=self._session.interval_seconds if self._session else None,
            pin=self._ruling.pin,
            restored=self._restored,
            instance=self._instance,
            notice=self._notice,
        )

    @property
    def _author(self) -> report.Author:
        return report.Author(self.settings.attempt, self.settings.job, self._incarnation)
