"""Variables that give trackers the run's name: W&B, MLflow, TensorBoard, Comet; `SHOAL_TRACKER_ID` for all others.

A value that the user set stays. An MLflow run can only be continued by an id that its server chose: from attempt 2 on,
`python AGENT mlflow COMMAND...` looks the id up by its tag in the run's own Python, and becomes the command.
"""

import hashlib
import importlib
import json
import os
import signal
import sys
import threading
from typing import Any, Dict, List, Mapping, MutableMapping, Optional

#: The names that shoal set, so that a run that is submitted inside a run does not take them for the user's.
NAMES_VARIABLE = "SHOAL_TRACKER_VARIABLES"
TRACKER_ID_VARIABLE = "SHOAL_TRACKER_ID"
_MLFLOW_TAG = "shoal.tracker_id"
#: How long an MLflow server may take to answer, unless SHOAL_MLFLOW_S says otherwise.
MLFLOW_TIMEOUT_S = 2.0
#: W&B refuses longer tags.
_MAX_TAG_LENGTH = 64
#: Where MLflow keeps runs in the working directory, if no server is named.
_MLFLOW_STORES = ("mlruns", "mlflow.db")


def remove_inherited(env: MutableMapping[str, str]) -> None:
    """Forget what shoal set for the run in which this one was submitted."""
    for name in env.pop(NAMES_VARIABLE, "").split():
        env.pop(name, None)


def set_tracker_variables(env: MutableMapping[str, str], spec: Mapping[str, Any], output_dir: str, commit: str) -> None:
    """Add what trackers read to a run's environment, where the user has not set it. What is set to nothing is removed:
    Comet refuses an empty key."""
    env[TRACKER_ID_VARIABLE] = spec["tracker_id"]
    known = _tracker_variables(spec, output_dir, commit)
    added = {name: value for name, value in known.items() if name not in env}
    for name in [name for name in known if env.get(name) == ""]:
        del env[name]
    if "MLFLOW_EXPERIMENT_ID" in env:
        # MLflow fails if name and id are not the same experiment's.
        added.pop("MLFLOW_EXPERIMENT_NAME", None)
    env.update(added)
    env[NAMES_VARIABLE] = " ".join(sorted(added))


def _tracker_variables(spec: Mapping[str, Any], output_dir: str, commit: str) -> Dict[str, str]:
    experiment, tracker_id = spec["experiment"], spec["tracker_id"]
    name = "%s/%s" % (experiment, spec["stem"])
    tags = [experiment, spec["step"], *([] if spec.get("seed") is None else ["seed%s" % spec["seed"]])]
    context = {"mlflow.runName": name, "shoal.run": name, _MLFLOW_TAG: tracker_id}
    found = {
        "WANDB_RUN_ID": tracker_id,
        "WANDB_NAME": name,
        "WANDB_RUN_GROUP": experiment,
        "WANDB_JOB_TYPE": spec["step"],
        "WANDB_TAGS": ",".join(tag for tag in tags if "," not in tag and len(tag) <= _MAX_TAG_LENGTH),
        "WANDB_RESUME": "allow",
        "WANDB_DIR": output_dir,
        "MLFLOW_EXPERIMENT_NAME": experiment,
        "MLFLOW_RUN_CONTEXT": json.dumps(context),
        "TENSORBOARD_LOGGING_DIR": os.path.join(output_dir, "tensorboard"),
        # 32 to 50 letters and digits; tracker ids have other characters.
        "COMET_EXPERIMENT_KEY": hashlib.sha256(tracker_id.encode("utf-8")).hexdigest()[:40],
        "COMET_EXPERIMENT_NAME": name,
        "COMET_START_EXPERIMENT_NAME": name,  # comet_ml.start reads this one
        "COMET_PROJECT_NAME": experiment,
        "COMET_OFFLINE_DIRECTORY": os.path.join(output_dir, "comet"),
    }
    if commit:
        found["WANDB_GIT_COMMIT"] = commit
    return found


def continues_mlflow_run(env: Mapping[str, str], attempt: int, cwd: str) -> bool:
    """Whether an earlier attempt may have an MLflow run that this one should continue."""
    if attempt < 2 or env.get("MLFLOW_RUN_ID") or "MLFLOW_RUN_CONTEXT" not in env.get(NAMES_VARIABLE, ""):
        return False
    if env.get("MLFLOW_TRACKING_URI"):
        return True
    return any(os.path.exists(os.path.join(cwd, name)) for name in _MLFLOW_STORES)


def main(argv: List[str]) -> int:
    """Become the command `argv`, with MLFLOW_RUN_ID if MLflow has a run of this tracker id. A failed search is told,
    and ends nothing."""
    # The default action of the warning signal would end the program before it begins.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    run_id = _find_mlflow_run(os.environ[TRACKER_ID_VARIABLE])
    if run_id is not None:
        os.environ["MLFLOW_RUN_ID"] = run_id
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606
    except OSError as error:
        print("shoal: cannot start %s: %s" % (argv[0], error.strerror), file=sys.stderr, flush=True)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _find_mlflow_run(tracker_id: str) -> Optional[str]:
    """The id of the newest MLflow run with this tracker id; None without MLflow or an answer in time."""
    try:
        client_class = importlib.import_module("mlflow.tracking").MlflowClient
    except Exception:  # without MLflow, or one that does not work here
        return None
    found: List[Optional[str]] = []
    problems: List[str] = []
    try:
        timeout_s = float(os.environ.get("SHOAL_MLFLOW_S") or MLFLOW_TIMEOUT_S)
    except ValueError:
        timeout_s = MLFLOW_TIMEOUT_S

    def search() -> None:
        try:
            client = client_class()
            ids = [one.experiment_id for one in client.search_experiments(max_results=1000)]
            runs = client.search_runs(ids, "tags.`%s` = '%s'" % (_MLFLOW_TAG, tracker_id), max_results=1) if ids else []
            found.append(runs[0].info.run_id if runs else None)
        except Exception as error:
            problems.append("%s: %s" % (type(error).__name__, str(error).split("\n")[0][:200]))

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not found:
        reason = problems[0] if problems else "no answer within %g s" % timeout_s
        print(
            "shoal: this attempt is a new MLflow run: cannot search for the earlier one: %s" % reason, file=sys.stderr
        )
        return None
    return found[0]
