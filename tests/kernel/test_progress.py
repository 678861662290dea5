"""One reader of progress and metrics, on output in the formats of real programs, real bars and real loggers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.progress import Progress, RunOutput, parse_progress, read_metrics, read_progress, read_series

#: The first lines that nanoGPT prints: the file of settings as it is, and then what the command line changes.
NANOGPT = """\
Overriding config with config/train_tiny.py:
eval_interval = 10
gradient_accumulation_steps = 1
max_iters = 5000
lr_decay_iters = 5000

Overriding: max_iters = 40
tokens per iteration will be: 16,384
number of parameters: 10.65M
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2649, time 40.10ms, mfu -100.00%
iter 20: loss 3.1001, time 2.61ms, mfu 0.00%
step 20: train loss 3.0011, val loss 3.0522
iter 29: loss 2.9001, time 2.61ms, mfu 0.00%
"""

#: Hugging Face's trainer: settings, a bar for all steps, records of metrics, and bars of evaluation inside it.
HF_HEAD = """\
TrainingArguments(
_n_gpu=0,
eval_steps=None,
logging_steps=10,
max_steps=-1,
num_train_epochs=3.0,
warmup_steps=0,
)
[INFO|trainer.py:2519] 2026-11-16 10:00:00,000 >> ***** Running training *****
[INFO|trainer.py:2520] 2026-11-16 10:00:00,000 >>   Num examples = 80
[INFO|trainer.py:2521] 2026-11-16 10:00:00,000 >>   Num Epochs = 3
[INFO|trainer.py:2525] 2026-11-16 10:00:00,000 >>   Gradient Accumulation steps = 1
[INFO|trainer.py:2526] 2026-11-16 10:00:00,000 >>   Total optimization steps = 30
"""
HF_BARS = (
    "\r  0%|          | 0/30 [00:00<?, ?it/s]\r 33%|███▎      | 10/30 [00:05<00:10,  1.90it/s]"
    "\n\r  0%|          | 0/13 [00:00<?, ?it/s]\x1b[A\n\r 54%|█████▍    | 7/13 [00:00<00:00, 50.00it/s]\x1b[A"
)

#: timm's train.py: epochs count from 0, and their number is said once.
TIMM = """\
Training with a single process on 1 device (cuda:0).
Scheduled epochs: 10. LR stepped per epoch.
Train: 0 [   0/312 (  0%)]  Loss: 6.94 (6.94)  Time: 1.2s,  210.10/s  LR: 1.000e-05  Data: 0.8 (0.8)
Test: [   0/78]  Time: 0.514 (0.514)  Loss:   6.901 ( 6.901)  Acc@1:   0.781 (  0.781)  Acc@5:   2.344 (  2.344)
Test: [  78/78]  Time: 0.014 (0.114)  Loss:   6.907 ( 6.890)  Acc@1:   0.000 (  0.500)  Acc@5:   0.000 (  1.500)
 *** Best metric: 0.5 (epoch 0)
