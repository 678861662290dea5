"""`shoal ui`: a page in the browser over the same records as the commands, for one person, on this machine.

guard.py    who may ask: token, cookie, Host and Origin; pure
feed.py     what the page shows: runs with what changed since last time, logs in slices, metrics, reports
export.py   a copy of the page as files that need no server
server.py   HTTP: one thread per request, time limits, the headers that keep a browser honest
static/     the page itself: one HTML file, one style, one script; nothing comes from the network
"""
