"""From a laptop: commands of shoal, executed on a cluster over the user's own ssh.

ssh.py       arguments of ssh, the shared connection of `shoal connect`, what its errors mean
channel.py   one connection: requests, replies, deadlines
stub.py      the program at its other end; standard library, Python 3.6
package.py   shoal itself, brought to clusters that have none
code.py      the project's code, by content
notes.py     orders that no answer is known of
orders.py    execute a command there: a look, or an order that is carried out once
pull.py      files of a run's output directory, brought here

Nothing on a cluster can make this machine do anything: what comes back is text, exit codes, and files that a person
asked for, below a directory that was chosen here.
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.remote import ssh
    from shoal.remote.code import project_code, project_settings
    from shoal.remote.orders import OutputSink, RemoteCommand, RemoteProject, look, order
    from shoal.remote.pull import OutputListing, Pull, PulledFile, choose_files, list_output, parse_listing
    from shoal.remote.ssh import RemoteHost
else:
    __getattr__ = lazy_exports(__name__)