Train: 4 [ 156/312 ( 50%)]  Loss: 5.01 (5.20)  Time: 0.3s,  850.10/s  LR: 1.000e-03  Data: 0.0 (0.1)
Test: [  10/78]  Time: 0.514 (0.514)  Loss:   4.901 ( 4.901)  Acc@1:   10.781 (  10.781)  Acc@5:   22.344 (  22.344)
"""


def output(tmp_path: Path, log: str = "", **known: object) -> RunOutput:
    path = tmp_path / "attempt-1.out"
    path.write_bytes(log.encode())
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    return RunOutput(str(folder), [str(path)], **known)  # type: ignore[arg-type]


def progress(tmp_path: Path, log: str, **known: object) -> Progress:
    found = read_progress(output(tmp_path, log, **known))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("log", "known", "words"),
    [
        (NANOGPT, {}, "step 29/40 (72%)"),
        (HF_HEAD + HF_BARS, {}, "step 10/30 (33%)"),
        ("{'loss': 2.3, 'grad_norm': 1.1, 'epoch': 1.5}\n", {"epochs": 3.0}, "epoch 1.5/3 (50%)"),
        ("{'loss': '2.3', 'learning_rate': '4e-05', 'epoch': '1.5'}\n", {"epochs": 3.0}, "epoch 1.5/3 (50%)"),
        (TIMM, {}, "epoch 4/10, 156/312 (45%)"),
        ("Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.3\nTrain Epoch: 2 [30000/60000 (50%)]\tLoss: 0.1\n", {"epochs": 4.0},
         "epoch 2/4, 30000/60000 (37%)"),
        ("Epoch: [0][  1/5005]\tTime  5.8\nEpoch: [1][ 2002/5005]\tTime  0.2\nTest: [ 10/391]\tTime  0.3\n",
         {"epochs": 90.0}, "epoch 1/90, 2002/5005 (1%)"),
        ("| epoch   1 |    60/  120 batches | lr 20.00 | loss  0.26 | ppl     1.29\n"
         "| end of epoch   1 | time: 10.71s | valid loss  0.17 |\n", {"epochs": 4.0}, "epoch 1/4 (25%)"),
        ("[0/25][10/782] Loss_D: 1.2\n[5/25][391/782] Loss_D: 1.2 Loss_G: 3.1\n", {"epochs": 25.0},
         "epoch 5/25, 391/782 (22%)"),
        ("Epoch 0/4\nEpoch 3/4  \x1b[35m━━━━\x1b[0m\x1b[90m╺━━━\x1b[0m 20/40 \x1b[2m0:00:00 • 0:00:01\x1b[0m\n", {},
         "epoch 3/4, 20/40 (70%)"),
        ("step 17/30\n", {}, "step 17/30 (56%)"),
        ("step 700/1000\nBest checkpoint was step 200/1000\n", {}, "step 700/1000 (70%)"),
        ("Epoch 9/10\nrestored best weights from epoch 3/10\n", {}, "epoch 9/10 (80%)"),
        ("best 0.91 | step 10/100\n", {}, "step 10/100 (10%)"),
        ("step 12 of 1e5\n", {}, "step 12/100000 (0%)"),
        ("max_steps = 1.5e3\niter: 1e3\n", {}, "step 1000/1500 (66%)"),
        ("2026/11/16 10:00:00 - mmengine - INFO - Epoch(train) [1][500/500]  lr: 1.0e-03  loss: 0.3\n"
         "2026/11/16 10:01:00 - mmengine - INFO - Epoch(train) [3][100/500]  lr: 1.0e-03  loss: 0.3\n",
         {"epochs": 10.0}, "epoch 3/10, 100/500 (22%)"),
        ("2026/11/16 10:00:00 - mmengine - INFO - Iter(train) [  100/40000]  lr: 1.0e-03\n", {}, "step 100/40000"),
    ],
)  # fmt: skip
def test_progress_is_found_in_what_real_programs_print(
    log: str, known: dict[str, object], words: str, tmp_path: Path
) -> None:
    assert progress(tmp_path, log, **known).words.startswith(words)


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(batch_size=64, epochs=14, lr=1.0, steps=500)",
        "  max_epochs: 10",
        "Test set: Average loss: 0.0271, Accuracy: 9912/10000 (99%)",
        "Test: [  10/78]  Time: 0.514 (0.514)",
        "Num Epochs = 3",
        "Evaluating:  50%|#####     | 5/10 [00:00<00:00]",
        "Warmup:  50%|#####     | 5/10 [00:00<00:00]",
        "tokens per iteration will be: 16,384",
        "Epoch time = 30.1s",
        "batch = 256",
        "tokens/batch 4096",
        "Samples/step 128",
        "Best checkpoint was step 200/1000",
        "restored best weights from epoch 3/10",
        "Loaded model weights from step 90000/100000",
        " *** Best metric: 0.5 (epoch 0)",
        "Epoch(val) [3][50/50]  acc: 0.9",
    ],
)
def test_settings_and_other_counts_are_no_progress(line: str) -> None:
    assert parse_progress(line) is None


def test_a_bar_of_one_epoch_is_not_the_progress_of_the_run(tmp_path: Path) -> None:
    """Real bars: one inside another, and one for each epoch, seen in the first epoch and in a later one."""
    program = (
        "import os, sys, time\nfrom tqdm import tqdm\nkind, until = sys.argv[1], int(sys.argv[2])\n"
        "for epoch in (tqdm(range(10), mininterval=0) if kind == 'nested' else range(10)):\n"
        "    for batch in tqdm(range(50), mininterval=0):\n"
        "        if epoch == until and batch == 25: sys.stderr.flush(); os._exit(0)\n"
    )

    def printed(kind: str, until: int) -> str:
        words = [sys.executable, "-c", program, kind, str(until)]
        done = subprocess.run(words, capture_output=True, check=True, timeout=300)
        return done.stderr.decode()

    assert progress(tmp_path, printed("nested", 4)).words == "step 4/10 (40%)"
    later = progress(tmp_path, printed("flat", 3))
    assert (later.fraction, later.words) == (None, "25/50 of an epoch")
    first = printed("flat", 0)
    assert progress(tmp_path, first, epochs=10.0).fraction is None
    assert progress(tmp_path, first, steps=50.0).fraction == 0.5


def test_a_real_bar_of_rich_is_read(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom rich.progress import Progress, BarColumn, TaskProgressColumn, MofNCompleteColumn\n"
        "from rich.console import Console\n"
        "last = MofNCompleteColumn() if sys.argv[1] == 'count' else TaskProgressColumn()\n"
        "with Progress('Training', BarColumn(), last, console=Console(force_terminal=True, width=90)) as bar:\n"
        "    bar.update(bar.add_task('x', total=40), completed=20); bar.refresh(); os._exit(0)\n"
    )
    for column, words in (("count", "step 20/40 (50%)"), ("percent", "50%")):
        done = subprocess.run([sys.executable, "-c", program, column], capture_output=True, check=True, timeout=300)
        assert progress(tmp_path, done.stdout.decode()).words == words


@pytest.mark.slow
def test_real_bars_of_rich_are_read_where_the_program_does_nothing_for_it(tmp_path: Path) -> None:
    """TTY_COMPATIBLE=1 makes rich draw in a log; a bar around others is the run's own."""
    program = (
        "import os, sys\nfrom rich.progress import Progress, track\n"
        "if sys.argv[1] == 'track':\n"
        "    for step in track(range(100), update_period=0.001):\n"
        "        step < 40 or __import__('time').sleep(0.2) or os._exit(0)\n"
        "with Progress(auto_refresh=False) as bars:\n"
        "    epochs = bars.add_task('Epochs', total=10)\n"
        "    for epoch in range(10):\n"
        "        batches = bars.add_task('Batches', total=50)\n"
        "        for batch in range(50):\n"
        "            bars.advance(batches); bars.refresh()\n"
        "            epoch == 4 and batch == 25 and os._exit(0)\n"
        "        bars.remove_task(batches); bars.advance(epochs)\n"
    )

    def printed(kind: str, **env: str) -> str:
        words, environ = [sys.executable, "-c", program, kind], {**os.environ, "TERM": "xterm", **env}
        return subprocess.run(words, capture_output=True, check=True, timeout=300, env=environ).stdout.decode()

    assert progress(tmp_path, printed("track", TTY_COMPATIBLE="1")).words == "40%"
    for epochs in (None, 10.0):
        assert progress(tmp_path, printed("two", TTY_COMPATIBLE="1"), epochs=epochs).words == "40%"
    assert printed("track") == "", "rich draws in a log now: docs/looking.md says it does not"


