# The bash functions of shoal. An experiment script begins with:
#
#     source "$(shoal shell)"
#
# and then calls one step of the project, with any sbatch flag, and `--` before arguments for the program:
#
#     train --gres=gpu:4 --time=3-00:00:00 -- --lr 0.1
#
# What the script exports between the two lines is the run's configuration. `posttrain CHECKPOINT` (unless shoal.toml
# declares a step of that name) and `resume RUN_OR_DIR` before a step say what that step starts from or continues.

if [ -z "${BASH_VERSION:-}" ]; then
    echo 'error: experiment scripts are bash scripts; run this one with bash' >&2
    exit 2
fi

# The script itself, also where a file that it sources sources this one.
if [ "${#BASH_SOURCE[@]}" -gt 1 ]; then
    __shoal_script=${BASH_SOURCE[${#BASH_SOURCE[@]}-1]}
else
    __shoal_script=$0
fi

# What `posttrain CHECKPOINT` or `resume RUN_OR_DIR` says about the next step: its name and its word. And the lines on
# which such a call has no step behind it.
__shoal_modifier=()
__shoal_alone=

# Where a step that failed in a pipe or a subshell leaves its exit code for the script.
__shoal_failed=${TMPDIR:-/tmp}/shoal-failed-$UID-$$-$RANDOM$RANDOM

__shoal_run() {
    local code=0
    SHOAL_SHELL_BASE=$__shoal_base command shoal shell --call "$1" --script "$__shoal_script" \
        ${__shoal_modifier[@]+--modifier "${__shoal_modifier[@]}"} -- "${@:2}" || code=$?
    __shoal_modifier=()
    return "$code"
}

# One call of a step. If it fails, the script ends, so that nothing that builds on it starts.
__shoal_call() {
    local code=0
    __shoal_end
    __shoal_run "$@" || code=$?
    [ "$code" -ne 0 ] || return 0
    case $- in *i*) return "$code" ;; esac
    # In a pipe or a subshell `exit` would end no more than that, so the script is told. Scripts handle TERM in their own
    # way; URG does nothing to a process that does not handle it, such as one that has the number of a script that ended.
    if [ "$BASHPID" != "$$" ]; then
        (umask 077; set -C; echo "$code" > "$__shoal_failed") 2> /dev/null
        kill -s URG "$$" 2> /dev/null || rm -f "$__shoal_failed"
    fi
    exit "$code"
}

# End the script if one of its steps has failed elsewhere, with the exit code of that step.
__shoal_end() {
    local code=
    [ -O "$__shoal_failed" ] && read -r code < "$__shoal_failed"
    [ -n "$code" ] || return 0
    [ "$BASHPID" != "$$" ] || rm -f "$__shoal_failed"
    exit "$code"
}

# With a checkpoint or a run alone: about the next step, if one follows. A subshell could not tell that step, so there
# it is a call. A run that was post-trained from a checkpoint is resumed from its own, so `resume` replaces `posttrain`.
__shoal_modify() {
    [ "$1" != resume ] || [ "${__shoal_modifier[0]:-}" != posttrain ] || __shoal_modifier=()
    if [ "$#" -ne 2 ] || [ "${2#-}" != "$2" ] || [ "${#__shoal_modifier[@]}" -gt 0 ] || [ "$BASHPID" != "$$" ] ||
        { [ "${BASH_SOURCE[2]:-}" = "$__shoal_script" ] && [[ $__shoal_alone == *" ${BASH_LINENO[1]:-} "* ]]; }; then
        __shoal_call "$@"
        return
    fi
    __shoal_modifier=("$@")
    case $(trap -p EXIT) in
        *__shoal_finish*) ;;
        *)
            __shoal_trap=$(trap -p EXIT)
            trap '__shoal_finish "$?"' EXIT
            ;;
    esac
}

# At the end of the script: a modifier without a step behind it is a call by itself. What the script had set to happen
# at its end comes after it.
__shoal_finish() {
    local code=$1
    trap - EXIT
    if [ "$code" -eq 0 ] && [ "${#__shoal_modifier[@]}" -gt 0 ]; then
        local words=("${__shoal_modifier[@]}")
        __shoal_modifier=()
        __shoal_run "${words[@]}" || code=$?
    fi
    if [ -n "$__shoal_trap" ]; then
        eval "set -- $__shoal_trap"
        eval "$3"
    fi
    exit "$code"
}

# One function for each step, the run's names, and a fingerprint of the environment as it is now.
if ! __shoal_definitions=$(command shoal shell --define "$__shoal_script"); then
    case $- in
        *i*) return 2 ;;
        *) exit 2 ;;
    esac
fi
eval "$__shoal_definitions"
unset __shoal_definitions
case $- in
    *i*) ;;
    *) trap '__shoal_end' URG ;;
esac
