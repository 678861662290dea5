"""What the views read from logs and how they print it: tails, bars, hostile bytes, causes, reasons. No Slurm needed."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel import progress
from shoal.kernel.causes import find_cause
from shoal.kernel.log_lines import error_signature, strip_escapes
from shoal.views import pending
from shoal.views.log_files import (
    CarriageReturnFilter,
    collapse_carriage_returns,
    last_text,
    read_slice,
    seek_last_lines,
)
from shoal.views.pending import REASONS, explain_reason
from shoal.views.render import ProgressLine, cell_width, fit_cell, fit_cell_end, safe_line, table_lines, wrap_line
from shoal.views.terminal import ControlSequenceFilter, Screen, detect_screen, strip_control_sequences
from shoal.views.watch import WatchOptions, _TableRedrawer


@given(st.binary(max_size=400), st.integers(0, 12))
def test_the_last_lines_are_those_that_splitting_would_give(data: bytes, count: int) -> None:
    file = io.BytesIO(data)
    seek_last_lines(file, count)
    lines = data.split(b"\n")
    kept = lines[:-1] if data.endswith(b"\n") else lines
    expected = b"\n".join(kept[-count:]) + (b"\n" if data.endswith(b"\n") else b"") if count else data
    assert file.read() == expected


def test_the_end_of_a_ten_gigabyte_log_is_read_without_reading_the_log(tmp_path: Path) -> None:
    path = tmp_path / "huge.out"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # sparse: NULs without a line break
        file.seek(0, 2)
        file.write(b"\nRuntimeError: at the very end\n")
    assert last_text(str(path), 1) == ["RuntimeError: at the very end"]
    assert last_text(str(path), 50)[-1] == "RuntimeError: at the very end"
    data, start, size = read_slice(str(path), -40)
    assert len(data) == 40 and start == size - 40


def test_an_error_longer_than_all_that_is_read_is_told_by_its_first_words(tmp_path: Path) -> None:
    path = tmp_path / "long.out"
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
    for before in ("", "step 1\n" * 300000):
        path.write_text(f"{before}{trace}ValueError: bad config: {'x' * 200000}\n")
        lines = last_text(str(path), 200)
        assert lines[-1].startswith("ValueError: bad config: xxx") and len(lines[-1]) == 4000
        cause = find_cause(lines, 1)
        assert cause is not None and cause.line.startswith("ValueError: bad config: xxx")
    path.write_text("x" * (4 << 20) + "\nthe last line\n")
    assert last_text(str(path), 200) == ["the last line"]
    path.write_text("x" * (4 << 20))
    assert last_text(str(path), 200) == ["x" * 4000]


@given(st.lists(st.text("ab\r\n", max_size=8).map(str.encode), max_size=8))
def test_a_progress_bar_in_pieces_collapses_as_it_does_in_one(parts: list[bytes]) -> None:
    bars = CarriageReturnFilter()
    in_pieces = b"".join(bars.feed(part) for part in parts) + bars.flush()
    assert in_pieces == collapse_carriage_returns(b"".join(parts))


def test_of_a_progress_bar_only_the_last_state_is_left() -> None:
    assert collapse_carriage_returns(b"a\n 10%\r 50%\r100%\nb\r\n") == b"a\n100%\nb\n"
    bars = CarriageReturnFilter()
    assert bars.feed(b" 10%\r 5") + bars.feed(b"0%\r100%") + bars.feed(b"\nnext") + bars.flush() == b"100%\nnext"


@given(st.text(max_size=200), st.booleans())
def test_nothing_in_a_log_can_act_on_a_terminal(text: str, colour: bool) -> None:
    clean = strip_control_sequences(text + "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m", colour)
    rest = clean.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert "\x1b" not in (rest if colour and "\x1b" not in text else strip_escapes(clean))
    assert not any(ord(letter) < 32 and letter not in "\n\r\t" for letter in strip_escapes(rest))


def test_a_sequence_cut_in_two_by_a_block_is_still_taken_out() -> None:
    sieve = ControlSequenceFilter()
    parts = [b"one \x1b", b"[2", b"Jtwo \x1b[3", b"1mred\x1b[0m ", b"\xe2\x82", b"\xac"]
    assert b"".join(sieve.feed(part) for part in parts) + sieve.flush() == "one two \x1b[31mred\x1b[0m €".encode()


#: (what the log ends with, what it is, words of the line that is quoted)
ENDINGS = (
    ("Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried", "cuda_oom", "CUDA out"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0", "host_oom", "oom_kill"),
    ("OSError: [Errno 28] No space left on device: '/x'", "disk", "No space left"),
    ("OSError: [Errno 122] Disk quota exceeded", "disk", "quota"),
    ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***", "time_limit", "TIME LIMIT"),
    ("[rank3]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled", "nccl", "NCCL"),
    ("Watchdog caught collective operation timeout: WorkNCCL(...)", "nccl_timeout", "timeout"),
    ("ModuleNotFoundError: No module named 'lightning'", "import", "lightning"),
    (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:93, invalid usage\n[rank0]: Last error:\n"
        "[rank0]: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60",
        "shared_gpu",
        "rank 0 and rank 1",
    ),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda_assert", "device-side"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_error", "ECC"),
    ("Traceback (most recent call last):\nKeyError: 'lr'\nsome epilogue", "python", "KeyError: 'lr'"),
    ("ValueError: bad\ntorch.distributed.elastic.errors.ChildFailedError: x", "python", "ValueError"),
    ("terminate called without an active exception\nx.errors.ChildFailedError:", "unfinished_group", "terminate"),
    ("KeyError: 'lr'\nterminate called without an active exception", "python", "KeyError"),
    ("bash: line 3: pythn: command not found", "shell", "pythn"),
    ("Segmentation fault (core dumped)", "crash", "Segmentation"),
)


@pytest.mark.parametrize(("text", "kind", "words"), ENDINGS)
def test_the_cause_is_found_in_the_last_lines(text: str, kind: str, words: str) -> None:
    cause = find_cause(["step 1", "step 2", *text.split("\n")])
    assert cause is not None
    assert (cause.kind, words in cause.line) == (kind, True)


def test_a_log_without_an_error_has_no_cause() -> None:
    assert find_cause(["step 1 loss 0.3", "saved model", "no errors: fine"]) is None
    assert find_cause([]) is None


@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_text_is_read_without_an_error_and_quoted_harmlessly(lines: list[str]) -> None:
    cause = find_cause(lines)
    assert cause is None or (safe_line(cause.line) == cause.line and len(cause.line) <= 200)


def test_equal_errors_have_equal_signatures_whatever_their_numbers_and_paths() -> None:
    a = error_signature("CUDA out of memory. Tried to allocate 20.00 MiB at 0x7f31 in /home/a/b.py line 3")
    b = error_signature("CUDA out of memory. Tried to allocate 512.50 MiB at 0x1 in /scratch/c/d.py line 14")
    assert a == b != error_signature("KeyError: 'lr'")


def test_every_reason_word_has_a_sentence_and_unknown_ones_are_quoted() -> None:
    assert all(reason.sentence and not reason.sentence.endswith(".") for reason in REASONS.values())
    assert explain_reason("Priority").smaller and not explain_reason("JobHeldUser").moves
    assert "limit of GPUs" in explain_reason("QOSMaxGRESPerUser").sentence
    assert (
        "budget of CPU-minutes" in explain_reason("AssocGrpCPUMinutesLimit").sentence
        and not explain_reason("AssocGrpCPUMinutesLimit").moves
    )
    assert "jobs at once" in explain_reason("QOSMaxJobsPerUserLimit").sentence
    assert explain_reason("SomethingNew2031").sentence == "Slurm says SomethingNew2031"
    assert "not looked" in explain_reason(None).sentence


def test_smaller_requests_speak_the_dialect_of_the_script() -> None:
    waiting = pending.PendingJob("Resources", "gpu", 1, None, None, 7200, "1", "8", "1G", "", "")
    assert pending.smaller_requests(waiting, "#SBATCH --gres=gpu:a100:4\n") == [
        ("half the time limit (01:00:00)", "--time=01:00:00"),
        ("2 instead of 4 GPUs", "--gres=gpu:a100:2"),
    ]
    assert pending.smaller_requests(waiting, "#SBATCH --gpus-per-node=8\n")[1][1] == "--gpus-per-node=4"
    assert pending.smaller_requests(waiting._replace(time_limit_s=600), "#SBATCH --gres=gpu:1\n") == []


@pytest.mark.parametrize(
    ("line", "text", "fraction"),
    [
        ("50/200", "50/200 (25%)", 0.25),
        ("epoch 3 of 4", "epoch 3 of 4 (50%)", 0.5),
        ("41 % done", "41 % done", 0.41),
        ('{"step": 10, "total": 40, "loss": 0.5}', "step 10/40 (25%)  loss 0.5", 0.25),
        ('{"step": 10, "total": 0}', "step 10", None),
        ("{broken", "{broken", None),
        ("warming up", "warming up", None),
        ("\x1b[31mhello\x1b]0;x\x07", "hello", None),
    ],
)
def test_progress_is_understood_in_the_forms_people_write(
    line: str, text: str, fraction: float | None, tmp_path: Path
) -> None:
    (tmp_path / "progress").write_text(line + "\n")
    found = progress.read_progress(progress.RunOutput(str(tmp_path)))
    assert found is not None and (found.words, found.fraction) == (text, fraction)


def test_wide_letters_take_two_columns_and_nothing_is_cut_in_half() -> None:
    assert cell_width("日本") == 4 and cell_width("e\u0301") == 1
    assert fit_cell("日本語", 5) == "日本…" and fit_cell("abc", 5) == "abc  "
    assert (
        fit_cell_end("001_a/000_train_12", 8) == "…rain_12"
        and fit_cell_end("日本語", 5) == "…本語"
        and fit_cell_end("ab", 3) == "ab "
    )
    assert safe_line("a\x1b[2Jb\u202ec\0") == "a [2Jb c "


def test_marks_that_python_does_not_call_combining_take_no_column_and_brackets_are_text() -> None:
    assert [cell_width(word) for word in ("ที่", "❤\ufe0f", "한글")] == [1, 2, 4]
    table = table_lines(("RUN", "STATE"), [("ที่", "completed"), ("[bold]ab[/]", "completed")], Screen(tty=True))
    assert table == ["RUN          STATE", "ที่            completed", "[bold]ab[/]  completed"]


def strip_colours(text: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", text)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@given(st.text(alphabet=" aB漢\u0301", max_size=300), st.integers(20, 60))
def test_a_long_line_is_broken_without_losing_a_word(line: str, width: int) -> None:
    screen = Screen(tty=True, width=width)
    lines = wrap_line(line, screen)
    assert " ".join(lines).split() == line.split()
    longest = max((cell_width(word) for word in line.split()), default=0)
    if longest <= width - 4:
        assert max(map(cell_width, lines)) <= width
    assert wrap_line(line, screen._replace(tty=False)) == [line]


def test_painted_words_take_no_more_room_than_others() -> None:
    screen = Screen(tty=True, width=30, colour=True)
    line = f"12 runs   {screen.paint('1 failed', '31')}  {screen.paint('2 done', '32')}   3 GPUs busy"
    assert wrap_line(line, screen) == [line[: line.index("   3")], "    3 GPUs busy"]


def test_a_line_of_progress_is_drawn_over_itself_and_gone_at_the_end_and_only_where_it_is_wanted() -> None:
    def drawn(terminal: io.StringIO | None = None, off: bool = False, **environ: str) -> str:
        stream, now = Terminal() if terminal is None else terminal, [0.0]
        env = {"TERM": "xterm", "COLUMNS": "80", **environ}
        with ProgressLine("packing", off=off, stream=stream, environ=env, clock=lambda: now[0]) as line:
            for done in range(100):
                now[0] += 1
                line(done, 200)
        return stream.getvalue()

    shown = strip_colours(drawn())
    assert "\r\x1b[2Kpacking  49% ━━━━━━━━━━ 98 of 200  1/s" in shown.replace("╺", "━").replace("╸", "━")
    assert shown.endswith("\n\r\x1b[1A\x1b[2K") and shown.count("\n") == 1, "nothing is left of it"
    assert max(map(cell_width, shown.split("\r"))) < 90 and "\x1b[?25" not in shown, "the cursor is never hidden"
    bare = drawn(NO_COLOR="1")
    assert bare == strip_colours(bare) and "packing  49% ━━━━" in bare
    assert "packing" not in drawn(COLUMNS="20") and "pack" in drawn(COLUMNS="20")
    silent = (drawn(off=True), drawn(SHOAL_NO_PROGRESS="1"), drawn(io.StringIO()))
    assert silent == ("", "", "")
    read = drawn(ACCESSIBLE="1")
    assert read.count("still working: packing") == 3 and "\r" not in read and "\x1b" not in read


def test_the_screen_obeys_the_usual_variables() -> None:
    out = io.StringIO()
    assert not detect_screen(out, {}).tty and not detect_screen(out, {}).colour
    assert detect_screen(out, {"COLUMNS": "80"}, force=True)[:3] == (True, 80, True)
    assert not detect_screen(out, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, force=True).colour
    assert detect_screen(out, {"FORCE_COLOR": "1"}).colour
    assert not detect_screen(out, {"TERM": "dumb"}, force=True).colour
    assert detect_screen(out, {"ACCESSIBLE": "1"}).accessible


def test_a_redraw_goes_up_by_the_rows_that_long_lines_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    drawer = _TableRedrawer(Screen(tty=True, width=20), WatchOptions())
    drawer._draw(["x" * 45, "y", ""])
    drawer._draw(["z"])
    assert capsys.readouterr().out.endswith("\n\x1b[5A\r\x1b[Jz\n"), "three rows, one, and an empty one"


def test_jobs_before_a_pending_one_are_counted_by_task() -> None:
    queue = "100|7|N/A\n50|8|0\n50|8|1\n50|8|2\n50|9|N/A\n10|5|N/A\n\n"
    assert pending.count_jobs_before(queue, "8_2", 50) == (3, 2)
    assert pending.count_jobs_before(queue, "8_0", 50) == (1, 0)
    assert pending.count_jobs_before(queue, "9", 50) == (4, 0) and pending.count_jobs_before(queue, "7", 100) == (
        0,
        0,
    )
