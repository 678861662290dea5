"""What the source of a script's Python program shows. It is read, never imported or run."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_BYTES = 400_000
_RANK = re.compile(r"\brank\b|local_rank|is_main|main_process|is_master|global_zero|LOCAL_RANK|PROCID|rank_zero", re.I)
_RESUME = re.compile(r"resume|ckpt_path|load_checkpoint|latest_checkpoint|restore|last\.ckpt|auto_resume", re.I)
_FREE_PORT = re.compile(r"\b(?:find_free_port|get_free_port|free_port|get_open_port)\s*\(|bind\(\(\s*['\"]{2}\s*,\s*0")
#: Modules of the project that a program imports are read as well, up to this many.
_MAX_MODULES = 40
_RUNS_LIGHTNING = re.compile(r"\b(?:Trainer|LightningCLI|Fabric)\s*\(")
_HF_TRAINER = re.compile(r"\b(?:Seq2Seq|SFT|DPO|Reward)?Trainer\s*\(")
_LIGHTNING = frozenset({"lightning", "pytorch_lightning", "lightning_fabric"})
#: Libraries that start the processes of a training themselves, or spread one over all GPUs.
_SELF_STARTING = frozenset(
    {"ray", "vllm", "submitit", "transformers", "accelerate", "deepspeed", "jax", "tensorflow", "keras", "horovod",
     "detectron2", "mmengine", "mmcv", "composer", "ultralytics", "colossalai", "trl", "unsloth", "stable_baselines3"}
)  # fmt: skip
#: Any of these may bring further GPUs into play, so nobody can say that a program uses one alone.
_SEVERAL_GPUS = re.compile(
    r"parallel|distributed|process_group|device_count|cuda:(?!0)|cuda\(\w|device_map|rank\b|world|fsdp|shard|nccl"
    r"|trainer|fabric|accelerat|deepspeed|horovod|torchft|\bjax\b|\bray\b|subprocess|Popen|spawn|VISIBLE_DEVICES"
    r"|PROCID|LOCALID|mpi4py|ARRAY_TASK", re.I
)  # fmt: skip


_PROCESS_STARTERS = frozenset(
    {"mp.Process", "multiprocessing.Process", "notebook_launcher", "launch", "DataParallel", "nn.DataParallel",
     "torch.nn.DataParallel"}
)  # fmt: skip


class PythonHints(NamedTuple):
    """Facts of one file; a number is None when it is not written out. `leaves_line` is where a handler of a signal ends
    the process on the spot; `trains_alone` is a training loop without a word of a second GPU. `unread` says why there
    are none."""

    path: str = ""
    imports: frozenset[str] = frozenset()
    devices: int | None = None
    num_nodes: int | None = None
    max_workers: int | None = None
    cpu_count_line: int | None = None
    set_device_line: int | None = None
    wandb_line: int | None = None
    signals: tuple[str, ...] = ()
    spawns: bool = False
    inits_group: bool = False
    free_port: bool = False
    resumes: bool = False
    leaves_line: int | None = None
    trains_alone: bool = False
    uses_hf_trainer: bool = False
    unread: str = ""
    #: The module of the project that brings Lightning, where the program itself does not.
    lightning_module: str = ""

    @property
    def is_lightning(self) -> bool:
        return bool(self.imports & _LIGHTNING) or bool(self.lightning_module)

    @property
    def starts_processes(self) -> bool:
        """It starts its own processes, or one of its libraries may."""
        return self.spawns or bool(self.imports & _SELF_STARTING)

    @property
    def is_jax(self) -> bool:
        return "jax" in self.imports


def find_program(program: str, module: str | None, folders: Sequence[Path]) -> Path | None:
    """The file of a program or module, if it lies in one of the folders from which the script may run."""
    if module:
        program = module.replace(".", "/") + ".py"
    if not program.endswith(".py") or "$" in program:
        return None
    for folder in folders:
        path = folder / program
        try:
            if path.is_file():
                return path
        except OSError:
            continue
    return None


def read_program(path: Path) -> PythonHints:
    """Hints of a Python file and of the modules of its project that it imports; never fails."""
    read = _read_tree(path)
    if isinstance(read, str):
        return PythonHints(path=str(path), unread=read)
    return _add_modules(find_hints(*read, str(path)), *read, path)


def _read_tree(path: Path) -> tuple[ast.Module, str] | str:
    """The parsed file and its text, or why there is none."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return "it is very long"
        text = path.read_bytes().decode("utf-8", "replace")
        with _WarningsIgnored():
            return ast.parse(text), text
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def _add_modules(program: PythonHints, tree: ast.Module, text: str, path: Path) -> PythonHints:
    """The hints of a program together with those of the project's own modules behind its imports.

    Only what changes the verdict on a launch is taken over: Lightning, its numbers, process groups, own processes.
    """
    seen, waiting = {path.resolve()}, list(_local_modules(tree, path, path.parent))
    found, trains_alone, several = program, program.trains_alone, bool(_SEVERAL_GPUS.search(text))
    while waiting and len(seen) < _MAX_MODULES:
        module = waiting.pop(0)
        read = None if module.resolve() in seen else _read_tree(module)
        seen.add(module.resolve())
        if read is None or isinstance(read, str):
            continue
        hints = find_hints(*read, str(module))
        waiting += _local_modules(read[0], module, path.parent)
        trains_alone = trains_alone or hints.trains_alone
        several = several or bool(_SEVERAL_GPUS.search(read[1]))
        brings = hints.imports & _LIGHTNING and _RUNS_LIGHTNING.search(read[1]) and not found.is_lightning
        found = found._replace(
            lightning_module=os.path.relpath(module, path.parent) if brings else found.lightning_module,
            devices=found.devices if found.devices is not None else hints.devices,
            num_nodes=found.num_nodes if found.num_nodes is not None else hints.num_nodes,
            spawns=found.spawns or hints.spawns,
            inits_group=found.inits_group or hints.inits_group,
            imports=found.imports | (hints.imports & _SELF_STARTING),
        )
    return found._replace(trains_alone=trains_alone and not several)


