"""Notify a person from inside the job: the experiment has ended, its first run failed, a run or its GPUs are idle.

One message per event and submission, however many jobs see it: whichever process creates the notice's file first sends
it, and then writes `.told`. Where that is missing for 600 s, the next job that ends, or command that looks, sends it
again: at least once, and twice only if the first sender was killed in between. The settings are those of shoal.toml at
the last submission (`notify.json`); webhook addresses come from the environment or the user's secrets file. A failure
to send is printed in the job's own output and never changes a run's end.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..kernel import End, describe_exit_code, files, find_cause, last_line, layout, lease, processes, records

#: A run and its end.
RunEnd = Tuple[str, End]

_TIMEOUT_S = 30
_TAIL_BYTES = 64 * 1024
#: After this a notice that nobody has marked as told is told again.
_RESEND_AFTER_S = 600.0


def notify_end(home: str, name: str, env: Mapping[str, str], last: bool = True) -> None:
    """Called when an attempt has written its end: tell of a first failure, and of the end of the whole experiment.

    `last` is whether this may be the last run. On this machine runs follow one another, each claimed when its turn
    comes, so only the command that starts them knows; it calls this when it is through.
    """
    settings = _settings(home)
    if settings is None:
        return
    resend_unsent(home, env)
    experiment = name.split("/")[0]
    over, wave, ends = experiment_ends(home, experiment)
    bad = [run for run, end in ends if not end.success]
    if bad and "failure" in settings["on"] and (not over or not last):
        _notify(
            home,
            settings,
            "failure",
            experiment,
            wave,
            _message_text(experiment, ends, "first failure: %s" % bad[0]),
            env,
        )
    if over and last and "end" in settings["on"]:
        _notify(home, settings, "end", experiment, wave, _message_text(experiment, ends, "all runs have ended"), env)


def notify_if_quiet(home: str, name: str, log: str, began: float, env: Mapping[str, str]) -> None:
    """Called now and then while a run lives: tell once when it has printed nothing for as long as the settings say."""
    printed = os.stat(log).st_mtime if os.path.exists(log) else began
    _notify_if_long(home, name, "quiet", "has printed nothing", time.time() - max(began, printed), env)


def notify_if_idle(home: str, name: str, idle_s: float, env: Mapping[str, str]) -> None:
    """The same for a run whose GPUs, on one of its nodes, have done nothing for that long."""
    host = processes.node_name(env)
    _notify_if_long(home, name, "idle", "has left its GPUs on %s idle" % host, idle_s, env)


def _notify_if_long(home: str, name: str, event: str, what: str, lasted_s: float, env: Mapping[str, str]) -> None:
    settings = _settings(home)
    if settings is None or event not in settings["on"]:
        return
    after_s = settings.get("%s_after_s" % event)
    if after_s and lasted_s >= after_s:
        experiment = name.split("/")[0]
        _, wave, ends = experiment_ends(home, experiment)
        sentence = "%s %s for %d minutes" % (name, what, lasted_s // 60)
        _notify(home, settings, event, experiment, wave, _message_text(experiment, ends, sentence), env)


def experiment_ends(home: str, experiment: str) -> Tuple[bool, int, List[RunEnd]]:
    """(whether every submitted run has ended, a number that each submission raises, the runs that ended and how)."""
    folder = os.path.join(layout.runs_dir(home), experiment)
    over, wave = True, 0
    ends: List[RunEnd] = []
    for stem in sorted(files.list_names(folder)):
        run_dir = os.path.join(folder, stem)
        names = layout.parse_names(files.list_names(run_dir))
        if not names.generation:
            continue
        wave += names.generation
        end = None
        if names.attempt and not names.is_live(names.attempt):
            try:
                attempt = lease.read_attempt(run_dir, names, names.attempt)
                end = attempt.end if attempt is not None else None
            except (OSError, ValueError):
                end = None
        if end is not None and end.generation == names.generation:
            ends.append(("%s/%s" % (experiment, stem), end))
        elif not names.has_submit(names.generation, "cancel"):
            over = False
    return over, wave, ends


def _message_text(experiment: str, ends: List[RunEnd], what: str) -> str:
    bad = [(run, end) for run, end in ends if not end.success]
    lines = ["%s: %s" % (experiment, what), "%d completed, %d not" % (len(ends) - len(bad), len(bad))]
    if bad:
        more = " and %d more" % (len(bad) - 5) if len(bad) > 5 else ""
        lines.append("not completed: %s%s" % (", ".join(run for run, _ in bad[:5]), more))
        lines.append(_top_error([end for _, end in bad]))
        lines.append("shoal why %s" % bad[0][0])
    return "\n".join([*lines, "shoal report %s" % experiment])


def _top_error(bad: List[End]) -> str:
    """The most frequent end of runs that have not completed, and the error that the first of them printed."""
    words = [str(end.problem or end.stopped_by or describe_exit_code(end.exit_code)) for end in bad]
    word = max(words, key=words.count)
    first = bad[words.index(word)]
    line = _error_line(layout.log_file(str(first.log_dir), first.attempt))
    times = " (%d times)" % words.count(word) if len(words) > 1 else ""
    return "%s%s%s" % (word, times, ": %s" % line if line else "")


def _error_line(path: str) -> str:
    """What a log says about the end, or its last line; fit to be sent."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    cause = find_cause(lines)
    return cause.line if cause is not None else last_line(lines)


