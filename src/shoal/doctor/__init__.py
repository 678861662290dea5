"""Checks of batch scripts and of planned runs before they cost anything: rules that yield findings."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.doctor.check import (
        ScriptCheck,
        TrainingInputs,
        as_record,
        check_scripts,
        check_text,
        facts_without_script,
        find_files,
        write_fixed,
    )
    from shoal.doctor.explain import LaunchNumbers, construct_launch, explain_facts, explain_rows
    from shoal.doctor.finding import SEVERITY_ORDER, Finding
    from shoal.doctor.submit_checks import check_submissions, refuse_impossible
else:
    __getattr__ = lazy_exports(__name__)
