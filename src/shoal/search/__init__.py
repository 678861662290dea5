"""Choose the points of a search, and give its trials to Optuna.

    sampling.py   (results so far, trial) -> its parameters: tpe and gp by Optuna, cmaes and qmc by their libraries;
                  and the trials as an Optuna journal
    __main__.py   the sampler as a process: questions and answers are lines of JSON; started inside jobs
    analysis.py   best value so far and importance of parameters, from trials; no library needed

Optuna, cmaes and scipy are the extra shoal[search]. They are imported inside the functions that need them.
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.search.analysis import Search, best_so_far, importances, read_searches
    from shoal.search.sampling import check_sampler, export_journal
else:
    __getattr__ = lazy_exports(__name__)
