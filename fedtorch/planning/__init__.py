"""Planning: what a run will do and cost, before it. The dry run, and the time and memory on other machines."""
