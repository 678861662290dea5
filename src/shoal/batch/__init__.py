"""Batch scripts as text: bash words and commands, #SBATCH lines, sbatch flags, and quoting."""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.batch.directives import Directives, Option, is_template, parse_words, read_directives
    from shoal.batch.flags import DASHES, OWNED, SbatchFlags, known_options, option_name, parse_flags, short_names
    from shoal.batch.quoting import directive, escape_percent, refuse_line_breaks, shell_command, shell_quote
    from shoal.batch.shell_commands import Command, Parsed, parse_shell
    from shoal.batch.shell_words import Problem, tokenize
    from shoal.batch.text import SLURM_MOST_BYTES, Text, decode, read_text
else:
    __getattr__ = lazy_exports(__name__)
