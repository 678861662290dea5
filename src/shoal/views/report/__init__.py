"""`shoal report`: what an experiment cost, what was wasted, what failed, and the results.

accounting.py  every attempt of every run; queue wait; failures; memory, CPU, GPU and time against the request
advice.py      what to request next time
costs.py       the costs of an allocation: parts that add up, laid on its runs
allocation_costs.py   the allocations of runs, with their costs
prices.py      the same in money, where a profile has a price
check.py       the same beside sacct
breakdowns.py  a pack against other layouts, the use of each node, staged data
search.py      a search: best trial, best so far, importance of parameters, parallel coordinates
gather.py      all of it as one record, and its JSON document
text.py        for a terminal, as Markdown and as CSV
page.py        as one HTML file
"""
