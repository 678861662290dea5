"""Checks of batch scripts and of planned runs before they cost anything: rules that yield findings."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.doctor.before import check_before
    from shoal.doctor.check import (
        Examined,
        Inputs,
        as_record,
        examine_all,
        examine_nothing,
        examine_text,
        find_files,
        write_fixed,
    )
    from shoal.doctor.cluster import ClusterFacts
    from shoal.doctor.explain import Explained, construct, explain_facts, table
    from shoal.doctor.finding import ORDER, Finding
    from shoal.doctor.request import refuse_impossible
    from shoal.doctor.switching import ASSUMED_EFFICIENCY, Advice, Alternative, Running, advise, batch_notes, size_ratio
else:
    __getattr__ = lazy_exports(__name__)
