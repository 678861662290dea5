"""Durations and memory: parse what people write, print what Slurm takes; and numbers in names as numbers.

Two dialects on purpose. In shoal's own files a bare number is refused, because its unit is ambiguous. In sbatch flags
Slurm's own reading holds (`--time=24` is 24 minutes, `--mem=64` is 64 MB), because the flag belongs to Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from shoal.errors import InputError

_DURATION_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2}):(\d{1,2})", re.ASCII)
_DAYS_HOURS = re.compile(r"(\d+)-(\d+)(?::(\d{1,2}))?", re.ASCII)
_SLURM_MINUTES = re.compile(r"(\d+)(?::(\d{1,2}))?", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", re.ASCII | re.IGNORECASE)
_MEMORY_FACTOR_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}

_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.ASCII)
_TIME_HINT = 'write a duration with its unit, such as "90m", "2h30m", "3d" or "1-12:00:00"'
_MEMORY_HINT = 'write memory with its unit, such as "500M", "64G" or "1.5T"'


def parse_duration_s(text: str, *, place: str | None = None) -> int:
    """Seconds of a duration in shoal's own words; a bare number or M:S is refused as ambiguous."""
    word = text.strip().lower()
    if (clock := _CLOCK.fullmatch(word)) is not None:
        return _clock_s(text, *clock.groups(), place=place)
    if (days := _DAYS_HOURS.fullmatch(word)) is not None:
        return _clock_s(text, days[1], days[2], days[3] or "0", "0", place=place)
    words = _DURATION.fullmatch(word.replace(" ", ""))
    if words is None or not any(words.groups()):
        raise InputError(f"{text!r} is not a duration", hint=_TIME_HINT, place=place)
    return _positive(
        text, sum(int(n) * s for n, s in zip(words.groups(), _DURATION_UNITS_S.values(), strict=True) if n), place
    )


def parse_slurm_time_s(text: str, *, place: str | None = None) -> int | None:
    """Seconds of an sbatch --time value, read as Slurm reads it; None means no limit."""
    word = text.strip()
    if word.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    if (minutes := _SLURM_MINUTES.fullmatch(word)) is not None:
        return _positive(text, int(minutes[1]) * 60 + int(minutes[2] or 0), place)
    return parse_duration_s(text, place=place)


def format_slurm_time(seconds: int) -> str:
    """D-HH:MM:SS, the one spelling that every Slurm reads the same way."""
    minutes, s = divmod(seconds, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days}-{h:02}:{m:02}:{s:02}" if days else f"{h:02}:{m:02}:{s:02}"


def format_duration(seconds: float) -> str:
    """A short form for people: 45s, 12m, 2h05m, 3d04h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def parse_memory_mb(text: str, *, bare_is_mb: bool = False, place: str | None = None) -> int:
    """Megabytes of "64G"; a bare number is refused unless the dialect is Slurm's (`bare_is_mb`)."""
    word = text.strip()
    if bare_is_mb and word.isascii() and word.isdigit():
        return int(word)
    match = _MEMORY.fullmatch(word)
    if match is None:
        raise InputError(f"{text!r} is not an amount of memory", hint=_MEMORY_HINT, place=place)
    size_mb = float(match[1]) * _MEMORY_FACTOR_MB[match[2].upper()]
    if size_mb > 1 << 40:
        raise InputError(f"{text!r} is more memory than any machine has", hint=_MEMORY_HINT, place=place)
    if size_mb <= 0:
        raise InputError(f"memory must be more than nothing, not {text!r}", hint=_MEMORY_HINT, place=place)
    return max(1, round(size_mb))


def format_memory(size_mb: int) -> str:
    """The largest unit that loses nothing: 512000 -> 500G, 1500 -> 1500M."""
    return f"{size_mb // 1024}G" if size_mb % 1024 == 0 else f"{size_mb}M"


def format_memory_short(size_mb: float) -> str:
    """For people: 512 MB, 61.8 GB."""
    return f"{size_mb:.0f} MB" if size_mb < 1024 else f"{size_mb / 1024:.1f} GB"


def format_bytes(size: float) -> str:
    """The same for files, in powers of ten as disks have them."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def format_hours(hours: float) -> str:
    """Three digits that say something, never an exponent; rounding errors are nothing."""
    return f"{hours:,.0f}" if hours >= 100 else f"{round(hours, 4):.3g}"


def _clock_s(text: str, days: str | None, hours: str, minutes: str, seconds: str, *, place: str | None) -> int:
    if int(minutes) > 59 or int(seconds) > 59:
        raise InputError(f"{text!r} has more than 59 minutes or seconds", hint=_TIME_HINT, place=place)
    return _positive(text, int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds), place)


def _positive(text: str, seconds: int, place: str | None) -> int:
    if seconds <= 0:
        raise InputError(f"a duration must be more than nothing, not {text!r}", hint=_TIME_HINT, place=place)
    if seconds > 10 * 366 * 86400:
        raise InputError(f"{text!r} is longer than ten years", hint=_TIME_HINT, place=place)
    return seconds


def natural_sort_key(text: object) -> tuple[list[str | float], str]:
    """Sort key for names: depth4 before depth12, lr0.05 before lr0.1, 1e-05 before 0.001."""
    words = _NUMBER.split(str(text))
    return [float(word) if at % 2 else word for at, word in enumerate(words)], str(text)


def shorten_list(words: Iterable[str], max_words: int, link: str = ", ") -> str:
    """The first words of a list, and how many are left: "a, b, c and 4 more"."""
    every = list(words)
    left = len(every) - max_words
    return link.join(every[:max_words]) + (f" and {left:,} more" if left > 0 else "")


def plural(count: int, noun: str) -> str:
    """1 GPU, 2 GPUs, 1,200 runs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_indices(indices: Iterable[int], text: str = "%d") -> str:
    """0,1,2,5 -> "0-2,5", as sbatch --array takes it; each number as `text` formats it."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(text % a if a == b else f"{text % a}-{text % b}" for a, b in parts)