def _local_modules(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    """The files behind a file's imports, as far as they lie beside the program or above the file."""
    for node in ast.walk(tree):
        names: list[str] = []
        base = root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = path.parents[node.level - 1] if node.level <= len(path.parents) else root
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
        for name in filter(None, names):
            for folder in dict.fromkeys((base, root.parent, root / "src", root.parent / "src")):
                place = folder / name.replace(".", "/")
                file = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
                if file is not None:
                    yield file
                    break


class _WarningsIgnored:
    """Strange escapes in other people's files are not our news."""

    def __enter__(self) -> None:
        import warnings

        self.context = warnings.catch_warnings()
        self.context.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *details: object) -> None:
        self.context.__exit__(None, None, None)


def find_hints(tree: ast.Module, text: str, path: str) -> PythonHints:
    """Pure part of the above."""
    found = _HintVisitor()
    found.visit_all(tree)
    return PythonHints(
        path=path,
        imports=frozenset(found.imports),
        devices=found.devices,
        num_nodes=found.num_nodes,
        max_workers=max(found.workers, default=None),
        cpu_count_line=None if "sched_getaffinity" in text else found.cpu_count_line,
        set_device_line=found.set_device_line,
        wandb_line=found.wandb_line if not _RANK.search(text) else None,
        signals=tuple(sorted(found.signals)),
        spawns=found.spawns,
        inits_group="init_process_group" in text,
        free_port=bool(_FREE_PORT.search(text)),
        resumes=bool(_RESUME.search(text)),
        leaves_line=found.leaves_line(),
        uses_hf_trainer=bool(found.imports & {"transformers", "trl"} and _HF_TRAINER.search(text))
        and "device_map" not in text,
        trains_alone=".backward(" in text and "torch" in found.imports and not _SEVERAL_GPUS.search(text),
    )


