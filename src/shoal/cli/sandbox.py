"""A real Slurm cluster on this machine, to try things out or to test against.

eval "$(shoal sandbox up -q)"                 four nodes with four GPUs each; this shell's sbatch now goes there
shoal sandbox up --name other --partitions a100:3d,cpu:12h --gpu-type a100
shoal sandbox up --name books --accounting    with slurmdbd: accounts lab and small, QOS normal and high
shoal sandbox up --name new --slurm 26.05     another release of Slurm than the installed one
shoal sandbox status
shoal sandbox down
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time

from shoal.cli.options import exit_on_sigterm, refuse_unused_flags
from shoal.sandbox import (
    SUITES,
    Sandbox,
    SandboxSpec,
    SandboxStatus,
    check_sandbox_name,
    default_slurm,
    load_sandbox,
    parse_partitions,
    parse_setting,
    sandbox_names,
)
from shoal.units import parse_memory_mb

_DEFAULT = SandboxSpec()


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="up|down|status")
    up = actions.add_parser("up", help="start it and print the export line")
    _configure_up(up)
    down = actions.add_parser("down", help="stop exactly what up started")
    down.add_argument("--all", action="store_true", help="every sandbox of this user")
    status = actions.add_parser("status", help="what runs, of one sandbox or of all")
    for action, default in ((up, _DEFAULT.name), (down, _DEFAULT.name), (status, None)):
        action.add_argument("--name", default=default, help=f"which sandbox (default: {default or 'all'})")
        action.add_argument("--json", action="store_true", help="one document on stdout")
    for action in (up, down):
        action.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr unless it fails")


def _configure_up(up: argparse.ArgumentParser) -> None:
    _add_number(up, "--nodes", _DEFAULT.nodes, "default: %(default)s")
    _add_number(up, "--gpus", _DEFAULT.gpus, "per node, make-believe (default: %(default)s)")
    up.add_argument("--gpu-type", default=_DEFAULT.gpu_type, metavar="TYPE", help="default: %(default)s")
    _add_number(up, "--cpus", _DEFAULT.cpus, "per node, as claimed (default: %(default)s)")
    up.add_argument(
        "--memory", default=f"{_DEFAULT.memory_mb}M", metavar="SIZE", help="per node (default: %(default)s)"
    )
    up.add_argument(
        "--partitions",
        default="main:3d,low:12h",
        metavar="NAME[:MAXTIME],...",
        help="over all nodes, the first is the default one and preempts the others (default: %(default)s)",
    )
    up.add_argument("--accounting", action="store_true", help="MariaDB and slurmdbd, accounts, QOS, limits, sacct")
    up.add_argument("--hosts", action="store_true", help="nodes with an address and host name of their own (root)")
    up.add_argument("--cgroups", choices=("auto", "on", "off"), default="auto", help="memory limits that kill (root)")
    up.add_argument(
        "--slurm",
        default=default_slurm(),
        metavar="RELEASE",
        help=f"{', '.join(SUITES)}: built once from Debian's packages (default: the installed Slurm)",
    )
    up.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a slurm.conf key; may be repeated")
    up.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS", help="give up after (default: 60)")


def _add_number(up: argparse.ArgumentParser, flag: str, default: int, help_text: str) -> None:
    up.add_argument(flag, type=int, default=default, metavar="N", help=help_text)


def run(args: argparse.Namespace) -> int:
    return {"up": _up, "down": _down, "status": _status}[args.action](args)


def _up(args: argparse.Namespace) -> int:
    begin = time.monotonic()
    exit_on_sigterm()  # so that a half-started sandbox is taken down
    sandbox = Sandbox(_spec(args))
    is_new = sandbox.up(deadline_s=args.deadline, tell=lambda line: None if args.quiet else _tell(line))
    programs = sandbox.programs
    if args.json:
        _print_json(name=sandbox.spec.name, slurm_conf=str(sandbox.conf_path), programs=programs, started=is_new)
    else:
        print("\n".join(_export_lines(str(sandbox.conf_path), programs)))
    if not args.quiet:
        how = f"is up after {time.monotonic() - begin:.1f} s" if is_new else "was up already"
        _tell(f"sandbox {args.name} {how}; to stop it: shoal sandbox down --name {args.name}")
    return 0


def _down(args: argparse.Namespace) -> int:
    check_sandbox_name(args.name)
    refuse_unused_flags(args, args.all, "with --all", "--name")
    wanted = sandbox_names() if args.all else [args.name]
    stopped = [name for name in wanted if Sandbox(SandboxSpec(name=name)).down()]
    if args.json:
        _print_json(stopped=stopped)
    if not args.quiet:
        sys.stderr.write("".join(f"sandbox {name} is down\n" for name in stopped) or "nothing to stop\n")
    return 0


def _status(args: argparse.Namespace) -> int:
    if args.name is not None:
        check_sandbox_name(args.name)
    wanted = sandbox_names() if args.name is None else [args.name]
    found = [sandbox.status() for name in wanted if (sandbox := load_sandbox(name)) is not None]
    if args.json:
        import msgspec

        _print_json(sandboxes=msgspec.to_builtins(found))
    else:
        print("\n\n".join(_as_text(status) for status in found) or "no sandbox is up")
    return 0 if found or args.name is None else 1


def _spec(args: argparse.Namespace) -> SandboxSpec:
    return SandboxSpec(
        name=args.name,
        nodes=args.nodes,
        gpus=args.gpus,
        gpu_type=args.gpu_type,
        cpus=args.cpus,
        memory_mb=parse_memory_mb(args.memory, place="--memory"),
        partitions=parse_partitions(args.partitions),
        accounting=args.accounting,
        hosts=args.hosts,
        cgroups=args.cgroups,
        slurm=args.slurm,
        settings=tuple(parse_setting(text) for text in args.set),
    )


def _as_text(status: SandboxStatus) -> str:
    parts = [f"{len(status.nodes)} nodes x {status.gpus_per_node} GPUs ({status.gpu_type})"]
    parts.append(f"partitions {', '.join(status.partitions)}")
    parts += [word for word in ("accounting", "hosts", "cgroups") if getattr(status, word)]
    if status.slurm_version:
        parts.insert(0, f"Slurm {status.slurm_version}")
    lines = [f"{status.name}: {status.state}; {'; '.join(parts)}"]
    lines += [f"  {line}" for line in _export_lines(status.slurm_conf, status.programs)]
    states = {node.name: f"  {node.state}" for node in status.nodes}
    lines += [f"  {d.name:<24} {d.state:<8} {d.pid or '-':<8}{states.get(d.name, '')}".rstrip() for d in status.daemons]
    return "\n".join(lines)


def _export_lines(slurm_conf: str, programs: str | None) -> list[str]:
    """What makes a shell speak to the sandbox: its configuration, and its commands where they are not the installed."""
    path = [f'export PATH={shlex.quote(programs)}:"$PATH"'] if programs else []
    return [f"export SLURM_CONF={shlex.quote(slurm_conf)}", *path]


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _print_json(**document: object) -> None:
    import json

    print(json.dumps({"schema": 1, **document}))
