"""How far a program has come, from a line that it printed.

Logs are arbitrary text, so a number counts only beside a word that says what it is (step, iteration, epoch) or in a
progress bar of tqdm or rich. Bars of validation and of downloads are ignored, and so is a bar inside another one and a
bar that starts over: such a bar shows the progress of an epoch, and not of the run.
"""

import json
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from .lazy import regex

_NUMBER = r"(\d[\d,]*(?:[eE]\+?\d{1,2})?)"
_OF_TOTAL = r"\s*(?:/|\bof\b)\s*" + _NUMBER + r"(?![.eE]?\d)"
_N_OF_M = regex(_NUMBER + _OF_TOTAL)
_PERCENT = regex(r"(\d+(?:\.\d+)?)\s?%")
#: mmengine says `Epoch(train) [3][100/500]`.
_BEFORE_NUMBER = r"(?:\(train\))?[\s:=#\[(\"']*"
#: The plural without a total is a setting (`epochs=10`); a percentage belongs to a bar.
_NUMBER_ALONE = r"\b" + _BEFORE_NUMBER + _NUMBER + r"(?![\d.]*\s?%|[.\d]|[eE]\d)"
#: Not in `tokens/batch 4096`, which is a rate.
_WORD_START = r"(?<!/)\b"
_EPOCH = regex(
    _WORD_START + r"epoch(?:s?\b" + _BEFORE_NUMBER + _NUMBER + _OF_TOTAL + "|" + _NUMBER_ALONE + ")", re.IGNORECASE
)
#: Two more ways to say it: timm's `Train: 3 [ 120/312 ( 38%)]`, and `[3/25][120/782]`.
_TRAIN_EPOCH = regex(r"\btrain(?:ing)?:?\s+(\d+)(?=\s*\[\s*\d+/\d+)", re.IGNORECASE)
_PAIR_EPOCH = regex(r"\A\[\s*(\d+)/(\d+)\s*\](?=\s*\[\s*\d+/\d+\s*\])")
_STEP_WORD = r"(?:step|iter|iteration|update|batch)"
#: A batch without a total is a setting as well (`batch = 256`).
_STEP = regex(
    _WORD_START
    + r"(?:global[_ ]?)?(?:"
    + (_STEP_WORD + r"e?s?\b" + _BEFORE_NUMBER + _NUMBER + _OF_TOTAL)
    + r"|(?!batch)"
    + (_STEP_WORD + _NUMBER_ALONE)
    + ")",
    re.IGNORECASE,
)
_RICH_BAR_CHARS = "━╸╺─"
_BAR = regex(
    r"(\d+)%\s?\|[^|]*\|\s*"
    + _NUMBER
    + "/"
    + _NUMBER
    + "|["
    + _RICH_BAR_CHARS
    + r"]{3,}\s*(?:\d+%\s+)?"
    + _NUMBER
    + "/"
    + _NUMBER
)
_RICH_PERCENT = regex("[" + _RICH_BAR_CHARS + r"]{3,}\s*(\d+(?:\.\d+)?)\s?%")
#: What may stand between an epoch's number and the part of it that is done.
_STEP_IN_EPOCH = regex(
    r"[\s\])\[(|:,;-]*(?:%s" % _STEP_WORD
    + r"e?s?\b[\s:=#\[(]*)?(?:\d+(?:\.\d+)?%%\s?\|[^|]*\||[%s=>#.]{3,})?\s*" % _RICH_BAR_CHARS
    + _NUMBER
    + _OF_TOTAL,
    re.IGNORECASE,
)
_END_OF = regex(r"\b(?:end of|finished|completed)\s*\Z", re.IGNORECASE)
_PERCENT_IN_EPOCH = regex(r"[\s\])\[(|:,;-]*(\d+(?:\.\d+)?)\s?%")
#: Bars and counts that are not the training's own.
_NOT_TRAINING = regex(
    r"valid|sanity|\beval|\btest|predict|download|fetch|load(?:ing)?\b(?!er)|tokeniz|\bmap\b|\bval\b|warm-?up",
    re.IGNORECASE,
)
#: Words that make the step behind them another one than the present: `restored best weights from epoch 3/10`.
_QUOTED_PROGRESS = regex(r"\b(?:best|restor\w*|loaded|resum\w*|from|since)\b[^|;\]]*\Z", re.IGNORECASE)
#: tqdm draws a bar inside another one a line lower and then moves the cursor up again.
_CURSOR_UP = "\x1b[A"
_ESCAPES = regex(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")

#: Names under which programs take their number of steps and epochs, on the command line and in what they print first.
_STEP_TOTALS = regex(
    r"(?:(?:max|total|num|n|train)_)?(?:train(?:ing)?_)?(?:steps|iters|iterations|updates)|max_(?:iter|update)"
)
_EPOCH_TOTALS = regex(r"(?:(?:max|total|num|n|train)_?)?(?:train_)?epochs|niter")
_SETTING = r"(\d[\d,]*(?:\.\d+)?(?:[eE]\+?\d+)?)(?![\d.]*\s*/)"
_PRINTED_STEPS = regex(
    r"(?<![\w.-])(?:(?:max|total|num|n|train|training)[ _-](?:(?:train|training|optimization)[ _-])?"
    r"(?:steps|iters|iterations|updates)|max_iter|max_update)['\"]?\s*[=:]\s*['\"]?" + _SETTING,
    re.IGNORECASE,
)
_PRINTED_EPOCHS = regex(
    r"(?<![\w.-])(?:(?:max|num|n|total|train|scheduled)[ _-](?:train[ _-])?epochs['\"]?\s*[=:]|epochs=|"
    r"['\"]epochs['\"]:)\s*['\"]?" + _SETTING,
    re.IGNORECASE,
)


#: Most lines of most logs have nothing of all this, and are passed over before anything else is tried.
_PROGRESS_MARKERS = ("epoch", "step", "iter", "update", "batch", "train", "%|", "% |", "━", "{", "][")
_SETTING_MARKERS = ("epoch", "steps", "iter", "update", "train", "][")


class ProgressCount(NamedTuple):
    """`step` of `total` and the part of the way that is done; what is not known is None. `text` names both for people.

    `is_inner`: the count is of a part of the run, such as one epoch, so that no total applies to it.
    """

    step: Optional[float]
    total: Optional[float]
    fraction: Optional[float]
    text: str
    is_inner: bool = False


class PrintedTotals(NamedTuple):
    """What a program prints before it trains: its number of steps and epochs, and whether epochs count from 0 or 1."""

    steps: Optional[float] = None
    epochs: Optional[float] = None
    first_epoch: Optional[int] = None


_NO_TOTALS = PrintedTotals()


def clean_line(line: str) -> str:
    """The line without escape sequences and control characters, with single spaces."""
    return " ".join(_ESCAPES.sub("", line).split())


def parse_progress(
    line: str, epochs: Optional[float] = None, plain: bool = False, first_epoch: Optional[int] = None
) -> Optional[ProgressCount]:
    """What a line says, or None. With `plain`, bare `120/500` and `41%` count as well, as in the progress file."""
    text = clean_line(line)
    if text.startswith("{"):
        return _of_object(text, epochs) if plain else _of_record(text, epochs)
    epoch = _EPOCH.search(text) or _TRAIN_EPOCH.search(text) or _PAIR_EPOCH.search(text)
    if epoch is not None and not _is_not_training(text[: epoch.start()]):
        return _of_epoch(text, epoch, epochs, first_epoch)
    step = _STEP.search(text)
    if step is not None and not _is_not_training(text[: step.start()]):
        return _of_step(step.group(1) or step.group(3), step.group(2))
    bar = _bar(text)
    if bar is not None:
        return bar[1]
    return _of_plain(text) if plain else None


def _is_not_training(before: str) -> bool:
    return bool(_NOT_TRAINING.search(before) or _QUOTED_PROGRESS.search(before))


def newest_count(
    lines: Sequence[str], facts: PrintedTotals = _NO_TOTALS, plain: bool = False
) -> Optional[ProgressCount]:
    """What the last line says that tells most: one with a total before one without."""
    if not plain and not _has_any("\n".join(lines), _PROGRESS_MARKERS):
        return None
    inner: Optional[Set[_BarKey]] = None
    best: Optional[ProgressCount] = None
    for line in reversed(lines):
        if not plain and not _has_any(line, _PROGRESS_MARKERS):
            continue
        count = parse_progress(line, facts.epochs, plain, facts.first_epoch)
        if count is None:
            continue
        bar = _bar(clean_line(line))
        if bar is not None and bar[1] == count:
            inner = _inner_bars(lines) if inner is None else inner
            # The bar around others is the run's own, also if it counts percents and the command promises epochs.
            if bar[0] in inner or (not inner and _is_of_an_epoch(count, facts)):
                text = "%s of an epoch" % _ratio(count.step, count.total)
                count = ProgressCount(count.step, None, None, text, is_inner=True)
        if count.fraction is None and count.step is not None and facts.steps and not count.is_inner:
            text = "step %s" % _ratio(count.step, facts.steps)
            count = ProgressCount(count.step, facts.steps, min(1.0, count.step / facts.steps), text)
        if count.fraction is not None:
            return count
        best = best or count
    return best


def printed_totals(lines: Sequence[str]) -> PrintedTotals:
    """What the first lines of a log tell; of a setting that is printed again, the last value counts."""
    steps = epochs = None
    first_epoch = None
    for line in lines:
        if not _has_any(line, _SETTING_MARKERS):
            continue
        text = clean_line(line)
        for match in _PRINTED_STEPS.finditer(text):
            steps = _number(match.group(1)) or steps
        for match in _PRINTED_EPOCHS.finditer(text):
            epochs = _number(match.group(1)) or epochs
        if first_epoch is None and not text.startswith("{"):
            epoch = _EPOCH.search(text) or _TRAIN_EPOCH.search(text) or _PAIR_EPOCH.search(text)
            if epoch is not None and _number(_epoch_number(epoch)[0]) <= 1:
                first_epoch = int(_number(_epoch_number(epoch)[0]))
    return PrintedTotals(steps, epochs, first_epoch)


def totals_of_command(words: Sequence[str]) -> Tuple[Optional[float], Optional[float]]:
    """(steps, epochs) that a command's words promise, for logs that tell only how many are done."""
    steps = epochs = None
    for key, value in _options(words):
        if _STEP_TOTALS.fullmatch(key) and value > 0:
            steps = value
        elif _EPOCH_TOTALS.fullmatch(key) and value > 0:
            epochs = value
    return steps, epochs


def value_of(words: Sequence[str], *keys: str) -> Optional[float]:
    """The number behind `--batch-size 22`, `dataloader.params.batch_size=22`, `lr=0.1`: the last part of the name must
    begin with a key."""
    return next((value for name, value in _options(words) if name.startswith(keys)), None)


def _options(words: Sequence[str]) -> Iterator[Tuple[str, float]]:
    for number, word in enumerate(words):
        name, equals, value = word.lstrip("-+").partition("=")
        if not equals:
            value = words[number + 1] if word.startswith("-") and number + 1 < len(words) else ""
        try:
            yield name.rpartition(".")[2].lower().replace("-", "_"), float(value)
        except ValueError:
            continue


def named_values(line: str, names: Sequence[str]) -> Dict[str, float]:
    """The numbers behind these names: `val loss 1.93`, `accuracy: 97.2 %`, `loss=0.3`, `loss tensor(0.3)`, `loss NaN`;
    `Accuracy: 9876/10000` is a ratio. `loss` is not in `val loss 1.93` or `val/loss=1.93`, which are other metrics."""
    found: Dict[str, float] = {}
    for name in names:
        if name not in line:
            continue
        for match in re.finditer(_named(name), line):
            value = float(re.sub("(?i)none", "nan", match.group(1)).replace(",", ""))
            found[name] = value / float(match.group(2)) if match.group(2) and float(match.group(2)) else value
    return found


def _named(name: str) -> str:
    digits = r"(?:\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    number = r"(?:(?:tensor|[Aa]rray|np\.\w+)\()?([-+]?(?:" + digits + r"|(?i:nan|inf(?:inity)?|none)\b))"
    before, between = r"(?<![\w./-])(?<![A-Za-z_] )", r"['\"]?\s*[:=]?\s*['\"]?"
    return before + re.escape(name) + between + number + r"(?:/(\d+(?:\.\d+)?)\b)?"


_BarKey = Tuple[str, float]


def _bar(text: str) -> Optional[Tuple[_BarKey, ProgressCount]]:
    """A bar of tqdm or rich: (what tells it from other bars, its count). None for one of validation and the like."""
    bar = _BAR.search(text)
    if bar is not None and not _NOT_TRAINING.search(text[: bar.start()]):
        step, total = bar.group(2) or bar.group(4), bar.group(3) or bar.group(5)
        label = re.sub(r"[\d\W_]+", " ", text[: bar.start()]).strip()
        return (label, _number(total)), _of_step(step, total)
    percent = _RICH_PERCENT.search(text) if bar is None else None
    if percent is not None and not _NOT_TRAINING.search(text[: percent.start()]):
        label = re.sub(r"[\d\W_]+", " ", text[: percent.start()]).strip()
        return (label, 100.0), _of_percent(percent.group(1))
    return None


def _inner_bars(lines: Sequence[str]) -> Set[_BarKey]:
    """The bars that are drawn inside another one, and those that start over."""
    inner: Set[_BarKey] = set()
    last: Dict[_BarKey, float] = {}
    for line in lines:
        if "%" not in line and "━" not in line:
            continue
        bar = _bar(clean_line(line))
        if bar is None:
            continue
        key, count = bar
        if line.rstrip(" ").endswith(_CURSOR_UP) or (count.step or 0.0) < last.get(key, 0.0):
            inner.add(key)
        last[key] = count.step or 0.0
    return inner


def _is_of_an_epoch(count: ProgressCount, facts: PrintedTotals) -> bool:
    """A bar without a label is the run's own only if it has the run's number of steps, or there is a single epoch."""
    if facts.steps:
        return count.total != facts.steps and count.total != facts.epochs
    return bool(facts.epochs and facts.epochs > 1 and count.total != facts.epochs)


def _of_step(step: str, total: Optional[str]) -> ProgressCount:
    done, whole = _number(step), _number(total) if total else None
    return ProgressCount(done, whole, min(1.0, done / whole) if whole else None, "step %s" % _ratio(done, whole))


def _of_percent(text: str) -> ProgressCount:
    percent = float(text)
    return ProgressCount(percent, 100.0, min(1.0, percent / 100), "%g%%" % percent)


def _of_plain(text: str) -> Optional[ProgressCount]:
    bare, percent = _N_OF_M.search(text), _PERCENT.search(text)
    if bare is not None and _number(bare.group(2)) > 0:
        return _of_step(bare.group(1), bare.group(2))
    if percent is not None:
        return _of_percent(percent.group(1))
    return _of_step(text, None) if re.match(r"\d+\Z", text) else None


def _epoch_number(match: "re.Match[str]") -> Tuple[str, Optional[str]]:
    groups = match.groups()
    if len(groups) == 3:
        return groups[0] or groups[2], groups[1]
    return groups[0], groups[1] if len(groups) > 1 else None


def _of_epoch(text: str, match: "re.Match[str]", epochs: Optional[float], first: Optional[int]) -> ProgressCount:
    """ "Epoch 3/40" counts from one, "Epoch 3:" from zero, unless the log began otherwise; the last epoch of those that
    count from zero is the total less one. A part inside the epoch (45/100, 45%) makes it finer."""
    written, of_written = _epoch_number(match)
    number, whole = _number(written), _number(of_written) if of_written else None
    first = first if first is not None else (1 if whole else 0)
    of = whole + 1 if whole and first == 0 else whole
    if epochs and (whole is None or first == 0):
        of = epochs
    before = max(0.0, number - first)
    rest = text[match.end() :]
    inside, percent = _STEP_IN_EPOCH.match(rest), _PERCENT_IN_EPOCH.match(rest)
    part, per_epoch, words = 1.0 if _END_OF.search(text[: match.start()]) else 0.0, 1.0, ""
    if inside is not None and _number(inside.group(2)) > 0:
        per_epoch = _number(inside.group(2))
        part = min(1.0, _number(inside.group(1)) / per_epoch)
        words = ", %s" % _ratio(_number(inside.group(1)), per_epoch)
    elif percent is not None:
        per_epoch, part = 100.0, min(1.0, float(percent.group(1)) / 100)
        words = ", %s%%" % percent.group(1)
    fraction = min(1.0, (before + part) / of) if of else None
    label = "epoch %s%s" % (_ratio(number, whole or epochs), words)
    return ProgressCount((before + part) * per_epoch, of * per_epoch if of else None, fraction, label)


def _of_object(text: str, epochs: Optional[float]) -> Optional[ProgressCount]:
    """A JSON object of the progress file; what else is in it is shown as well."""
    try:
        record: Dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    step, total = record.get("step"), record.get("total")
    if not isinstance(step, (int, float)):
        return _of_record(text, epochs)
    whole = float(total) if isinstance(total, (int, float)) and total > 0 else None
    rest = "".join(
        "  %s %s" % (key, "%.4g" % value if isinstance(value, float) else value)
        for key, value in record.items()
        if key not in ("step", "total", "t", "time") and isinstance(value, (int, float, str))
    )
    fraction = max(0.0, min(1.0, step / whole)) if whole else None
    part = "" if fraction is None else " (%d%%)" % (100 * fraction)
    return ProgressCount(float(step), whole, fraction, "step %s%s%s" % (_ratio(float(step), whole), part, rest))


def _of_record(text: str, epochs: Optional[float]) -> Optional[ProgressCount]:
    """A line of a log that is a record of metrics, as Hugging Face's trainer prints it: its epoch has a fraction."""
    from .metric_files import metric_row, parse_object

    record = parse_object(text)
    row = metric_row(record) if record else None
    if row is None or (row.step is None and row.epoch is None):
        return None
    if row.step is not None:
        return _of_step("%d" % row.step, None if row.total is None else "%d" % row.total)
    epoch = row.epoch or 0.0
    return ProgressCount(
        epoch, epochs, min(1.0, epoch / epochs) if epochs else None, "epoch %s" % _ratio(epoch, epochs)
    )


def _has_any(line: str, signs: Sequence[str]) -> bool:
    text = line.lower()
    return any(sign in text for sign in signs)


def _ratio(done: Optional[float], of: Optional[float]) -> str:
    words = "%s" % _format_number(done or 0.0)
    return "%s/%s" % (words, _format_number(of)) if of else words


def _format_number(number: float) -> str:
    return "%d" % number if number == int(number) else "%.4g" % number


def _number(text: str) -> float:
    return min(float(text.replace(",", "")), 1e300)  # more digits than a float can have would be infinite


def split_lines(data: bytes) -> List[str]:
    """The lines of a log; what a bar draws over itself are lines as well."""
    text = data.replace(b"\0", b"").decode("utf-8", "replace")
    return [line for line in re.split(r"[\r\n]", text) if line.strip()]
