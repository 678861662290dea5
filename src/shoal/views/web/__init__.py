"""`shoal ui`: a page in the browser over the same records as the commands, for one person, on this machine.

api.py      what the page shows, as JSON: runs that changed since the last request, logs, metrics, reports
experiment.py run_facts.py cluster.py   groups, metrics and curves; attempts, provenance and files of a run; the cluster
server.py   HTTP: one thread per request, time limits, and access by token, cookie, Host and Origin
serve.py    start and stop the server; export the page as files that need no server
bundle.py   scripts and answers of an exported page
static/     the page itself: one HTML file, one style, scripts; nothing is loaded from the network
"""
