"""`shoal report`: what an experiment cost, what was wasted, what failed, and the results.

accounting.py  every attempt of every run; hours requested, allocated, used, idle and wasted; queue wait; failures;
               memory, CPU, GPU and time against the request, with the flag to change
breakdowns.py  a pack against other layouts, the use of each node, staged data
gather.py      all of it as one record, and its JSON document
text.py        for a terminal, as Markdown and as CSV
page.py        as one HTML file
"""
