"""What happens when, as a pure function of the seed. Which process is hit depends on what runs at that moment."""

from __future__ import annotations

import random
from typing import NamedTuple

#: Fault -> (weight, shortest and longest time until it is undone).
FAULTS = {
    "freeze controller": (3, 2.0, 10.0),
    "kill controller": (2, 0.5, 4.0),
    "replay controller": (2, 0.5, 2.0),
    "kill agent": (3, 0.0, 0.0),
    "kill guard": (2, 0.0, 0.0),
    "freeze agent": (2, 2.0, 12.0),
    "freeze guard": (1, 2.0, 12.0),
    "freeze all of a run": (2, 4.0, 16.0),
    "kill slurmd": (5, 10.0, 30.0),
    "freeze slurmd": (1, 4.0, 12.0),
    "power cut": (2, 3.0, 12.0),
    "full disk": (3, 2.0, 14.0),
    "requeue": (3, 0.0, 0.0),
    "foreign scancel": (1, 0.0, 0.0),
    "clock jump": (2, 0.0, 0.0),
}
#: These end processes without a word: an end in the same second may be lost with them, whatever a launcher does.
KILLS = ("kill agent", "kill guard", "power cut", "replay controller")
#: These let processes be ended that do not obey in time; frozen ones cannot.
STOPS = ("requeue", "foreign scancel", "kill slurmd")
FREEZES = ("freeze agent", "freeze guard", "freeze all of a run")
COMMANDS = {"submit": 6, "status": 3, "retry": 2, "resume": 1, "cancel": 1}
#: What is done to a command -> weight.
HARM = {"": 10, "kill command": 4, "freeze command": 2, "clock of command": 2}


class Fault(NamedTuple):
    at_s: float
    kind: str
    hold_s: float
    pick: int
    """Which of the processes, nodes or jobs that are there, modulo their number."""


class Command(NamedTuple):
    pause_s: float
    kind: str
    pick: int
    harm: str
    harm_after_s: float
    harm_for_s: float


class Work(NamedTuple):
    """What a run's program does: how long it works, its exit code, and whether a grandchild does the work."""

    seconds: float
    exit_code: int
    forks: bool

    def words(self) -> str:
        return f"seconds={self.seconds:.1f} exit={self.exit_code}{' fork' if self.forks else ''}"


class Plan(NamedTuple):
    seed: int
    faults: list[Fault]
    people: list[list[Command]]
    runs: dict[str, Work]


def make_plan(seed: int, duration_s: float, runs: list[str], people: int = 3) -> Plan:
    chance = random.Random(seed)
    faults = []
    at_s = 3.0
    weights = [weight for weight, _, _ in FAULTS.values()]
    while at_s < duration_s:
        (kind,) = chance.choices(list(FAULTS), weights)
        _, shortest, longest = FAULTS[kind]
        faults.append(Fault(at_s, kind, chance.uniform(shortest, longest), chance.randrange(1 << 16)))
        at_s += chance.uniform(0.5, 2.5)
    orders = [_orders(chance, int(duration_s)) for _ in range(people)]
    # Every seventh run fails on purpose, so that its exit code can be compared.
    work = {
        name: Work(chance.uniform(3, 0.6 * duration_s), 7 if number % 7 == 3 else 0, number % 3 == 1)
        for number, name in enumerate(runs)
    }
    return Plan(seed, faults, orders, work)


def _orders(chance: random.Random, count: int) -> list[Command]:
    return [
        Command(
            chance.uniform(0.3, 2.5),
            chance.choices(list(COMMANDS), list(COMMANDS.values()))[0],
            chance.randrange(1 << 16),
            chance.choices(list(HARM), list(HARM.values()))[0],
            chance.uniform(0.05, 1.5),
            chance.uniform(1, 5),
        )
        for _ in range(count)
    ]
