"""Batch scripts as text: bash words and commands, #SBATCH lines, sbatch flags, and quoting. Nothing is executed.

directives.py      the bytes of a script as lines, and its #SBATCH lines as sbatch reads them
sbatch_flags.py    sbatch flags: the portable ones as a Request, the rest unchanged
shell_words.py     words, operators and here-documents of a bash script
shell_commands.py  the simple commands of a bash script, each with its context
quoting.py         values as shell words and as #SBATCH lines
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.batch.directives import (
        SLURM_MAX_BYTES,
        SbatchOption,
        ScriptDirectives,
        ScriptText,
        decode_text,
        is_template,
        parse_option_words,
        partitions_asked,
        read_directives,
        read_text,
    )
    from shoal.batch.quoting import escape_percent, refuse_line_breaks, sbatch_lines, shell_command, shell_quote
    from shoal.batch.sbatch_flags import (
        DASHES,
        RESERVED_OPTIONS,
        SbatchFlags,
        known_options,
        option_name,
        parse_flags,
        short_names,
    )
    from shoal.batch.shell_commands import ParsedScript, ShellCommand, command_of, parse_shell
    from shoal.batch.shell_words import SyntaxProblem, tokenize
else:
    __getattr__ = lazy_exports(__name__)
