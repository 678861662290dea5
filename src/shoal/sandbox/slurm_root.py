"""Slurm of another release than the installed one: Debian's packages unpacked into a folder, once.

    root = ensure_slurm_root("24.11")    built at the first call (less than a minute), later found
    root.programs                        sbatch, slurmctld, ...: a folder for the front of PATH
    root.plugins                         PluginDir of slurm.conf

The folder is a root file system in the user's cache, and no command ever enters it: its programs name their own loader
and their own libraries (patchelf), so they start on this machine's root, where jobs find their Python, their data and
their project. Nothing is mounted, nothing is installed, and root is not needed. apt fetches the packages, with
directories of its own: it checks the archive's signature and each package's checksum, and asks the mirror that this
machine is set to.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from shoal.errors import InputError, ShoalError
from shoal.sandbox.paths import SlurmRoot, directory_lock, open_home, write_atomically

SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "forky"}
"""Releases of Slurm, and the Debian suite that has each."""

#: Packages of another suite. slurmdbd 26.05 does not start with Connector/C 3.4.10 ("Number of columns in result (=1)
#: ... maximum allowed number of columns (=0)"), and does with 3.4.9.
_PACKAGES_OF_OTHER_SUITES = {"26.05": (("libmariadb3", "trixie"),)}

MIRROR_VARIABLE = "SHOAL_DEBIAN_MIRROR"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PACKAGES = (
    "slurm-wlm", "slurmdbd", "slurm-wlm-mysql-plugin", "munge", "mariadb-server-core", "mariadb-client-core",
    "patchelf",
)  # fmt: skip
#: What the front of PATH gets; the root's tar, sed or perl must not hide this machine's.
_PROGRAMS = (
    "slurmctld", "slurmd", "slurmdbd", "slurmstepd", "munge", "munged", "unmunge", "mariadbd", "mariadb-install-db",
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab", "sdiag", "sinfo",
    "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger",
)  # fmt: skip
_OPTIONAL_PROGRAMS = ("scrontab",)
#: Called by mariadb-install-db, which is a shell script.
_MORE_PATCHED = ("my_print_defaults", "resolveip")
_NOT_UNPACKED = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info")
_MERGED_DIRECTORIES = ("bin", "lib", "lib64", "sbin")
_BUILD_DEADLINE_S = 900.0
_MAX_SHOWN_LINES = 6


def slurm_roots_dir() -> Path:
    """Where the roots of this user are."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).absolute() / "shoal" / "slurm"


def find_slurm_root(release: str) -> SlurmRoot | None:
    """The root of this release if it is built, and lies where it was built."""
    folder = slurm_roots_dir() / release
    try:
        root = msgspec.json.decode(_record(folder).read_bytes(), type=SlurmRoot)
    except (OSError, msgspec.DecodeError):
        return None
    return root if Path(root.folder) == folder else None


def ensure_slurm_root(release: str, tell: Callable[[str], None] = lambda line: None) -> SlurmRoot:
    """The root of this release, built now if there is none; `tell` gets one line before a build begins.

    After an error, an interruption included, nothing of the new root is left; what a killed build left goes at the
    beginning of the next one. Two commands that want the same root build it once.
    """
    if release not in SUITES:
        raise InputError(
            f"there is no Slurm {release!r} to build", hint=f"take one of --slurm {', '.join(SUITES)}", place="--slurm"
        )
    if root := find_slurm_root(release):
        return root
    _check_tools()
    folder = slurm_roots_dir()
    open_home(folder.parent)
    with directory_lock(folder, _BUILD_DEADLINE_S):
        if root := find_slurm_root(release):
            return root
        for leftover in folder.glob(".building-*"):
            shutil.rmtree(leftover)
        tell(f"building Slurm {release} from Debian {SUITES[release]} in {folder / release}, once")
        return _build(release, folder / release, folder / f".building-{release}")


def _build(release: str, final: Path, building: Path) -> SlurmRoot:
    try:
        building.mkdir()
        steps = _Build(release, building, final)
        version = steps.fetch_packages()
        steps.unpack()
        root = steps.finish(version)
        if final.exists():
            shutil.rmtree(final)  # moved from elsewhere, or of an older format
        building.rename(final)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    try:
        _try_out(root)
    except BaseException:
        shutil.rmtree(final, ignore_errors=True)
        raise
    return root


