"""[notify] of shoal.toml: who is told, and when. Secrets are named here, never written: `webhook = "$SLACK_URL"`."""

from __future__ import annotations

import re
import shlex

import msgspec

from shoal.describe.document import Table
from shoal.units import parse_duration_s

KEYS = ("command", "webhook", "webhook_as", "mail", "on", "quiet_after", "idle_after")
EVENTS = ("end", "failure", "quiet", "idle")
#: A quiet run, or one whose GPUs idle, is told after this long unless the table says otherwise.
_DEFAULT_AFTER_S = 30 * 60
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"[^\s@<>,;-][^\s@<>,;]*@[A-Za-z0-9.-]+")


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """`command` gets the text on standard input; `webhook` is the name of a variable that holds a URL."""

    command: list[str] = []
    webhook: str | None = None
    webhook_as: str = "json"
    mail: str | None = None
    on: list[str] = msgspec.field(default_factory=lambda: ["end", "failure"])
    quiet_after_s: int | None = None
    idle_after_s: int | None = None


def parse_notify(table: Table) -> Notify | None:
    """The table's values; None when it is not there or names nobody to tell."""
    command, webhook, mail = table.text("command"), table.text("webhook"), table.text("mail")
    on = list(table.strings("on") or ("end", "failure"))
    for index, event in enumerate(on):
        if event not in EVENTS:
            raise table.error(("on", index), f"notify.on = {event!r} is unknown; allowed are {', '.join(EVENTS)}")
    if webhook is not None and not _VARIABLE.fullmatch(webhook):
        raise table.error(
            ("webhook",),
            "notify.webhook must name a variable that holds the address, because such addresses are secrets",
            hint='webhook = "$SLACK_URL"   # and SLACK_URL=https://... in ~/.config/shoal/secrets.env, mode 600',
        )
    if mail is not None and not _ADDRESS.fullmatch(mail):
        raise table.error(("mail",), f"{mail!r} is not a mail address")
    if not (command or webhook or mail):
        return None
    return Notify(
        command=shlex.split(command) if command else [],
        webhook=webhook[1:] if webhook else None,
        webhook_as=table.text("webhook_as", ("json", "text")) or "json",
        mail=mail,
        on=on,
        quiet_after_s=_after(table, "quiet"),
        idle_after_s=_after(table, "idle"),
    )


def _after(table: Table, event: str) -> int:
    """How long something lasts before it is told."""
    text = table.text(f"{event}_after")
    return parse_duration_s(text, place=table.place(f"{event}_after")) if text else _DEFAULT_AFTER_S
