# The bash functions of shoal. An experiment script begins with:
#
#     source "$(shoal shell)"
#
# and then calls one step of the project, with any sbatch flag, and `--` before arguments for the program:
#
#     train --gres=gpu:4 --time=3-00:00:00 -- --lr 0.1
#
# What the script exports between the two lines is the run's configuration.

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

__shoal_call() {
    SHOAL_SHELL_BASE=$__shoal_base command shoal shell --call "$1" --script "$__shoal_script" -- "${@:2}"
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