def test_hugging_face_files_tell_progress_and_metrics(tmp_path: Path) -> None:
    where = output(tmp_path, "{'loss': 9.0, 'epoch': 0.5}\n")
    history = [{"epoch": 1.0, "step": 10, "loss": 2.5}, {"epoch": 2.0, "step": 20, "loss": 2.1, "eval_loss": 2.2}]
    for number, rows in ((10, history[:1]), (20, history)):
        folder = Path(where.folder) / "model" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        state = {"global_step": number, "max_steps": 30, "epoch": number / 10, "log_history": rows}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        os.utime(folder / "trainer_state.json", (1e9 + number, 1e9 + number))
    found = read_progress(where._replace(logs=[]))
    assert found is not None and (found.words, found.source) == ("step 20/30 (66%)", "trainer_state.json")
    results = {"epoch": 3.0, "eval_loss": 2.0, "perplexity": 7.4, "train_runtime": 12.5}
    (Path(where.folder) / "model" / "all_results.json").write_text(json.dumps(results))
    assert read_metrics(where) == {"loss": 2.1, "eval_loss": 2.0, "perplexity": 7.4, "train_runtime": 12.5}
    assert read_series(where)["loss"] == [[10.0, 2.5], [20.0, 2.1]]


def test_timms_summary_has_a_row_for_each_finished_epoch(tmp_path: Path) -> None:
    where = output(tmp_path, epochs=4.0)
    folder = Path(where.folder) / "output" / "train" / "20261116-100000-resnet18"
    folder.mkdir(parents=True)
    header = "epoch,train_loss,eval_loss,eval_top1,eval_top5,lr\n"
    (folder / "summary.csv").write_text(header + "0,6.9,6.8,0.5,1.5,1e-05\n1,6.1,6.0,4.5,9.5,0.001\n2,5.0,")
    found = read_progress(where)
    assert found is not None and found.words == "epoch 2/4 (50%)"
    assert read_metrics(where) == {"train_loss": 6.1, "eval_loss": 6.0, "eval_top1": 4.5, "eval_top5": 9.5, "lr": 0.001}