class _HintVisitor:
    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.signals: set[str] = set()
        self.workers: list[int] = []
        self.devices: int | None = None
        self.num_nodes: int | None = None
        self.cpu_count_line: int | None = None
        self.set_device_line: int | None = None
        self.wandb_line: int | None = None
        self.spawns = False
        self.handlers: list[ast.expr] = []
        self.leaving: dict[str, int] = {}

    def visit_all(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.imports |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.imports.add(node.module.split(".")[0])
            elif isinstance(node, ast.FunctionDef) and (line := _unconditional_exit_line(node)) is not None:
                self.leaving[node.name] = line
            elif isinstance(node, ast.Call):
                self._call(node)

    def leaves_line(self) -> int | None:
        """The line on which a handler of SIGTERM, SIGUSR1 or the like ends its process, if one does."""
        for handler in self.handlers:
            line = _unconditional_exit_line(handler) if isinstance(handler, ast.Lambda) else None
            line = line or self.leaving.get(_dotted_name(handler).rsplit(".", 1)[-1])
            if line is not None:
                return line
        return None

    def _call(self, node: ast.Call) -> None:
        name = _dotted_name(node.func)
        last = name.rsplit(".", 1)[-1]
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if last in ("Trainer", "Fabric"):
            self.devices = _integer_literal(keywords.get("devices")) or _integer_literal(keywords.get("gpus"))
            self.num_nodes = _integer_literal(keywords.get("num_nodes"))
            strategy = keywords.get("strategy")
            self.spawns = self.spawns or (isinstance(strategy, ast.Constant) and "spawn" in str(strategy.value))
        elif name in ("os.cpu_count", "multiprocessing.cpu_count", "mp.cpu_count", "cpu_count"):
            self.cpu_count_line = self.cpu_count_line or node.lineno
        elif last == "set_device" and node.args and "rank" in ast.unparse(node.args[0]).lower():
            self.set_device_line = node.lineno
        elif name == "wandb.init":
            self.wandb_line = node.lineno
        elif name == "signal.signal" and node.args:
            self.signals.add(_dotted_name(node.args[0]).rsplit(".", 1)[-1])
            self.handlers += node.args[1:2]
        elif last in ("spawn", "start_processes", "mp_spawn") or name in _PROCESS_STARTERS:
            self.spawns = True
        elif last == "add_argument":
            self._argument(node, keywords)
        if "num_workers" in keywords and (number := _integer_literal(keywords["num_workers"])) is not None:
            self.workers.append(number)

    def _argument(self, node: ast.Call, keywords: dict[str, ast.expr]) -> None:
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if any(re.fullmatch(r"--?(?:num[_-]?)?workers", name) for name in names):
            number = _integer_literal(keywords.get("default"))
            self.workers += [number] if number is not None else []


def _unconditional_exit_line(function: ast.FunctionDef | ast.Lambda) -> int | None:
    """Where a function ends the process without any condition on what other processes do."""
    body = function.body if isinstance(function.body, list) else [function.body]
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.Call) and _dotted_name(node.func) in ("sys.exit", "os._exit", "exit", "quit"):
            return node.lineno
        if isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
            return node.lineno
    return None


def _dotted_name(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else parts[0] if parts else ""


def _integer_literal(node: ast.AST | None) -> int | None:
    is_number = isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0
    return node.value if is_number and isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def search_directories(script: Path, chdir: str | None, moves: Sequence[str]) -> Iterator[Path]:
    """Where a script's relative paths may begin: its --chdir, where it goes, where we stand, where it lies."""
    here = Path(os.curdir)
    for base in (here, script.parent):
        for move in (chdir, *moves):
            if move and "$" not in move and "%" not in move:
                yield base / os.path.expanduser(move)
    yield here
    yield script.parent
    yield script.parent.parent
