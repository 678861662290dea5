"""Which run has which slot, GPU share and CPUs. Pure: no run is started here, and nothing is assigned twice."""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

#: A GPU in parts: 0.25 is 250,000. Whole numbers add up exactly, and a third three times fits on one GPU.
GPU_PARTS = 1000000


class Demand(NamedTuple):
    """What one run takes: parts of a GPU (several whole ones, or a share of a single one), CPUs, and slots.

    More than one slot is a larger part of the node's memory: the slots beside its own stay empty.
    """

    gpus: int = 0
    cpus: int = 0
    slots: int = 1


class Assignment(NamedTuple):
    """What a run holds until it ends. `gpus` are places in the node's list; `share` is its part of each of them;
    `empty` are slots that are kept free beside its own.
    """

    slot: int
    gpus: Tuple[int, ...] = ()
    share: int = 0
    cpus: Tuple[int, ...] = ()
    empty: Tuple[int, ...] = ()


def count_gpu_parts(gpus: float) -> int:
    """0.25 -> 250,000; ValueError for what no run can have."""
    if gpus < 0 or gpus != gpus or gpus > 1024:
        raise ValueError("a run cannot have %r GPUs" % gpus)
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("a run has a share of one GPU or several whole ones, not %g" % gpus)
    found = int(gpus * GPU_PARTS + 1e-6)
    if gpus > 0 and found < GPU_PARTS // 1000:
        raise ValueError("a thousandth of a GPU is the smallest share")
    return found


def even_share(slots: int, gpus: int) -> int:
    """What each of `slots` runs gets of `gpus` when nothing else was said: a share of one, or several whole ones."""
    if not gpus:
        return 0
    return GPU_PARTS // -(-slots // gpus) if slots >= gpus else GPU_PARTS * (gpus // slots)


class Allocator:
    """The resources of one node, or of several equal ones: on each at most `slots` runs at a time, `gpus` devices and
    these CPUs. The slots are counted through, so that slot // per_node is the node.

    `keep_whole` puts shares onto GPUs that are shared already, because runs that need whole ones are waiting; without
    it shares go to the emptiest GPU, where they run fastest.
    """

    def __init__(self, slots: int, gpus: int, cpus: Sequence[int], keep_whole: bool = False, nodes: int = 1) -> None:
        self.per_node, self.slots, self.keep_whole = slots, slots * nodes, keep_whole
        firsts = range(0, self.slots, slots)
        self._nodes = [_NodeAllocator(range(first, first + slots), gpus, cpus, keep_whole) for first in firsts]

    @property
    def held(self) -> List[Assignment]:
        return [assignment for node in self._nodes for assignment in node.held.values()]

    @property
    def is_full(self) -> bool:
        return not any(node.free_slots for node in self._nodes)

    @property
    def is_closed(self) -> bool:
        return not any(node.slots for node in self._nodes)

    def never(self, need: Demand) -> Optional[str]:
        """Why a run could not even run alone here, or None."""
        found = [node.never(need) for node in self._nodes]
        return None if None in found else found[0]

    def take(self, need: Demand) -> Optional[Assignment]:
        """Lend what a run needs, or None while it is not free; from the emptiest node that has it, or the fullest."""
        sign = 1 if self.keep_whole else -1
        for node in sorted(self._nodes, key=lambda node: sign * len(node.free_slots)):
            assignment = node.take(need)
            if assignment is not None:
                return assignment
        return None

    def give(self, assignment: Assignment) -> None:
        """Take back what a run held; an assignment that was not lent, or was given back before, is a bug of ours."""
        self._nodes[assignment.slot // self.per_node].give(assignment)

    def close(self, slot: int) -> None:
        """Nothing can be started in a slot any more; one that is lent still is closed when it comes back."""
        self._nodes[slot // self.per_node].close(slot)


class _NodeAllocator:
    def __init__(self, slots: Sequence[int], gpus: int, cpus: Sequence[int], keep_whole: bool) -> None:
        self.keep_whole = keep_whole
        self.slots = set(slots)
        self.free_slots = list(slots)
        self._free_parts = [GPU_PARTS] * gpus
        self._free_cpus = sorted(cpus)
        self._all_cpus = len(self._free_cpus)
        self.held: Dict[int, Assignment] = {}

    def never(self, need: Demand) -> Optional[str]:
        if need.gpus > GPU_PARTS * len(self._free_parts):
            return "it needs %g GPUs and this node has %d" % (need.gpus / GPU_PARTS, len(self._free_parts))
        if need.cpus > self._all_cpus:
            return "it needs %d CPUs and this node has %d" % (need.cpus, self._all_cpus)
        if need.slots > len(self.slots):
            return "it needs %d slots and this node has %d" % (need.slots, len(self.slots))
        return None

    def take(self, need: Demand) -> Optional[Assignment]:
        if len(self.free_slots) < need.slots or len(self._free_cpus) < need.cpus:
            return None
        gpus = self._choose(need.gpus)
        if gpus is None:
            return None
        share = 0 if not gpus else min(need.gpus, GPU_PARTS)
        for index in gpus:
            self._free_parts[index] -= share
        slots, self.free_slots = self.free_slots[: need.slots], self.free_slots[need.slots :]
        cpus, self._free_cpus = self._free_cpus[: need.cpus], self._free_cpus[need.cpus :]
        self.held[slots[0]] = Assignment(slots[0], gpus, share, tuple(cpus), tuple(slots[1:]))
        return self.held[slots[0]]

    def give(self, assignment: Assignment) -> None:
        if self.held.pop(assignment.slot, None) != assignment:
            raise ValueError("slot %d was not lent like this" % assignment.slot)
        back = [slot for slot in (assignment.slot, *assignment.empty) if slot in self.slots]
        self.free_slots = sorted([*self.free_slots, *back])
        self._free_cpus = sorted([*self._free_cpus, *assignment.cpus])
        for index in assignment.gpus:
            self._free_parts[index] += assignment.share

    def close(self, slot: int) -> None:
        self.slots.discard(slot)
        self.free_slots = [free for free in self.free_slots if free != slot]

    def _choose(self, wanted: int) -> Optional[Tuple[int, ...]]:
        if wanted == 0:
            return ()
        if wanted >= GPU_PARTS:
            empty = [index for index, free in enumerate(self._free_parts) if free == GPU_PARTS]
            return tuple(empty[: wanted // GPU_PARTS]) if len(empty) >= wanted // GPU_PARTS else None
        fitting = [index for index, free in enumerate(self._free_parts) if free >= wanted]
        if not fitting:
            return None
        sign = 1 if self.keep_whole else -1
        return (min(fitting, key=lambda index: (sign * self._free_parts[index], index)),)