def _settings(home: str) -> Optional[Dict[str, Any]]:
    try:
        return files.read_json(os.path.join(home, "notify.json"))
    except (OSError, ValueError):
        return None


def _notify(home: str, settings: Dict[str, Any], event: str, experiment: str, wave: int, text: str,
          env: Mapping[str, str]) -> None:  # fmt: skip
    name = "%s.%s.%d" % (experiment, event, wave)
    record = {"t": time.time(), "text": text, "event": event, "experiment": experiment, "user": records.user_name()}
    try:
        files.make_dir(os.path.join(home, "notices"))
        if not files.create_exclusive(os.path.join(home, "notices", name), files.to_json(record)):
            return
    except OSError as error:
        _log_problem("cannot note that it tells: %s" % error)
        return
    _send(home, settings, name, record, env)


def resend_unsent(home: str, env: Mapping[str, str], now: Optional[float] = None) -> None:
    """Tell what was noted and not told for ten minutes: whoever noted it was killed. One of those who see it does."""
    settings, names = _settings(home), set(files.list_names(os.path.join(home, "notices")))
    now = time.time() if now is None else now
    for name in sorted(names) if settings is not None else ():
        if not name[-1:].isdigit() or ".again" in name or name + ".told" in names:
            continue
        tries = 1 + sum(1 for other in names if other.startswith(name + ".again"))
        last = name if tries == 1 else "%s.again%d" % (name, tries - 1)
        try:
            record = files.read_json(os.path.join(home, "notices", last)) or {}
            if record.get("user") != records.user_name() or now < float(record.get("t", now)) + _RESEND_AFTER_S:
                continue
            mine = os.path.join(home, "notices", "%s.again%d" % (name, tries))
            if settings is not None and files.create_exclusive(mine, files.to_json(dict(record, t=now))):
                _send(home, settings, name, record, env)
        except (OSError, ValueError) as error:
            _log_problem("cannot tell again: %s" % error)


def _send(home: str, settings: Dict[str, Any], name: str, record: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """By every way that the settings name. What fails is said and not tried again: it would fail again."""
    for way in (_send_by_command, _send_by_webhook, _send_by_mail):
        try:
            way(settings, record["event"], record["experiment"], record["text"], env)
        except Exception as error:  # any way of telling may fail; the run's own end matters more
            _log_problem("%s failed: %s" % (way.__name__.replace("_by_", "telling by "), type(error).__name__))
    try:
        files.create_exclusive(os.path.join(home, "notices", name + ".told"), b"{}\n", sync=False)
    except OSError as error:
        _log_problem("cannot note that it has told: %s" % error)


def _send_by_command(settings: Dict[str, Any], event: str, experiment: str, text: str, env: Mapping[str, str]) -> None:
    if settings.get("command"):
        environ = dict(env, SHOAL_NOTIFY_EVENT=event, SHOAL_NOTIFY_EXPERIMENT=experiment, SHOAL_NOTIFY_TEXT=text)
        subprocess.run(settings["command"], input=text.encode(), env=environ, timeout=_TIMEOUT_S, check=True)


def _send_by_webhook(settings: Dict[str, Any], event: str, experiment: str, text: str, env: Mapping[str, str]) -> None:
    name = settings.get("webhook")
    if not name:
        return
    url = env.get(name, "")
    if not url.startswith(("https://", "http://")):
        _log_problem("telling by webhook: $%s holds no address" % name)
        return
    from urllib.request import Request, urlopen

    if settings.get("webhook_as") == "text":
        body, kind = text.encode(), "text/plain; charset=utf-8"
    else:
        body = json.dumps({"text": text, "event": event, "experiment": experiment}).encode()
        kind = "application/json"
    with urlopen(Request(url, body, {"Content-Type": kind}), timeout=_TIMEOUT_S):  # noqa: S310 (checked above)
        pass


def _send_by_mail(settings: Dict[str, Any], event: str, experiment: str, text: str, env: Mapping[str, str]) -> None:
    address = settings.get("mail")
    if address:
        subject = text.split("\n")[0]
        letter = "To: %s\nSubject: %s\n\n%s\n" % (address, subject, text)
        path = os.pathsep.join((env.get("PATH", os.defpath), "/usr/sbin", "/usr/lib"))
        subprocess.run(
            ["sendmail", "-t"], input=letter.encode(), env=dict(env, PATH=path), timeout=_TIMEOUT_S, check=True
        )


def _log_problem(text: str) -> None:
    sys.stderr.write("shoal: %s\n" % text)
