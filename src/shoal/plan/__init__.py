"""From run specs and a cluster profile to submissions: jobs, arrays and packs, their options, scripts and cost."""