def _try_out(root: SlurmRoot) -> None:
    """Start the programs that matter: a library that is missing is told now and not by a daemon's log."""
    for name in ("slurmctld", "slurmd", "munged", "mariadbd"):
        done = subprocess.run([root.programs / name, "-V"], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            problem = _last_lines(done.stdout + done.stderr)
            raise ShoalError(f"{name} of Slurm {root.version} does not start on this machine: {problem}")


class _Build:
    def __init__(self, release: str, folder: Path, final: Path) -> None:
        self.release = release
        self.suite = SUITES[release]
        self.folder = folder
        self.final = final
        self.apt = folder / "apt"
        self.archives = self.apt / "cache/archives"
        self.deadline = time.monotonic() + _BUILD_DEADLINE_S

    def fetch_packages(self) -> str:
        """Download all packages that Slurm needs, checked by apt; returns Slurm's version there."""
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self.apt / name).mkdir(parents=True)
        (self.apt / "status").touch()
        mirror = _mirror()
        others = _PACKAGES_OF_OTHER_SUITES.get(self.release, ())
        suites = dict.fromkeys((self.suite, *(suite for _, suite in others)))
        lines = [f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n" for suite in suites]
        (self.apt / "sources.list").write_text("".join(lines))
        of_this_machine = _run(["apt-config", "dump", "Acquire"], self._rest_s())
        (self.apt / "apt.conf").write_text(of_this_machine + self._apt_settings())
        hint = f"can this machine reach {mirror}? Another mirror: export {MIRROR_VARIABLE}=http://<host>/debian"
        self._apt_get("update", problem=f"Debian {self.suite} cannot be fetched from {mirror}", hint=hint)
        version = self._candidate()
        if not version.startswith(f"{self.release}."):
            raise ShoalError(
                f"Debian {self.suite} has Slurm {version or '(none)'} now, not {self.release}",
                hint=f"take another of --slurm {', '.join(SUITES)}",
            )
        install = ("--yes", "--no-install-recommends", "--download-only", "install", *_PACKAGES)
        self._apt_get(*install, problem=f"the packages of Slurm {self.release} cannot be fetched", hint=hint)
        for package, suite in others:
            for replaced in self.archives.glob(f"{package}_*.deb"):
                replaced.unlink()
            self._apt_get("download", f"{package}/{suite}", problem=f"{package} cannot be fetched", hint=hint)
        return version

    def unpack(self) -> None:
        """Unpack the packages; none of their scripts is run."""
        for name in _MERGED_DIRECTORIES:
            (self.folder / "usr" / name).mkdir(parents=True, exist_ok=True)
            (self.folder / name).symlink_to(f"usr/{name}")
        excluded = [f"--exclude={path}" for path in _NOT_UNPACKED]
        tar = ["tar", "-x", "-C", str(self.folder), "--keep-directory-symlink", *excluded]
        tar += ["--no-same-owner", "--no-same-permissions"]  # no file of another user, none that is setuid
        for package in sorted(self.archives.glob("*.deb")):
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as reading:
                done = subprocess.run(tar, stdin=reading.stdout, capture_output=True, text=True)
            if done.returncode != 0 or reading.returncode != 0:
                raise ShoalError(f"{package.name} cannot be unpacked: {_last_lines(done.stderr)}")
        shutil.rmtree(self.apt)

    def finish(self, version: str) -> SlurmRoot:
        """Make every program use the root's own loader and libraries, and write the record."""
        libraries = next(self.folder.glob("usr/lib/*-linux-gnu*/libc.so.6")).parent
        plugins = libraries / "slurm-wlm"
        loader = next(iter(sorted(libraries.glob("ld-linux*.so.*"))))
        patchelf = [str(loader), "--library-path", str(libraries), str(self.folder / "usr/bin/patchelf")]
        rpath = f"{self._final(plugins)}:{self._final(libraries)}"
        patch = [*patchelf, "--set-interpreter", str(self._final(loader)), "--force-rpath", "--set-rpath", rpath]
        programs = self.folder / "programs"
        programs.mkdir()
        for name in (*_PROGRAMS, *_MORE_PATCHED):
            path = self._program(name)
            if path is None and name in _OPTIONAL_PROGRAMS:
                continue
            if path is None:
                raise ShoalError(f"Debian {self.suite} has no {name} in the packages of Slurm {self.release}")
            if path.read_bytes()[:4] == b"\x7fELF":
                _run([*patch, str(path)], self._rest_s())
            if name in _PROGRAMS:
                (programs / name).symlink_to(self._final(path))
        root = SlurmRoot(
            release=self.release,
            version=version,
            suite=self.suite,
            folder=str(self.final),
            plugins=str(self._final(plugins)),
        )
        write_atomically(_record(self.folder), msgspec.json.format(msgspec.json.encode(root), indent=2))
        return root

    def _final(self, path: Path) -> Path:
        return self.final / path.relative_to(self.folder)

    def _program(self, name: str) -> Path | None:
        """Where the packages have it: Debian's own names end in -wlm where an installation would add a link."""
        names = [f"usr/{folder}/{name}{end}" for folder in ("bin", "sbin") for end in ("", "-wlm")]
        return next((path for file in names if (path := self.folder / file).is_file()), None)

    def _apt_settings(self) -> str:
        """apt.conf: directories of our own, and of this machine's settings only those of Acquire, such as proxies."""
        directories = {
            "State": self.apt / "state",
            "State::status": self.apt / "status",
            "Cache": self.apt / "cache",
            "Etc::sourcelist": self.apt / "sources.list",
            "Etc::sourceparts": os.devnull,
            "Etc::preferences": os.devnull,
            "Etc::preferencesparts": os.devnull,
            "Etc::main": os.devnull,
            "Etc::parts": os.devnull,
        }
        lines = [f'Dir::{name} "{path}";' for name, path in directories.items()]
        # apt would fetch as the user _apt, who cannot enter a private cache.
        lines += ['APT::Sandbox::User "root";', 'Acquire::Languages "none";']
        return "\n".join(lines) + "\n"

    def _env(self) -> dict[str, str]:
        return {**os.environ, "APT_CONFIG": str(self.apt / "apt.conf"), "LC_ALL": "C"}

    def _apt_get(self, *words: str, problem: str, hint: str) -> None:
        # Without Error-Mode a suite that cannot be reached is a warning, and exit code 0.
        argv = ["apt-get", "-qq", "-o", "APT::Update::Error-Mode=any", *words]
        done = _complete(argv, self._rest_s(), self._env(), self.archives)
        if done.returncode != 0:
            raise ShoalError(f"{problem}: {_last_lines(done.stderr or done.stdout)}", hint=hint)

    def _candidate(self) -> str:
        """Slurm's version in the suite, as "24.11.5"."""
        done = _complete(["apt-cache", "show", "--no-all-versions", "slurm-wlm"], self._rest_s(), self._env())
        lines = [line for line in done.stdout.splitlines() if line.startswith("Version:")]
        return lines[0].split()[1].partition("-")[0] if lines else ""

    def _rest_s(self) -> float:
        return max(1.0, self.deadline - time.monotonic())


def _check_tools() -> None:
    missing = [name for name in ("apt-get", "apt-cache", "apt-config", "dpkg-deb", "tar") if not shutil.which(name)]
    if missing or platform.system() != "Linux":
        raise ShoalError(
            f"--slurm unpacks Debian's packages, and this machine has no {', '.join(missing) or 'Linux'}",
            hint="leave out --slurm, or run it on Debian or Ubuntu",
        )
    if not _KEYRING.exists():
        sudo = "" if os.geteuid() == 0 else "sudo "
        raise ShoalError(
            f"the keys that sign Debian's packages are not here ({_KEYRING})",
            hint=f"{sudo}apt-get install -y debian-archive-keyring",
        )


def _mirror() -> str:
    """Where this machine gets Debian's packages from: $SHOAL_DEBIAN_MIRROR, or what apt is set to."""
    if chosen := os.environ.get(MIRROR_VARIABLE):
        if chosen.split() != [chosen]:
            raise InputError(f"{chosen!r} is not an address", place=MIRROR_VARIABLE)
        return chosen
    fields = "$(ORIGIN)|$(LABEL)|$(RELEASE)|$(REPO_URI)"
    rows = [line.split("|") for line in _run(["apt-get", "indextargets", "--format", fields], 60.0).splitlines()]
    named = [row[3] for row in rows if len(row) == 4 and row[:2] == ["Debian", "Debian"]]
    # Where the lists were removed, as in images of containers, apt does not know who made an archive.
    known = [row[3] for row in rows if len(row) == 4 and row[0] in ("", "$(ORIGIN)") and row[2] in SUITES.values()]
    for address in (*named, *known):
        return address
    raise ShoalError(
        "apt on this machine is not set to an archive of Debian",
        hint=f"name a mirror: export {MIRROR_VARIABLE}=http://<host>/debian",
    )


def _run(argv: Sequence[str], timeout_s: float) -> str:
    done = _complete(argv, timeout_s, dict(os.environ))
    if done.returncode != 0:
        raise ShoalError(f"{Path(argv[0]).name} failed: {_last_lines(done.stderr or done.stdout)}")
    return done.stdout


def _complete(
    argv: Sequence[str], timeout_s: float, env: dict[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise ShoalError(f"the build did not end within {_BUILD_DEADLINE_S:.0f} s, in {Path(argv[0]).name}")


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-_MAX_SHOWN_LINES:]) or "no message"


def _record(folder: Path) -> Path:
    return folder / "slurm-root.json"
