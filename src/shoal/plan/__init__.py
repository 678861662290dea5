"""From an experiment to submissions, changing nothing.

calls.py        run an experiment script in collecting mode: which steps it calls, with what, under which settings
directives.py   the #SBATCH lines of an experiment script
describe.py     a call, or a recorded run, -> RunSpec
inputs.py       the word behind `posttrain` or `resume` -> a checkpoint
submissions.py  RunSpecs -> jobs and arrays, their options and their script
"""