@pytest.mark.slow
def test_lightnings_own_bars_and_files_are_read(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys, torch, lightning as L\n"
        "from lightning.pytorch.callbacks import TQDMProgressBar\n"
        "from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger\n"
        "class Model(L.LightningModule):\n"
        "    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 1)\n"
        "    def training_step(self, batch, index):\n"
        "        if self.current_epoch == 2 and index == 6: sys.stdout.flush(); os._exit(0)\n"
        "        loss = self.layer(batch[0]).pow(2).mean(); self.log('train/loss', loss); return loss\n"
        "    def validation_step(self, batch, index): self.log('val/loss', self.layer(batch[0]).pow(2).mean())\n"
        "    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 1e-3)\n"
        "def data(): return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 4)\n"
        "loggers = [CSVLogger('.', flush_logs_every_n_steps=1), TensorBoardLogger('.', name='tb')]\n"
        "L.Trainer(max_epochs=4, logger=loggers,\n"
        "    callbacks=[TQDMProgressBar(refresh_rate=1)], accelerator='cpu', log_every_n_steps=1,\n"
        "    enable_model_summary=False).fit(Model(), data(), data())\n"
    )
    where = output(tmp_path, epochs=4.0)
    words = [sys.executable, str(program)]
    with Path(where.logs[0]).open("wb") as log:
        subprocess.run(words, cwd=where.folder, stdout=log, stderr=log, timeout=300, check=True)
    found = read_progress(where)
    assert found is not None and found.source == "log" and 0.6 <= (found.fraction or 0) <= 0.65
    without_log = read_progress(where._replace(logs=[]))
    assert without_log is not None and (without_log.fraction, without_log.source) == (0.5, "metrics.csv")
    assert set(read_metrics(where)) == {"train/loss", "val/loss"}
    series = read_series(where)
    assert [step for step, _ in series["val/loss"]] == [9.0, 19.0] and len(series["train/loss"]) >= 20


def test_printed_values_count_where_a_step_names_them(tmp_path: Path) -> None:
    where = output(tmp_path, NANOGPT)
    assert read_metrics(where) == {}
    where = where._replace(metrics=["val loss", "loss", "mfu"])
    assert read_metrics(where) == {"val loss": 3.0522, "loss": 2.9001, "mfu": 0.0}
    assert read_series(where)["val loss"] == [[0.0, 4.2823], [20.0, 3.0522]]
    mnist = output(tmp_path, "Test set: Average loss: 0.0271, Accuracy: 9912/10000 (99%)\n", metrics=["Accuracy"])
    assert read_metrics(mnist) == {"Accuracy": 0.9912}
    (Path(where.folder) / "metrics.json").write_text('{"val loss": 1.0}')
    assert read_metrics(where)["val loss"] == 1.0


def test_metrics_jsonl_tells_progress_where_nothing_else_does(tmp_path: Path) -> None:
    where = output(tmp_path, "loading\n", steps=200.0)
    (Path(where.folder) / "metrics.jsonl").write_text('{"step": 10, "loss": 2}\n{"step": 50, "loss": 1}\n{"step": 6')
    found = read_progress(where)
    assert found is not None and (found.words, found.source) == ("step 50/200 (25%)", "metrics.jsonl")
    assert read_metrics(where) == {"loss": 1.0}


@pytest.mark.parametrize("last", ["null", '"NaN"', "NaN", "Infinity", "1" + 400 * "0", '"0.5"'])
def test_a_metric_that_was_lost_does_not_keep_its_old_value(last: str, tmp_path: Path) -> None:
    """null is how orjson writes a NaN."""
    where = output(tmp_path)
    (Path(where.folder) / "metrics.jsonl").write_text(f'{{"step": 1, "acc": 0.9}}\n{{"step": 2, "acc": {last}}}\n')
    found = read_metrics(where)["acc"]
    assert found == 0.5 if last == '"0.5"' else not math.isfinite(found)
    (Path(where.folder) / "metrics.json").write_text(f'{{"top": {{"acc": {last}}}, "name": "first"}}')
    assert set(read_metrics(where)) == {"acc", "top.acc"}


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("loss NaN", "nan"), ("loss -nan", "nan"), ("loss: Infinity", "inf"), ("loss=-INF", "-inf"),
        ("loss None", "nan"),
        ("loss tensor(0.25, device='cuda:0')", "0.25"), ("loss: np.float32(0.25)", "0.25"), ("loss 1,234.5", "1234.5"),
        ("loss 1,234, acc 3", "1234.0"), ("loss 3,acc 4", "3.0"), ("loss 1e-3", "0.001"), ("loss information", "0.5"),
    ],
)  # fmt: skip
def test_a_printed_value_is_read_however_it_is_written(printed: str, value: str, tmp_path: Path) -> None:
    where = output(tmp_path, f"step 1 loss 0.5\nstep 2 {printed}\n", metrics=["loss"])
    assert repr(read_metrics(where)["loss"]) == value


def test_the_end_of_a_long_log_is_enough_and_a_line_cut_in_half_does_not_count(tmp_path: Path) -> None:
    bars = "".join(f"\r{number // 100:3}%|###       | {number}/10000 [00:10<00:12]" for number in range(9000))
    assert progress(tmp_path, bars).words == "step 8999/10000 (89%)"


@given(st.text(max_size=400))
def test_no_text_breaks_the_reader(text: str) -> None:
    parse_progress(text)
    parse_progress(text, epochs=3.0, plain=True, first_epoch=0)
