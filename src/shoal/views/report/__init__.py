"""`shoal report`: what an experiment cost, what was wasted, what failed and what came out.

history.py      every attempt of every run, from the run folders
account.py      hours asked for, held, used, idle and lost; queue wait; failures by cause
efficiency.py   memory, CPU, GPU and time against what was asked for; the exact flag to change
nodes.py        what each node was used for, where several told
results.py      metrics over seeds
gather.py       all of it as one record; document() is its JSON
text.py page.py tables.py    for a terminal, as one HTML file, as Markdown and CSV
"""
